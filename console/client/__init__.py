"""What can be asked of a cell, and the ways to ask it from another process. Imports the typed answers of engine,
recommender and runbooks. Start at `protocol`."""
