"""The weights of l0drop's English tagger, for `l0drop.data.tagger`. Licence: CC BY-SA 4.0."""

from pathlib import Path

WEIGHTS = Path(__file__).with_name("ewt.json.gz")
