"""An example of a toy corpus, with the tags of its words."""

from collections.abc import Sequence
from dataclasses import dataclass

ToyToken = tuple[str, str]  # an English word and its Penn tag


@dataclass(frozen=True, slots=True)
class ToyPair:
    """One example: its source and target, and the Penn tag of each source word."""

    source: str
    target: str
    words: tuple[str, ...]
    tags: tuple[str, ...]


def joined(words: Sequence[str]) -> str:
    """Join words to text, without spaces next to punctuation where English has none."""
    text = " ".join(words).replace(" ,", ",").replace(" .", ".").replace(" ?", "?").replace(" 's", "'s")
    return text.replace(" :", ":").replace("“ ", "“").replace(" ”", "”")
