"""A run on disk: what a step is, what it depends on, what is done, and what may be done to it."""
