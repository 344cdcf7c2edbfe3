"""Dialogs over a page: choose, confirm, decide. Imports widgets and views. Start at `base`."""
