"""The journal and the tables beside it, in SQLite or PostgreSQL, with lease and standby. Imports model. Start at
`event_journal`."""
