"""The command line, the demo and the service: thin, the subpackages above do the work."""
