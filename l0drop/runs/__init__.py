"""A run's folder: what is recorded with every number, and the processes that share it."""
