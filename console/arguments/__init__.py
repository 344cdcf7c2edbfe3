"""The arguments of the shell's commands, by noun, and how they are parsed. Imports forms and what declares the
choices; no command's own code. Start at `parsing`."""
