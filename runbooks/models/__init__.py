"""A language model as a drafter: prompt, child process, transport, and the checks of its answer. Imports drafts and
untrusted; the child process imports nothing but `child_process`, `frames` and `transport`. Start at `drafter`."""
