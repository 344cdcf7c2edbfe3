"""The registry of all that a person can do in the console, and the way from a key or a line to it. It imports forms and
text of the console, and the catalogue of `runbooks.actions`. Start at `registry`."""
