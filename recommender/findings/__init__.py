"""What is out of order, and what would mend it: findings, suggestions and their record. Imports history, forecasts and
runtimes. Start at `suggestions`."""
