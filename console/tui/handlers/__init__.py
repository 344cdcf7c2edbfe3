"""What the console does when an action is invoked, by subject. Imports the client and dialogs. Start at `dispatch`."""
