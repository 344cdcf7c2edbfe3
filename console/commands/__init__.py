"""The shell commands by noun: each asks a client and prints text or JSON. Imports actions, forms, views and text.
Start at `show`.
"""
