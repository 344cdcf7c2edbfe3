"""Measurements and ended work, kept in buckets. Imports `engine.journal`'s side tables. Start at `telemetry`."""
