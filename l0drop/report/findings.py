"""What a report says, gathered from the files of a run, a sweep or the demo.

Read are recipe.yaml, metrics.json, sweep.json, bench.json, analysis.json, and evaluation/ as `l0drop evaluate` writes
it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from l0drop.data.text import file_stamp
from l0drop.report.agreement import (
    agreed,
    differences_to_training,
    is_compared,
    main_score,
    mean_score,
    scored_text,
)
from l0drop.study.analysis import tables
from l0drop.study.significance import check_margin
from l0drop.study.sweep import LEARNED

EVALUATION = Path("evaluation", "metrics.json")
EXAMPLES = Path("evaluation", "examples.json")
SOFTWARE = ("l0drop", "commit", "torch", "transformers", "python", "device", "threads")

Kind = Literal["run", "sweep", "demo"]
Role = Literal["baseline", "reference", "sparse", "rule"]


class ReportError(ValueError):
    """A folder there is nothing to report on; the message says what is expected in it."""


@dataclass(frozen=True)
class Speed:
    """How many times as fast decoding is on the short memory as on the dense one, and where that was measured."""

    end_to_end: float
    decode: float | None
    where: str


@dataclass(frozen=True)
class Row:
    """A system in the table of quality, sparsity and speed.

    difference: to the baseline or reference; lower: its bound, with one-sided 95% confidence. folder: of the run.
    """

    name: str
    role: Role
    score: float | None
    sparsity: float | None = None
    difference: float | None = None
    lower: float | None = None
    speed: Speed | None = None
    folder: Path | None = None

    def non_inferior(self, margin: float) -> bool | None:
        """None where it was not compared."""
        return None if self.lower is None else self.lower > -margin


@dataclass(frozen=True)
class Findings:
    """Everything a report shows, but for the figures.

    analysed: the folders whose figures are shown. measured: tables of what was measured in them, with notes, by
    title. text: what was scored. compared_with: what the differences are to. shown: the row whose evaluation and
    examples are shown in full. missing: what could not be said, and the command that changes that.
    """

    analysed: list[Path]
    measured: dict[str, tuple[tables.Table, str]]
    name: str
    kind: Kind
    metric: str
    text: str
    rows: list[Row]
    compared_with: str | None
    margin: float
    shown: Row | None
    evaluation: dict[str, Any] | None
    examples: list[dict[str, Any]]
    signatures: dict[str, str]
    recipe: str
    provenance: dict[str, dict[str, Any]]
    missing: list[str]

    @property
    def points(self) -> list[Row]:
        """What may be recommended."""
        return [row for row in self.rows if row.role in ("sparse", "rule")]

    @property
    def recommended(self) -> Row | None:
        """The sparsest point that is non-inferior at the margin."""
        good = [row for row in self.points if row.non_inferior(self.margin)]
        return max(good, key=_sparsity, default=None)

    @property
    def has_rules(self) -> bool:
        return any(row.role == "rule" for row in self.rows)

    @property
    def tail(self) -> dict[str, Any] | None:
        """Tail risk of the row that is shown; of its first seed."""
        return None if self.evaluation is None else self.evaluation["runs"][0].get("tail")

    @property
    def seeds(self) -> int:
        """Over how many the scores are means; the same for all rows."""
        return 1 if self.evaluation is None else len(self.evaluation["runs"])

    @property
    def over_seeds(self) -> dict[str, Any] | None:
        """The difference of the row that is shown, where there are several seeds."""
        if self.evaluation is None or "over_seeds" not in self.evaluation:
            return None
        return _difference(self.evaluation)


def gather(folder: Path, margin: float | None = None) -> Findings:
    """What is known about a run, a sweep or a demo; `margin` judges the differences anew."""
    if margin is not None:
        check_margin(margin)
    try:
        if (folder / "sweep.json").is_file():
            return _of_sweep(folder, margin)
        metrics = _read(folder / "metrics.json") or {}
        if "dense_score" in metrics:
            return _of_demo(folder, metrics, margin)
        if metrics and (folder / "recipe.yaml").is_file():
            return _of_run(folder, metrics, margin)
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise ReportError(f"{folder}: a JSON file in it is not as this version writes it ({error!r})") from error
    raise ReportError(
        f"{folder}: nothing to report on; expected the folder of a finished run (recipe.yaml, metrics.json), of a "
        "sweep (sweep.json), or of the demo"
    )


# --- a run, a sweep, the demo -----------------------------------------------------------------------------------------


def _of_run(folder: Path, metrics: dict[str, Any], margin: float | None) -> Findings:
    evaluation = _read(folder / EVALUATION)
    split = _split(metrics)
    if evaluation is not None:
        rows = []
        if is_compared(evaluation):
            name = evaluation["runs"][0]["baseline"]["name"]
            rows.append(Row(name, "baseline", mean_score(evaluation, "baseline")))
        rows.append(_judged(metrics["name"], folder, evaluation))
    else:
        scored = metrics.get(split, {})
        role: Role = "sparse" if "sparsity" in scored else "baseline"
        value, sparsity = scored.get("score", {}).get("value"), scored.get("sparsity")
        rows = [Row(metrics["name"], role, value, sparsity, speed=_speed(folder), folder=folder)]
    evaluations = {metrics["name"]: evaluation}
    return _complete(folder, "run", metrics["name"], rows, evaluations, [], metrics, f"{folder} --baseline RUN", margin)


def _of_sweep(folder: Path, margin: float | None) -> Findings:
    sweep = _read(folder / "sweep.json")
    reference, split = sweep["reference"], _split(sweep["reference"])
    entries = (sweep["baseline"], reference, *sweep["points"])
    trained = {entry["run"]: entry[split] for entry in entries if split in entry}
    runs = [folder / point["run"] for point in sweep["points"]]
    evaluations, notes = _evaluations(runs, folder / reference["run"], trained, "sweep.json", margin)
    rows = []
    for point in sweep["points"]:
        name, evaluation = point["run"], evaluations[point["run"]]
        role: Role = "sparse" if point["kind"] in LEARNED else "rule"
        if evaluation is not None:
            rows.append(_judged(name, folder / name, evaluation, role))
        else:
            value, change = point.get(split, {}).get("score", {}).get("value"), point.get("differences", {}).get(split)
            speed = _speed(folder / name)
            rows.append(Row(name, role, value, point.get("sparsity"), change, speed=speed, folder=folder / name))
    rows.sort(key=lambda row: (row.role == "rule", _sparsity(row)))
    first = _bases(sweep["baseline"]["run"], reference["run"], trained, evaluations)
    settings = next(iter(sweep["points"]), reference)
    metrics = {**settings, **{key: sweep[key] for key in SOFTWARE if key in sweep}, split: reference[split]}
    return _complete(folder, "sweep", sweep["name"], [*first, *rows], evaluations, notes, metrics, str(folder), margin)


def _of_demo(folder: Path, metrics: dict[str, Any], margin: float | None) -> Findings:
    systems = metrics["systems"]
    evaluations, notes = _evaluations(
        [folder / "sparse"], folder / "trained-on", systems, "the demo's metrics.json", margin
    )
    speed = Speed(metrics["dense_by_short_cpu"], None, f"our engine, {_machine(metrics)}")
    if (evaluation := evaluations["sparse"]) is not None:
        sparse = replace(_judged("sparse", folder / "sparse", evaluation, "sparse"), speed=speed)
    else:
        value, change = systems["sparse"]["score"]["value"], metrics["difference_to_trained_on"]
        sparse = Row("sparse", "sparse", value, metrics["sparsity"], change, speed=speed, folder=folder / "sparse")
    rows = [*_bases("baseline", "trained-on", systems, evaluations), sparse]
    name = f"demo: {metrics['task']}, gating {metrics['gating']}"
    command = f"{folder / 'sparse'} --baseline {folder / 'trained-on'}"
    metrics = {**metrics, "test": systems["sparse"]}
    return _complete(folder, "demo", name, rows, evaluations, notes, metrics, command, margin)


def _bases(
    baseline: str, reference: str, trained: Mapping[str, dict[str, Any]], evaluations: dict[str, dict[str, Any] | None]
) -> list[Row]:
    """What the others are beside; the baseline, which is not evaluated, where the others are scored as in training."""
    found = ((name, found) for name, found in evaluations.items() if found is not None and is_compared(found))
    name, judged = next(found, ("", None))
    value = trained[reference]["score"]["value"] if judged is None else mean_score(judged, "baseline")
    rows = [Row(reference, "reference", value)]
    alike = judged is None or not differences_to_training(judged, name, trained, reference)
    if alike and baseline in trained:
        rows.insert(0, Row(baseline, "baseline", trained[baseline]["score"]["value"]))
    return rows


def _complete(
    folder: Path, kind: Kind, name: str, rows: list[Row], evaluations: dict[str, dict[str, Any] | None],
    notes: list[str], metrics: dict[str, Any], command: str, margin: float | None,
) -> Findings:  # fmt: skip
    """What all have in common; `evaluations`, of rows by name; `notes`: why others are left out; `command`: what
    `l0drop evaluate` is to be given."""
    runs = [row for row in rows if row.folder is not None]
    judged = [row for row in runs if row.lower is not None]
    compared = [found for found in evaluations.values() if found is not None and is_compared(found)]
    at = margin or (compared[0]["judging"]["margin"] if compared else 0.5)
    good = [row for row in judged if row.non_inferior(at)]
    shown = max(good or runs, key=_sparsity, default=None)
    if judged and not good:
        shown = max(judged, key=lambda row: row.lower or 0.0)  # the nearest, of which the summary speaks
    evaluation = evaluations.get(shown.name) if shown is not None else None
    recipes = [place / "recipe.yaml" for place in (folder, *(row.folder for row in runs if row.folder is not None))]
    recipe = next((file.read_text(encoding="utf-8") for file in recipes if file.is_file()), "")
    scores = [metrics[split]["score"] for split in ("valid", "test") if split in metrics]
    if evaluation is not None:
        scores += evaluation["runs"][0]["system"]["scores"].values()
    examples = _read(shown.folder / EXAMPLES) if evaluation and shown is not None and shown.folder is not None else None
    analysed = [folder / "sparse" if kind == "demo" else folder]
    if kind == "sweep":  # and one point by itself, the one that is shown if it was
        points = sorted(runs, key=lambda row: (row is not shown, -_sparsity(row)))
        analysed += [row.folder for row in points if row.folder and (row.folder / "analysis.json").is_file()][:1]
    return Findings(
        analysed=analysed,
        measured=_measured(analysed),
        name=name,
        kind=kind,
        metric=_metric(evaluation, metrics),
        text=_text(evaluation, metrics),
        rows=rows,
        compared_with=_compared_with(rows),
        margin=at,
        shown=shown,
        evaluation=evaluation,
        examples=examples or [],
        signatures={score["name"]: score["signature"] for score in scores},
        recipe=recipe,
        provenance=_provenance(metrics, evaluation),
        missing=[*notes, *_missing(analysed[0], runs, judged, command)],
    )


def _measured(analysed: list[Path]) -> dict[str, tuple[tables.Table, str]]:
    """What a sweep says of all its points comes before what one of them says."""
    found: dict[str, tuple[tables.Table, str]] = {}
    for place in analysed:
        for title, content, note in tables.tables(_read(place / "analysis.json") or {}):
            found.setdefault(title, (content, note))
    return found


def _missing(analysed: Path, runs: list[Row], judged: list[Row], command: str) -> list[str]:
    points = [row for row in runs if row.role in ("sparse", "rule")]
    notes = []
    if len(judged) < len(points):
        notes.append(f"{len(judged)} of {len(points)} points are compared with a baseline: l0drop evaluate {command}")
    if points and all(row.speed is None for row in points):
        place = points[-1].folder
        notes.append(f"Speed was not measured: l0drop bench decode {place} --input FILE --json {place}/bench.json")
    if not (analysed / "analysis.json").is_file():
        notes.append(f"What was dropped, and where attention goes, was not analysed: l0drop analyze {analysed}")
    return notes


# --- from the files ---------------------------------------------------------------------------------------------------


def _evaluations(
    runs: list[Path], against: Path, trained: Mapping[str, dict[str, Any]], file: str, margin: float | None
) -> tuple[dict[str, dict[str, Any] | None], list[str]]:
    """The evaluations of runs, by name, that may stand beside each other, and notes on those that may not.

    They have been compared with the run `against` or with none, but with no other.
    """
    found, notes = {}, []
    for run in runs:
        evaluation = found[run.name] = _read(run / EVALUATION)
        if evaluation is None or not is_compared(evaluation):
            continue
        baseline = evaluation["runs"][0]["baseline"]
        if not any(_belongs(stamp, against) for stamp in baseline["files"]):
            found[run.name] = None
            notes.append(f"{run.name} was evaluated against {baseline['name']}, which the differences here are not to.")
    evaluations, others = agreed(found, trained, against.name, file, margin)
    return evaluations, [*notes, *others]


def _belongs(file: dict[str, Any], run: Path) -> bool:
    """Whether a file that was stamped is of this run: its content, or its path where the run no longer has it."""
    path = Path(file["path"])
    kept = [place for place in (run / "model" / path.name, run / "outputs" / path.name) if place.is_file()]
    if not kept:
        return run.name in path.parts
    return any(place.stat().st_size == file["size"] and file_stamp(place)["sha256"] == file["sha256"] for place in kept)


def _judged(name: str, folder: Path, evaluation: dict[str, Any], role: Role | None = None) -> Row:
    """The row of a run that was evaluated; means, where there are several seeds."""
    shares = [run["system"].get("sparsity") for run in evaluation["runs"]]
    sparsity, difference = None if None in shares else fmean(shares), _difference(evaluation) or {}
    return Row(
        name=name,
        role=role or ("baseline" if sparsity is None else "sparse"),
        score=mean_score(evaluation, "system"),
        sparsity=sparsity,
        difference=difference.get("difference"),
        lower=difference.get("lower"),
        speed=_speed(folder),
        folder=folder,
    )


def _difference(evaluation: dict[str, Any]) -> dict[str, Any] | None:
    """By the metric of the verdict; over seeds, where there are several."""
    metric = evaluation["judging"]["metric"]
    if "over_seeds" in evaluation:
        return evaluation["over_seeds"][metric]
    return evaluation["runs"][0].get("differences", {}).get(metric)


def _sparsity(row: Row) -> float:
    return row.sparsity or 0.0


def _split(metrics: dict[str, Any]) -> str:
    return "test" if "test" in metrics else "valid"


def _metric(evaluation: dict[str, Any] | None, metrics: dict[str, Any]) -> str:
    if evaluation is not None:
        return str(main_score(evaluation)["name"])
    return str(metrics.get(_split(metrics), {}).get("score", {}).get("name", "score"))


def _text(evaluation: dict[str, Any] | None, metrics: dict[str, Any]) -> str:
    if evaluation is not None:
        return scored_text(evaluation)
    split = _split(metrics)
    if split not in metrics:
        return "no text"
    against = f", against {metrics[split]['references']}" if "references" in metrics[split] else ""
    return f"{metrics[split]['sentences']:,} sentences of the {split} text{against}"


def _compared_with(rows: list[Row]) -> str | None:
    if all(row.difference is None for row in rows):
        return None
    bases = [row for row in rows if row.role in ("reference", "baseline") and row.difference is None]
    return bases[-1].name


def _provenance(metrics: dict[str, Any], evaluation: dict[str, Any] | None) -> dict[str, dict[str, Any]]:
    found = {"training": {key: metrics[key] for key in ("steps", "seed", "dtype", *SOFTWARE) if key in metrics}}
    decoding = metrics.get("decoding") or {}
    if evaluation is not None:
        decoding = evaluation["runs"][0]["system"].get("decoding") or decoding
        found["evaluation"] = {key: evaluation[key] for key in SOFTWARE if key in evaluation}
    found["decoding"] = {key: value for key, value in decoding.items() if key not in SOFTWARE}
    return found


def _speed(folder: Path) -> Speed | None:
    """From the decoding benchmark of this run; others, and shapes on random weights, say nothing about it."""
    bench = _read(folder / "bench.json") or {}
    dense = bench.get("systems", {}).get("engine-dense", {}).get("times_engine_short")
    if dense is None or "model" not in bench:
        return None
    return Speed(dense["end_to_end"], dense["decode"], f"our engine, {_machine(bench)}")


def _machine(entry: dict[str, Any]) -> str:
    return f"{entry['device']}, {entry['threads']} thread{'s' if entry['threads'] != 1 else ''}"


def _read(file: Path) -> Any:
    """The content of a JSON file; None where there is none."""
    if not file.is_file():
        return None
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ReportError(f"{file}: not JSON ({error})") from error
