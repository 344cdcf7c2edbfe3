"""Text for a terminal: neutralised, measured, coloured, and laid out as tables and charts. It imports no other room of
the console. Start at `terminal_text`."""
