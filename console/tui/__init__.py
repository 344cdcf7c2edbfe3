"""The terminal console: the app, its frame, its keys and its navigation. Imports actions, views, text and the client.
Start at `app`, then `navigator`."""
