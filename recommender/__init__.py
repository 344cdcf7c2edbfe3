"""History into advice; never acts. Imports `engine`. Start at `recommender.findings.suggestions`."""
