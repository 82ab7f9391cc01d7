"""The command line and, later, the server: thin, everything they do is done by the rooms above."""
