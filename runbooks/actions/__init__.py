"""The one declaration of each action, and everything made from it: commands, risk, ways back, readings and words.
Imports `engine` and `runbooks.plans`. Start at `declaration`, then `workloads` for examples and `catalogue` for
look-ups."""
