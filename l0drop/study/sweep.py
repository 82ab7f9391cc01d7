"""A sweep: one baseline fine-tuned at several λ or target sparsities, or with gates by rule, beside the same baseline
trained on for as long.

runs/NAME-sweep/  recipe.yaml  baseline/ (if it is trained here)  reference/  lambda-0.1/ ...  sweep.json  timings.json

Every folder in it is an ordinary run, so a sweep that was stopped goes on run by run, and inside a run from its last
checkpoint. `sweep.json` is made from what the runs wrote; what differs from one execution to the next is in
`timings.json`.
"""

import inspect
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
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
from l0drop.training.run import open_run, prepare, train

MOST = 1000
"""Values that a range may have; more are a slip."""
BASELINE, REFERENCE = "baseline", "reference"
SUMMARY, TIMINGS = "sweep.json", "timings.json"
UNLEARNED = ("train.elastic=false", "train.freeze=nothing")
"""What is set where there is no learned gate, which these need."""
UNGATED = ("l0drop=null", *UNLEARNED)
COPIED = (
    *("valid", "test", "calibration", "lambda", "steps", "checkpoints", "seed", "dtype", "decoding"),
    *("commit", "device", "threads"),
)
"""What `sweep.json` takes over from a run's `metrics.json`."""
LEARNED = ("lambda", "target")
"""Kinds of a sweep's points whose gate is learned; the others are rules."""
RULES = ("pos", "freq", "inv_freq", "group")
"""The rules of the paper, as their gates are called."""
NAMED = ("run", "kind", "value")
"""What every point has in it."""
READING = ("documents", "max_source", "max_target", "source_prefix", "source_lang", "target_lang")
"""What else of a recipe's data makes the examples of a text."""


@dataclass(frozen=True)
class Point:
    """One fine-tuning: what is varied, the value it takes, and the keys of the recipe that are set for it."""

    kind: str
    value: float | None
    overrides: tuple[str, ...]

    @property
    def name(self) -> str:
        """Also the name of its run folder."""
        return self.kind if self.value is None else f"{self.kind}-{self.value:.12g}"


def lambda_point(value: float) -> Point:
    return Point("lambda", value, ("l0drop.target_sparsity=null", f"l0drop.lambda_={value!r}"))


def target_point(value: float) -> Point:
    return Point("target", value, ("l0drop.lambda_=null", "l0drop.ramp=null", f"l0drop.target_sparsity={value!r}"))


def rule_point(text: str, option: str) -> Point:
    """A gate by rule, fine-tuned as long: its name, with a rate where it takes one, such as `pos` or `random:0.45`."""
    name, given, rate = text.strip().partition(":")
    if name == "learned":
        raise ValueError(f"{option}: {name} is no rule; --lambda and --target train the learned gate")
    takes_rate = "rate" in inspect.signature(gate_class(name).__init__).parameters
    if takes_rate and not given:
        raise ValueError(f"{option}: {name} drops at a rate; give it, such as {name}:0.5")
    if given and not takes_rate:
        raise ValueError(f"{option}: {name} has its own rate; give {name} alone")
    try:
        value = float(rate) if given else None
    except ValueError:
        raise ValueError(f"{option}: {rate!r} is no rate; give {name}:0.5") from None
    arguments = {} if value is None else {"rate": value}
    try:
        gate_class(name)(**arguments)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{option} {text}: {error}") from None
    unsteered = ("l0drop.target_sparsity=null", "l0drop.ramp=null", "l0drop.start=null", "l0drop.lambda_=0")
    rule = ("l0drop.layerwise=false", f"l0drop.gate={name}", f"l0drop.gate_args={json.dumps(arguments)}")
    return Point(name, value, (*UNLEARNED, *unsteered, *rule))


def listed(text: str, option: str) -> list[float]:
    """The numbers of `0.1,0.5` or `0.1:1.5:0.1` (first, last, step; the last is one of them), or of both joined."""
    numbers: dict[float, None] = {}
    for part in text.split(","):
        try:
            ends = [Decimal(end.strip()) for end in part.split(":")]
            if len(ends) not in (1, 3) or not all(end.is_finite() for end in ends):
                raise InvalidOperation
        except InvalidOperation:
            raise ValueError(
                f"{option}: {part!r} is neither a number nor FIRST:LAST:STEP, such as 0.1:1.5:0.1"
            ) from None
        first, last, step = ends if len(ends) == 3 else (ends[0], ends[0], Decimal(1))
        if step <= 0 or last < first:
            raise ValueError(
                f"{option}: {part!r} has no values: it should rise from its first number by a step above 0"
            )
        if last - first > MOST * step:
            raise ValueError(f"{option}: {part!r} has more than {MOST} values")
        # in decimals, so that 0.1:0.3:0.1 has 0.3 in it
        numbers |= dict.fromkeys(float(first + i * step) for i in range(int((last - first) / step) + 1))
    return list(numbers)


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
    """Run what is missing of a sweep and return what `sweep.json` says.

    The baseline is what the recipe starts from; a recipe that starts from a new transformer is first trained without
    its gate. `fine_tune` are overrides (a.b=value) for what follows the baseline: reference and points. With
    `parallel`, so many runs at a time, each a process of its own. Under torchrun every run takes all processes.
    """
    console = console or Console(stderr=True)
    processes = joined_processes()
    if processes.num_processes > 1 and parallel > 1:
        raise ValueError("parallel: under torchrun every run takes all processes; runs go one after the other")
    folder = runs / f"{recipe.name}-sweep"
    baseline, tuning = plan(recipe, folder, fine_tune)
    reference = derived(tuning, REFERENCE, UNGATED)
    wanted = [derived(tuning, point.name, point.overrides) for point in points]
    with processes.main_process_first():  # all errors in recipes come before the first step
        for run, place in ((tuning, runs), *((run, folder) for run in (baseline, reference, *wanted) if run)):
            open_run(run, place)
    clock = Clock(folder / TIMINGS if processes.is_main_process else None)
    if baseline is not None:
        train_timed(baseline, folder, console, clock)
    prepare(reference, folder, console)
    with processes.main_process_first():
        for run in wanted:
            share_data(folder, run)
    todo = [run for run in (reference, *wanted) if not is_finished(folder, run.name)]
    processes.wait_for_everyone()  # nobody finishes a run before all have looked
    done = (
        (train_timed(run, folder, console, clock) for run in todo)
        if parallel == 1
        else train_in_parallel(todo, folder, parallel, threads, console, clock.add)
    )
    for _ in done:
        if processes.is_main_process and is_finished(folder, REFERENCE):
            write_summary(folder, tuning, points)
    if processes.is_main_process:
        write_summary(folder, tuning, points)
    processes.wait_for_everyone()
    return json.loads((folder / SUMMARY).read_text(encoding="utf-8"))


def plan(recipe: Recipe, folder: Path, fine_tune: Sequence[str]) -> tuple[Recipe | None, Recipe]:
    """The baseline's recipe, if it is to be trained here, and the recipe that reference and points derive from."""
    name = f"name={folder.name}"
    if recipe.model.transformer is None:
        return None, override_recipe(recipe, [*fine_tune, name])
    untaught = ("train.targets=references", "train.teacher=null")  # a new model cannot teach itself
    baseline = derived(recipe, BASELINE, (*UNGATED, *untaught))
    start = [f"model={json.dumps({'init': str(folder / BASELINE)})}", "tokenizer={}"]
    if recipe.l0drop is not None:
        start.append("l0drop.ramp=null")  # of training from scratch
    return baseline, override_recipe(recipe, [*start, *fine_tune, name])


def derived(recipe: Recipe, name: str, overrides: Iterable[str]) -> Recipe:
    return override_recipe(recipe, [*overrides, f"name={name}"])


def share_data(folder: Path, run: Recipe) -> None:
    """Let a point read the reference's tokenized text, where the baseline has no data that fits. A rule that needs
    hints has text of its own, with them."""
    data, link = folder / REFERENCE / "data", folder / run.name / "data"
    hinted = run.l0drop is not None and gate_class(run.l0drop.gate).needs
    if data.exists() and not link.exists() and not hinted:
        link.symlink_to(Path("..", REFERENCE, "data"), target_is_directory=True)


def train_timed(recipe: Recipe, folder: Path, console: Console, clock: "Clock") -> str:
    """Train in this process, unless it was done; returns the run's name."""
    if not is_finished(folder, recipe.name):
        with clock.of(recipe.name):
            train(recipe, folder, console)
    return recipe.name


def is_finished(folder: Path, name: str) -> bool:
    return (folder / name / "metrics.json").exists()


def write_summary(folder: Path, tuning: Recipe, points: Sequence[Point]) -> None:
    """Write sweep.json anew from finished runs: these points, and those that other sweeps of this folder put there."""
    file = folder / SUMMARY
    with locked(file):
        before = json.loads(file.read_text(encoding="utf-8"))["points"] if file.exists() else []
        entries = {entry["run"]: entry for entry in before if is_finished(folder, entry["run"])}
        reference = outcome(folder, REFERENCE)
        for point in points:
            if is_finished(folder, point.name):
                varied = {"kind": point.kind, "value": point.value, "set": list(point.overrides)}
                got = outcome(folder, point.name)
                entries[point.name] = {**varied, **got, "differences": differences(got, reference)}
        summary = {
            "name": tuning.name,
            "gating": None if tuning.l0drop is None else tuning.l0drop.gating,
            "baseline": start_of(tuning, folder),
            "reference": reference,
            "points": sorted(entries.values(), key=lambda entry: (entry["kind"], entry["value"] or 0, entry["run"])),
            **provenance(PartialState().device),
        }
        write_whole(file, json.dumps(summary, indent=1, ensure_ascii=False) + "\n")


def finished_points(file: Path) -> list[dict[str, Any]]:
    """The points of a `sweep.json`, at least one; ValueError that names the file where it has none."""
    points = read_json(file).get("points")
    if not isinstance(points, list) or not all(isinstance(p, dict) and p.keys() >= {*NAMED} for p in points):
        raise ValueError(f"{file}: expected points, each with {', '.join(NAMED)}, as l0drop sweep writes them")
    if not points:
        raise ValueError(f"{file}: no point of this sweep is finished")
    return points


def start_of(tuning: Recipe, folder: Path) -> dict[str, Any]:
    """The baseline, with its scores where it is a run that was scored as the sweep is."""
    start = tuning.model.init or tuning.model.pretrained
    assert start is not None
    place = Path(start)
    found = outcome(place.parent, place.name) if is_finished(place.parent, place.name) else {}
    for split in ("valid", "test"):
        if split in found and not scored_alike(place, tuning, split):
            del found[split]
    return {**found, "run": place.name if place.parent == folder else start}


def scored_alike(run: Path, recipe: Recipe, split: str) -> bool:
    """Whether a run has the same text in a split as a recipe, read and scored in the same way.

    Not where the text has no targets: a teacher's outputs are in their place, and a sweep's teacher may be the run.
    """
    try:
        stored = load_recipe(run / "recipe.yaml")
    except RecipeError:  # of another version
        return False
    corpus = getattr(recipe.data, split)
    same = all(getattr(stored.data, key) == getattr(recipe.data, key) for key in (split, *READING))
    return same and corpus is not None and corpus.has_targets and stored.evaluate == recipe.evaluate


def outcome(folder: Path, name: str) -> dict[str, Any]:
    """What a finished run says, with sparsity and expected open rate on the test text, else on the validation text."""
    metrics = json.loads((folder / name / "metrics.json").read_text(encoding="utf-8"))
    last = metrics.get("test") or metrics.get("valid") or {}
    rates = {key: last[key] for key in ("sparsity", "expected_open_rate") if key in last}
    return {"run": name, **rates, **{key: metrics[key] for key in COPIED if key in metrics}}


def differences(one: dict[str, Any], other: dict[str, Any]) -> dict[str, float]:
    """Score minus score, per split."""
    splits = [split for split in ("valid", "test") if split in one and split in other]
    return {split: one[split]["score"]["value"] - other[split]["score"]["value"] for split in splits}


class Clock:
    """Keeps the wall seconds of each run, summed over the executions it took, in a file if there is one."""

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
