"""What a report says, gathered from the files of a run, a sweep or the demo.

Read are recipe.yaml, metrics.json, sweep.json, bench.json, analysis.json, and evaluation/ as `l0drop evaluate` writes
it.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from l0drop.data.text import file_stamp
from l0drop.study.analysis import tables
from l0drop.study.figures import LEARNED

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
        """Tail risk of the row that is shown."""
        return None if self.evaluation is None else self.evaluation["runs"][0].get("tail")


def gather(folder: Path, margin: float | None = None) -> Findings:
    """What is known about a run, a sweep or a demo; `margin` judges the differences anew."""
    if margin is not None and margin <= 0:
        raise ReportError(f"margin={margin}: should be above 0, the loss that is small enough to accept")
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
        run = evaluation["runs"][0]
        rows = [Row(run["baseline"]["name"], "baseline", _score(run["baseline"], evaluation))] if "tail" in run else []
        rows.append(_judged(metrics["name"], folder, evaluation))
    else:
        scored = metrics.get(split, {})
        role: Role = "sparse" if "sparsity" in scored else "baseline"
        value, sparsity = scored.get("score", {}).get("value"), scored.get("sparsity")
        rows = [Row(metrics["name"], role, value, sparsity, speed=_speed(folder), folder=folder)]
    evaluations = {metrics["name"]: evaluation}
    return _complete(folder, "run", metrics["name"], rows, evaluations, metrics, f"{folder} --baseline RUN", margin)


def _of_sweep(folder: Path, margin: float | None) -> Findings:
    sweep = _read(folder / "sweep.json")
    reference, split = sweep["reference"], _split(sweep["reference"])
    against = folder / reference["run"]
    evaluations = {point["run"]: _evaluation(folder / point["run"], against) for point in sweep["points"]}
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
    judged = next((found for found in evaluations.values() if found is not None and "tail" in found["runs"][0]), None)
    same_text = judged is None or _score(judged["runs"][0]["baseline"], judged) == reference[split]["score"]["value"]
    first = [Row(reference["run"], "reference", reference[split]["score"]["value"])]
    if judged is not None:
        first = [Row(reference["run"], "reference", _score(judged["runs"][0]["baseline"], judged))]
    if same_text and split in sweep["baseline"]:  # the sweep's score of the baseline is on the text of the evaluations
        first.insert(0, Row(sweep["baseline"]["run"], "baseline", sweep["baseline"][split]["score"]["value"]))
    settings = next(iter(sweep["points"]), reference)
    metrics = {**settings, **{key: sweep[key] for key in SOFTWARE if key in sweep}, split: reference[split]}
    return _complete(folder, "sweep", sweep["name"], [*first, *rows], evaluations, metrics, str(folder), margin)


def _of_demo(folder: Path, metrics: dict[str, Any], margin: float | None) -> Findings:
    systems = metrics["systems"]
    evaluation = _evaluation(folder / "sparse", folder / "trained-on")
    judged = _difference(evaluation) if evaluation is not None else None
    where = f"our engine, {_machine(metrics)}"
    rows = [
        Row("baseline", "baseline", systems["baseline"]["score"]["value"]),
        Row("trained-on", "reference", systems["trained-on"]["score"]["value"]),
        Row(
            name="sparse",
            role="sparse",
            score=systems["sparse"]["score"]["value"],
            sparsity=metrics["sparsity"],
            difference=metrics["difference_to_trained_on"],
            lower=None if judged is None else judged["lower"],
            speed=Speed(metrics["dense_by_short_cpu"], None, where),
            folder=folder / "sparse",
        ),
    ]
    name = f"demo: {metrics['task']}, gating {metrics['gating']}"
    command = f"{folder / 'sparse'} --baseline {folder / 'trained-on'}"
    metrics = {**metrics, "test": systems["sparse"]}
    return _complete(folder, "demo", name, rows, {"sparse": evaluation}, metrics, command, margin)


def _complete(
    folder: Path, kind: Kind, name: str, rows: list[Row], evaluations: dict[str, dict[str, Any] | None],
    metrics: dict[str, Any], command: str, margin: float | None,
) -> Findings:  # fmt: skip
    """What all have in common; `evaluations`, of rows by name; `command`: what `l0drop evaluate` is to be given."""
    runs = [row for row in rows if row.folder is not None]
    judged = [row for row in runs if row.lower is not None]
    compared = [found for found in evaluations.values() if found is not None and "tail" in found["runs"][0]]
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
        missing=_missing(analysed[0], runs, judged, evaluations, command),
    )


def _measured(analysed: list[Path]) -> dict[str, tuple[tables.Table, str]]:
    """What a sweep says of all its points comes before what one of them says."""
    found: dict[str, tuple[tables.Table, str]] = {}
    for place in analysed:
        for title, content, note in tables.tables(_read(place / "analysis.json") or {}):
            found.setdefault(title, (content, note))
    return found


def _missing(
    analysed: Path, runs: list[Row], judged: list[Row], evaluations: dict[str, dict[str, Any] | None], command: str
) -> list[str]:
    points = [row for row in runs if row.role in ("sparse", "rule")]
    notes = []
    for row in points:
        if row.folder is not None and evaluations.get(row.name) is None and (row.folder / EVALUATION).is_file():
            other = _read(row.folder / EVALUATION)["runs"][0].get("baseline", {}).get("name", "nothing")
            notes.append(f"{row.name} was evaluated against {other}, which the differences here are not to.")
    if len(judged) < len(points):
        notes.append(f"{len(judged)} of {len(points)} points are compared with a baseline: l0drop evaluate {command}")
    if points and all(row.speed is None for row in points):
        place = points[-1].folder
        notes.append(f"Speed was not measured: l0drop bench decode {place} --input FILE --json {place}/bench.json")
    if not (analysed / "analysis.json").is_file():
        notes.append(f"What was dropped, and where attention goes, was not analysed: l0drop analyze {analysed}")
    return notes


# --- from the files ---------------------------------------------------------------------------------------------------


def _evaluation(run: Path, against: Path) -> dict[str, Any] | None:
    """The evaluation of a run, if it has been compared with the run `against` or with none, but with no other."""
    found = _read(run / EVALUATION)
    if found is None or "tail" not in found["runs"][0]:
        return found
    return found if any(_belongs(file, against) for file in found["runs"][0]["baseline"]["files"]) else None


def _belongs(file: dict[str, Any], run: Path) -> bool:
    """Whether a file that was stamped is of this run: its content, or its path where the run no longer has it."""
    path = Path(file["path"])
    kept = [place for place in (run / "model" / path.name, run / "outputs" / path.name) if place.is_file()]
    if not kept:
        return run.name in path.parts
    return any(place.stat().st_size == file["size"] and file_stamp(place)["sha256"] == file["sha256"] for place in kept)


def _judged(name: str, folder: Path, evaluation: dict[str, Any], role: Role | None = None) -> Row:
    """The row of a run that was evaluated."""
    system = evaluation["runs"][0]["system"]
    sparsity, difference = system.get("sparsity"), _difference(evaluation) or {}
    return Row(
        name=name,
        role=role or ("baseline" if sparsity is None else "sparse"),
        score=_score(system, evaluation),
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


def _score(system: dict[str, Any], evaluation: dict[str, Any]) -> float:
    return float(system["scores"][evaluation["judging"]["metric"]]["value"])


def _sparsity(row: Row) -> float:
    return row.sparsity or 0.0


def _split(metrics: dict[str, Any]) -> str:
    return "test" if "test" in metrics else "valid"


def _metric(evaluation: dict[str, Any] | None, metrics: dict[str, Any]) -> str:
    if evaluation is not None:
        return str(evaluation["runs"][0]["system"]["scores"][evaluation["judging"]["metric"]]["name"])
    return str(metrics.get(_split(metrics), {}).get("score", {}).get("name", "score"))


def _text(evaluation: dict[str, Any] | None, metrics: dict[str, Any]) -> str:
    if evaluation is not None:
        paths = [str(entry["path"]) for entry in evaluation["inputs"] if "path" in entry]
        return f"{evaluation['scored']:,} sentences of {paths[0] if paths else 'the test text'}"
    split = _split(metrics)
    return f"{metrics[split]['sentences']:,} sentences of the {split} text" if split in metrics else "no text"


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
