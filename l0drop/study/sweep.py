"""A sweep: one baseline fine-tuned at several λ, target sparsities or rules, and the same baseline continued without a
gate for the same number of steps.

runs/NAME-sweep/  recipe.yaml  baseline/ (if it is trained here)  continued/  lambda-0.1/ ...  sweep.json  timings.json

Every folder in it is an ordinary run, so a stopped sweep resumes run by run, and each run from its last checkpoint.
`sweep.json` is made from the runs' files alone; `timings.json` holds the numbers that differ between executions.
Older sweeps call the continued baseline `reference`, as folder and as key; they are read and resumed.
"""

import inspect
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accelerate import PartialState
from rich.console import Console

from l0drop.core.gates import gate_class
from l0drop.data.text import read_json
from l0drop.data.whole import locked, write_whole
from l0drop.recipe import Recipe, RecipeError, load_recipe, override_recipe
from l0drop.runs.processes import joined_processes
from l0drop.runs.provenance import provenance
from l0drop.study.parallel import train_in_parallel
from l0drop.training.inputs import check_inputs
from l0drop.training.run import open_run, prepare, train

BASELINE, CONTINUED = "baseline", "continued"
EARLIER_CONTINUED = "reference"
SUMMARY, TIMINGS = "sweep.json", "timings.json"
UNLEARNED = ("train.elastic=false", "train.freeze=nothing")
"""Overrides for runs without a learned gate, which these settings need."""
UNGATED = ("l0drop=null", *UNLEARNED)
COPIED = (
    *("valid", "test", "calibration", "lambda", "steps", "checkpoints", "seed", "dtype", "decoding"),
    *("commit", "device", "threads"),
)
"""Keys that `sweep.json` copies from a run's `metrics.json`."""
LEARNED = ("lambda", "target")
"""Kinds of points with a learned gate; the others are rules."""
RULES = ("pos", "freq", "inv_freq", "group")
"""The paper's rules, by the names of their gates."""
NAMED = ("run", "kind", "value")
"""Keys that every point has."""
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
    takes_rate = "rate" in inspect.signature(gate_class(name).__init__).parameters
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
        gate_class(name)(**arguments)
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
) -> dict[str, Any]:
    """Train the missing runs of a sweep and return the content of `sweep.json`.

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
    continued = derived(tuning, continued_run(folder), UNGATED)
    first = baseline or continued
    check_inputs(first, folder / first.name)
    wanted = [derived(tuning, point.name, point.overrides) for point in points]
    with processes.main_process_first():  # report errors in recipes before the first step
        for run, parent in ((tuning, runs), *((run, folder) for run in (baseline, continued, *wanted) if run)):
            open_run(run, parent)
    if processes.is_main_process:
        names = [run.name for run in (baseline, continued, *wanted) if run]
        finished = sum(is_finished(folder, name) for name in names)
        text = announcement(recipe, baseline, tuning, len(points), finished)
        console.print(text, style="dim", highlight=False, markup=False, soft_wrap=True)
    clock = Clock(folder / TIMINGS if processes.is_main_process else None)
    if baseline is not None:
        train_timed(baseline, folder, console, clock)
    prepare(continued, folder, console)
    with processes.main_process_first():
        for run in wanted:
            share_data(folder / continued.name, run)
    todo = [run for run in (continued, *wanted) if not is_finished(folder, run.name)]
    processes.wait_for_everyone()  # every process has its list before any run finishes
    done = (
        (train_timed(run, folder, console, clock) for run in todo)
        if parallel == 1
        else train_in_parallel(todo, folder, parallel, threads, console, clock.add)
    )
    for _ in done:
        if processes.is_main_process and is_finished(folder, continued.name):
            write_summary(folder, tuning, points)
    if processes.is_main_process:
        write_summary(folder, tuning, points)
    processes.wait_for_everyone()
    return json.loads((folder / SUMMARY).read_text(encoding="utf-8"))


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


def continued_run(folder: Path) -> str:
    """The name of a sweep's continued baseline; older sweeps have another one."""
    older = (folder / EARLIER_CONTINUED).is_dir() and not (folder / CONTINUED).is_dir()
    return EARLIER_CONTINUED if older else CONTINUED


def continued_in(summary: Mapping[str, Any]) -> dict[str, Any]:
    """The entry of the continued baseline in the content of a `sweep.json`."""
    entry: dict[str, Any] = summary[CONTINUED] if CONTINUED in summary else summary[EARLIER_CONTINUED]
    return entry


def share_data(continued: Path, run: Recipe) -> None:
    """Let a point read the tokenized text of the continued baseline, if that has its own.

    A rule that needs hints prepares its own text, with hints.
    """
    data, link = continued / "data", continued.parent / run.name / "data"
    hinted = run.l0drop is not None and gate_class(run.l0drop.gate).needs
    if data.exists() and not link.exists() and not hinted:
        link.symlink_to(Path("..", continued.name, "data"), target_is_directory=True)


def train_timed(recipe: Recipe, folder: Path, console: Console, clock: "Clock") -> str:
    """Train in this process unless the run is finished; returns the run's name."""
    if not is_finished(folder, recipe.name):
        with clock.of(recipe.name):
            train(recipe, folder, console)
    return recipe.name


def is_finished(folder: Path, name: str) -> bool:
    return (folder / name / "metrics.json").exists()


def write_summary(folder: Path, tuning: Recipe, points: Sequence[Point]) -> None:
    """Rewrite sweep.json from finished runs: these points, and the points that other sweeps of this folder added."""
    file = folder / SUMMARY
    with locked(file):
        before = json.loads(file.read_text(encoding="utf-8"))["points"] if file.exists() else []
        entries = {entry["run"]: entry for entry in before if is_finished(folder, entry["run"])}
        continued = outcome(folder, continued_run(folder))
        for point in points:
            if is_finished(folder, point.name):
                varied = {"kind": point.kind, "value": point.value, "set": list(point.overrides)}
                got = outcome(folder, point.name)
                entries[point.name] = {**varied, **got, "differences": differences(got, continued)}
        summary = {
            "name": tuning.name,
            "gating": None if tuning.l0drop is None else tuning.l0drop.gating,
            "baseline": start_of(tuning, folder),
            CONTINUED: continued,
            "points": sorted(entries.values(), key=lambda entry: (entry["kind"], entry["value"] or 0, entry["run"])),
            **provenance(PartialState().device),
        }
        write_whole(file, json.dumps(summary, indent=1, ensure_ascii=False) + "\n")


def finished_points(file: Path) -> list[dict[str, Any]]:
    """The points of a `sweep.json`; ValueError that names the file if it has none."""
    points = read_json(file).get("points")
    if not isinstance(points, list) or not all(isinstance(p, dict) and p.keys() >= {*NAMED} for p in points):
        raise ValueError(f"{file}: expected points, each with {', '.join(NAMED)}, as l0drop sweep writes them")
    if not points:
        raise ValueError(f"{file}: no point of this sweep is finished")
    return points


def start_of(tuning: Recipe, folder: Path) -> dict[str, Any]:
    """The baseline; with its scores if it is a run that was scored in the same way as the sweep."""
    start = tuning.model.init or tuning.model.pretrained
    assert start is not None
    path = Path(start)
    found = outcome(path.parent, path.name) if is_finished(path.parent, path.name) else {}
    for split in ("valid", "test"):
        if split in found and not is_scored_alike(path, tuning, split):
            del found[split]
    return {**found, "run": path.name if path.parent == folder else start}


def is_scored_alike(run: Path, recipe: Recipe, split: str) -> bool:
    """Whether a run's split has the same text as the recipe's, read and scored in the same way.

    False for text without references: scores are then against a teacher's outputs, and the run may be that teacher.
    """
    try:
        stored = load_recipe(run / "recipe.yaml")
    except RecipeError:  # written by another version
        return False
    corpus = recipe.data.origin(split)[0]
    same = all(getattr(stored.data, key) == getattr(recipe.data, key) for key in READING)
    same = same and stored.data.origin(split) == recipe.data.origin(split)
    return same and corpus is not None and corpus.has_targets and stored.evaluate == recipe.evaluate


def outcome(folder: Path, name: str) -> dict[str, Any]:
    """The results of a finished run; sparsity and expected open rate on the test text, else on the validation text."""
    metrics = json.loads((folder / name / "metrics.json").read_text(encoding="utf-8"))
    last = metrics.get("test") or metrics.get("valid") or {}
    rates = {key: last[key] for key in ("sparsity", "expected_open_rate") if key in last}
    return {"run": name, **rates, **{key: metrics[key] for key in COPIED if key in metrics}}


def differences(one: dict[str, Any], other: dict[str, Any]) -> dict[str, float]:
    """Score minus score, per split."""
    splits = [split for split in ("valid", "test") if split in one and split in other]
    return {split: one[split]["score"]["value"] - other[split]["score"]["value"] for split in splits}


class Clock:
    """Adds up each run's wall seconds over all executions, in a file; without a file it does nothing."""

    def __init__(self, file: Path | None) -> None:
        self.file = file

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add(name, time.perf_counter() - start)

    def add(self, name: str, seconds: float) -> None:
        if self.file is None:
            return
        with locked(self.file):
            known = json.loads(self.file.read_text(encoding="utf-8")) if self.file.exists() else {}
            known[name] = round(known.get(name, 0.0) + seconds, 2)
            write_whole(self.file, json.dumps({"unit": "wall seconds", **known}, indent=1) + "\n")
