"""The tables of README.md and docs/, each from the files of results alone; `scripts/results.py` puts them there."""
