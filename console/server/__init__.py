"""HTTP: the application, its limits, and what each request passes. Imports the service, auth and the client's
protocol. Start at `application`, then `routes`."""
