"""Text that somebody else wrote: strict parsing, redaction, links, look-alike names. Imports nothing of the project but
errors. Start at `stranger_texts`."""
