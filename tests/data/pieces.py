"""The pieces of words as a fast tokenizer itself counts them, to compare `l0drop.data.words` with."""

from typing import NamedTuple

from transformers import BatchEncoding


class Piece(NamedTuple):
    """The position of a token in its word: first piece (BPEH) or later piece (BPEO) of a split word, or the whole word.

    Tokens that the tokenizer adds, such as EOS, belong to no word: `word` is None and both flags are False.
    """

    word: int | None
    is_first: bool
    is_split: bool


def word_pieces(encoding: BatchEncoding, row: int = 0) -> list[Piece]:
    """One Piece per token of one sequence in the output of a fast tokenizer."""
    words = encoding.word_ids(row)
    sizes: dict[int | None, int] = {}
    for word in words:
        sizes[word] = sizes.get(word, 0) + 1
    return [
        Piece(word, word is not None and word != before, word is not None and sizes[word] > 1)
        for before, word in zip([None, *words], words, strict=False)
    ]
