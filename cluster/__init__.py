"""The composition root: Ray actors and the command line."""
