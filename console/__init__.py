"""Every face of Muster: terminal, shell, HTTP. Imports `recommender`, `runbooks` and `engine`; screens and shell hold
a `Client`, never an `Engine`. Start at `console.cli.main` for the shell, `console.tui.app` for the terminal,
`console.server.application` for HTTP."""
