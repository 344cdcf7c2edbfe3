"""History into advice; never acts."""
