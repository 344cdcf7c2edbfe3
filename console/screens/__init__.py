"""The pages of the console, one file each, and the frame they stand in."""
