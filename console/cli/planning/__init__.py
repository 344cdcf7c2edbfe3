"""Shell commands that answer cost, fairness, sizing and scaling questions. Imports the client and the views. Start at
`cost`."""
