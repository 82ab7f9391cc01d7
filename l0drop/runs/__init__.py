"""A run's provenance, recorded with every number, and the processes that share a run folder."""
