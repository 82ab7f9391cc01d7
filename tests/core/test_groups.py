"""Token labels and the paper's groups."""

import pytest

from l0drop.core.groups import GROUPS, LABELS, TAGS, group_of, label_number
from l0drop.data.toy import translation

PAPER = {
    "function": "CC IN RP TO UH DT WP",
    "content": "MD JJ JJR JJS NN NNS NNP NNPS RB RBR RBS VB VBD VBG VBN VBP VBZ",
    "punctuation": ". , : `` '' -LRB- -RRB- HYPH NFP",
    "rest": "CD EX FW SYM PRP PRP$ POS PDT WDT WP$ WRB LS ADD",
    "BPEH": "BPEH",
    "BPEO": "BPEO",
    "EOS": "EOS",
}


@pytest.mark.parametrize("group", GROUPS)
def test_groups_are_the_papers(group: str) -> None:
    assert {group_of(label) for label in PAPER[group].split()} == {group}


def test_every_label_has_one_number_and_one_group() -> None:
    assert [label_number(label) for label in LABELS] == list(range(len(LABELS)))
    assert {group_of(label) for label in LABELS} == set(GROUPS)
    assert {group_of(tag) for tag in TAGS} == {"function", "content", "punctuation", "rest"}


def test_other_names_of_brackets() -> None:
    assert label_number("(") == label_number("-LRB-")
    assert group_of(")") == "punctuation"


@pytest.mark.parametrize("tag", ["NOUN", "ADJA", ""])
def test_tags_of_other_tagsets_are_refused(tag: str) -> None:
    with pytest.raises(ValueError, match=f"tag '{tag}'.*Penn"):
        group_of(tag)


def test_the_toy_grammar_has_no_other_tags() -> None:
    assert {tag for pair in translation(300, 2) for tag in pair.tags} <= set(TAGS)
