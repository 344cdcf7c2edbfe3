"""The typed plan that people vote on, its checks, and the identities and keys of people. It imports the engine, and no
other room of the runbooks. Start at `typed_plan`."""
