"""An example of either corpus, and what kinds of words it has."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Token = tuple[str, str]  # an English word and its Penn tag
WordClass = Literal["content", "function", "punctuation", "rest"]


@dataclass(frozen=True, slots=True)
class ToyPair:
    """One example: its source and target, and the Penn tag of each source word."""

    source: str
    target: str
    words: tuple[str, ...]
    tags: tuple[str, ...]


_FUNCTION = frozenset(["CC", "IN", "RP", "TO", "UH", "DT", "PDT", "WDT", "WP", "WP$", "WRB"])
_CONTENT = ("MD", "JJ", "NN", "RB", "VB")
_PUNCTUATION = frozenset([".", ",", ":", "``", "''", "-LRB-", "-RRB-", "HYPH", "NFP", "#", "$"])


def word_class(tag: str) -> WordClass:
    """Put a Penn tag into the paper's groups of words.

    Function words are the paper's CC, IN, RP, TO, UH, DT and WP, and their kin that it does not name: PDT, WDT, WP$
    and WRB. Content words are MD, JJ, NN, RB and VB with their inflections. The rest is CD, EX, FW, SYM, PRP, POS, ...
    """
    if tag in _FUNCTION:
        return "function"
    if tag in _PUNCTUATION:
        return "punctuation"
    return "content" if tag.startswith(_CONTENT) else "rest"


def joined(words: Sequence[str]) -> str:
    """Write words as text, with no space where punctuation has none."""
    text = " ".join(words).replace(" ,", ",").replace(" .", ".").replace(" ?", "?").replace(" 's", "'s")
    return text.replace(" :", ":").replace("“ ", "“").replace(" ”", "”")
