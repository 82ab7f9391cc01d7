"""The command line with random options: it works or ends with a message, and changes no input.

Left out are commands that run for minutes whatever their options (demo, bench train, drift, layerwise) and those that
start other processes (bench decode, sweep --parallel).
"""

from typing import Any

import typer.main
from hypothesis import strategies as st

from l0drop.app.cli import app
from tests.fuzz.stage import Stage, command

STARTS = (
    ["translate", "model", "-i", "lines.txt"], ["translate", "model", "-i", "lines.txt", "-o", "out/a"],
    ["summarize", "runs/sparse"], ["translate", "runs/base"], ["explain", "model", "the dog"], ["explain", "model"],
    ["evaluate", "runs/sparse", "--baseline", "runs/base"], ["evaluate", "model", "--source", "text/test.source"],
    ["analyze", "runs/sparse", "--only", "groups"], ["report", "runs/sparse"], ["report", "runs/points-sweep"],
    ["prepare", "sparse.yaml"], ["train", "sparse.yaml", "--runs", "out"], ["sweep", "points.yaml"],
    ["bench", "predict", "model", "--input", "lines.txt"], ["bench", "dial", "runs/sparse", "--keep", "0.5"],
)  # fmt: skip
"""Commands that work, before options are added."""
NUMBERS = ("0", "1", "2", "3", "-1", "0.5", "1.0", "1e30", "1e-9", "nan", "inf", "-inf", "9" * 30, "0x1", "١", "1_0")
PATHS = (
    "lines.txt", "lines.jsonl", "lines.txt.gz", "out/a", "out/a.jsonl", "out/b/c", "out", ".", "", "model",
    "runs/sparse", "runs/base", "runs/points-sweep", "sparse.yaml", "base.yaml", "no/such/file", "text/test.source",
    "text/test.target", "lines.txt.partial", "model/model.safetensors", "runs/sparse/metrics.json", "/dev/null",
    "a\nb", "é", "x" * 300,
)  # fmt: skip
WORDS = (
    "", "x", "-", "--", "=", "a=b", "num_beams=2", "num_beams=2.0", "num_beams=[1]", "top_p=NaN", "gates=3", "keep=0.5",
    "eos_token_id=1e400", "train.steps=2", "train.steps=x", "train.steps=-1", f"train.steps={10**30}", "train.seed=7",
    "l0drop.target_sparsity=2", "l0drop={}", "l0drop=", "data=1", "a.b.c=1", ".=1", "[bold]", "{", "0.4",
    "0.1:0.2:0.1", "0:1:0", "1:0:-1", "0.1:0.9:1e-9", "pos", "random:0.5", "random:x", "norm:2", "en-de", "cpu",
    "cuda", "cuda:99", "meta", "float16", "int8", "mass", "json", "\ud800", "\x1b[31m",
)  # fmt: skip
WRITTEN = ("-o", "--output", "--json", "--summary", "--runs")
"""Options that name what is written."""


def options() -> dict[str, list[str]]:
    """The names of all options of every command."""
    root: Any = typer.main.get_command(app)
    groups = {**root.commands, **{f"bench {name}": one for name, one in root.commands["bench"].commands.items()}}
    return {name: sorted({flag for one in group.params for flag in (*one.opts, *one.secondary_opts) if flag[0] == "-"}
                         - {"--parallel"})
            for name, group in groups.items()}  # fmt: skip


def cases() -> st.SearchStrategy[Any]:
    known = options()
    value = st.sampled_from(NUMBERS) | st.sampled_from(PATHS) | st.sampled_from(WORDS)

    def arguments(start: list[str]) -> st.SearchStrategy[list[str]]:
        names = known.get(" ".join(start[:2]), known.get(start[0], []))
        named = st.tuples(st.sampled_from(names), value).map(list)
        flag = st.sampled_from([[name] for name in names])
        added = st.lists(st.one_of(named, named, named, flag, value.map(lambda one: [one])), min_size=1, max_size=3)
        return added.map(lambda parts: [*start, *(word for part in parts for word in part)])

    return st.sampled_from(STARTS).flatmap(arguments)


def check(case: Any, stage: Stage) -> None:
    written = [case[at + 1] for at, word in enumerate(case[:-1]) if word in WRITTEN]
    read = [case[at + 1] for at, word in enumerate(case[:-1]) if word in ("-i", "--input", "--source", "--reference")]
    command(*case, stdin=b"the dog\n\na cat")
    stage.require_same_inputs(*(set(written) - set(read)))
