"""The journal, and the tables beside it, in SQLite or PostgreSQL, with lease and standby. It imports `engine.model` and
the types of `engine.state` only. Start at `event_journal`."""
