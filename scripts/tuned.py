"""What a screening and its confirming runs share: the variants, the tuned reference, and choices on validation text.

Runs are trained without the test text. Once they are finished, their validation text is decoded at several length
penalties, while others train. A confirming study then decodes the test text of each compared run once, at the length
penalty that is best on its validation text.

Shared options, for a study that has confirming runs:

    --confirm VARIANT ...   train these variants (`plain`: none) and the reference, instead of other systems
    --sparsities S ...      their targets
    --reference NAME        the continued baseline that is distilled the same way, by its system; without it, all of
                            them are trained, and the best one on validation text is the reference
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar

from l0drop.recipe import Recipe
from l0drop.runs.run import LengthPenaltyCurve, RunFolder, RunMetrics, Split
from l0drop.runs.study import StudyResults
from l0drop.runs.table import Table
from l0drop.study.length_penalty import decode_test, length_penalty_curve
from l0drop.study.parallel import RunError
from l0drop.study.seeds import ON, Then
from l0drop.study.study import BASE, Options, Study, SystemRecipe, at_target
from l0drop.study.sweep import UNGATED
from result_tables.labels import SAME_WAY
from result_tables.screening import candidates_table, chosen_table, confirmed_table, screened_table, steps_table
from study_command import options_of

VARIANTS: Mapping[str, Sequence[str]] = {
    "slowly": ("train.steer_over=0.8", "train.steer_gain=0.15"),
    "annealed": ("train.anneal=0.4",),
    "falling": ("train.schedule=linear",),
    "settled": ("train.settle=0.3",),
    "fixed": ("train.fixed_gates=0.3",),
    "fixed-falling": ("train.fixed_gates=0.3", "train.schedule=linear"),
    "together": (
        "train.steer_over=0.5", "train.steer_gain=0.15", "train.anneal=0.3", "train.fixed_gates=0.3",
        "train.schedule=linear",
    ),
    "layers": ("l0drop.gate=layers", "l0drop.gate_args={layers: [0, 3, 6]}"),
    "network": ("l0drop.gate=network",),
    "mean-gating": ("l0drop.gating=mean",),
}  # fmt: skip
"""Ways to a sparsity, by name: the way to the target, what the gate reads, and another gating (docs/training.md,
docs/gates.md)."""
PLAIN = "plain"
"""The name of no variant."""
RATES = (1e-4, 6e-4, 1e-3)
"""Learning rates of the reference beside the recipe's."""
REFERENCES: Mapping[str, Sequence[str]] = {
    SAME_WAY: (),
    **{f"{SAME_WAY}-rate-{rate:g}": (f"train.learning_rate={rate}",) for rate in RATES},
    f"{SAME_WAY}-falling": VARIANTS["falling"],
}
"""The reference with each learning rate, by system."""
PENALTIES = (0.2, 0.6, 1.0, 1.4, 1.8)
"""Length penalties that runs are scored at."""


class Tuned(Study):
    """Runs without the test text, scored at several length penalties."""

    tests_every_run = False

    def background(self) -> Then:
        """Score each run at the length penalties; `on` only decodes for others."""
        names = [name for name in self.recipes if not name.startswith((f"{BASE}-", f"{ON}-s"))]
        return {(name,): partial(self.curve, name) for name in names}

    def curve(self, name: str) -> LengthPenaltyCurve:
        """The scores of a finished run on its validation text, measured once."""
        folder = RunFolder(self.runs / name)
        if not folder.length_penalties.exists():
            length_penalty_curve(folder.path, PENALTIES).write(folder.length_penalties)
        return LengthPenaltyCurve.read(folder.length_penalties)

    @staticmethod
    def tables(found: StudyResults) -> list[Table]:
        return tuned_tables(found)


class Confirming(Tuned):
    """The variants of a screening against the tuned reference, each baseline with its own teacher's outputs.

    variants: of `VARIANTS`, or `plain`. sparsities: their targets. reference: a system of `REFERENCES`; None trains all
    of them, and takes the one with the best score on the validation text, at its best length penalty.
    """

    split: ClassVar[Split] = "test"
    own_outputs = True

    def __init__(
        self, options: Options, variants: Sequence[str], sparsities: Sequence[float], reference: str | None = None
    ) -> None:
        super().__init__(options)
        self.variants, self.sparsities, self.asked = variants, sparsities, reference

    def systems(self) -> list[SystemRecipe]:
        references = [self.asked] if self.asked else [*REFERENCES]
        systems = [SystemRecipe(name, (*UNGATED, *REFERENCES[name])) for name in references]
        for target in self.sparsities:
            for variant in self.variants:
                plain = variant == PLAIN
                name = f"zero-{target:g}" if plain else f"zero-{target:g}-{variant}"
                systems.append(at_target(name, target, *(() if plain else VARIANTS[variant])))
        return systems

    def train(self, recipes: Sequence[Recipe]) -> None:
        """Train; then choose the reference, and decode the test text of the compared runs, whatever else failed."""
        failed = None
        try:
            super().train(recipes)
        except RunError as error:
            failed = error
        reference = self.chosen()
        for name in self.recipes:
            system = name.rpartition("-s")[0]
            is_compared = system != BASE and (system not in REFERENCES or system == reference)
            if is_compared and RunFolder(self.runs / name).is_finished:
                decode_test(self.runs / name, self.curve(name).best, self.test_text)
        if failed is not None:
            raise failed

    def chosen(self) -> str:
        """The reference with the best mean score on the validation text."""
        means = {}
        for system in (name for name in REFERENCES if self.trains(name)):
            curves = [self.curve(self.run_of(system, seed).name) for seed in self.seeds]
            means[system] = sum(max(row.valid for row in curve.rows) for curve in curves) / len(curves)
        return max(means, key=lambda system: means[system])

    def compared_with(self) -> Mapping[str, str]:
        """The reference, which is the one whose test text was decoded."""
        finished = [RunFolder(self.runs / name) for name in self.recipes]
        tested = {
            folder.path.name.rpartition("-s")[0]
            for folder in finished
            if folder.is_finished and RunMetrics.read(folder.metrics).test is not None
        }
        systems = dict.fromkeys(name.rpartition("-s")[0] for name in self.recipes)
        found = [name for name in REFERENCES if name in tested]
        if len(found) > 1:
            raise ValueError(f"{self.runs}: seeds were compared with different references, {', '.join(found)}")
        return {name: found[0] for name in systems if name.startswith("zero-")} if found else {}


def tuned_tables(found: StudyResults) -> list[Table]:
    """The tables of a screening or of confirming runs; none for the results of another study."""
    runs = [run for system in found.systems.values() for run in system.runs]
    if not any(run.length_penalties for run in runs):
        return []
    if any(run.test for run in runs):
        return [confirmed_table(found), screened_table(found)]
    return [screened_table(found), chosen_table(found), candidates_table(found), steps_table(found)]


def add_confirming(parser: argparse.ArgumentParser, sparsities: Sequence[float]) -> None:
    """The options of confirming runs. sparsities: the default targets."""
    parser.add_argument(
        "--confirm", nargs="+", choices=[PLAIN, *VARIANTS], metavar="VARIANT",
        help="train these variants and the tuned reference instead (plain: no variant)",
    )  # fmt: skip
    parser.add_argument(
        "--sparsities", nargs="+", type=share_dropped, default=sparsities, help="the targets of --confirm"
    )
    parser.add_argument(
        "--reference", choices=[*REFERENCES], help="with --confirm: train this reference only, chosen earlier"
    )


def confirming_of(
    kind: Callable[..., Confirming], arguments: argparse.Namespace, parser: argparse.ArgumentParser
) -> Confirming:
    if arguments.distil[0] == "no":
        parser.error("--confirm: needs a way to distil, which both sides share")
    options = replace(options_of(arguments), parts=())
    return kind(options, arguments.confirm, arguments.sparsities, arguments.reference)


def share_dropped(text: str) -> float:
    """A sparsity, above 0 and below 1."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text}: expected a share between 0 and 1, such as 0.47")
    return value
