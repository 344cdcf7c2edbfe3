"""The state of a cell in columns; events are folded into it, and nothing else changes it. Imports model, tables,
queues, ledger and capacity. Start at `cell_state`."""
