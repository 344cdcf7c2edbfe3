"""What work costs and who pays: meters, charges, budgets. Imports model and tables. Start at `charges`."""
