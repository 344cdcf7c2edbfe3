"""The shell's entry: the parser of all commands, starting and stopping, line mode and the browser. It may import every
other room of the console; only `console.evals` imports it. Start at `main`."""
