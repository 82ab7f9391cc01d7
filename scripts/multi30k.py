"""Multi30k English-German with five seeds: baselines, continued baselines, and three gatings at several sparsities.

    python scripts/multi30k.py --data data/multi30k --runs runs/multi30k --parallel 6 --set train.compile=true

The data folder holds train, valid and test as .en and .de (.gz and .xz are unpacked). Every model is an ordinary run of
`recipes/multi30k-base.yaml` or `recipes/multi30k-target50.yaml` under --runs, so an interrupted study resumes.
`results.json` there collects all finished runs: scores, sparsities, recipes, times, and differences to the continued
baseline with intervals over seeds and sentences. `outputs/` in every run folder has its translations.

Gated models are distilled from the continued baseline, as --distil says (`l0drop/study/distillation.py`): token-level
from the run of their seed, sequence-level from the first seed's outputs on the training text, or both. If several ways
are given, the first is used for all gated systems. The others apply to the first target only, and their systems are
named after them. The variants of --also, which change the recipe, apply to the first target only too.

With --tables FILE, print the tables of a results.json and exit.
"""

import argparse
from functools import partial
from pathlib import Path

from rich.console import Console

from l0drop.recipe import Recipe, load_recipe
from l0drop.runs.run import RunFolder
from l0drop.runs.study import StudyResults
from l0drop.runs.table import in_markdown
from l0drop.study.dial import dial_curve
from l0drop.study.distillation import NO_TEACHER, WAYS, Distillation, folder_name, way_named
from l0drop.study.seeds import gather, text_in, train_all
from l0drop.study.sweep import UNGATED
from result_tables.quality import elastic_table, seeds_table, single_table

RECIPES = Path(__file__).resolve().parents[1] / "recipes"
GATINGS = ("zero", "mask", "weight")
TARGETS = (0.5, 0.3, 0.7)
KEEPS = (0.3, 0.5, 0.7, 1.0)
MARGIN = 0.5
"""The largest acceptable loss in BLEU."""
WHAT = "Multi30k English-German, test 2016 (flickr), cased BLEU"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--runs", type=Path, default=Path("runs/multi30k"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--gatings", nargs="+", default=GATINGS)
    parser.add_argument("--targets", nargs="+", type=float, default=TARGETS)
    parser.add_argument(
        "--distil", nargs="+", type=way_named, choices=WAYS, default=["both"], help="how gated models are distilled"
    )
    parser.add_argument(
        "--distil-dense", action="store_true", help="also train continued baselines that are distilled the same way"
    )
    parser.add_argument(
        "--long", type=int, metavar="STEPS", help="also train continued baselines and `zero` for this number of steps"
    )
    parser.add_argument(
        "--also", nargs="+", default=[], metavar="NAME:a.b=value,...", help="also train `zero` with these changes"
    )
    parser.add_argument("--elastic", type=int, default=1, help="number of seeds that also train an elastic model")
    parser.add_argument("--parallel", type=int, default=1, help="runs at a time")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads per run")
    parser.add_argument("--set", action="append", default=[], help="a.b=value, for every run")
    parser.add_argument("--baseline", action="append", default=[], help="a.b=value, for baselines only")
    parser.add_argument("--fine-tune", action="append", default=[], help="a.b=value, for runs that start from one")
    parser.add_argument("--tables", type=Path, metavar="FILE", help="print the tables of a results.json")
    arguments = parser.parse_args()
    if arguments.tables is not None:
        print(tables(StudyResults.read(arguments.tables)))
        return
    if arguments.data is None:
        parser.error("--data: name the folder that holds the text")
    if arguments.distil_dense and arguments.distil[0] == "no":
        parser.error("--distil-dense: needs a way to distil, but --distil is no")
    console = Console(stderr=True)
    common = [*text_in(arguments.data, "en", "de"), *arguments.set]
    seeds = range(1, arguments.seeds + 1)
    baselines = [
        load_recipe(
            RECIPES / "multi30k-base.yaml", [*common, *arguments.baseline, f"seed={seed}", f"name=base-s{seed}"]
        )
        for seed in seeds
    ]

    text = baselines[0].data.train
    distillation = Distillation(Path(text.source), Path(text.target), arguments.runs)

    def tuned(name: str, seed: int, way: str, *overrides: str) -> Recipe:
        start = [*common, f"seed={seed}", f"model.init={arguments.runs / f'base-s{seed}'}"]
        start += [*distillation.overrides(way, arguments.runs / f"on-s{seed}"), *arguments.fine_tune]
        return load_recipe(RECIPES / "multi30k-target50.yaml", [*start, *overrides, f"name={name}-s{seed}"])

    continued = [tuned("on", seed, "no", *UNGATED, NO_TEACHER) for seed in seeds]
    chosen, *others = arguments.distil
    half = arguments.targets[0]
    systems: dict[str, tuple[str, ...]] = {}
    for target in arguments.targets:
        for gating in arguments.gatings:
            systems[f"{gating}-{target:g}"] = (chosen, f"l0drop.gating={gating}", f"l0drop.target_sparsity={target}")
    systems |= {f"zero-{half:g}-{folder_name(way)}": (way, f"l0drop.target_sparsity={half}") for way in others}
    for way in arguments.also:
        name, _, values = way.partition(":")
        if not name or not values:
            parser.error(f"--also: {way}: expected a name and its changes, such as slow-gate:train.gate_scale=10")
        systems[f"zero-{half:g}-{name}"] = (chosen, f"l0drop.target_sparsity={half}", *values.split(","))
    if arguments.distil_dense:
        systems["on-taught"] = (chosen, *UNGATED)
    if arguments.long:
        longer = f"train.steps={arguments.long}"
        continued += [tuned("on-long", seed, "no", *UNGATED, NO_TEACHER, longer) for seed in seeds]
        systems[f"zero-{half:g}-long"] = (chosen, f"l0drop.target_sparsity={half}", longer)
        if arguments.distil_dense:
            systems["on-taught-long"] = (chosen, *UNGATED, longer)
    after = [tuned(name, seed, *values) for name, values in systems.items() for seed in seeds]
    elastic = [tuned("elastic", seed, chosen, "train.elastic=true") for seed in seeds[: arguments.elastic]]
    every = [*baselines, *continued, *after, *elastic]
    translate = partial(distillation.write, arguments.runs / "on-s1", arguments.distil, arguments.parallel)
    train_all(every, arguments.runs, arguments.parallel, arguments.threads, console, {("on-s1",): translate})
    for recipe in elastic:
        run = RunFolder(arguments.runs / recipe.name)
        if not run.dial.exists():
            dial_curve(run.path, KEEPS, lambda text: None).write(run.dial)
    names, statistics = [recipe.name for recipe in every], arguments.runs / "statistics.json.gz"
    found = gather(arguments.runs, names, WHAT, MARGIN, statistics_file=statistics)
    found.write(arguments.runs / "results.json")
    console.print(tables(found), highlight=False, markup=False)


def tables(found: StudyResults) -> str:
    """Markdown: every system with its difference to the continued baseline, then the dial."""
    compared = any(system.against_on is not None for system in found.systems.values())
    parts = [seeds_table(found) if compared else single_table(found)]
    if "elastic" in found.systems:
        parts.append(elastic_table(found))
    return "\n\n".join(map(in_markdown, parts))


if __name__ == "__main__":
    main()
