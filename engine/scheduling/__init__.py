"""The scheduling cycle: order, admit, place, preempt, backfill. Imports placement, queues and state. Start at
`cycle`."""
