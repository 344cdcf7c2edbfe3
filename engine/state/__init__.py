"""The state of a cell in columns. Events are folded into it, and nothing else changes it. Imports model, tables,
queues, ledger and capacity; start at `cell_state`.
"""
