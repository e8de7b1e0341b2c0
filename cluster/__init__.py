"""The composition root: Ray placement and actors, the Serve app, jobs and the command line."""
