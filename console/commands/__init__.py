"""The functions behind the shell's commands, one module for each subject. It imports the rooms of the console below it,
from fleet to text, and the other packages; neither `console.tui` nor `console.cli`. Start at `show`."""
