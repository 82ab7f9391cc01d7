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

--rivals also trains memories without gates at these sparsities, distilled like the gated models: means of neighbours,
merged neighbours, and the encodings of largest norm or with most attention. To compare them with gates of the same
sparsity: --gatings zero --targets 0.47 0.7 --rivals 0.47 0.7 --distil-dense

--screen trains other systems: many ways to the same sparsities, and as the reference continued baselines that are
distilled the same way, with other learning rates. Both sides are also trained for other numbers of steps and scored at
several length penalties. Only the validation text is decoded, and the tables choose on it:

    python scripts/multi30k.py --data data/multi30k --runs runs/screening --screen --seeds 3 --parallel 6

--confirm trains the chosen variants and the tuned reference. The test text is decoded once, when everything is chosen
(`tuned.py`):

    python scripts/multi30k.py --data data/multi30k --runs runs/confirmed --confirm fixed settled --parallel 6

--systems selects single systems by name without the seed, and the runs that they need. --gather collects the finished
runs and trains nothing. --tables FILE prints the tables of a results.json and exits.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from l0drop.recipe import Recipe
from l0drop.runs.run import RunFolder, Split
from l0drop.runs.study import StudyResults
from l0drop.runs.table import Table
from l0drop.study.dial import dial_curve
from l0drop.study.distillation import folder_name
from l0drop.study.study import Options, Study, SystemRecipe, at_target, continued, with_shortener
from l0drop.study.sweep import UNGATED
from result_tables.labels import SHORTENERS
from result_tables.quality import elastic_table, seeds_table, single_table
from study_command import carry_out, options_of, parser_of
from tuned import REFERENCES, VARIANTS, Confirming, Tuned, add_confirming, confirming_of, share_dropped, tuned_tables

RECIPES = Path(__file__).resolve().parents[1] / "recipes"
GATINGS = ("zero", "mask", "weight")
TARGETS = (0.5, 0.3, 0.7)
KEEPS = (0.3, 0.5, 0.7, 1.0)
ELASTIC = "elastic"

SCREENED = (0.47, 0.7)
"""The targets of a screening."""
STEPS = (500, 2000, 4000)
"""Numbers of steps of both sides beside the recipe's."""


class Multi30k(Study):
    """Gatings at several sparsities. The first target is also trained in other ways.

    other_ways: of distillation. dense: also distil continued baselines. long: also train for this number of steps.
    also: overrides of `zero`, by the name of the variant. elastic: the number of seeds of the elastic model.
    rivals: the sparsities of memories without gates.
    """

    what = "Multi30k English-German, test 2016 (flickr), cased BLEU"
    base_recipe, sparse_recipe = RECIPES / "multi30k-base.yaml", RECIPES / "multi30k-target50.yaml"
    endings = ("en", "de")
    margin = 0.5

    def __init__(
        self,
        options: Options,
        gatings: Sequence[str] = GATINGS,
        targets: Sequence[float] = TARGETS,
        other_ways: Sequence[str] = (),
        dense: bool = False,
        long: int | None = None,
        also: Mapping[str, Sequence[str]] | None = None,
        elastic: int = 1,
        rivals: Sequence[float] = (),
    ) -> None:
        super().__init__(options)
        self.gatings, self.targets, self.other_ways = gatings, targets, other_ways
        self.dense, self.long, self.also, self.elastic = dense, long, also or {}, elastic
        self.rivals = rivals

    def systems(self) -> list[SystemRecipe]:
        first = self.targets[0]
        name, longer = f"zero-{first:g}", f"train.steps={self.long}"
        systems = [continued("on-long", longer)] if self.long else []
        for target in self.targets:
            systems += [at_target(f"{gating}-{target:g}", target, f"l0drop.gating={gating}") for gating in self.gatings]
        for sparsity in self.rivals:
            systems += [with_shortener(f"{how}-{sparsity:g}", how, sparsity) for how in SHORTENERS]
        systems += [at_target(f"{name}-{folder_name(way)}", first, distil=way) for way in self.other_ways]
        systems += [at_target(f"{name}-{variant}", first, *values) for variant, values in self.also.items()]
        if self.dense:
            systems.append(SystemRecipe("on-taught", UNGATED))
        if self.long:
            systems.append(at_target(f"{name}-long", first, longer))
        if self.long and self.dense:
            systems.append(SystemRecipe("on-taught-long", (*UNGATED, longer)))
        return [*systems, SystemRecipe(ELASTIC, ("train.elastic=true",), seeds=self.elastic)]

    def train(self, recipes: Sequence[Recipe]) -> None:
        """Train, then score the elastic models at several settings of the dial."""
        super().train(recipes)
        for seed in self.seeds[: self.elastic] if self.trains(ELASTIC) else ():
            folder = RunFolder(self.run_of(ELASTIC, seed))
            if not folder.dial.exists():
                dial_curve(folder.path, KEEPS, lambda text: None).write(folder.dial)

    @staticmethod
    def tables(found: StudyResults) -> list[Table]:
        """Every system with its difference to the continued baseline, then the dial; or those of a tuned study."""
        if tuned := tuned_tables(found):
            return tuned
        compared = any(system.against_on is not None for system in found.systems.values())
        tables = [seeds_table(found) if compared else single_table(found)]
        return [*tables, elastic_table(found)] if ELASTIC in found.systems else tables


class Screening(Tuned):
    """Variants of `zero` at two sparsities, next to a reference that is tuned too.

    Runs with other numbers of steps are trained last, because the choice does not depend on them.
    """

    what = f"{Multi30k.what.partition(',')[0]}, validation text, cased BLEU"
    base_recipe, sparse_recipe = Multi30k.base_recipe, Multi30k.sparse_recipe
    endings, margin = Multi30k.endings, Multi30k.margin
    split: ClassVar[Split] = "valid"

    def systems(self) -> list[SystemRecipe]:
        systems = [SystemRecipe(name, (*UNGATED, *values)) for name, values in REFERENCES.items()]
        for target in SCREENED:
            systems.append(at_target(f"zero-{target:g}", target))
            systems += [at_target(f"zero-{target:g}-{name}", target, *values) for name, values in VARIANTS.items()]
        for count in STEPS:
            longer = f"train.steps={count}"
            systems.append(SystemRecipe(f"on-taught-{count}-steps", (*UNGATED, longer)))
            systems += [at_target(f"zero-{target:g}-{count}-steps", target, longer) for target in SCREENED]
        return systems


class Confirmed(Confirming):
    """The chosen variants on the test text."""

    what = Multi30k.what
    base_recipe, sparse_recipe = Multi30k.base_recipe, Multi30k.sparse_recipe
    endings, margin = Multi30k.endings, Multi30k.margin


def main() -> None:
    parser = parser_of(Multi30k, __doc__, Path("runs/multi30k"), ways="+")
    parser.add_argument("--gatings", nargs="+", default=GATINGS)
    parser.add_argument("--targets", nargs="+", type=float, default=TARGETS)
    parser.add_argument(
        "--distil-dense", action="store_true", help="also train continued baselines that are distilled the same way"
    )
    parser.add_argument(
        "--long", type=int, metavar="STEPS", help="also train continued baselines and `zero` for this number of steps"
    )
    parser.add_argument(
        "--also", nargs="+", type=variant, default=[], metavar="NAME:a.b=value,...",
        help="also train `zero` with these changes",
    )  # fmt: skip
    parser.add_argument("--screen", action="store_true", help="train the systems of the screening instead")
    parser.add_argument("--elastic", type=int, default=1, help="number of seeds that also train an elastic model")
    parser.add_argument(
        "--rivals", nargs="+", type=share_dropped, default=(), metavar="SPARSITY",
        help="also train memories without gates at these sparsities",
    )  # fmt: skip

    add_confirming(parser, SCREENED)

    def study(arguments: argparse.Namespace) -> Study:
        chosen, *others = arguments.distil
        if arguments.confirm:
            return confirming_of(Confirmed, arguments, parser)
        if arguments.distil_dense and chosen == "no":
            parser.error("--distil-dense: needs a way to distil, but --distil is no")
        if arguments.screen:
            if chosen == "no" or others:
                parser.error("--screen: needs one way to distil, which both sides share")
            return Screening(options_of(arguments))
        return Multi30k(
            options_of(arguments),
            gatings=arguments.gatings,
            targets=arguments.targets,
            other_ways=others,
            dense=arguments.distil_dense,
            long=arguments.long,
            also=dict(arguments.also),
            elastic=arguments.elastic,
            rivals=arguments.rivals,
        )

    carry_out(Multi30k, parser, study)


def variant(text: str) -> tuple[str, list[str]]:
    """The name of a variant and its overrides."""
    name, _, values = text.partition(":")
    if not name or not values:
        raise argparse.ArgumentTypeError(
            f"{text}: expected a name and its changes, such as slow-gate:train.gate_scale=10"
        )
    return name, values.split(",")


if __name__ == "__main__":
    main()
