"""Every face of Muster: terminal, shell and HTTP. It imports `recommender`, `runbooks` and `engine`; screens and
commands hold a `Client`, never an `Engine`. Start at `console.cli.main` for the shell, `console.tui.app` for the
terminal, and `console.server.application` for HTTP."""

VERSION = "0.1.0"
"""The version of Muster, for packaging, shell and server."""
