"""`l0drop explain` through the command line, and the marking of dropped pieces."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from l0drop import load
from l0drop.app.pieces import is_styled, mark_dropped, source_pieces
from l0drop.decoding.results import SourceToken
from tests.decoding import folders
from tests.integration.test_training_commands import ENVIRONMENT, command

TEXTS = ["the dog sees a cat .", "a river knows the stone a road the bird ."]
QUICK = ("--num-beams", "2", "--max-new-tokens", "6")
SETTINGS = {"num_beams": 2, "max_new_tokens": 6}
STYLE = re.compile(r"\x1b\[[\d;]*m")


@pytest.fixture(scope="module")
def folder(baseline: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny sparse model."""
    return folders.sparse(baseline, tmp_path_factory.mktemp("explain") / "model")


def marked(folder: Path, text: str, **settings: Any) -> str:
    """The source of a text with each dropped character in brackets, and special tokens after it."""
    explained = load(folder).explain(text, **SETTINGS, **settings)
    kept = [token for i, token in enumerate(explained.source) if i in explained.kept]
    seen = {c for token in kept if token.start is not None for c in range(token.start, token.end or 0)}
    return "".join(c if i in seen or c == " " else f"[{c}]" for i, c in enumerate(text))


def bracketed(line: str) -> str:
    """A line of `explain` in the form of `marked`."""
    return re.sub(r"~~(.+?)~~", lambda m: re.sub(r"(\S)", r"[\1]", m[1]), line)


# --- the command -------------------------------------------------------------------------------------------------


def test_plain_output_marks_dropped_pieces(l0drop: Any, folder: Path) -> None:
    ran = l0drop("explain", folder, *QUICK, *TEXTS)
    assert (ran.code, ran.stderr) == (0, "")
    first, second = ran.out.decode().split("\n\n")
    for text, block in zip(TEXTS, (first, second), strict=True):
        explained = load(folder).explain(text, **SETTINGS)
        source, output, counts = block.strip("\n").split("\n")
        assert "~~" in source
        assert source.startswith("source  ")
        assert bracketed(source.removeprefix("source  ")).removesuffix(" </s>").removesuffix(" [<][/][s][>]") == marked(
            folder, text
        )
        assert output == f"output  {explained.text}"
        kept, count = len(explained.kept), len(explained.source)
        assert 0 < kept < count
        assert counts == f"kept {kept} of {count} tokens ({1 - kept / count:.1%} dropped), score {explained.score:.3f}"


def test_lines_of_stdin_are_explained(l0drop: Any, folder: Path) -> None:
    ran = l0drop("explain", folder, *QUICK, stdin="\n".join([TEXTS[0], "", TEXTS[1], ""]).encode())
    assert ran.out == l0drop("explain", folder, *QUICK, *TEXTS).out
    assert l0drop("explain", folder, stdin=b" \n").errors.startswith("error: no text: give sentences as arguments")


@pytest.mark.parametrize("dial", [("keep", 0.9), ("keep", 0.01), ("max_memory", 3), ("shift", 50.0)])
def test_the_dial(l0drop: Any, folder: Path, dial: tuple[str, Any]) -> None:
    name, value = dial
    ran = l0drop("explain", folder, *QUICK, f"--{name.replace('_', '-')}", value, TEXTS[1])
    explained = load(folder).explain(TEXTS[1], **SETTINGS, **{name: value})
    assert f"kept {len(explained.kept)} of {len(explained.source)} tokens" in ran.out.decode()
    assert bracketed(ran.lines[0]).startswith(f"source  {marked(folder, TEXTS[1], **{name: value})}")
    assert ("~~" in ran.lines[0]) == (len(explained.kept) < len(explained.source))


def test_dense_shows_the_output_on_the_full_memory(l0drop: Any, folder: Path) -> None:
    ran = l0drop("explain", folder, *QUICK, "--dense", TEXTS[0])
    (dense,) = load(folder).generate(TEXTS[:1], **SETTINGS, dense=True)
    assert ran.lines[2] == f"full memory  {dense.text}"
    assert ran.lines[4] == f"full memory: the same output, score {dense.score:.3f}"


def test_json_has_tokens_gates_and_outputs(l0drop: Any, folder: Path) -> None:
    ran = l0drop("explain", folder, *QUICK, "--dense", "--json", *TEXTS)
    values = [json.loads(line) for line in ran.lines]
    assert len(values) == 2
    for text, found in zip(TEXTS, values, strict=True):
        explained = load(folder).explain(text, **SETTINGS)
        assert (found["source"], found["text"], found["gated"], found["cut"]) == (text, explained.text, True, 0)
        assert found["score"] == pytest.approx(explained.score)
        assert [token["kept"] for token in found["tokens"]] == [
            i in explained.kept for i in range(len(explained.source))
        ]
        assert explained.gates is not None
        torch.testing.assert_close(torch.tensor([token["gate"] for token in found["tokens"]]), explained.gates)
        assert (found["kept_tokens"], found["source_tokens"]) == (len(explained.kept), len(explained.source))
        assert found["dense"]["text"] == explained.text


def test_a_model_without_gates_says_so(l0drop: Any, baseline: Path) -> None:
    ran = l0drop("explain", baseline, *QUICK, TEXTS[0])
    assert ran.stderr == f"{baseline}: this model has no gates, so it drops nothing\n"
    assert "~~" not in ran.out.decode()
    assert re.match(r"kept (\d+) of \1 tokens \(no gates\), score -", ran.lines[2])
    assert json.loads(l0drop("explain", baseline, *QUICK, "--json", TEXTS[0]).out)["tokens"][0]["gate"] is None
    refused = l0drop("explain", baseline, "--keep", "0.5", TEXTS[0])
    assert refused.code == 2
    assert "keep: this model has no gates" in refused.errors


def test_the_prefix_is_shown(l0drop: Any, folder: Path) -> None:
    ran = l0drop("explain", folder, *QUICK, "--prefix", "the road ", "--keep", "1", TEXTS[0])
    assert ran.lines[0] == f"source  the road {TEXTS[0]} </s>"
    wanted = load(folder).explain(TEXTS[0], prefix="the road ", keep=1.0, **SETTINGS)
    assert ran.lines[1] == f"output  {wanted.text}"


def test_a_long_text_is_cut_with_a_warning(l0drop: Any, folder: Path) -> None:
    ran = l0drop("explain", folder, *QUICK, TEXTS[0], "the dog " * 100)
    assert ran.stderr == "warning: sentence 2: too long for the model; cut to 64 tokens\n"
    shown = ran.lines[4].replace("~~", "").removeprefix("source  ").removesuffix(" </s>")
    assert 0 < len(shown) < 64 * 8
    assert ("the dog " * 100).startswith(shown)


def test_user_errors_are_one_message(l0drop: Any, folder: Path, tmp_path: Path) -> None:
    cases: dict[str, tuple[list[Any], str]] = {
        "a missing folder": ([tmp_path / "absent", "x"], "absent: there is no such folder"),
        "a blank sentence": ([folder, "x", " "], "sentence 2 is blank"),
        "a language": ([folder, "x", "--target-lang", "de"], "knows no languages"),
        "two dials": ([folder, "x", "--keep", "0.5", "--shift", "1"], "choose one of"),
        "a device": ([folder, "x", "--device", "nonsense"], "--device: nonsense cannot be used"),
    }
    for name, (arguments, message) in cases.items():
        ran = l0drop("explain", *arguments)
        assert ran.code == 2, f"{name}: {ran}"
        assert message in ran.errors, f"{name}: {ran.errors}"
        assert ran.stderr.count("\n") == 1, f"{name}: {ran.stderr}"


def test_ctrl_c_is_one_line(l0drop: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("l0drop.decoding.text.load", interrupted)
    ran = l0drop("explain", folder, TEXTS[0])
    assert (ran.code, ran.stderr, ran.out) == (130, "stopped\n", b"")


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_reader_that_closes_the_pipe(folder: Path, options: list[str]) -> None:
    line = " ".join(command("explain", str(folder), *QUICK, *options, "dog", "cat"))
    done = subprocess.run(
        ["bash", "-c", f"{line} | true; echo ${{PIPESTATUS[0]}}"],
        capture_output=True, text=True, env=ENVIRONMENT, check=False,
    )  # fmt: skip
    assert done.stdout.strip() in ("1", "141")
    assert done.stderr == ""


def test_colour_in_80_columns(folder: Path) -> None:
    """As on a terminal: dropped pieces are dim and struck out, and long lines wrap."""
    text = " ".join([TEXTS[1]] * 3)
    done = subprocess.run(
        command("explain", str(folder), *QUICK, text), capture_output=True, text=True, check=True,
        env={**ENVIRONMENT, "FORCE_COLOR": "1", "TERM": "xterm-256color", "COLUMNS": "80"},
    )  # fmt: skip
    lines = STYLE.sub("", done.stdout).splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) > 3
    assert "~~" not in done.stdout
    source = " ".join(" ".join(line.removeprefix("source") for line in lines[: len(lines) - 2]).split())
    assert source == f"{text} </s>"
    struck = re.findall(r"\x1b\[2;9m([^\x1b]*)", done.stdout)
    dropped = re.findall(r"\[(.)\]", marked(folder, text))
    assert "".join("".join(struck).split()) == "".join(dropped)


# --- marking -----------------------------------------------------------------------------------------------------


def test_dropped_neighbours_are_marked_together() -> None:
    pieces = [("un", False), ("believ", True), ("ably", True), (" ", False), ("so", True), (" ", False), ("it", False)]
    assert mark_dropped(pieces, styled=False).plain == "un~~believably so~~ it"
    styled = mark_dropped(pieces, styled=True)
    assert styled.plain == "unbelievably so it"
    assert [styled.plain[span.start : span.end] for span in styled.spans if "strike" in str(span.style)] == [
        "believably so"
    ]


def test_source_pieces_of_a_split_word_with_special_tokens() -> None:
    spans: list[tuple[int | None, int | None]] = [(None, None), (0, 2), (2, 4), (5, 8), (None, None)]
    tokens = [
        SourceToken(text, *span) for text, span in zip(["en_XX", "▁do", "gs", "▁run", "</s>"], spans, strict=True)
    ]
    assert (
        mark_dropped(source_pieces("dogs run", tokens, {0, 1, 3}), styled=False).plain == "en_XX do~~gs~~ run ~~</s>~~"
    )
    assert mark_dropped(source_pieces("dogs run", tokens, {1}), styled=False).plain == "~~en_XX~~ do~~gs run </s>~~"


def test_a_character_with_several_tokens_is_dropped_if_all_are() -> None:
    tokens = [SourceToken("Ã", 0, 1), SourceToken("©", 0, 1), SourceToken("a", 1, 2)]
    assert mark_dropped(source_pieces("éa", tokens, {1}), styled=False).plain == "é~~a~~"
    assert mark_dropped(source_pieces("éa", tokens, {0, 2}), styled=False).plain == "éa"
    assert mark_dropped(source_pieces("éa", tokens, {2}), styled=False).plain == "~~é~~a"


def test_a_console_without_colour_gets_plain_marks() -> None:
    assert is_styled(Console(force_terminal=True, color_system="standard", no_color=False))
    assert not is_styled(Console(force_terminal=True, color_system="standard", no_color=True))
    assert not is_styled(Console(force_terminal=True, color_system=None))
    assert not is_styled(Console(force_terminal=False, color_system="standard"))
