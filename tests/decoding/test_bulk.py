"""Bulk decoding: lines in, lines out, in order, for any input, window and batch size."""

import io
import json
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from l0drop import load
from l0drop.decoding.bulk import (
    MAX_CUT_WARNINGS,
    Decoding,
    OutputLine,
    Processes,
    decode_lines,
    json_line,
    plain_line,
)
from l0drop.decoding.lines import Lines
from l0drop.decoding.partial import Position
from l0drop.decoding.splitting import split_text
from l0drop.decoding.text import TextModel
from l0drop.runs.job import LineTotals
from tests.decoding import folders
from tests.training import tiny

GENERATION = {"num_beams": 1, "max_new_tokens": 5}


class Collected:
    """An output that stores its lines."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.position = Position()

    def append(self, text: str, position: Position) -> None:
        self.texts.append(text)
        self.position = position

    @property
    def lines(self) -> list[str]:
        text = "".join(self.texts)
        assert text == "" or text.endswith("\n")
        return text.split("\n")[:-1]


@pytest.fixture(scope="module")
def model(sparse_folder: Path) -> TextModel:
    return load(sparse_folder, "cpu")


def run(
    model: TextModel, data: bytes, reading: dict[str, Any] | None = None, line: OutputLine = plain_line, **how: Any
) -> tuple[Collected, LineTotals]:
    output = Collected()
    decoding = Decoding(**{"generation": GENERATION, **how})
    totals = decode_lines(model, decoding, Lines(io.BytesIO(data), "in", **(reading or {})), output, line=line)
    return output, totals


def some_lines(count: int) -> list[str]:
    lines = [
        " ".join(["the", noun, verb, "a", other, *["the", noun] * (n % 4)])
        for n in range(1 + count // 256)
        for noun in tiny.NOUNS
        for verb in tiny.VERBS
        for other in tiny.NOUNS
    ]
    return [("" if n % 17 == 5 else line) for n, line in enumerate(lines[:count])]


def joined(lines: Sequence[str]) -> bytes:
    return "".join(line + "\n" for line in lines).encode()


# --- order and windows -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("window", "batch_tokens"), [(1, 4096), (7, 40), (50, 1), (1000, 4096)])
def test_outputs_are_in_input_order(model: TextModel, window: int, batch_tokens: int) -> None:
    lines = some_lines(120)
    wanted = [result.text for result in model.generate(lines, **GENERATION)]
    assert len(set(wanted)) > 3, "identical outputs would hide a wrong order"
    output, totals = run(model, joined(lines), window=window, batch_tokens=batch_tokens)
    assert output.lines == wanted
    assert len(output.texts) == -(-120 // window)
    assert (totals.lines, totals.blank) == (120, sum(not line for line in lines))
    assert totals.lines == output.position.lines == output.position.totals["lines"]
    assert 0 < totals.kept_tokens < totals.source_tokens
    assert totals.sparsity == 1 - totals.kept_tokens / totals.source_tokens


def test_json_lines_contain_all_fields(model: TextModel) -> None:
    lines = ["the dog sees a cat .", "", "a road"]
    generation = {**GENERATION, "num_beams": 2, "num_return_sequences": 2}
    output, _ = run(model, joined(lines), line=partial(json_line, alternatives=True), generation=generation)
    rows = [json.loads(line) for line in output.lines]
    results = model.generate(lines, **generation)
    assert [row["text"] for row in rows] == [result.text for result in results]
    assert [row["line"] for row in rows] == [1, 2, 3]
    assert rows[0]["score"] == pytest.approx(results[0].score)
    assert rows[0]["kept"] == [{"text": t.text, "start": t.start, "end": t.end} for t in results[0].kept]
    assert rows[0]["seconds"] > 0
    assert rows[0]["alternatives"][0]["text"] == results[0].alternatives[0].text
    assert rows[1] | {"seconds": 0} == {
        "line": 2, "text": "", "score": None, "kept": [], "source_tokens": 0, "output_tokens": 0, "cut": 0,
        "seconds": 0, "alternatives": [],
    }  # fmt: skip


def test_line_breaks_in_outputs_become_spaces(model: TextModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "_texts", lambda sequences: ["one\r\n\ntwo\rthree\u2028four"] * len(sequences))
    output, _ = run(model, b"a\nb\n")
    assert output.lines == ["one two three\u2028four"] * 2
    output, _ = run(model, b"a\nb\n", line=json_line)
    assert [json.loads(line)["text"] for line in output.lines] == ["one\r\n\ntwo\rthree\u2028four"] * 2


def test_json_input_can_contain_line_breaks(model: TextModel) -> None:
    texts = ["the dog\nsees a cat .", "a\r\nroad", ""]
    data = joined([json.dumps({"text": text}) for text in texts])
    output, _ = run(model, data, {"jsonl": True})
    assert output.lines == [result.text for result in model.generate(texts, **GENERATION)]


# --- hostile input -----------------------------------------------------------------------------------------------

HOSTILE = {
    "only blank lines": b"\n\n  \n\t\n",
    "a line without a line feed": b"the dog",
    "control characters": b"".join(bytes([c]) + b"the dog" for c in range(32) if c != 10) + b"\n",
    "NUL": b"\x00\nthe \x00 dog\n\x00\x00\n",
    "right to left": "שלום עולם\nمرحبا بالعالم\n\u202etheir dog\u202c\n".encode(),
    "emoji": "😀 👨‍👩‍👧‍👦 🇩🇪\n".encode(),
    "one word again and again": b"dog " * 3000 + b"\n",
    "separators": "a\u2028b\u2029c\nd\x85e\nf\x0bg\x0ch\ni\rj\n\x1c\x1d\x1e\n".encode(),
    "Windows": b"the dog\r\n\r\na cat\r\n",
    "invisible": "\u200b\n\ufeff\n\u00ad\n\u2060\n".encode(),
    "combining": ("a" + "\u0301" * 500 + "\n").encode(),
    "special tokens": b"</s> <pad> <unk> <s>\n</s>\n",
    "the last code points": "\U0010ffff\ufffe\uffff\ufffd\n".encode(),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_lines_keep_their_order(model: TextModel, name: str) -> None:
    data = b"a road\n" + HOSTILE[name] + (b"" if HOSTILE[name].endswith(b"\n") else b"\n") + b"the bird"
    output, totals = run(model, data)
    assert len(output.lines) == totals.lines == data.count(b"\n") + 1
    ends = model.generate(["a road", "the bird"], **GENERATION)
    assert (output.lines[0], output.lines[-1]) == (ends[0].text, ends[1].text)
    alone, _ = run(model, HOSTILE[name])
    assert alone.lines == output.lines[1:-1]


def test_empty_input_gives_empty_output(model: TextModel) -> None:
    output, totals = run(model, b"")
    assert (output.texts, totals) == ([], LineTotals())
    assert totals.sparsity is None


def test_a_very_long_line_is_cut_with_a_warning(model: TextModel) -> None:
    data = b"a road\n" + b"the dog sees " * 80_000 + b"\nthe bird\n"
    warned: list[str] = []
    output = Collected()
    totals = decode_lines(model, Decoding(GENERATION), Lines(io.BytesIO(data), "in"), output, warn=warned.append)
    assert len(output.lines) == 3
    assert totals.cut == 1
    assert len(warned) == 1
    assert warned[0].startswith("in, line 2: ")
    assert warned[0].endswith("tokens are too many for the model; cut to 64")


def test_the_number_of_warnings_about_long_lines_is_limited(model: TextModel) -> None:
    warned: list[str] = []
    data = (b"the dog " * 60 + b"\n") * 30
    totals = decode_lines(
        model, Decoding(GENERATION, window=7), Lines(io.BytesIO(data), "in"), Collected(), warn=warned.append
    )
    assert totals.cut == 30
    assert len(warned) == MAX_CUT_WARNINGS + 1


def test_windows_before_an_invalid_line_are_written(model: TextModel) -> None:
    output = Collected()
    lines = Lines(io.BytesIO(b"a\nb\nc\nd\xff\n"), "in")
    with pytest.raises(ValueError, match="in, line 4: not valid UTF-8"):
        decode_lines(model, Decoding(GENERATION, window=2), lines, output)
    assert len(output.lines) == 2


BYTES = st.one_of(
    st.binary(max_size=120),
    st.lists(st.text(max_size=12), max_size=6).map(lambda lines: "\n".join(lines).encode("utf-8", "surrogatepass")),
)
JSON_BYTES = st.lists(
    st.one_of(st.just(b""), st.binary(max_size=30), st.text(max_size=10).map(json.dumps).map(str.encode)), max_size=5
).map(b"\n".join)


def attempt(model: TextModel, data: bytes, **how: Any) -> tuple[list[str] | None, str]:
    """The output lines, or the error message."""
    try:
        return run(model, data, **how)[0].lines, ""
    except ValueError as error:
        return None, str(error)


def line_count(data: bytes) -> int:
    return data.count(b"\n") + (data != b"" and not data.endswith(b"\n"))


@given(data=BYTES)
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_bytes_keep_their_order_or_are_reported_with_their_line(model: TextModel, data: bytes) -> None:
    raw = data.split(b"\n")[: line_count(data)]
    lines, message = attempt(model, data, window=3)
    if lines is None:
        assert message.startswith("in, line ")
        with pytest.raises(UnicodeDecodeError):
            raw[int(message.split("line ")[1].split(":")[0]) - 1].decode()
        lines, _ = attempt(model, data, reading={"errors": "replace"}, window=3)
    assert lines is not None
    assert len(lines) == len(raw)
    for number, (line, text) in enumerate(zip(raw, lines, strict=True)):
        source = line.decode("utf-8", "replace")
        if not (source.removeprefix("\ufeff") if number == 0 else source).strip():
            assert text == ""
        assert not set("\r\n") & set(text)


@given(data=JSON_BYTES)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_json_lines_keep_their_order_or_are_reported_with_their_line(model: TextModel, data: bytes) -> None:
    lines, message = attempt(model, data, reading={"jsonl": True}, window=2, line=json_line)
    if lines is None:
        assert message.startswith("in, line ")
    else:
        assert [json.loads(line)["line"] for line in lines] == list(range(1, line_count(data) + 1))


def test_a_slow_tokenizer_handles_hostile_lines(tmp_path: Path) -> None:
    tokenizer = folders.marian_tokenizer(tmp_path)
    slow = load(folders.saved(folders.resized("marian", tokenizer), tokenizer, tmp_path / "marian"))
    data = b"".join(value if value.endswith(b"\n") else value + b"\n" for value in HOSTILE.values())
    output, _ = run(slow, data + b"a" * 200_000 + b"\n", line=json_line)
    assert len(output.lines) == data.count(b"\n") + 1
    for line, raw in zip(output.lines[:-1], data.split(b"\n")[:-1], strict=True):
        text = raw.decode().removesuffix("\r")
        for token in json.loads(line)["kept"]:
            assert token["start"] is None or 0 <= token["start"] < token["end"] <= len(text)


# --- memory ------------------------------------------------------------------------------------------------------


def limited(model: TextModel, monkeypatch: pytest.MonkeyPatch, tokens: int) -> None:
    """Simulate a machine on which larger batches do not fit into memory."""
    real = model.engine.generate

    def small(inputs: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if inputs.numel() > tokens:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return real(inputs, *args, **kwargs)

    monkeypatch.setattr(model.engine, "generate", small)


def test_batches_that_do_not_fit_are_halved(model: TextModel, monkeypatch: pytest.MonkeyPatch) -> None:
    data = joined(some_lines(100))
    wanted, _ = run(model, data)
    limited(model, monkeypatch, 200)
    warned: list[str] = []
    output = Collected()
    totals = decode_lines(model, Decoding(GENERATION), Lines(io.BytesIO(data), "in"), output, warn=warned.append)
    assert output.lines == wanted.lines
    assert totals.halved == len(warned) > 0
    assert "out of memory with" in warned[0]


def test_a_single_line_that_does_not_fit_is_reported(model: TextModel, monkeypatch: pytest.MonkeyPatch) -> None:
    limited(model, monkeypatch, 30)
    with pytest.raises(ValueError, match=r"in, line 3: out of memory with this text alone \(\d+ tokens\)"):
        run(model, b"the dog\n\n" + b"the dog " * 20 + b"\na road\n")


# --- processes ---------------------------------------------------------------------------------------------------


class Threads(Processes):
    """Processes simulated by threads."""

    def __init__(self, rank: int, count: int, barrier: threading.Barrier, box: dict[Any, Any]) -> None:
        self.rank, self.count = rank, count
        self._barrier, self._box = barrier, box

    def broadcast(self, value: Any) -> Any:
        if self.is_first:
            self._box["value"] = value
        self._barrier.wait()
        value = self._box["value"]
        self._barrier.wait()
        return value

    def gather(self, value: Any) -> list[Any]:
        self._box[self.rank] = value
        self._barrier.wait()
        values = [self._box[rank] for rank in range(self.count)]
        self._barrier.wait()
        return values


def together(folder: Path, count: int, data: bytes, prepare: Any = None, **how: Any) -> tuple[Collected, list[Any]]:
    output, outcomes = Collected(), [None] * count
    barrier, box = threading.Barrier(count, timeout=60), {}
    models = [load(folder, "cpu") for _ in range(count)]
    if prepare:
        prepare(models)

    def play(rank: int) -> None:
        lines = Lines(io.BytesIO(data), "in") if rank == 0 else None
        processes = Threads(rank, count, barrier, box)
        try:
            outcomes[rank] = decode_lines(
                models[rank], Decoding(**{"generation": GENERATION, **how}), lines, output if rank == 0 else None,
                processes=processes,
            )  # fmt: skip
        except ValueError as error:
            outcomes[rank] = error

    threads = [threading.Thread(target=play, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return output, outcomes


@pytest.mark.parametrize("count", [2, 3])
def test_several_processes_give_the_same_output(sparse_folder: Path, model: TextModel, count: int) -> None:
    data = joined(some_lines(150))
    alone, totals = run(model, data, window=40, batch_tokens=64)
    shared, outcomes = together(sparse_folder, count, data, window=40, batch_tokens=64)
    assert shared.texts == alone.texts
    first = outcomes[0]
    for name in ("lines", "blank", "source_tokens", "kept_tokens", "output_tokens"):
        assert getattr(first, name) == getattr(totals, name), name


def test_an_error_in_one_process_ends_all_of_them(sparse_folder: Path) -> None:
    def break_second(models: list[TextModel]) -> None:
        def broken(*args: Any, **kwargs: Any) -> Any:
            raise ValueError("in, line 9: out of memory")

        models[1].decode = broken  # type: ignore[method-assign]

    _, outcomes = together(sparse_folder, 2, joined(some_lines(60)), break_second, window=30, batch_tokens=64)
    assert isinstance(outcomes[0], ValueError)
    assert str(outcomes[0]) == "in, line 9: out of memory"
    assert isinstance(outcomes[1], LineTotals), "the other process must end normally"


def test_a_read_error_ends_all_processes(sparse_folder: Path) -> None:
    output, outcomes = together(sparse_folder, 2, b"a\nb\nc\xff\n", window=2)
    assert len(output.lines) == 2
    assert "line 3" in str(outcomes[0])
    assert isinstance(outcomes[1], LineTotals)


# --- long lines ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [1, 3, 100])
def test_long_lines_are_decoded_in_pieces(model: TextModel, window: int) -> None:
    long = "the dog sees a cat . " * 30
    lines = ["the dog sees a cat .", long, "", "the road ."]
    output, totals = run(model, joined(lines), line=json_line, split=True, window=window)
    found = [json.loads(line) for line in output.lines]
    assert [line["line"] for line in found] == [1, 2, 3, 4]
    assert (totals.lines, totals.blank, totals.cut) == (4, 1, 0)
    assert found[1]["source_tokens"] > model.max_source
    assert found[1]["cut"] == 0
    pieces = split_text(long, lambda part: not model.encode([part])[0].cut)
    parts = model.generate([long[start:end] for start, end in pieces], **GENERATION)
    assert found[1]["text"] == " ".join(part.text for part in parts)
    assert max(token["end"] or 0 for token in found[1]["kept"]) > len(long) / 2
    for line, text in ((found[0], lines[0]), (found[3], lines[3])):
        assert line["text"] == model.generate([text], **GENERATION)[0].text
