"""HTTP: the application, who asks, how much is let in, and the engine as a process. It imports service, client, forms
and text of the console, and the other packages. Start at `application`, then read `request_handler`."""
