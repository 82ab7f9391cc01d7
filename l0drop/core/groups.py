"""Kinds of source tokens: one label per token, and the paper's groups of labels (figure 5).

A token's label is the Penn tag of its word. The first piece of a split word is BPEH and the others BPEO, whatever the
word. Tokens that the tokenizer adds (EOS; with some tokenizers also BOS or a language code) are EOS.
"""

from typing import Literal, get_args

Group = Literal["BPEH", "BPEO", "function", "content", "punctuation", "rest", "EOS"]
GROUPS: tuple[Group, ...] = get_args(Group)

_FUNCTION = ("CC", "IN", "RP", "TO", "UH", "DT", "WP")
_CONTENT = ("MD", "JJ", "NN", "RB", "VB")  # with their inflections: JJR, NNS, VBD, ...
_PUNCTUATION = (".", ",", ":", "``", "''", "-LRB-", "-RRB-", "HYPH", "NFP", "#", "$")

TAGS = (
    *("CC", "CD", "DT", "EX", "FW", "IN", "JJ", "JJR", "JJS", "LS", "MD", "NN", "NNS", "NNP", "NNPS", "PDT", "POS"),
    *("PRP", "PRP$", "RB", "RBR", "RBS", "RP", "SYM", "TO", "UH", "VB", "VBD", "VBG", "VBN", "VBP", "VBZ"),
    *("WDT", "WP", "WP$", "WRB"),
    *("ADD", "AFX", "GW", "XX"),  # in web text: addresses, affixes, parts of a word written apart, unknown
    *_PUNCTUATION,
)
"""The Penn tags, and those that newer English treebanks add."""

LABELS = ("EOS", "BPEH", "BPEO", *TAGS)
"""A label's number, which hints carry, is its index here. Append new labels: prepared corpora store the numbers."""

_OTHER_NAMES = {"(": "-LRB-", ")": "-RRB-", "[": "-LRB-", "]": "-RRB-", "{": "-LRB-", "}": "-RRB-", "--": ":"}
_NUMBERS = {label: number for number, label in enumerate(LABELS)}
_NUMBERS |= {other: _NUMBERS[tag] for other, tag in _OTHER_NAMES.items()}


def label_number(label: str) -> int:
    """The number of a label; ValueError for a tag that is not Penn's."""
    if label not in _NUMBERS:
        raise ValueError(
            f"tag {label!r}: the paper's groups consist of Penn tags ({', '.join(TAGS[:6])}, ...); "
            "use a tagger for English that gives Penn tags"
        )
    return _NUMBERS[label]


def group_of(label: str) -> Group:
    """The group of a label, the same in every analysis and rule. EOS is its own group; the paper gives it none.

    Function words are exactly the tags that the paper lists; similar ones (PDT, WDT, WP$, WRB) belong to the rest, as
    do CD, EX, FW, PRP and SYM.
    """
    label = LABELS[label_number(label)]
    if label in ("EOS", "BPEH", "BPEO"):
        return label  # type: ignore[return-value]
    if label in _FUNCTION:
        return "function"
    if label in _PUNCTUATION:
        return "punctuation"
    return "content" if label.startswith(_CONTENT) else "rest"
