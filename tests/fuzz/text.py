"""Input text: any bytes, from a file or a pipe, compressed, as JSON lines, interrupted and resumed.

Lines end at \\n alone. Text that is valid UTF-8 must be translated, line by line as `load(...).generate` does it.
"""

import gzip
import json
import lzma
import math
import warnings
from functools import partial
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from tests.fuzz.findings import require
from tests.fuzz.stage import Stage, command

WORDS = ("the", "dog", "sees", "a", "cat", ".", " ", "  ", "\t")
ODD = (
    *("\x00", "\x0b", "\x0c", "\r", "\x1c", "\x1e", "\x85", "\xa0", "\u200b", "\u2028", "\u2029", "\u3000", "\ufeff"),
    *(
        "é",
        "e\u0301",
        "ß",
        "İ",
        "ﬁ",
        "漢字",
        "עברית",
        "👩‍👩‍👧",
        "\U0010ffff",
        "\ufffd",
        "▁",
        "<s>",
        "</s>",
        "<pad>",
        "<unk>",
    ),
    *('"', "\\", "\\u2028", "{", "[", "[bold]", "%s", "\x1b[31m", "the " * 3000, "x" * 5000),
)
BROKEN = (b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc0\xaf", b"\x80")
"""Not UTF-8: stray and missing bytes, a surrogate, a number beyond Unicode, an overlong slash."""
OPTIONS = (
    ["--beams", "1"], ["--beams", "3"], ["--dense"], ["--keep", "0.5"], ["--window", "1"], ["--window", "2"],
    ["--batch-tokens", "1"], ["--batch-tokens", "40"], ["--max-source", "4"], ["--prefix", "the "],
)  # fmt: skip


def cases() -> st.SearchStrategy[Any]:
    piece = st.sampled_from((*WORDS, *ODD)).map(str.encode) | st.sampled_from(BROKEN) | st.binary(max_size=3)
    usual = st.sampled_from((*WORDS, *ODD)).map(str.encode)
    line = st.lists(usual, max_size=6) | st.lists(usual, max_size=6) | st.lists(piece, max_size=4)
    lines = st.lists(line.map(lambda pieces: b"".join(pieces).replace(b"\n", b"").decode("latin-1")), max_size=5)
    return st.fixed_dictionaries(
        {
            "lines": lines,
            "last_newline": st.booleans(),
            "form": st.sampled_from(["txt", "pipe", "gz", "xz", "jsonl"]),
            "json": st.booleans(),
            "replace": st.booleans(),
            "interrupted": st.none() | st.integers(0, 4),
            "options": st.lists(st.sampled_from(OPTIONS), max_size=2, unique_by=lambda option: option[0]),
        }
    )


def check(case: Any, stage: Stage) -> None:
    lines = [line.encode("latin-1") for line in case["lines"]]
    valid = [_is_valid(line) for line in lines]
    if case["form"] == "jsonl":
        lines = [json.dumps({"text": line.decode("utf-8", "replace")}).encode() for line in lines]
        valid = [True] * len(lines)
    content = b"\n".join(lines) + b"\n" * (case["last_newline"] and bool(lines))
    expected_lines = lines if case["last_newline"] or not lines or lines[-1] else lines[:-1]
    path = Path(f"out/input.{case['form']}")
    pack = {"gz": partial(gzip.compress, mtime=0), "xz": lzma.compress}.get(case["form"], bytes)
    options = [word for option in case["options"] for word in option]
    options += ["--errors", "replace"] * case["replace"] + ["--json"] * case["json"] + ["--dtype", "float64"]
    path.write_bytes(pack(content))
    if case["form"] == "pipe":
        ran, out = command("translate", "model", *options, stdin=content), Path()
    else:
        out = Path("out/output")
        if not case["replace"] and case["interrupted"] is not None and case["interrupted"] < len(lines):
            _interrupt(lines, case["interrupted"], path, pack, out, options)
            path.write_bytes(pack(content))
            options.append("--resume")
        ran = command("translate", "model", "-i", str(path), "-o", str(out), *options)
        require(path.read_bytes() == pack(content), "the input was changed")
    stage.require_same_inputs()
    fine = all(valid[: len(expected_lines)]) or case["replace"]
    require((ran.code == 0) == fine, f"exit code {ran.code}: {ran.errors[-300:]}")
    if fine:
        written = ran.out if case["form"] == "pipe" else out.read_bytes()
        texts = [_text(line, case["form"]) for line in expected_lines]
        if texts and case["form"] != "jsonl":
            texts[0] = texts[0].removeprefix("\ufeff")  # a byte-order mark at the start of a file is no text
        _compare(written, texts, case, stage)


def _is_valid(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def _text(line: bytes, form: str) -> str:
    text = json.loads(line)["text"] if form == "jsonl" else line.decode("utf-8", "replace")
    return str(text)


def _interrupt(lines: list[bytes], at: int, path: Path, pack: Any, out: Path, options: list[str]) -> None:
    """Stop at line `at`, which is not valid in this version of the input."""
    path.write_bytes(pack(b"\n".join([*lines[:at], b"\xff", *lines[at + 1 :]])))
    ran = command("translate", "model", "-i", str(path), "-o", str(out), *options)
    require(ran.code == 2, "an invalid line was accepted")
    require(not out.exists(), "an output that is not complete has its final name")


def _compare(written: bytes, texts: list[str], case: Any, stage: Stage) -> None:
    """The outputs of the command and of the model called for one text after the other."""
    require(not written or written.endswith(b"\n"), "the last line has no end")
    lines = written.decode().split("\n")[:-1]
    require(len(lines) == len(texts), f"{len(lines)} output lines for {len(texts)} input lines")
    names = {"--beams": "num_beams", "--keep": "keep"}
    settings = {names[one[0]]: json.loads(one[1]) for one in case["options"] if one[0] in names}
    dense = {"dense": True} if ["--dense"] in case["options"] else {}
    prefixed = {"prefix": "the "} if ["--prefix", "the "] in case["options"] else {}
    cut = any(one[0] == "--max-source" for one in case["options"])
    for line, text in zip(lines, texts, strict=True):
        found = json.loads(line) if case["json"] else {"text": line}
        require(math.isfinite(found.get("score") or 0), f"the score is {found.get('score')}")
        if not text.strip():
            require(not found["text"], "the output of a blank line is not blank")
        elif not cut:
            with warnings.catch_warnings(action="ignore"):  # the text is cut
                expected = stage.model.generate([text], **settings, **dense, **prefixed)[0]
            same = found["text"] == expected.text.replace("\n", " ") or found["text"].split() == expected.text.split()
            require(same, f"the command gives {found['text']!r}, the model {expected.text!r}")
