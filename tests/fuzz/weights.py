"""Changed safetensors files: the model is refused, or gives the outputs of the unchanged one.

Only changed numbers and moved tensors may give other outputs, and these are finite.
"""

import json
import math
import struct
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from tests.fuzz.findings import require
from tests.fuzz.stage import Stage, command

FILE = Path("model/model.safetensors")
KINDS = ("F64", "F32", "F16", "BF16", "I64", "I32", "U8", "BOOL", "F8_E4M3", "C64", "X", "", None, 3)
SHAPES = ([], [0], [1], [32], [32, 32], [-1], [2**62, 4], [1.5], "32", None, [[32]], [10**30])
OFFSETS = ([0, 0], [0, 4], [4, 0], [-4, 0], [0, 2**63], [0, 10**30], [0], [], "0", None, [0.5, 4.5])
NAMES = ("", "x", "model.encoder.layers.7.fc1.weight", "__metadata__", "gate.weight", "\ud800", "a" * 9999)
METADATA = ({}, {"format": "pt"}, {"format": "tf"}, {"format": 1}, {"l0drop": "x"}, {"x": "y"}, "pt", None, [], 1)
NUMBERS = (math.nan, math.inf, -math.inf, 3e38, 1e30, 0.0, -1.0)


def cases() -> st.SearchStrategy[Any]:
    tensor = st.integers(0, 200)
    edit = st.one_of(
        st.tuples(st.just("dtype"), tensor, st.sampled_from(KINDS)),
        st.tuples(st.just("shape"), tensor, st.sampled_from(SHAPES)),
        st.tuples(st.just("data_offsets"), tensor, st.sampled_from(OFFSETS)),
        st.tuples(st.just("transposed"), tensor),
        st.tuples(st.just("removed"), tensor),
        st.tuples(st.just("renamed"), tensor, st.sampled_from(NAMES)),
        st.tuples(st.just("swapped"), tensor, tensor),
        st.tuples(st.just("metadata"), st.sampled_from(METADATA)),
        st.tuples(st.just("number"), tensor, st.integers(0, 10**6), st.sampled_from(NUMBERS)),
        st.tuples(st.just("byte"), st.floats(0, 1), st.integers(0, 255)),
        st.tuples(st.just("cut"), st.floats(0, 1)),
        st.tuples(st.just("longer"), st.integers(1, 64)),
        st.tuples(st.just("length"), st.sampled_from([0, 1, 7, 2**20, 2**40, 2**63, 2**64 - 1])),
    )
    return st.lists(edit, min_size=1, max_size=3)


def check(case: Any, stage: Stage) -> None:
    ask = ("translate", "model", "-i", "lines.txt", "--json", "--no-jsonl")
    expected = [json.loads(line)["text"] for line in command(*ask).out.splitlines()]
    FILE.write_bytes(changed(FILE.read_bytes(), case))
    ran = command(*ask)
    stage.require_same_inputs(FILE)
    if ran.code:
        return
    results = [json.loads(line) for line in ran.out.splitlines()]
    require(len(results) == len(expected), f"{len(results)} output lines for {len(expected)} input lines")
    for result in results:
        require(math.isfinite(result["score"]), f"the score is {result['score']}")
    may_differ = any(kind in ("number", "byte", "swapped", "data_offsets") for kind, *_ in case)
    same = [result["text"] for result in results] == expected
    require(same or may_differ, f"a damaged file gives other outputs: {case}")


def changed(content: bytes, edits: list[Any]) -> bytes:
    """The file with these edits, one after the other; an edit of a header that cannot be read any more does nothing."""
    for edit in edits:
        content = _changed(content, *edit)
    return content


def _changed(content: bytes, kind: str, *values: Any) -> bytes:
    if kind == "byte":
        at = int(values[0] * (len(content) - 1))
        return content[:at] + bytes([values[1]]) + content[at + 1 :]
    if kind == "cut":
        return content[: int(values[0] * len(content))]
    if kind == "longer":
        return content + b"\0" * values[0]
    if kind == "length":
        return struct.pack("<Q", values[0]) + content[8:]
    try:
        length = struct.unpack("<Q", content[:8])[0]
        header, data = json.loads(content[8 : 8 + length]), bytearray(content[8 + length :])
        names = sorted(name for name in header if name != "__metadata__")
        name = names[values[0] % len(names)] if kind != "metadata" else ""
        entry = header.get(name)
        if kind == "metadata":
            header["__metadata__"] = values[0]
        elif kind == "removed":
            del header[name]
        elif kind == "renamed":
            header[values[1]] = header.pop(name)
        elif kind == "swapped":
            other = header[names[values[1] % len(names)]]
            entry["data_offsets"], other["data_offsets"] = other["data_offsets"], entry["data_offsets"]
        elif kind == "transposed":
            entry["shape"] = entry["shape"][::-1]
        elif kind == "number":
            start, end = entry["data_offsets"]
            at = start + 4 * (values[1] % ((end - start) // 4))
            data[at : at + 4] = struct.pack("<f", values[2])
        else:
            entry[kind] = values[1]
        written = json.dumps(header).encode()
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, ArithmeticError, struct.error):
        return content
    return struct.pack("<Q", len(written)) + written + bytes(data)
