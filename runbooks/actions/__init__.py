"""The catalogue of actions: parameters, effects, inverses, tiers, words. Imports `engine` and `runbooks.plans`. Start
at `catalogue`."""
