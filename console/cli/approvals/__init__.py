"""Shell commands around the approval gate: proposals, runbooks, policy, drafts, audit. Imports the client, the
arguments and the views. Start at `proposals`."""
