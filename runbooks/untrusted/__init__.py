"""Text that a stranger wrote: strict parsing, secrets taken out, and names that mislead. It imports nothing of the
project but `engine.model.errors`. Start at `stranger_texts`."""
