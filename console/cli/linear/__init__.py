"""The console as a conversation in lines, for screen readers and pipes. Imports the client and the views. Start at
`conversation`."""
