"""Scripted incidents, traces and published runs, by which drafters, estimates and the engine are scored. It may import
every other room, and no other room loads it but the shell's table of commands. Start at `eval_drafts`."""
