"""A sweep: one baseline fine-tuned at several λ, target sparsities or rules, and the same baseline continued without a
gate for the same number of steps.

Every folder inside a sweep's folder (`runs/sweep.py`) is an ordinary run, so a stopped sweep resumes run by run, and
each run from its last checkpoint. `sweep.json` is made from the runs' files alone; `timings.json` holds the numbers
that differ between executions.
"""

import inspect
import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from accelerate import PartialState
from rich.console import Console

from l0drop.core.gates import GATES
from l0drop.data.whole import locked
from l0drop.recipe import Recipe, RecipeError, load_recipe, override_recipe
from l0drop.runs.processes import joined_processes
from l0drop.runs.provenance import provenance
from l0drop.runs.run import SPLITS, RunFolder, RunMetrics
from l0drop.runs.sweep import BASELINE, Outcome, Sweep, SweepFolder, SweepPoint, add_seconds
from l0drop.study.parallel import OnExit, train_in_parallel
from l0drop.training.inputs import check_inputs
from l0drop.training.run import open_run, prepare, train

UNLEARNED = ("train.elastic=false", "train.freeze=nothing")
"""Overrides for runs without a learned gate, which these settings need."""
UNGATED = ("l0drop=null", *UNLEARNED)
RULES = ("pos", "freq", "inv_freq", "group")
"""The paper's rules, by the names of their gates."""
READING = ("documents", "max_source", "max_target", "source_prefix", "source_lang", "target_lang")
"""The other keys of a recipe's data that change the examples made from a text."""


@dataclass(frozen=True)
class Point:
    """One fine-tuning: the varied quantity, its value, and the recipe overrides that set it."""

    kind: str
    value: float | None
    overrides: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name of its run folder."""
        return self.kind if self.value is None else f"{self.kind}-{self.value:.12g}"


def lambda_point(value: float) -> Point:
    return Point("lambda", value, ("l0drop.target_sparsity=null", f"l0drop.lambda_={value!r}"))


def target_point(value: float) -> Point:
    return Point("target", value, ("l0drop.lambda_=null", "l0drop.ramp=null", f"l0drop.target_sparsity={value!r}"))


def rule_point(text: str) -> Point:
    """A gate by rule, fine-tuned like the others: its name, and a rate if it takes one: `pos` or `random:0.45`."""
    name, given, rate = text.strip().partition(":")
    if name == "learned":
        raise ValueError(f"`rules`: {name} is not a rule; `lambda_` and `target` train the learned gate")
    takes_rate = "rate" in inspect.signature(GATES.class_of(name).__init__).parameters
    if takes_rate and not given:
        raise ValueError(f"`rules`: {name} needs a rate, such as {name}:0.5")
    if given and not takes_rate:
        raise ValueError(f"`rules`: {name} takes no rate; write {name} alone")
    try:
        value = float(rate) if given else None
    except ValueError:
        raise ValueError(f"`rules`: {rate!r} is not a number; write {name}:0.5") from None
    arguments = {} if value is None else {"rate": value}
    try:
        GATES.class_of(name)(**arguments)
    except (TypeError, ValueError) as error:
        raise ValueError(f"`rules` {text}: {error}") from None
    unsteered = ("l0drop.target_sparsity=null", "l0drop.ramp=null", "l0drop.start=null", "l0drop.lambda_=0")
    rule = ("l0drop.layerwise=false", f"l0drop.gate={name}", f"l0drop.gate_args={json.dumps(arguments)}")
    return Point(name, value, (*UNLEARNED, *unsteered, *rule))


def sweep(
    recipe: Recipe,
    points: Sequence[Point],
    runs: Path,
    *,
    fine_tune: Sequence[str] = (),
    parallel: int = 1,
    threads: int | None = None,
    console: Console | None = None,
) -> Sweep:
    """Train the missing runs of a sweep and return its summary.

    The baseline is the model that the recipe starts from; a recipe that starts from a new transformer is first trained
    without its gate. fine_tune: overrides (a.b=value) for the continued baseline and the points. parallel: runs at a
    time, each in its own process. Under torchrun every run uses all processes.
    """
    console = console or Console(stderr=True)
    processes = joined_processes()
    if processes.num_processes > 1 and parallel > 1:
        raise ValueError("parallel: under torchrun every run uses all processes, one run after the other")
    folder = runs / f"{recipe.name}-sweep"
    baseline, tuning = plan(recipe, folder, fine_tune)
    continued = derived(tuning, SweepFolder(folder).continued.path.name, UNGATED)
    first = baseline or continued
    check_inputs(first, folder / first.name)
    wanted = [derived(tuning, point.name, point.overrides) for point in points]
    with processes.main_process_first():  # report errors in recipes before the first step
        for run, parent in ((tuning, runs), *((run, folder) for run in (baseline, continued, *wanted) if run)):
            open_run(run, parent)
    if processes.is_main_process:
        names = [run.name for run in (baseline, continued, *wanted) if run]
        finished = sum(RunFolder(folder / name).is_finished for name in names)
        text = announcement(recipe, baseline, tuning, len(points), finished)
        console.print(text, style="dim", highlight=False, markup=False, soft_wrap=True)

    def add_time(name: str, seconds: float) -> None:
        if processes.is_main_process:
            add_seconds(SweepFolder(folder).timings, name, seconds)

    if baseline is not None:
        train_timed(baseline, folder, console, add_time)
    prepare(continued, folder, console)
    with processes.main_process_first():
        for run in wanted:
            share_data(folder / continued.name, run)
    todo = [run for run in (continued, *wanted) if not RunFolder(folder / run.name).is_finished]
    processes.wait_for_everyone()  # every process has its list before any run finishes
    done = (
        (train_timed(run, folder, console, add_time) for run in todo)
        if parallel == 1
        else train_in_parallel(todo, folder, parallel, threads, console, add_time)
    )
    for _ in done:
        if processes.is_main_process and RunFolder(folder / continued.name).is_finished:
            write_summary(folder, tuning, points)
    if processes.is_main_process:
        write_summary(folder, tuning, points)
    processes.wait_for_everyone()
    return Sweep.read(SweepFolder(folder).summary)


def plan(recipe: Recipe, folder: Path, fine_tune: Sequence[str]) -> tuple[Recipe | None, Recipe]:
    """The baseline's recipe, if it is trained here, and the recipe that all fine-tuned runs derive from."""
    name = f"name={folder.name}"
    if recipe.model.transformer is None:
        return None, override_recipe(recipe, [*fine_tune, name])
    undistilled = ("train.targets=references", "train.teacher=null")  # a new model has no teacher yet
    baseline = derived(recipe, BASELINE, (*UNGATED, *undistilled))
    start = [f"model={json.dumps({'init': str(folder / BASELINE)})}", "tokenizer={}"]
    if recipe.l0drop is not None:
        start.append("l0drop.ramp=null")  # ramps are for training from scratch
    return baseline, override_recipe(recipe, [*start, *fine_tune, name])


def announcement(recipe: Recipe, baseline: Recipe | None, tuning: Recipe, points: int, finished: int) -> str:
    """The cost of a sweep in trainings and steps, and the recipe's own target or λ, which the points replace."""
    parts = [] if baseline is None else [f"the baseline ({_cost(baseline)})"]
    parts.append(f"the continued baseline and {points} point{'s' * (points > 1)} ({_cost(tuning)} each)")
    done = f" ({finished} finished)" if finished else ""
    text = f"{points + len(parts)} trainings{done}: {', '.join(parts)}"
    section = recipe.l0drop
    for key in ("target_sparsity", "lambda_") if section is not None else ():
        if (value := getattr(section, key)) is not None:
            text += f". The points replace the recipe's l0drop.{key}, {value:g}"
    return text


def _cost(recipe: Recipe) -> str:
    return f"learning rate {recipe.train.learning_rate:g}, {recipe.train.steps:,} steps"


def derived(recipe: Recipe, name: str, overrides: Iterable[str]) -> Recipe:
    return override_recipe(recipe, [*overrides, f"name={name}"])


def share_data(continued: Path, run: Recipe) -> None:
    """Let a point read the tokenized text of the continued baseline, if that has its own.

    A rule that needs hints prepares its own text, with hints.
    """
    data, link = RunFolder(continued).data, RunFolder(continued.parent / run.name).data
    hinted = run.l0drop is not None and GATES.class_of(run.l0drop.gate).needs
    if data.exists() and not link.exists() and not hinted:
        link.symlink_to(Path("..", continued.name, data.name), target_is_directory=True)


def train_timed(recipe: Recipe, folder: Path, console: Console, add_time: OnExit) -> str:
    """Train in this process unless the run is finished; returns the run's name."""
    if not RunFolder(folder / recipe.name).is_finished:
        start = time.perf_counter()
        try:
            train(recipe, folder, console)
        finally:
            add_time(recipe.name, time.perf_counter() - start)
    return recipe.name


def write_summary(folder: Path, tuning: Recipe, points: Sequence[Point]) -> None:
    """Rewrite sweep.json from finished runs: these points, and the points that other sweeps of this folder added."""
    paths = SweepFolder(folder)
    with locked(paths.summary):
        before = Sweep.read(paths.summary).points if paths.summary.exists() else []
        entries = {entry.run: entry for entry in before if paths.run(entry.run).is_finished}
        continued = outcome(paths.continued)
        for point in points:
            if (run := paths.run(point.name)).is_finished:
                copied = Outcome.copied(point.name, RunMetrics.read(run.metrics))
                entry = SweepPoint(kind=point.kind, value=point.value, overrides=list(point.overrides), **copied)
                entries[point.name] = replace(entry, differences=differences(entry, continued))
        Sweep(
            name=tuning.name,
            gating=None if tuning.l0drop is None else tuning.l0drop.gating,
            baseline=start_of(tuning, folder),
            continued=continued,
            points=sorted(entries.values(), key=lambda entry: (entry.kind, entry.value or 0, entry.run)),
            made_by=provenance(PartialState().device),
        ).write(paths.summary)


def finished_points(file: Path) -> list[SweepPoint]:
    """The points of a `sweep.json`; ValueError that names the file if it has none."""
    if not (points := Sweep.read(file).points):
        raise ValueError(f"{file}: no point of this sweep is finished")
    return points


def start_of(tuning: Recipe, folder: Path) -> Outcome:
    """The baseline; with its scores if it is a run that was scored in the same way as the sweep."""
    start = tuning.model.init or tuning.model.pretrained
    assert start is not None
    path = Path(start)
    name = path.name if path.parent == folder else start
    if not RunFolder(path).is_finished:
        return Outcome(run=name)
    other = {split: None for split in SPLITS if not is_scored_alike(path, tuning, split)}
    return replace(outcome(RunFolder(path)), run=name, **other)


def is_scored_alike(run: Path, recipe: Recipe, split: str) -> bool:
    """Whether a run's split has the same text as the recipe's, read and scored in the same way.

    False for text without references: scores are then against a teacher's outputs, and the run may be that teacher.
    """
    try:
        stored = load_recipe(RunFolder(run).recipe)
    except RecipeError:  # written by another version
        return False
    corpus = recipe.data.origin(split)[0]
    same = all(getattr(stored.data, key) == getattr(recipe.data, key) for key in READING)
    same = same and stored.data.origin(split) == recipe.data.origin(split)
    return same and corpus is not None and corpus.has_targets and stored.evaluate == recipe.evaluate


def outcome(run: RunFolder) -> Outcome:
    """The results of a finished run."""
    return Outcome(**Outcome.copied(run.path.name, RunMetrics.read(run.metrics)))


def differences(one: Outcome, other: Outcome) -> dict[str, float]:
    """Score minus score, per split."""
    pairs = {split: (one.scored(split), other.scored(split)) for split in SPLITS}
    return {split: ours.score.value - theirs.score.value for split, (ours, theirs) in pairs.items() if ours and theirs}
