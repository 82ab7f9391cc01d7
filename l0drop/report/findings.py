"""The content of a report, gathered from the files of a run, a sweep or the demo.

It reads recipe.yaml, metrics.json, sweep.json, bench.json, analysis.json, and the evaluation/ folder that `l0drop
evaluate` writes.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from l0drop.report.table import Table
from l0drop.study.agreement import (
    comparable,
    difference_of,
    differences_to_training,
    is_compared,
    mean_score,
    mean_sparsity,
    scored_text,
)
from l0drop.study.analysis import tables
from l0drop.study.evaluate import score_name
from l0drop.study.shown import EVALUATION, margin_of, shown_of, training_scores
from l0drop.study.significance import check_margin
from l0drop.study.source_need import warning_of_analysis, warning_of_evaluation
from l0drop.study.sweep import LEARNED, continued_in
from l0drop.study.verdict import Verdict, verdict

EXAMPLES = Path("evaluation", "examples.json")
SOFTWARE = ("l0drop", "commit", "torch", "transformers", "python", "device", "threads")

Kind = Literal["run", "sweep", "demo"]
Role = Literal["start", "continued", "dense", "sparse", "rule"]
"""start: the dense model that fine-tuning starts from; continued: the dense model given the same extra steps; dense:
another model without gates; sparse: a learned gate; rule: a gate by rule."""
LABELS = {"start": "dense, start", "continued": "dense, continued"}


class ReportError(ValueError):
    """A folder without anything to report; the message says which files are expected in it."""


@dataclass(frozen=True)
class Speed:
    """The speed-up of the short memory over the dense one, and the machine it was measured on."""

    end_to_end: float
    decode: float | None
    where: str


@dataclass(frozen=True)
class Row:
    """A system in the table of quality, sparsity and speed.

    difference: to the dense model that it is compared with. compared: that difference with its bounds, as an evaluation
    stores it. folder: the folder of the run.
    """

    name: str
    role: Role
    score: float | None
    sparsity: float | None = None
    difference: float | None = None
    compared: Mapping[str, Any] | None = None
    speed: Speed | None = None
    folder: Path | None = None

    @property
    def label(self) -> str:
        """The name to show: of dense models of a sweep their role, of others the name of the run."""
        return LABELS.get(self.role, f"{self.name} (rule)" if self.role == "rule" else self.name)

    @property
    def is_gated(self) -> bool:
        return self.role in ("sparse", "rule")

    @property
    def lower(self) -> float | None:
        """The one-sided 95% bound on the difference."""
        return None if self.compared is None else float(self.compared["lower"])


@dataclass(frozen=True)
class Findings:
    """The content of a report, except for the figures.

    shown: the model that the page shows in detail (evaluation, examples, analysis). analysed: the folders whose figures
    are shown: those of a sweep as a whole and those of the model shown. measured: tables of the analysis by title.
    text: the text that was scored. compared_with: the label of the dense model that differences refer to.
    evaluations: of all gated models that have one, by run. warning: that the model shown hardly uses its source.
    missing: notes on missing parts, each with the command that adds it.
    """

    analysed: list[Path]
    measured: dict[str, Table]
    name: str
    kind: Kind
    metric: str
    text: str
    rows: list[Row]
    compared_with: str | None
    margin: float
    shown: Row | None
    evaluations: dict[str, dict[str, Any]]
    examples: list[dict[str, Any]]
    signatures: dict[str, str]
    recipe: str
    provenance: dict[str, dict[str, Any]]
    warning: str | None
    missing: list[str]

    @property
    def points(self) -> list[Row]:
        """The gated models, one of which may be recommended."""
        return [row for row in self.rows if row.is_gated]

    @property
    def judged(self) -> list[Row]:
        """The gated models that were compared with a dense one."""
        return [row for row in self.points if row.compared is not None]

    def verdict(self, row: Row) -> Verdict | None:
        """None if the row was not compared."""
        return None if row.compared is None else verdict(row.compared, self.metric, self.margin)

    @property
    def recommended(self) -> Row | None:
        """The sparsest point that is non-inferior at the margin."""
        good = (row for row in self.judged if (found := self.verdict(row)) and found.kind == "non-inferior")
        return max(good, key=_sparsity, default=None)

    @property
    def has_rules(self) -> bool:
        return any(row.role == "rule" for row in self.rows)

    @property
    def evaluation(self) -> dict[str, Any] | None:
        """Of the model shown."""
        return None if self.shown is None else self.evaluations.get(self.shown.name)

    @property
    def tail(self) -> dict[str, Any] | None:
        """Tail risk of the model shown; of its first seed."""
        return None if self.evaluation is None else self.evaluation["runs"][0].get("tail")

    @property
    def seeds(self) -> int:
        """The number of seeds that scores are averaged over; the same for all rows."""
        return 1 if self.evaluation is None else len(self.evaluation["runs"])


def gather(folder: Path, margin: float | None = None) -> Findings:
    """The findings on a run, a sweep or a demo; `margin` replaces the margin of the evaluation."""
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
        raise ReportError(f"{folder}: one of its JSON files has an unexpected format ({error!r})") from error
    raise ReportError(
        f"{folder}: nothing to report; expected the folder of a finished run (recipe.yaml, metrics.json), of a sweep "
        "(sweep.json), or of the demo"
    )


# --- a run, a sweep, the demo -----------------------------------------------------------------------------------------


def _of_run(folder: Path, metrics: dict[str, Any], margin: float | None) -> Findings:
    evaluation = _read(folder / EVALUATION)
    split = _split(metrics)
    if evaluation is not None:
        rows = []
        if is_compared(evaluation):
            name = evaluation["runs"][0]["baseline"]["name"]
            rows.append(Row(name, "dense", mean_score(evaluation, "baseline")))
        rows.append(_judged(metrics["name"], folder, evaluation))
    else:
        scored = metrics.get(split, {})
        role: Role = "sparse" if "sparsity" in scored else "dense"
        value, sparsity = scored.get("score", {}).get("value"), scored.get("sparsity")
        rows = [Row(metrics["name"], role, value, sparsity, speed=_speed(folder), folder=folder)]
    evaluations = {metrics["name"]: evaluation}
    command = f"l0drop evaluate {folder} --baseline RUN"
    return _complete(folder, "run", metrics["name"], rows, evaluations, [], metrics, command, margin)


def _of_sweep(folder: Path, margin: float | None) -> Findings:
    sweep = _read(folder / "sweep.json")
    continued, trained = continued_in(sweep), training_scores(sweep)
    split = _split(continued)
    found = {point["run"]: _read(folder / point["run"] / EVALUATION) for point in sweep["points"]}
    evaluations, notes = comparable(found, folder / continued["run"], trained, "sweep.json", margin)
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
    first = _dense_rows(sweep["baseline"]["run"], continued["run"], trained, evaluations)
    settings = next(iter(sweep["points"]), continued)
    metrics = {**settings, **{key: sweep[key] for key in SOFTWARE if key in sweep}, split: continued[split]}
    command = f"l0drop evaluate {folder}"
    return _complete(folder, "sweep", sweep["name"], [*first, *rows], evaluations, notes, metrics, command, margin)


def _of_demo(folder: Path, metrics: dict[str, Any], margin: float | None) -> Findings:
    systems = metrics["systems"]
    continued = "continued" if "continued" in systems else "trained-on"  # its name in earlier versions
    found = {"sparse": _read(folder / "sparse" / EVALUATION)}
    evaluations, notes = comparable(found, folder / continued, systems, "the demo's metrics.json", margin)
    speed = Speed(metrics["dense_by_short_cpu"], None, f"our engine, {_machine(metrics)}")
    if (evaluation := evaluations["sparse"]) is not None:
        sparse = replace(_judged("sparse", folder / "sparse", evaluation, "sparse"), speed=speed)
    else:
        value = systems["sparse"]["score"]["value"]
        change = value - systems[continued]["score"]["value"]
        sparse = Row("sparse", "sparse", value, metrics["sparsity"], change, speed=speed, folder=folder / "sparse")
    rows = [*_dense_rows("baseline", continued, systems, evaluations), sparse]
    name = f"demo: {metrics['task']}, gating {metrics['gating']}"
    command = f"l0drop evaluate {folder / 'sparse'} --baseline {folder / continued}"
    metrics = {**metrics, "test": systems["sparse"]}
    return _complete(folder, "demo", name, rows, evaluations, notes, metrics, command, margin)


def _dense_rows(
    start: str, continued: str, trained: Mapping[str, dict[str, Any]], evaluations: dict[str, dict[str, Any] | None]
) -> list[Row]:
    """The dense models. The first has no evaluation, so its row is present only if the others are scored as in
    training."""
    found = ((name, found) for name, found in evaluations.items() if found is not None and is_compared(found))
    name, judged = next(found, ("", None))
    value = trained[continued]["score"]["value"] if judged is None else mean_score(judged, "baseline")
    rows = [Row(continued, "continued", value)]
    alike = judged is None or not differences_to_training(judged, name, trained, continued)
    if alike and start in trained:
        rows.insert(0, Row(start, "start", trained[start]["score"]["value"]))
    return rows


def _complete(
    folder: Path, kind: Kind, name: str, rows: list[Row], evaluations: dict[str, dict[str, Any] | None],
    notes: list[str], metrics: dict[str, Any], command: str, margin: float | None,
) -> Findings:  # fmt: skip
    """The parts that all kinds of folders share. evaluations: by run; notes: why some of them are not used; command:
    the command that compares them."""
    runs = [row for row in rows if row.folder is not None]
    judged = [row for row in runs if row.compared is not None]
    known = {run: found for run, found in evaluations.items() if found is not None}
    margin = margin or margin_of(known.values())
    shown = shown_of(runs, margin)
    evaluation = known.get(shown.name) if shown is not None else None
    recipes = [path / "recipe.yaml" for path in (folder, *(row.folder for row in runs if row.folder is not None))]
    recipe = next((file.read_text(encoding="utf-8") for file in recipes if file.is_file()), "")
    scores = [metrics[split]["score"] for split in ("valid", "test") if split in metrics]
    if evaluation is not None:
        scores += evaluation["runs"][0]["system"]["scores"].values()
    examples = _read(shown.folder / EXAMPLES) if evaluation and shown is not None and shown.folder is not None else None
    analysed = [folder] if kind == "sweep" else []
    if shown is not None and shown.folder is not None:
        analysed.append(shown.folder)
    return Findings(
        analysed=analysed,
        measured=_measured(analysed),
        name=name,
        kind=kind,
        metric=_metric(evaluation, metrics),
        text=_text(evaluation, metrics),
        rows=rows,
        compared_with=_compared_with(rows),
        margin=margin,
        shown=shown,
        evaluations=known,
        examples=examples or [],
        signatures={score["name"]: score["signature"] for score in scores},
        recipe=recipe,
        provenance=_provenance(metrics, evaluation),
        warning=_warning(analysed, evaluation),
        missing=[*notes, *_missing(analysed, runs, judged, command)],
    )


def _measured(analysed: list[Path]) -> dict[str, Table]:
    """The tables of the analyses by title; those of a sweep take precedence over those of one of its points."""
    found: dict[str, Table] = {}
    for folder in analysed:
        for title, (head, rows), note in tables.tables(_read(folder / "analysis.json") or {}):
            found.setdefault(title, Table(head, rows, note, prose=frozenset({tables.CLOSED_GATES})))
    return found


def _warning(analysed: list[Path], evaluation: dict[str, Any] | None) -> str | None:
    """That the model shown hardly uses its source: from an analysis, else from the controls of its evaluation."""
    found = (warning_of_analysis(_read(folder / "analysis.json") or {}) for folder in analysed)
    of_analysis = next(filter(None, found), None)
    return of_analysis or (None if evaluation is None else warning_of_evaluation(evaluation))


def _missing(analysed: list[Path], runs: list[Row], judged: list[Row], command: str) -> list[str]:
    points = [row for row in runs if row.is_gated]
    notes = []
    if len(judged) < len(points):
        notes.append(f"{len(judged)} of {len(points)} models were compared with a dense model: {command}")
    if points and all(row.speed is None for row in points):
        folder = points[-1].folder
        notes.append(f"Speed was not measured: l0drop bench decode {folder} --input FILE --json {folder}/bench.json")
    notes += [
        f"{folder} was not analysed (dropped words, attention): l0drop analyze {folder}"
        for folder in analysed
        if not (folder / "analysis.json").is_file()
    ]
    return notes


# --- from the files ---------------------------------------------------------------------------------------------------


def _judged(name: str, folder: Path, evaluation: dict[str, Any], role: Role | None = None) -> Row:
    """The row of an evaluated run; means over its seeds."""
    sparsity, difference = mean_sparsity(evaluation), difference_of(evaluation) or {}
    return Row(
        name=name,
        role=role or ("dense" if sparsity is None else "sparse"),
        score=mean_score(evaluation, "system"),
        sparsity=sparsity,
        difference=difference.get("difference"),
        compared=difference or None,
        speed=_speed(folder),
        folder=folder,
    )


def _sparsity(row: Row) -> float:
    return row.sparsity or 0.0


def _split(metrics: dict[str, Any]) -> str:
    return "test" if "test" in metrics else "valid"


def _metric(evaluation: dict[str, Any] | None, metrics: dict[str, Any]) -> str:
    if evaluation is not None:
        return score_name(evaluation)
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
    dense = [row for row in rows if not row.is_gated and row.difference is None]
    return dense[-1].label


def _provenance(metrics: dict[str, Any], evaluation: dict[str, Any] | None) -> dict[str, dict[str, Any]]:
    found = {"training": {key: metrics[key] for key in ("steps", "seed", "dtype", *SOFTWARE) if key in metrics}}
    decoding = metrics.get("decoding") or {}
    if evaluation is not None:
        decoding = evaluation["runs"][0]["system"].get("decoding") or decoding
        found["evaluation"] = {key: evaluation[key] for key in SOFTWARE if key in evaluation}
    found["decoding"] = {key: value for key, value in decoding.items() if key not in SOFTWARE}
    return found


def _speed(folder: Path) -> Speed | None:
    """From the decoding benchmark of this run; benchmarks of other models or random weights do not count."""
    bench = _read(folder / "bench.json") or {}
    dense = bench.get("systems", {}).get("engine-dense", {}).get("times_engine_short")
    if dense is None or "model" not in bench:
        return None
    return Speed(dense["end_to_end"], dense["decode"], f"our engine, {_machine(bench)}")


def _machine(entry: dict[str, Any]) -> str:
    return f"{entry['device']}, {entry['threads']} thread{'s' if entry['threads'] != 1 else ''}"


def _read(file: Path) -> Any:
    """The content of a JSON file; None if the file does not exist."""
    if not file.is_file():
        return None
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ReportError(f"{file}: not JSON ({error})") from error
