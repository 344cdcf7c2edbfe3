"""A language model as a drafter: prompt, child process, transport, and what of its answer is kept. Imports drafts and
untrusted; the child imports nothing of the project. Start at `drafter`."""
