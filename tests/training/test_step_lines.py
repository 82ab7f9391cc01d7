"""The lines and bars that training prints, at 80 columns."""

import contextlib
import io
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from l0drop.recipe import parse_recipe
from l0drop.training.bars import Bars
from l0drop.training.run import train
from l0drop.training.step_lines import StepLines
from tests.training import tiny


def console(width: int = 80) -> Console:
    return Console(file=io.StringIO(), width=width)


def printed(lines: Console) -> list[str]:
    return lines.file.getvalue().splitlines()  # type: ignore[attr-defined]


def logged(folder: Path, *entries: dict[str, Any], **changes: Any) -> list[str]:
    """The lines for some log entries, 100 steps apart."""
    where = console()
    lines = StepLines(parse_recipe(tiny.sparse(folder, "runs/base", **changes), "test"), Bars(where))
    for number, entry in enumerate(entries, 1):
        lines.on_log(None, SimpleNamespace(global_step=100 * number), None, entry)
    return printed(where)


ENTRY = {
    "loss": 12.3456, "cross_entropy": 1.98765, "divergence": 0.25, "penalty": 0.98, "sparsity": 0.1234, "lambda": 0.5,
    "tokens_per_second": 11750.4, "learning_rate": 1e-4,
}  # fmt: skip


def test_a_line_has_plain_numbers_and_fits(tmp_path: Path) -> None:
    loss, steered, head, line = logged(tmp_path, ENTRY, train={"teacher": {"weight": 0.5}})
    assert head.split() == ["step", "loss", "cross-entropy", "KL", "λ", "penalty", "dropped", "tokens/s"]
    assert line.split() == ["100", "12.346", "1.988", "0.250", "0.500", "0.980", "12.3%", "11,750"]
    assert loss == "loss = (cross-entropy + 0.5 · KL) / 1.5 + λ · penalty"
    assert steered == "λ is adjusted to reach the target sparsity"
    assert len(head) == len(line) <= 80


def test_the_head_is_printed_once(tmp_path: Path) -> None:
    lines = logged(tmp_path, ENTRY, ENTRY, ENTRY)
    assert sum("cross-entropy  " in line for line in lines) == 1
    assert [line.split()[0] for line in lines[-3:]] == ["100", "200", "300"]


def test_a_baseline_needs_no_explanation(tmp_path: Path) -> None:
    entry = {name: ENTRY[name] for name in ("loss", "cross_entropy", "tokens_per_second")}
    head, line = logged(tmp_path, entry, l0drop={"lambda_": 0.1})
    assert head.split() == ["step", "loss", "cross-entropy", "tokens/s"]
    assert len(line.split()) == 4


@pytest.mark.parametrize(("section", "explained"), [({"target_sparsity": 0.4}, True), ({"lambda_": 21.7}, False)])
def test_a_large_lambda_is_explained_once_if_it_is_adjusted(
    section: dict[str, float], explained: bool, tmp_path: Path
) -> None:
    large = {**ENTRY, "lambda": 21.7}
    text = " ".join(logged(tmp_path, ENTRY, large, large, l0drop=section))
    assert text.count("λ is large because the target has to be reached in few steps") == int(explained)


def test_validation(tmp_path: Path) -> None:
    entry = {"eval_cross_entropy": 2.3456, "eval_BLEU": 31.246, "eval_sparsity": 0.471}
    (line,) = logged(tmp_path, entry)
    assert line == "    100  validation: cross-entropy 2.346, BLEU 31.25, 47.1% dropped"
    (line,) = logged(tmp_path, {"eval_cross_entropy": float("nan"), "eval_sparsity": 0.5})
    assert line == "    100  validation: 50.0% dropped"


def test_every_phase_of_a_run_has_a_bar_within_80_columns(tmp_path: Path) -> None:
    where = console()
    train(parse_recipe(tiny.recipe(tmp_path, train={"steps": 2, "eval_every": 2}), "test"), tmp_path / "runs", where)
    bars = [line for line in printed(where) if "━" in line]
    titles = [line.split("━")[0].strip() for line in bars]
    assert titles == [
        "tokenizer: lines read",
        *(f"{split}: lines tokenized" for split in ("train", "valid", "test")),
        "tiny",
        *(f"{split}: sentences decoded" for split in ("valid", "test")),
    ]
    assert all(re.search(r"━ (400/400|24/24|2/2) \d:\d\d:\d\d", line) for line in bars)
    assert max(map(len, printed(where))) <= 80


class TestBars:
    def test_a_phase_without_updates_shows_nothing(self) -> None:
        where = console()
        with Bars(where).phase("idle"):
            pass
        assert printed(where) == []

    def test_an_unknown_total_is_the_last_count(self) -> None:
        where = console()
        with Bars(where).phase("lines") as update:
            update(1000)
            update(12_345)
        (line,) = printed(where)
        assert "12,345/12,345" in line

    def test_a_phase_inside_another_leaves_no_bar(self) -> None:
        where = console()
        bars = Bars(where)
        with bars.phase("steps", 10) as outer:
            outer(5)
            with bars.phase("sentences", 3) as inner:
                inner(3)
            outer(10)
        (line,) = printed(where)
        assert line.startswith("steps")
        assert "10/10" in line

    def test_other_processes_show_nothing(self) -> None:
        where = console()
        with Bars(where, shown=False).phase("lines") as update:
            update(5)
        assert printed(where) == []

    def test_an_error_ends_the_bar(self) -> None:
        where = console()
        bars = Bars(where)
        with contextlib.suppress(KeyError), bars.phase("steps", 10) as update:
            update(5)
            raise KeyError
        with bars.phase("again", 1) as update:
            update(1)
        first, second = printed(where)
        assert "5/10" in first
        assert "1/1" in second
