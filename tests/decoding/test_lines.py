"""Reading lines from a stream of bytes: line ends, invalid input, counts."""

import gzip
import hashlib
import io
import json
import lzma
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from l0drop.data.text import CorpusError
from l0drop.decoding import lines as lines_module
from l0drop.decoding.lines import Lines, TextInput


def read(data: bytes, **how) -> list[str]:  # type: ignore[no-untyped-def]
    return list(Lines(io.BytesIO(data), "in", **how))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"a", ["a"]),
        (b"a\nb", ["a", "b"]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"a\rb\n", ["a\rb"]),
        (b"a\r\r\n", ["a\r"]),
        ("a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\n".encode(), ["a\u2028b\u2029c\x85d\x0be\x0cf\x1cg"]),
        (b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n", ["a", "\ufeffb"]),
        (b"\x00\n\n\n", ["\x00", "", ""]),
    ],
)
def test_only_a_line_feed_ends_a_line(data: bytes, expected: list[str]) -> None:
    assert read(data) == expected


@given(st.binary(max_size=200))
def test_the_number_of_lines_follows_from_the_line_feeds(data: bytes) -> None:
    texts = read(data, errors="replace")
    assert len(texts) == data.count(b"\n") + (not data.endswith(b"\n") and data != b"")
    assert all("\n" not in text for text in texts)


def test_invalid_utf8_is_reported_with_its_line() -> None:
    with pytest.raises(CorpusError, match='in, line 2: not valid UTF-8 at byte 1 of the line .*`errors="replace"`'):
        read(b"fine\na\xff\n")
    assert read(b"fine\na\xff\n", errors="replace") == ["fine", "a\ufffd"]


def test_json_lines() -> None:
    data = '{"text": "a\\nb", "id": 3}\n\n"c"\n{"text": ""}\n'
    assert read(data.encode(), jsonl=True) == ["a\nb", "", "c", ""]
    assert read(b'{"document": "x"}', jsonl=True, field="document") == ["x"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'"a"\n{"text": ', "in, line 2: not JSON"),
        (b'"a"\n{"txt": "b"}', "in, line 2: no field 'text'; found txt"),
        (b'"a"\n{}', "in, line 2: no field 'text'; found no fields"),
        (b'"a"\n{"text": 5}', "in, line 2: expected a text"),
        (b'"a"\n[1]', "in, line 2: expected a text"),
        (b'"a"\n"\\ud800"', "in, line 2: half of a surrogate pair at character 0"),
        (b'"a"\n' + b"[" * 200_000, "in, line 2: not JSON"),
        (b'"a"\n' + b"1" * 10_000, "in, line 2: "),
    ],
)
def test_invalid_json_is_reported_with_its_line(data: bytes, message: str) -> None:
    with pytest.raises(CorpusError, match=message):
        read(data, jsonl=True)


def test_surrogates_are_replaced_on_request() -> None:
    (text,) = read(b'"a\\ud800b"', jsonl=True, errors="replace")
    assert text == "a\ufffdb"
    assert read(json.dumps("😀").encode(), jsonl=True) == ["😀"], "a complete pair is a character"


def test_an_endless_line_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines_module, "LONGEST", 1000)
    with pytest.raises(CorpusError, match="in, line 2: longer than"):
        read(b"a\n" + b"x" * 1000)
    assert read(b"a\n" + b"x" * 999) == ["a", "x" * 999]
    assert read(b"a\n" + b"x" * 999 + b"\n") == ["a", "x" * 999]


def test_position_and_digest_and_skipping() -> None:
    data = b"a\nb\r\nc\n"
    lines = Lines(io.BytesIO(data), "in")
    texts = iter(lines)
    assert next(texts) == "a"
    assert next(texts) == "b"
    assert (lines.number, lines.bytes, lines.digest) == (2, 5, hashlib.sha256(b"a\nb\r\n").hexdigest())
    again = Lines(io.BytesIO(data), "in")
    again.skip(2, lines.digest)
    assert list(again) == ["c"]
    for other in (b"a\nB\r\nc\n", b"a\nb\nc\n", b"a\n"):
        with pytest.raises(CorpusError, match="the first 2 lines differ from those"):
            Lines(io.BytesIO(other), "in").skip(2, lines.digest)


def test_compressed_and_missing_files(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"a\nb\n"))
    (tmp_path / "a.xz").write_bytes(lzma.compress(b"a\nb\n"))
    for name in ("a.gz", "a.xz"):
        with TextInput(tmp_path / name).opened() as lines:
            assert list(lines) == ["a", "b"]
    (tmp_path / "torn.gz").write_bytes(gzip.compress(b"a\nb\n" * 5000)[:-20])
    with (
        TextInput(tmp_path / "torn.gz").opened() as lines,
        pytest.raises(CorpusError, match="torn.gz: damaged after line"),
    ):
        list(lines)
    with pytest.raises(CorpusError, match="absent: No such file"), TextInput(tmp_path / "absent").opened():
        pass
    with pytest.raises(CorpusError, match="is a folder"), TextInput(tmp_path).opened():
        pass
