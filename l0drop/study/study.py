"""A study of one task: its text, its recipes and its systems, each trained with several seeds and compared.

A task is a subclass of `Study` that names its recipes and lists its systems. Every model is an ordinary run in one
folder, named SYSTEM-sSEED, so an interrupted study resumes. `base` is the baseline. `on` is the continued baseline:
all others are compared with it and distilled from it.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

from rich.console import Console

from l0drop.data.text import read_lines
from l0drop.recipe import Recipe, TextCorpus, load_recipe
from l0drop.runs.run import RunFolder, Split
from l0drop.runs.study import StudyResults
from l0drop.runs.table import Table
from l0drop.study.distillation import NO_TEACHER, Distillation
from l0drop.study.seeds import ON, Then, builds_on, gather, text_in, train_all
from l0drop.study.sweep import UNGATED, UNLEARNED

BASE = "base"
"""The baseline, from which other systems start."""


class UnknownSystemError(ValueError):
    """Selected systems that a study does not have; the message lists those that it has."""


@dataclass(frozen=True)
class SystemRecipe:
    """One system: how its recipe differs from the study's recipe.

    overrides: a.b=value. seeds: train the first ones only (default: all). from_scratch: it starts from random weights
    and not from the baseline of its seed. distil: how it is distilled (default: as the study's options say). needs:
    runs that it builds on beside those that its recipe names, such as one that a background task works on.
    """

    name: str
    overrides: tuple[str, ...] = ()
    seeds: int | None = None
    from_scratch: bool = False
    distil: str | None = None
    needs: tuple[str, ...] = ()


def continued(name: str, *overrides: str, seeds: int | None = None) -> SystemRecipe:
    """A continued baseline: no gate, and no teacher whatever the options say."""
    return SystemRecipe(name, (*overrides, *UNGATED, NO_TEACHER), seeds, distil="no")


def at_target(
    name: str, sparsity: float, *overrides: str, seeds: int | None = None, distil: str | None = None
) -> SystemRecipe:
    """A system with learned gates that are steered to this sparsity."""
    return SystemRecipe(name, (f"l0drop.target_sparsity={sparsity}", *overrides), seeds, distil=distil)


def with_shortener(name: str, shortener: str, sparsity: float) -> SystemRecipe:
    """A system whose memory comes from a shortener instead of gates, at this sparsity."""
    section = {"shortener": shortener, "shortener_args": {"keep": round(1 - sparsity, 6)}}
    return SystemRecipe(name, (f"l0drop={json.dumps(section)}", *UNLEARNED))


@dataclass(frozen=True)
class Options:
    """The folders of a study, and what is trained in which way.

    data: the folder with the text. parts: the selected parts of the study. systems: train these and the runs that they
    need (default: all). seeds, baselines: how many of each; seeds share baselines if there are fewer (default: one per
    seed). first_seed: the number of the first seed. distil: how gated models are distilled. parallel: runs at a time.
    threads: CPU threads per run. every_run, baseline, fine_tune: overrides for all runs, for runs from scratch and for
    runs that start from a baseline.
    """

    data: Path
    runs: Path
    parts: Collection[str] = ()
    systems: Collection[str] = ()
    seeds: int = 5
    first_seed: int = 1
    baselines: int | None = None
    distil: str = "both"
    parallel: int = 1
    threads: int = 1
    every_run: Sequence[str] = ()
    baseline: Sequence[str] = ()
    fine_tune: Sequence[str] = ()


class Study(ABC):
    """The systems of one task; a subclass declares them."""

    what: ClassVar[str]
    """The text and the metric, for result files."""
    base_recipe: ClassVar[Path]
    """The recipe of runs from scratch."""
    sparse_recipe: ClassVar[Path]
    """The recipe of runs that start from a baseline; it has a teacher."""
    endings: ClassVar[tuple[str, str]]
    """The endings of source and target files: train, valid and test."""
    margin: ClassVar[float]
    """The largest acceptable loss of the score."""
    parts: ClassVar[tuple[str, ...]] = ()
    """The parts that can be selected."""
    fine_tuning: ClassVar[tuple[str, ...]] = ()
    """Overrides for all runs that start from a baseline; the options and the systems may replace them."""
    compared: ClassVar[Mapping[str, str]] = {}
    """For some systems, another one to compare with beside `on`. `compared_with` may add to it."""
    split: ClassVar[Split] = "test"
    """The text on which outputs are compared."""
    by_document: ClassVar[bool] = False
    """Whether intervals are over documents, which blank lines end, instead of sentences."""
    tests_every_run: ClassVar[bool] = True
    """Whether every run decodes the test text at its end."""
    own_outputs: ClassVar[bool] = False
    """Whether each continued baseline decodes the training text, for the runs of its seed. Otherwise all learn from the
    outputs of the first one."""
    decoders: ClassVar[int | None] = None
    """The most processes that decode the training text while others train (default: as many as runs at a time)."""

    def __init__(self, options: Options) -> None:
        self.options, self.runs = options, options.runs
        self.seeds = range(options.first_seed, options.first_seed + options.seeds)
        self.starts = min(options.baselines or options.seeds, options.seeds)
        self.common = [*text_in(options.data, *self.endings), *options.every_run]
        self.test_text = [value for value in self.common if value.startswith("data.test.")]
        if self.by_document:
            self._check_documents()
        if not self.tests_every_run:
            self.common = [*(value for value in self.common if value not in self.test_text), "data.test=null"]
        self.teachers = {seed: self._teacher(seed) for seed in self.seeds}
        """The outputs that the runs of each seed learn from."""
        self.console = Console(stderr=True)
        self.recipes: dict[str, Recipe] = {}
        """All planned runs, by name."""
        self.ways: set[str] = set()
        """How planned runs are distilled."""

    @abstractmethod
    def systems(self) -> list[SystemRecipe]:
        """The systems of the selected parts beside `base` and `on`; those that others need come first."""

    @staticmethod
    @abstractmethod
    def tables(found: StudyResults) -> list[Table]:
        """The tables of the results, whose cells are Markdown."""

    def reference(self) -> SystemRecipe:
        """The continued baseline, with which all others are compared."""
        return continued(ON)

    def follow_ups(self) -> Mapping[str, Callable[[], list[SystemRecipe]]]:
        """Systems that are known only once the run of this name is finished."""
        return {}

    def background(self) -> Then:
        """Work to do once some of the planned runs are finished, while others train."""
        return {}

    def plan(self) -> list[Recipe]:
        """The recipes of the selected systems and of the runs that they need, as far as they are known now."""
        baselines = [SystemRecipe(BASE, seeds=self.starts, from_scratch=True), self.reference()]
        recipes = self._planned(self._selected(self._runs([*baselines, *self.systems()])))
        for name, add in self._follow_ups().items():
            if RunFolder(self.runs / name).is_finished:
                add()
        return recipes

    def train(self, recipes: Sequence[Recipe]) -> None:
        """Train what is missing of a plan; distil, score and analyse as soon as the runs for it are finished."""
        then: dict[tuple[str, ...], Callable[[], None]] = {}
        for seed in self.seeds if self.own_outputs else self.seeds[:1]:
            if any(self.reads_outputs(recipe, seed) for recipe in recipes):
                then[self.run_of(ON, seed).name,] = partial(self.decode, seed)
        then |= self.background()
        options = self.options
        train_all(recipes, self.runs, options.parallel, options.threads, self.console, then, self._follow_ups())

    def gather(self) -> StudyResults:
        """Collect the finished runs of the plan in results.json, and their statistics beside it."""
        found = gather(
            self.runs,
            self.recipes,
            self.what,
            self.margin,
            self.compared_with(),
            self.runs / "statistics.json.gz",
            split=self.split,
            text=self.test_text,
            by_document=self.by_document,
        )
        found.write(self.runs / "results.json")
        return found

    def compared_with(self) -> Mapping[str, str]:
        """For some systems, another one to compare with beside `on`."""
        return self.compared

    def decode(self, seed: int) -> None:
        """Write the outputs of a continued baseline on the training text."""
        processes = min(self.options.parallel, self.decoders or self.options.parallel)
        self.teachers[seed].write(self.run_of(ON, seed), sorted(self.ways), processes)

    def recipe(self, system: SystemRecipe, seed: int | None = None) -> Recipe:
        """The recipe of one run, by default of the first seed; seeds share baselines if there are fewer of these."""
        seed = self.seeds[0] if seed is None else seed
        options, last = self.options, (f"seed={seed}", f"name={self.run_of(system.name, seed).name}")
        if system.from_scratch:
            return load_recipe(self.base_recipe, [*self.common, *options.baseline, *system.overrides, *last])
        start = self.run_of(BASE, self.seeds[(seed - self.seeds[0]) % self.starts])
        taught = self.teachers[seed].overrides(system.distil or options.distil, self.run_of(ON, seed))
        values = [*self.common, f"model.init={start}", *self.fine_tuning, *taught, *options.fine_tune]
        return load_recipe(self.sparse_recipe, [*values, *system.overrides, *last])

    def run_of(self, system: str, seed: int | None = None) -> Path:
        """The folder of a run, by default of the first seed."""
        return self.runs / f"{system}-s{self.seeds[0] if seed is None else seed}"

    def given(self, field: str) -> str:
        """The value of a field that is set for all runs."""
        return [value.partition("=")[2] for value in self.common if value.startswith(f"{field}=")][-1]

    def trains(self, system: str) -> bool:
        """Whether the plan has this system."""
        return self.run_of(system).name in self.recipes

    def reads_outputs(self, recipe: Recipe, seed: int) -> bool:
        """Whether a run trains on the outputs that the runs of this seed learn from."""
        text, teacher = recipe.data.train, self.teachers[seed]
        return isinstance(text, TextCorpus) and text.target in (str(teacher.outputs), str(teacher.mixed[1]))

    def _check_documents(self) -> None:
        """Raise ValueError if the compared text is one document: results could not be gathered in the end."""
        file = self.given(f"data.{self.split}.source")
        is_blank = [not line.strip() for line in read_lines(file)]
        if not any(blank and not all(is_blank[number:]) for number, blank in enumerate(is_blank)):
            raise ValueError(f"{file}: blank lines end documents, which this study compares, but there is only one")

    def _teacher(self, seed: int) -> Distillation:
        source, target = (Path(self.given(f"data.train.{side}")) for side in ("source", "target"))
        return Distillation(source, target, self.runs, f"train-s{seed}" if self.own_outputs else "train")

    def _runs(self, systems: Iterable[SystemRecipe]) -> dict[str, "_Run"]:
        """The runs of these systems, by name."""
        runs: dict[str, _Run] = {}
        for system in systems:
            if self.run_of(system.name).name in runs:
                raise ValueError(f"{system.name}: the study has two systems of this name")
            for seed in self.seeds[: system.seeds]:
                runs[self.run_of(system.name, seed).name] = _Run(system, self.recipe(system, seed))
        return runs

    def _selected(self, runs: Mapping[str, "_Run"]) -> dict[str, "_Run"]:
        """The runs of the selected systems, and the runs that they need."""
        selected = self.options.systems
        if not selected:
            return dict(runs)
        known = dict.fromkeys(run.system.name for run in runs.values())
        if unknown := sorted({*selected} - {*known}):
            raise UnknownSystemError(f"{', '.join(unknown)}: unknown in these parts, which have {', '.join(known)}")
        taken = [name for name, run in runs.items() if run.system.name in selected]
        for name in taken:  # the list grows
            run = runs[name]
            needed = [*builds_on(run.recipe, self.runs), *run.system.needs]
            taught_by = run.recipe.seed if self.own_outputs else self.seeds[0]
            if self.reads_outputs(run.recipe, taught_by):
                needed.append(self.run_of(ON, taught_by).name)
            taken += [other for other in needed if other in runs and other not in taken]
        return {name: run for name, run in runs.items() if name in taken}

    def _planned(self, runs: Mapping[str, "_Run"]) -> list[Recipe]:
        """Remember these runs, and return their recipes."""
        recipes = {name: run.recipe for name, run in runs.items()}
        self.recipes |= recipes
        self.ways |= {run.system.distil or self.options.distil for run in runs.values()}
        return [*recipes.values()]

    def _follow_ups(self) -> dict[str, Callable[[], list[Recipe]]]:
        """The recipes that planned runs add."""

        def add(make: Callable[[], list[SystemRecipe]]) -> list[Recipe]:
            return self._planned(self._runs(make()))

        return {name: partial(add, make) for name, make in self.follow_ups().items() if name in self.recipes}


@dataclass(frozen=True)
class _Run:
    """One seed of a system."""

    system: SystemRecipe
    recipe: Recipe
