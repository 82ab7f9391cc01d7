"""The words of the examples."""

from collections.abc import Callable, Iterator

import pytest

from l0drop.data.toy import ToyPair, documents, translation


def rejoins(pair: ToyPair) -> bool:
    """Whether the words are the source, split at spaces and punctuation."""
    rest = pair.source
    for word in pair.words:
        if not rest.startswith(word):
            return False
        rest = rest[len(word) :].removeprefix(" ")
    return rest == ""


@pytest.mark.parametrize(("corpus", "n", "seed"), [(translation, 3_000, 8), (documents, 20, 5)])
def test_words_are_the_source_in_pieces(corpus: Callable[[int, int], Iterator[ToyPair]], n: int, seed: int) -> None:
    for example in corpus(n, seed):
        assert len(example.words) == len(example.tags)
        assert rejoins(example), example
