"""The words of the examples and their classes."""

from collections.abc import Callable, Iterator

import pytest

from l0drop.data.toy import ToyPair, documents, translation, word_class


def rejoins(pair: ToyPair) -> bool:
    """Tell whether the words are the source, cut at spaces and beside punctuation."""
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


def test_word_classes_follow_the_paper() -> None:
    groups = {
        "function": "CC IN RP TO UH DT WP PDT WDT",
        "content": "MD JJ JJR NN NNS NNP RB VB VBD VBG VBN VBP VBZ",
        "punctuation": ". , : `` ''",
        "rest": "CD EX FW SYM PRP PRP$ POS",
    }
    for group, tags in groups.items():
        assert {word_class(tag) for tag in tags.split()} == {group}
