"""HTTP routes, a module for each subject. Imports the request handler and the service. Start at `lists`."""
