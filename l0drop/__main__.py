"""`python -m l0drop` is the command line."""

from l0drop.app.cli import main

main()
