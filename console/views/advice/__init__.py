"""Views of suggestions, forecasts, costs and quotes. Imports text and `recommender`'s answers. Start at
`suggestions`."""
