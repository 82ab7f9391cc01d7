"""Lines of the training text that are held out for validation and test."""

import random
from pathlib import Path
from typing import Any

import pytest

from l0drop.data.held_out import held_out_counts, open_split
from l0drop.data.text import CorpusError
from l0drop.recipe import Data, TextCorpus


def written(folder: Path, lines: list[str], name: str = "source.txt") -> Data:
    file = folder / name
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return Data(train=TextCorpus(source=str(file)))


def numbered(count: int) -> list[str]:
    return [f"sentence number {n}" for n in range(count)]


def sources(data: Data, split: str, prefix: str = "") -> list[str]:
    return [pair.source for pair in open_split(data, split, prefix)]


def test_the_parts_are_disjoint_and_together_the_whole_text(tmp_path: Path) -> None:
    data = written(tmp_path, numbered(1000))
    parts = [sources(data, split) for split in data.splits]
    assert [len(part) for part in parts] == [900, 50, 50]
    assert sorted(line for part in parts for line in part) == sorted(numbered(1000))


def test_lines_keep_their_order_and_their_numbers(tmp_path: Path) -> None:
    for split in ("train", "valid", "test"):
        pairs = list(open_split(written(tmp_path, numbered(300)), split))
        assert [pair.source for pair in pairs] == [f"sentence number {pair.line - 1}" for pair in pairs]
        assert pairs == sorted(pairs, key=lambda pair: pair.line)


def test_at_most_500_lines_each_by_default(tmp_path: Path) -> None:
    data = written(tmp_path, numbered(20_000))
    assert held_out_counts(data) == {"valid": 500, "test": 500, "removed_from_training": 1000}


def test_copies_of_a_held_out_line_are_not_trained_on(tmp_path: Path) -> None:
    lines = [*numbered(200), *(f"  {line.replace(' ', '   ')}" for line in numbered(200))]
    data = written(tmp_path, lines)
    held_out = [line for split in ("valid", "test") for line in sources(data, split)]
    assert len(held_out) == len(set(held_out)) == 40
    trained = {" ".join(line.split()) for line in sources(data, "train")}
    assert not trained & {" ".join(line.split()) for line in held_out}
    assert len(sources(data, "train")) == 400 - 80
    assert held_out_counts(data)["removed_from_training"] == 80


def test_the_choice_does_not_depend_on_the_order_of_lines(tmp_path: Path) -> None:
    shuffled = numbered(500)
    random.Random(1).shuffle(shuffled)
    one, other = written(tmp_path, numbered(500)), written(tmp_path, shuffled, "shuffled.txt")
    for split in one.splits:
        assert set(sources(one, split)) == set(sources(other, split))


def test_a_prefix_does_not_change_the_choice(tmp_path: Path) -> None:
    data = written(tmp_path, numbered(200))
    assert sources(data, "valid", "translate: ") == [f"translate: {line}" for line in sources(data, "valid")]


def test_targets_stay_with_their_sources(tmp_path: Path) -> None:
    data = written(tmp_path, [f"{line}\tline {n}" for n, line in enumerate(numbered(200))], "both.tsv")
    data = Data.model_validate({"train": {"tsv": str(tmp_path / "both.tsv")}, "held_out": 7})
    for split, size in {"train": 186, "valid": 7, "test": 7}.items():
        pairs = list(open_split(data, split))
        assert len(pairs) == size
        assert all(pair.target == f"line {pair.source.split()[-1]}" for pair in pairs)


def test_blank_lines_are_never_held_out(tmp_path: Path) -> None:
    lines = [part for line in numbered(200) for part in (line, "")]
    data = written(tmp_path, lines)
    assert all(line for split in ("valid", "test") for line in sources(data, split))
    assert sources(data, "train").count("") == 200


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    data = written(tmp_path, numbered(200))
    before, stamp = sources(data, "valid"), open_split(data, "valid").inputs()
    written(tmp_path, [line.upper() for line in numbered(200)])
    assert not set(before) & set(sources(data, "valid"))
    assert open_split(data, "valid").inputs() != stamp


@pytest.mark.parametrize(
    ("lines", "changes", "message"),
    [
        (numbered(99), {}, r"source.txt: has 99 usable lines, too few .* give at least 100, set data.held_out"),
        (numbered(40), {"held_out": 15}, r"source.txt: to hold out 15 different lines .* lower data.held_out"),
        (["the same"] * 400, {}, r"source.txt: to hold out 20 different lines .* name the text in data.valid"),
    ],
)
def test_too_few_lines(lines: list[str], changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    data = written(tmp_path, lines).model_copy(update=changes)
    with pytest.raises(CorpusError, match=message):
        list(open_split(data, "train"))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    data = Data(train=TextCorpus(source=str(tmp_path / "absent.txt")))
    with pytest.raises(CorpusError, match="absent.txt: No such file"):
        list(open_split(data, "valid"))


def test_given_text_is_read_as_it_is(tmp_path: Path) -> None:
    data = written(tmp_path, numbered(10)).model_copy(update={"valid": TextCorpus(source=str(tmp_path / "source.txt"))})
    assert sources(data, "train") == sources(data, "valid") == numbered(10)
    assert held_out_counts(data) == {}
    with pytest.raises(CorpusError, match="data.test: is missing"):
        open_split(data, "test")
