"""The studies of docs/studies.md, on the toy corpora: targets, ways to train, source text alone, one elastic model.

    python scripts/toy_studies.py --runs runs --output docs/studies

Every study is a command line of l0drop, printed before it runs; what is finished already is not run again. What they
say is gathered in `targets.json`, `ways.json` and `elastic.json`.
"""

import argparse
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from l0drop.data.whole import write_whole

TARGETS = "0.3,0.5,0.7"
CORPORA = ("translation", "documents")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--output", type=Path, default=Path("docs/studies"))
    arguments = parser.parse_args()
    runs = arguments.runs
    commands = studies(runs)
    for command in commands:
        print("$", shlex.join(["l0drop", *command]), flush=True)
        subprocess.run([sys.executable, "-m", "l0drop", *command], check=True)
    arguments.output.mkdir(parents=True, exist_ok=True)
    sweeps = {corpus: sweep(runs / f"toy-{corpus}-sparse-sweep") for corpus in CORPORA}
    named = {
        "fine-tuned": "toy-translation-sparse-sweep/target-0.5",
        "from scratch": "toy-translation-scratch",
        "from scratch, λ ramped": "toy-translation-ramp",
        "with references": "toy-translation-references",
        "source text alone": "toy-translation-source-only",
    }
    ways = {name: run(runs / folder) for name, folder in named.items()}
    elastic = {"dial": json.loads((runs / "toy-translation-elastic" / "dial.json").read_text()), "trained": {}}
    for point in sweeps["translation"]["points"]:
        elastic["trained"][point["run"]] = {"sparsity": point["sparsity"], "score": point["score"]}
    shown = [shlex.join(["l0drop", *command]) for command in commands]
    for name, content in (("targets", sweeps), ("ways", ways), ("elastic", elastic)):
        write_whole(arguments.output / f"{name}.json", json.dumps({"commands": shown, name: content}, indent=1) + "\n")


def studies(runs: Path) -> list[list[str]]:
    """The commands, in the order in which one builds on another."""
    commands = []
    for corpus in CORPORA:
        commands.append(["train", f"recipes/toy-{corpus}-base.yaml"])
        commands.append(["sweep", f"recipes/toy-{corpus}-sparse.yaml", "--target", TARGETS])
    commands.append(["train", "recipes/toy-translation-scratch.yaml"])
    ramp = {"l0drop.target_sparsity": "null", "l0drop.lambda_": "0.5", "l0drop.ramp.end": "1200"}
    commands.append(_train("toy-translation-scratch", "toy-translation-ramp", ramp))
    # a teacher worth learning from: the baseline trained on
    start = {"model.init": f"{runs}/toy-translation-sparse-sweep/reference"}
    taught = {"train.targets": "teacher", "train.teacher": "{model: init, weight: 0.5}", "train.label_smoothing": "0"}
    commands.append(_train("toy-translation-sparse", "toy-translation-references", start))
    commands.append(_train("toy-translation-sparse", "toy-translation-source-only", {**start, **taught}))
    commands.append(_train("toy-translation-sparse", "toy-translation-elastic", {"train.elastic": "true"}))
    folder = runs / "toy-translation-elastic"
    if not (folder / "dial.json").exists():
        commands.append(["bench", "dial", str(folder), "--keep", "0.3,0.5,0.7,1", "--json", str(folder / "dial.json")])
    return [command if command[0] == "bench" else [*command, "--runs", str(runs)] for command in commands]


def _train(recipe: str, name: str, changes: dict[str, str]) -> list[str]:
    settings = {"name": name, **changes}
    return ["train", f"recipes/{recipe}.yaml", *(word for k, v in settings.items() for word in ("--set", f"{k}={v}"))]


def sweep(folder: Path) -> dict[str, Any]:
    """A sweep's points beside the baseline trained on, on the test text."""
    content = json.loads((folder / "sweep.json").read_text())
    reference = content["reference"]
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
