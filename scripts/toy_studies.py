"""The studies of docs/studies.md, on the toy corpora: targets, ways to train, source text alone, rules, the dial.

    python scripts/toy_studies.py --runs runs --output docs/studies

Every study is a command line of l0drop, printed before it runs; what is trained already is not trained again. What they
say is gathered in `targets.json`, `ways.json`, `rules.json` and `elastic.json`, and how the learned gate compares with
chance in `learned-against-random.json`. --studies chooses.
"""

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from l0drop.data.whole import write_whole
from l0drop.study.sweep import continued_in, continued_run

TARGETS = "0.3,0.5,0.7"
CORPORA = ("translation", "documents")
RULES = "pos,freq,inv_freq,group,random:0.5,norm:0.5"
RULED = "toy-translation-rules"
"""The sweep with rules beside the learned gate."""
CHANCE = "learned-against-random"
ELASTIC = "toy-translation-elastic"
WAYS = {
    "fine-tuned": "toy-translation-sparse-sweep/target-0.5",
    "from scratch": "toy-translation-scratch",
    "from scratch, λ ramped": "toy-translation-ramp",
    "with references": "toy-translation-references",
    "source text alone": "toy-translation-source-only",
}
"""Runs, by the way they are trained."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--output", type=Path, default=Path("docs/studies"))
    parser.add_argument("--studies", nargs="*", choices=STUDIES, default=STUDIES)
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    done: list[list[str]] = []
    for name, study in ((name, STUDIES[name]) for name in arguments.studies):
        commands = study.commands(arguments.runs)
        for command in (command for command in commands if command not in done):
            print("$", shlex.join(["l0drop", *command]), flush=True)
            subprocess.run([sys.executable, "-m", "l0drop", *command], check=True)
        done += commands
        found = {"commands": [shlex.join(["l0drop", *command]) for command in commands]}
        found[name] = study.gathered(arguments.runs)
        write_whole(arguments.output / f"{name}.json", json.dumps(found, indent=1) + "\n")
    if "rules" in arguments.studies:
        compared = (arguments.runs / CHANCE / "metrics.json").read_text(encoding="utf-8")
        write_whole(arguments.output / f"{CHANCE}.json", compared)


class Study(NamedTuple):
    """The commands that make its runs, in the order in which one builds on another, and what these say."""

    commands: Callable[[Path], list[list[str]]]
    gathered: Callable[[Path], dict[str, Any]]


def swept(runs: Path, corpora: Sequence[str] = CORPORA) -> list[list[str]]:
    commands = []
    for corpus in corpora:
        commands.append(["train", f"recipes/toy-{corpus}-base.yaml", "--runs", str(runs)])
        commands.append(["sweep", f"recipes/toy-{corpus}-sparse.yaml", "--target", TARGETS, "--runs", str(runs)])
    return commands


def sweeps(runs: Path) -> dict[str, Any]:
    return {corpus: sweep(runs / f"toy-{corpus}-sparse-sweep") for corpus in CORPORA}


def trained_in_ways(runs: Path) -> list[list[str]]:
    scratch = ["train", "recipes/toy-translation-scratch.yaml", "--runs", str(runs)]
    ramp = {"l0drop.target_sparsity": "null", "l0drop.lambda_": "0.5", "l0drop.ramp.end": "1200"}
    # a teacher worth learning from: the baseline trained on
    sweep_folder = runs / "toy-translation-sparse-sweep"
    start = {"model.init": str(sweep_folder / continued_run(sweep_folder))}
    taught = {"train.targets": "teacher", "train.teacher": "{model: init, weight: 0.5}", "train.label_smoothing": "0"}
    return [
        *swept(runs),
        scratch,
        _train(runs, "toy-translation-scratch", "toy-translation-ramp", ramp),
        _train(runs, "toy-translation-sparse", "toy-translation-references", start),
        _train(runs, "toy-translation-sparse", "toy-translation-source-only", {**start, **taught}),
    ]


def ways(runs: Path) -> dict[str, Any]:
    return {name: run(runs / folder) for name, folder in WAYS.items()}


def ruled(runs: Path) -> list[list[str]]:
    base, *_ = swept(runs)
    sparse = ["sweep", "recipes/toy-translation-sparse.yaml", "--set", f"name={RULED}"]
    points = ["--target", "0.2,0.4,0.5,0.6", "--rules", RULES, "--runs", str(runs)]
    learned, chance = (str(runs / f"{RULED}-sweep" / point) for point in ("target-0.5", "random-0.5"))
    return [base, [*sparse, *points], ["evaluate", learned, "--baseline", chance, "--output", str(runs / CHANCE)]]


def rules(runs: Path) -> dict[str, Any]:
    return sweep(runs / f"{RULED}-sweep")


def dialled(runs: Path) -> list[list[str]]:
    folder = runs / ELASTIC
    return [
        *swept(runs, CORPORA[:1]),
        _train(runs, "toy-translation-sparse", ELASTIC, {"train.elastic": "true"}),
        ["bench", "dial", str(folder), "--keep", "0.3,0.5,0.7,1", "--json", str(folder / "dial.json")],
    ]


def elastic(runs: Path) -> dict[str, Any]:
    dial = json.loads((runs / ELASTIC / "dial.json").read_text(encoding="utf-8"))
    beside = sweep(runs / "toy-translation-sparse-sweep")
    trained = {point["run"]: {"sparsity": point["sparsity"], "score": point["score"]} for point in beside["points"]}
    return {"dial": dial, "trained": trained, "reference": beside["reference"]}


STUDIES = {
    "targets": Study(swept, sweeps),
    "ways": Study(trained_in_ways, ways),
    "rules": Study(ruled, rules),
    "elastic": Study(dialled, elastic),
}


def _train(runs: Path, recipe: str, name: str, changes: dict[str, str]) -> list[str]:
    settings = [word for key, value in {"name": name, **changes}.items() for word in ("--set", f"{key}={value}")]
    return ["train", f"recipes/{recipe}.yaml", *settings, "--runs", str(runs)]


def sweep(folder: Path) -> dict[str, Any]:
    """A sweep's points beside the baseline trained on, on the test text."""
    content = json.loads((folder / "sweep.json").read_text())
    reference = continued_in(content)
    return {
        "reference": {"score": reference["test"]["score"], "steps": reference["steps"]},
        "points": [
            {"run": point["run"], "sparsity": point["test"]["sparsity"], "score": point["test"]["score"]}
            for point in content["points"]
        ],
        **{key: reference[key] for key in ("seed", "dtype", "decoding", "commit", "device", "threads")},
    }


def run(folder: Path) -> dict[str, Any]:
    """A run's test results, and what it takes to repeat them."""
    content = json.loads((folder / "metrics.json").read_text())
    kept = ("name", "steps", "seed", "dtype", "decoding", "lambda", "l0drop", "commit", "torch", "device", "threads")
    return {**{key: content[key] for key in kept}, "test": content["test"]}


if __name__ == "__main__":
    main()
