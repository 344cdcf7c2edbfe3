"""The questions that a client can ask of a cell, and the ways to ask them from another process. Imports the typed
answers of engine, recommender and runbooks. Start at `protocol`."""
