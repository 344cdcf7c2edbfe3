"""The scheduling cycle: order, admit, place, preempt, backfill. Imports placement, queues and state; start at
`cycle`.
"""
