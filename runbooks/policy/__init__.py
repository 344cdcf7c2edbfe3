"""Who may do what: the approval policy, freezes, limits, and changes to them. Imports people, plans and actions. Start
at `approval_policy`."""
