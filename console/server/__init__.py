"""The HTTP service: the application, its limits, authentication, and the path of each request. Imports the service
and the client's protocol. Start at `application`, then `request_handler`."""
