"""The checks of commands: submissions, definitions, and changes to queues, pools and budgets. Imports model, state and
queues; start at `submissions`.
"""
