"""Five seeds of Multi30k English-German: baselines, the baselines trained on, and three gatings at three sparsities.

    python scripts/multi30k.py --data data/multi30k --runs runs/multi30k --parallel 10

The folder holds train, valid and test, as .en and .de (.gz and .xz are unpacked). Everything is an ordinary run of
`recipes/multi30k-base.yaml` and `recipes/multi30k-target50.yaml` under --runs, so it goes on where it stopped;
`grid.json` gathers what they say, and `outputs/` in every run folder has what they translated.
"""

import argparse
import json
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console

from l0drop.data.whole import write_whole
from l0drop.recipe import Recipe, load_recipe
from l0drop.study.children import side_by_side
from l0drop.study.sweep import UNGATED, is_finished
from l0drop.training.run import open_run, prepare

RECIPES = Path(__file__).resolve().parents[1] / "recipes"
GATINGS = ("zero", "mask", "weight")
TARGETS = (0.3, 0.5, 0.7)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--runs", type=Path, default=Path("runs/multi30k"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--gatings", nargs="*", default=GATINGS)
    parser.add_argument("--targets", nargs="*", type=float, default=TARGETS)
    parser.add_argument("--parallel", type=int, default=1, help="runs at a time")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of each")
    parser.add_argument("--set", action="append", default=[], help="a.b=value, for every run")
    parser.add_argument("--baseline", action="append", default=[], help="a.b=value, for the baselines alone")
    parser.add_argument("--fine-tune", action="append", default=[], help="a.b=value, for what follows the baselines")
    arguments = parser.parse_args()
    console = Console(stderr=True)
    common = [*corpora(arguments.data), *arguments.set]
    seeds = range(1, arguments.seeds + 1)
    baselines = [
        load_recipe(
            RECIPES / "multi30k-base.yaml", [*common, *arguments.baseline, f"seed={seed}", f"name=base-s{seed}"]
        )
        for seed in seeds
    ]
    tuned = []
    for seed in seeds:
        start = [*common, *arguments.fine_tune, f"seed={seed}", f"model.init={arguments.runs / f'base-s{seed}'}"]
        tuned.append(fine_tuning([*start, *UNGATED], f"on-s{seed}"))
        for gating in arguments.gatings:
            for target in arguments.targets:
                point = (f"l0drop.gating={gating}", f"l0drop.target_sparsity={target}")
                tuned.append(fine_tuning([*start, *point], f"{gating}-{target:g}-s{seed}"))
    for recipes in (baselines, tuned):
        for recipe in recipes:
            open_run(recipe, arguments.runs)
        if recipes is baselines:  # one tokenizer and one tokenized corpus, made before anybody needs them
            for recipe in recipes:
                prepare(recipe, arguments.runs, console)
        todo = [recipe for recipe in recipes if not is_finished(arguments.runs, recipe.name)]
        for name in side_by_side(
            todo, arguments.runs, arguments.parallel, arguments.threads, console, lambda name, seconds: None
        ):
            console.print(f"{name} is done")
            gather(arguments.runs, [*baselines, *tuned])


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


def fine_tuning(overrides: Iterable[str], name: str) -> Recipe:
    return load_recipe(RECIPES / "multi30k-target50.yaml", [*overrides, f"name={name}"])


def gather(runs: Path, recipes: Iterable[Recipe]) -> None:
    """One file with what all finished runs say."""
    done = {
        recipe.name: json.loads((runs / recipe.name / "metrics.json").read_text(encoding="utf-8"))
        for recipe in recipes
        if is_finished(runs, recipe.name)
    }
    write_whole(runs / "grid.json", json.dumps(done, indent=1) + "\n")


if __name__ == "__main__":
    main()
