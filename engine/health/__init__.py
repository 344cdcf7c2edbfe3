"""Watch over nodes and agents: heartbeats, stragglers, memory pressure. Imports state. Start at `node_watch`."""
