"""What a page, the shell, linear mode and the browser draw of a thing. Imports text and the typed answers; no Textual.
Start at `sections`."""
