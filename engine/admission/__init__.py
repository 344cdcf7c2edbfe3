"""The checks at the door: submissions, definitions, changes to queues, pools and budgets. Imports model, state and
queues. Start at `submissions`."""
