"""View models: a workload, a queue or a proposal as the sections and rows that terminal, shell and browser draw. It
imports client, forms and text of the console, and typed answers of the other packages, but no Textual. Start at
`sections`."""
