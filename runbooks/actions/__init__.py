"""The actions: each is declared once, in the module of its subject, and all that is made of it asks the declaration.

`declaration.Action` says what a declaration holds; `catalog` gathers the subjects (`workloads`, `nodes`, `queues`, ...)
and is what the gate, the twin, drafters, the shell and the console ask. Imports nothing of `runbooks` but the types of
plans (`plan`, `bounds`) and their phrases (`amounts`, `specs`). Start with `declaration`, then read `workloads`.
"""
