"""The terminal console: the app, its pages, its keys and its dialogs. It imports the rooms of the console below it,
from commands to text, with Textual, and holds only a `Client`. Start at `app`, then read `navigator`."""
