"""Specs, commands, events, queries and errors; quantities, money and names. Imports nothing of the engine; start at
`specs`, `commands` and `events`.
"""
