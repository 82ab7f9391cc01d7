"""Changed JSON and YAML files: the command that reads them works, or says what is wrong in them."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from hypothesis import strategies as st

from tests.fuzz.findings import require
from tests.fuzz.stage import Stage, command

DECODE = ["translate MODEL -i lines.txt --json", "explain MODEL the_dog"]
RUN = ["report runs/sparse", "evaluate runs/sparse --baseline runs/base"]
RESUME = ["train sparse.yaml"]
SWEEP = "sweep points.yaml --target 0.4"
READERS = {
    **{f"model/{name}.json": [one.replace("MODEL", "model") for one in DECODE] for name in
       ("config", "generation_config", "tokenizer_config", "tokenizer")},
    **{f"runs/sparse/model/{name}.json": [DECODE[0].replace("MODEL", "runs/sparse"), *RUN] for name in
       ("config", "generation_config")},
    "runs/sparse/recipe.yaml": [DECODE[0].replace("MODEL", "runs/sparse"), *RUN, *RESUME],
    "runs/sparse/metrics.json": [*RUN, *RESUME],
    "runs/sparse/analysis.json": ["report runs/sparse", "analyze runs/sparse --only mass"],
    "runs/sparse/evaluation/metrics.json": RUN,
    "runs/sparse/evaluation/examples.json": RUN,
    "runs/sparse/figures/figures.json": ["report runs/sparse", "analyze runs/sparse --only mass"],
    "runs/sparse/checkpoints/checkpoint-4/trainer_state.json": RESUME,
    "runs/sparse/checkpoints/checkpoint-4/l0drop.json": RESUME,
    "runs/sparse/checkpoints/checkpoint-4/config.json": RESUME,
    "runs/base/data/train/manifest.json": ["prepare base.yaml", *RESUME],
    "runs/base/tokenizer/tokenizer.json": ["prepare base.yaml", *RESUME],
    "runs/points-sweep/sweep.json": [f"{one} runs/points-sweep" for one in ("report", "evaluate")] + [SWEEP],
    "sparse.yaml": ["prepare sparse.yaml --runs out", "train sparse.yaml --runs out"],
    "points.yaml": [f"{SWEEP} --runs out"],
    "out/output.partial.json": ["translate model -i lines.txt -o out/output --resume"],
}  # fmt: skip
"""Files, and the commands that read them."""
ATOMS = (
    *(None, True, False, -1, 0, 1, 2, 3, 2**31, 2**63, 10**30, -(10**30), 0.5, -0.5, 1.0, 2.5, 1e30, 1e-30),
    *(math.nan, math.inf, -math.inf, "", "x", "1", "float16", "\x00", "\ud800", "../..", "<script>", "[bold]", "|"),
    *([], {}, [[]], [None], [1, 2], ["x"], {"x": 1}, {"": None}, [{}], "x" * 3000),
)

CONTENTS = ("", "null", "[]", "{}", "1", "x", "[" * 3000, "\ufeff{}", "- a")


def cases() -> st.SearchStrategy[Any]:
    place = st.integers(0, 10**6)
    edit = st.one_of(
        st.tuples(st.just("set"), place, st.sampled_from(ATOMS)),
        st.tuples(st.just("set"), place, st.sampled_from(ATOMS)),
        st.tuples(st.just("remove"), place),
        st.tuples(st.just("rename"), place, st.sampled_from(["", "x", "name", "__class__"])),
        st.tuples(st.just("wrap"), place, st.sampled_from([1, 2, 200])),
        st.tuples(st.just("double"), place),
    )
    raw = st.one_of(
        st.tuples(st.just("cut"), st.floats(0, 1)),
        st.tuples(st.just("byte"), st.floats(0, 1), st.integers(0, 255)),
        st.tuples(st.just("replace"), st.sampled_from(CONTENTS)),
        st.tuples(st.just("missing")),
        st.tuples(st.just("folder")),
        st.tuples(st.just("loop")),
    )
    edits = st.lists(edit, min_size=1, max_size=3) | raw.map(lambda one: [one])
    file = st.sampled_from(sorted(READERS)).flatmap(
        lambda name: st.tuples(st.just(name), st.sampled_from(READERS[name]))
    )
    return st.tuples(file, edits).map(lambda both: {"file": both[0][0], "command": both[0][1], "edits": both[1]})


def check(case: Any, stage: Stage) -> None:
    file, words = Path(case["file"]), case["command"].split()
    if "--resume" in words:
        _interrupt()
    if words[0] == "train" and "checkpoints" in case["file"]:
        _unfinish()
    change(file, case["edits"])
    ran = command(*words)
    stage.require_same_inputs(file)
    if ran.code == 0 and words[0] == "translate":
        lines = ran.out.decode() if "-o" not in words else Path("out/output").read_text()
        require(lines.count("\n") == 3, f"{lines.count(chr(10))} output lines for 3 input lines")
        for line in lines.splitlines() if "--json" in words else []:
            require(math.isfinite(json.loads(line)["score"]), f"a score is not finite: {line}")


def _interrupt() -> None:
    """Leave an output of two lines of three."""
    text = Path("lines.txt").read_bytes()
    Path("lines.txt").write_bytes(b"".join(text.splitlines(True)[:2]) + b"\xff\n")
    ran = command("translate", "model", "-i", "lines.txt", "-o", "out/output", "--window", "1")
    require(ran.code == 2, "an invalid line was accepted")
    Path("lines.txt").write_bytes(text)


def _unfinish() -> None:
    """Leave a run that was killed after its last step."""
    Path("runs/sparse/metrics.json").unlink()
    for path in Path("runs/sparse/model").iterdir():
        path.unlink()
    Path("runs/sparse/model").rmdir()


def change(file: Path, edits: list[Any]) -> None:
    kind, *values = edits[0]
    content = file.read_bytes()
    if kind in ("missing", "folder", "loop"):
        file.unlink()
        if kind == "folder":
            file.mkdir()
        elif kind == "loop":
            file.symlink_to(file.name)
    elif kind == "cut":
        file.write_bytes(content[: int(values[0] * len(content))])
    elif kind == "byte":
        at = int(values[0] * (len(content) - 1))
        file.write_bytes(content[:at] + bytes([values[1]]) + content[at + 1 :])
    elif kind == "replace":
        file.write_text(values[0])
    else:
        read, write = (yaml.safe_load, yaml.dump) if file.suffix == ".yaml" else (json.loads, json.dumps)
        document = {"": read(content)}
        for edit in edits:
            _edit(document, *edit)
        file.write_text(write(document.get("")), encoding="utf-8", errors="surrogatepass")


def _edit(document: Any, kind: str, place: int, *values: Any) -> None:
    """One change of one value in a document; `place` counts the values of all nested parts."""
    places = list(_places(document))
    holder, key = places[place % len(places)]
    if kind == "remove":
        del holder[key]
    elif kind == "rename" and isinstance(holder, dict):
        holder[values[0]] = holder.pop(key)
    elif kind == "set":
        holder[key] = values[0]
    elif kind == "wrap":
        for _ in range(values[0]):
            holder[key] = [holder[key]]
    elif kind == "double" and isinstance(holder, list):
        holder.append(holder[key])


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every value of a document, as the part that holds it and its key; long lists count as one value."""
    if isinstance(value, dict) or (isinstance(value, list) and len(value) <= 500):
        for key, part in list(value.items() if isinstance(value, dict) else enumerate(value)):
            yield value, key
            yield from _places(part)
