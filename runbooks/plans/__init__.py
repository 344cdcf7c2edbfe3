"""The typed plan, its states and its checks. Imports `engine.model`. Start at `typed_plan`."""
