"""Five seeds of Multi30k English-German: baselines, the baselines trained on, and three gatings at three sparsities.

    python scripts/multi30k.py --data data/multi30k --runs runs/multi30k --parallel 6 --set train.compile=true

The folder holds train, valid and test, as .en and .de (.gz and .xz are unpacked). Everything is an ordinary run of
`recipes/multi30k-base.yaml` and `recipes/multi30k-target50.yaml` under --runs, so it goes on where it stopped.
`results.json` there gathers what all finished runs say: scores, sparsities, recipes, times, and the differences to the
baseline trained on, with intervals over seeds and sentences; `outputs/` in every run folder has what they translated.
With --tables FILE, print the tables of such a file and do nothing else.
"""

import argparse
import json
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from l0drop.data.whole import write_whole
from l0drop.recipe import Recipe, load_recipe
from l0drop.study.children import side_by_side
from l0drop.study.dial import dial_curve
from l0drop.study.significance import compare_over_seeds
from l0drop.study.significance import statistics as statistics_of
from l0drop.study.sweep import UNGATED, is_finished
from l0drop.training.assemble import build_tokenizers, references
from l0drop.training.run import open_run, prepare

RECIPES = Path(__file__).resolve().parents[1] / "recipes"
GATINGS = ("zero", "mask", "weight")
TARGETS = (0.5, 0.3, 0.7)
KEEPS = (0.3, 0.5, 0.7, 1.0)
MARGIN = 0.5
"""The loss of BLEU that is small enough to accept."""
DENSE = (*UNGATED, "train.teacher=null")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--runs", type=Path, default=Path("runs/multi30k"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--gatings", nargs="*", default=GATINGS)
    parser.add_argument("--targets", nargs="*", type=float, default=TARGETS)
    parser.add_argument("--elastic", type=int, default=1, help="seeds that are also trained for the dial")
    parser.add_argument("--parallel", type=int, default=1, help="runs at a time")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of each")
    parser.add_argument("--set", action="append", default=[], help="a.b=value, for every run")
    parser.add_argument("--baseline", action="append", default=[], help="a.b=value, for the baselines alone")
    parser.add_argument("--fine-tune", action="append", default=[], help="a.b=value, for what follows the baselines")
    parser.add_argument("--tables", type=Path, metavar="FILE", help="print the tables of a results.json")
    arguments = parser.parse_args()
    if arguments.tables is not None:
        print(tables(json.loads(arguments.tables.read_text(encoding="utf-8"))))
        return
    if arguments.data is None:
        parser.error("--data: say where the text is")
    console = Console(stderr=True)
    common = [*corpora(arguments.data), *arguments.set]
    seeds = range(1, arguments.seeds + 1)
    baselines = [
        load_recipe(
            RECIPES / "multi30k-base.yaml", [*common, *arguments.baseline, f"seed={seed}", f"name=base-s{seed}"]
        )
        for seed in seeds
    ]

    def tuned(name: str, seed: int, *overrides: str) -> Recipe:
        start = [*common, *arguments.fine_tune, f"seed={seed}", f"model.init={arguments.runs / f'base-s{seed}'}"]
        return load_recipe(RECIPES / "multi30k-target50.yaml", [*start, *overrides, f"name={name}-s{seed}"])

    after = [tuned("on", seed, *DENSE) for seed in seeds]
    for target in arguments.targets:
        for seed in seeds:
            for gating in arguments.gatings:
                point = (f"l0drop.gating={gating}", f"l0drop.target_sparsity={target}")
                after.append(tuned(f"{gating}-{target:g}", seed, *point))
    elastic = [tuned("elastic", seed, "train.elastic=true") for seed in seeds[: arguments.elastic]]
    for recipes in (baselines, [*after, *elastic]):
        for recipe in recipes:
            open_run(recipe, arguments.runs)
        if recipes is baselines:  # tokenizers and tokenized corpora, made before anybody needs them
            for recipe in recipes:
                prepare(recipe, arguments.runs, console)
        todo = [recipe for recipe in recipes if not is_finished(arguments.runs, recipe.name)]
        for name in side_by_side(
            todo, arguments.runs, arguments.parallel, arguments.threads, console, lambda name, seconds: None
        ):
            console.print(f"{name} is done")
    for recipe in elastic:
        file = arguments.runs / recipe.name / "dial.json"
        if not file.exists():
            curve = dial_curve(arguments.runs / recipe.name, KEEPS, lambda text: None)
            write_whole(file, json.dumps(curve, indent=1) + "\n")
    found = results(arguments.runs, [recipe.name for recipe in (*baselines, *after, *elastic)])
    write_whole(arguments.runs / "results.json", json.dumps(found, indent=1) + "\n")
    console.print(tables(found), highlight=False, markup=False)


def corpora(folder: Path) -> list[str]:
    """Overrides that put the recipe's three corpora into this folder."""
    values = []
    for split in ("train", "valid", "test"):
        for side, ending in (("source", "en"), ("target", "de")):
            found = sorted(folder.glob(f"{split}.{ending}*"))
            if not found:
                raise SystemExit(f"{folder}: no {split}.{ending}")
            values.append(f"data.{split}.{side}={found[0]}")
    return values


def results(runs: Path, names: Iterable[str]) -> dict[str, Any]:
    """What the finished runs say, by system; no text of the data."""
    systems: dict[str, dict[str, Any]] = {}
    outputs: dict[str, list[Any]] = {}
    truth: list[str] = []
    for name in (name for name in names if is_finished(runs, name)):
        folder, system = runs / name, name.rpartition("-s")[0]
        metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
        recipe = yaml.safe_load((folder / "recipe.yaml").read_text(encoding="utf-8"))
        if not truth:
            read = load_recipe(folder / "recipe.yaml")
            truth = references(read, build_tokenizers(read, folder, lambda text: None), "test")
        about = {key: recipe.pop(key) for key in ("name", "seed", "about")}
        provenance = {key: metrics[key] for key in ("commit", "device", "torch", "transformers", "python", "threads")}
        # of one seed: the others differ in seed, name and model.init
        entry = systems.setdefault(system, {"recipe": recipe, "provenance": provenance, "runs": []})
        log = map(json.loads, (folder / "log.jsonl").read_text(encoding="utf-8").splitlines())
        run = {"seed": about["seed"], "train_seconds": [e["train_runtime"] for e in log if "train_runtime" in e][-1]}
        for key in ("steps", "lambda", "calibration", "valid", "test"):
            if key in metrics:
                run[key] = metrics[key]
        if (folder / "dial.json").exists():
            run["dial"] = json.loads((folder / "dial.json").read_text(encoding="utf-8"))["rows"]
        entry["runs"].append(run)
        lines = (folder / "outputs" / "test.txt").read_text(encoding="utf-8").splitlines()
        outputs.setdefault(system, []).append((about["seed"], statistics_of("bleu", lines, truth)))
    references_by_seed = dict(outputs.get("on", []))
    for system, found in outputs.items():
        pairs = [(ours, references_by_seed[seed]) for seed, ours in found if seed in references_by_seed]
        if system != "on" and len(pairs) > 1:
            systems[system]["against_on"] = compare_over_seeds(pairs, MARGIN).as_json()
    return {"what": "Multi30k English-German, test 2016 (flickr), cased BLEU", "systems": systems}


def tables(found: dict[str, Any]) -> str:
    """Markdown: every system with its difference to the baseline trained on, then the dial."""
    lines = [
        "| system | seeds | sparsity, test | BLEU, valid | BLEU, test | against the baseline trained on | bound | "
        f"non-inferior (-{MARGIN:g}) |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, system in found["systems"].items():
        runs = system["runs"]
        if len(runs) < 2:
            continue
        sparsity = [100 * run["test"].get("sparsity", 0.0) for run in runs]
        scores = {split: [run[split]["score"]["value"] for run in runs] for split in ("valid", "test")}
        row = [TITLES.get(name, name.replace("-", " at ")), str(len(runs))]
        row.append(f"{statistics.mean(sparsity):.1f}%" if max(sparsity) else "-")
        row += [f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}" for values in scores.values()]
        if (against := system.get("against_on")) is not None:
            low, high = against["interval"]
            row.append(f"{against['difference']:+.2f} [{low:+.2f}, {high:+.2f}]")
            row += [f"{against['lower']:+.2f}", "yes" if against["non_inferior"] else "no"]
        else:
            row += ["-"] * 3
        lines.append(f"| {' | '.join(row)} |")
    elastic = found["systems"].get("elastic", {"runs": []})["runs"]
    trained = {s: {run["seed"]: run for run in v["runs"]} for s, v in found["systems"].items()}
    for run in elastic:
        lines += ["", f"| keep, seed {run['seed']} | sparsity | BLEU, elastic | trained for it |", "|---|---|---|---|"]
        for row in run["dial"]:
            keep = row["keep"]
            own = "on" if keep == 1 else "zero-0.5" if keep is None else f"zero-{1 - keep:.1g}"
            other = trained.get(own, {}).get(run["seed"])
            label = "as trained" if keep is None else f"{keep:g}"
            value = "-" if other is None else f"{other['test']['score']['value']:.2f}"
            lines.append(f"| {label} | {row['sparsity']:.1%} | {row['score']['value']:.2f} | {value} |")
    return "\n".join(lines)


TITLES = {"base": "baseline", "on": "baseline trained on"}


if __name__ == "__main__":
    main()
