"""The studies of docs/results/toy.md: targets, ways to train, source text only, rules, the dial.

    python scripts/toy_studies.py --runs runs --output docs/studies

Every study is a list of l0drop commands, printed before they run. Finished runs are not trained again. The results are
collected in `targets.json`, `ways.json`, `rules.json` and `elastic.json`; `learned-against-random.json` compares the
learned gate with random gates. --studies selects.
"""

import argparse
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from l0drop.data.whole import write_whole
from l0drop.runs.json_file import as_json, write_json
from l0drop.runs.run import DialCurve, RunFolder, RunMetrics
from l0drop.runs.sweep import Sweep, SweepFolder

TARGETS = "0.3,0.5,0.7"
CORPORA = ("translation", "documents")
RULES = "pos,freq,inv_freq,group,random:0.5,norm:0.5"
RULED = "toy-translation-rules"
"""The sweep with rules and learned gates."""
RANDOM = "learned-against-random"
ELASTIC = "toy-translation-elastic"
WAYS = {
    "fine-tuned": "toy-translation-sparse-sweep/target-0.5",
    "from scratch": "toy-translation-scratch",
    "from scratch, λ ramped": "toy-translation-ramp",
    "with references": "toy-translation-references",
    "source text alone": "toy-translation-source-only",
}
"""Run folders, by the way of training."""


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
        found[name] = study.results(arguments.runs)
        write_json(arguments.output / f"{name}.json", as_json(found))
    if "rules" in arguments.studies:
        compared = RunFolder(arguments.runs / RANDOM).metrics.read_text(encoding="utf-8")
        write_whole(arguments.output / f"{RANDOM}.json", compared)


class ToyStudy(NamedTuple):
    """commands: make the runs; later ones need earlier ones. results: collects their scores."""

    commands: Callable[[Path], list[list[str]]]
    results: Callable[[Path], dict[str, Any]]


def sweep_commands(runs: Path, corpora: Sequence[str] = CORPORA) -> list[list[str]]:
    commands = []
    for corpus in corpora:
        commands.append(["train", f"recipes/toy-{corpus}-base.yaml", "--runs", str(runs)])
        commands.append(["sweep", f"recipes/toy-{corpus}-sparse.yaml", "--target", TARGETS, "--runs", str(runs)])
    return commands


def sweeps(runs: Path) -> dict[str, Any]:
    return {corpus: sweep(runs / f"toy-{corpus}-sparse-sweep") for corpus in CORPORA}


def way_commands(runs: Path) -> list[list[str]]:
    scratch = ["train", "recipes/toy-translation-scratch.yaml", "--runs", str(runs)]
    ramp = {"l0drop.target_sparsity": "null", "l0drop.lambda_": "0.5", "l0drop.ramp.end": "1200"}
    # the continued baseline is the better teacher
    sweep_folder = runs / "toy-translation-sparse-sweep"
    start = {"model.init": str(SweepFolder(sweep_folder).continued.path)}
    distilled = {
        "train.targets": "teacher",
        "train.teacher": "{model: init, weight: 0.5}",
        "train.label_smoothing": "0",
    }
    return [
        *sweep_commands(runs),
        scratch,
        _train(runs, "toy-translation-scratch", "toy-translation-ramp", ramp),
        _train(runs, "toy-translation-sparse", "toy-translation-references", start),
        _train(runs, "toy-translation-sparse", "toy-translation-source-only", {**start, **distilled}),
    ]


def ways(runs: Path) -> dict[str, Any]:
    return {name: run(runs / folder) for name, folder in WAYS.items()}


def rule_commands(runs: Path) -> list[list[str]]:
    base, *_ = sweep_commands(runs)
    sparse = ["sweep", "recipes/toy-translation-sparse.yaml", "--set", f"name={RULED}"]
    points = ["--target", "0.2,0.4,0.5,0.6", "--rules", RULES, "--runs", str(runs)]
    learned, at_random = (str(runs / f"{RULED}-sweep" / point) for point in ("target-0.5", "random-0.5"))
    return [base, [*sparse, *points], ["evaluate", learned, "--baseline", at_random, "--output", str(runs / RANDOM)]]


def rules(runs: Path) -> dict[str, Any]:
    return sweep(runs / f"{RULED}-sweep")


def elastic_commands(runs: Path) -> list[list[str]]:
    folder = runs / ELASTIC
    return [
        *sweep_commands(runs, CORPORA[:1]),
        _train(runs, "toy-translation-sparse", ELASTIC, {"train.elastic": "true"}),
        ["bench", "dial", str(folder), "--keep", "0.3,0.5,0.7,1", "--json", str(folder / "dial.json")],
    ]


def elastic(runs: Path) -> dict[str, Any]:
    dial = DialCurve.read(RunFolder(runs / ELASTIC).dial)
    fixed = sweep(runs / "toy-translation-sparse-sweep")
    trained = {point["run"]: {"sparsity": point["sparsity"], "score": point["score"]} for point in fixed["points"]}
    return {"dial": dial, "trained": trained, "reference": fixed["reference"]}


STUDIES = {
    "targets": ToyStudy(sweep_commands, sweeps),
    "ways": ToyStudy(way_commands, ways),
    "rules": ToyStudy(rule_commands, rules),
    "elastic": ToyStudy(elastic_commands, elastic),
}


def _train(runs: Path, recipe: str, name: str, changes: dict[str, str]) -> list[str]:
    settings = [word for key, value in {"name": name, **changes}.items() for word in ("--set", f"{key}={value}")]
    return ["train", f"recipes/{recipe}.yaml", *settings, "--runs", str(runs)]


def sweep(folder: Path) -> dict[str, Any]:
    """Test scores of a sweep's points and of its continued baseline."""
    content = Sweep.read(SweepFolder(folder).summary)
    reference, scores = content.continued, content.scores
    copied = {key: getattr(reference, key) for key in ("seed", "dtype", "decoding")}
    return {
        "reference": {"score": scores[reference.run].score, "steps": reference.steps},
        "points": [
            {"run": point.run, "sparsity": scores[point.run].sparsity, "score": scores[point.run].score}
            for point in content.points
        ],
        **copied,
        **({} if reference.trained_on is None else vars(reference.trained_on)),
    }


def run(folder: Path) -> dict[str, Any]:
    """A run's test results and provenance."""
    content = RunMetrics.read(RunFolder(folder).metrics)
    assert content.made_by is not None
    copied = {key: getattr(content, key) for key in ("name", "steps", "seed", "dtype", "decoding")}
    made_by = {key: getattr(content.made_by, key) for key in ("l0drop", "commit", "torch", "device", "threads")}
    return {**copied, "lambda": content.lambda_, **made_by, "test": content.test}


if __name__ == "__main__":
    main()
