"""Actions of a person in the console: one registry of actions, and how a line or a key reaches one. Imports forms,
text and the client's protocol. Start at `registry`."""
