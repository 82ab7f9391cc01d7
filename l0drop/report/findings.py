"""The content of a report, gathered from the files of a run, a sweep or the demo.

It reads recipe.yaml, metrics.json, sweep.json, bench.json, analysis.json, and the evaluation/ folder that `l0drop
evaluate` writes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from l0drop.runs.analysis import Analysis, SweepAnalysis, read_analysis
from l0drop.runs.benchmark import read_decode_benchmark
from l0drop.runs.demo import DemoTask, is_demo_task
from l0drop.runs.evaluation import (
    Compared,
    Evaluation,
    EvaluationFolder,
    ExampleSentence,
    Tail,
    check_margin,
    read_examples,
)
from l0drop.runs.json_file import Settings
from l0drop.runs.provenance import Provenance
from l0drop.runs.run import RunFolder, RunMetrics, Scored, Split
from l0drop.runs.sweep import Outcome, Sweep, SweepFolder
from l0drop.runs.table import Table
from l0drop.study.agreement import comparable, differences_to_training
from l0drop.study.analysis import tables
from l0drop.study.shown import evaluation_of, margin_of, shown_of
from l0drop.study.source_need import warning_of_analysis, warning_of_evaluation
from l0drop.study.verdict import Verdict, verdict

SOFTWARE = ("l0drop", "commit", "torch", "transformers", "python", "device", "threads")

SubjectKind = Literal["run", "sweep", "demo"]
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

    difference: to the dense model that it is compared with. compared: that difference with its bounds. folder: the
    folder of the run.
    """

    name: str
    role: Role
    score: float | None
    sparsity: float | None = None
    difference: float | None = None
    compared: Compared | None = None
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
        return None if self.compared is None else self.compared.lower


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
    kind: SubjectKind
    metric: str
    text: str
    rows: list[Row]
    compared_with: str | None
    margin: float
    shown: Row | None
    evaluations: dict[str, Evaluation]
    examples: list[ExampleSentence]
    signatures: dict[str, str]
    recipe: str
    provenance: dict[str, Settings]
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
    def evaluation(self) -> Evaluation | None:
        """Of the model shown."""
        return None if self.shown is None else self.evaluations.get(self.shown.name)

    @property
    def tail(self) -> Tail | None:
        """Tail risk of the model shown; of its first seed."""
        return None if self.evaluation is None else self.evaluation.first.tail

    @property
    def seeds(self) -> int:
        """The number of seeds that scores are averaged over; the same for all rows."""
        return 1 if self.evaluation is None else len(self.evaluation.runs)


@dataclass(frozen=True)
class _Trained:
    """What a report says of training: scores of one run, and the settings of all."""

    valid: Scored | None
    test: Scored | None
    settings: Settings
    decoding: Settings
    made_by: Provenance | None

    @property
    def split(self) -> Split:
        return "test" if self.test is not None else "valid"

    @property
    def scored(self) -> Scored | None:
        return self.test or self.valid


def gather(folder: Path, margin: float | None = None) -> Findings:
    """The findings on a run, a sweep or a demo; `margin` replaces the margin of the evaluation."""
    if margin is not None:
        check_margin(margin)
    run = RunFolder(folder)
    if SweepFolder(folder).is_sweep:
        return _of_sweep(SweepFolder(folder), margin)
    if is_demo_task(run.metrics):
        return _of_demo(folder, DemoTask.read(run.metrics), margin)
    if run.is_finished and run.recipe.is_file():
        return _of_run(run, RunMetrics.read(run.metrics), margin)
    raise ReportError(
        f"{folder}: nothing to report; expected the folder of a finished run (recipe.yaml, metrics.json), of a sweep "
        "(sweep.json), or of the demo"
    )


# --- a run, a sweep, the demo -----------------------------------------------------------------------------------------


def _of_run(run: RunFolder, metrics: RunMetrics, margin: float | None) -> Findings:
    evaluation, rows = evaluation_of(run), list[Row]()
    if evaluation is not None:
        if (baseline := evaluation.first.baseline) is not None:
            rows.append(Row(baseline.name, "dense", evaluation.mean_score("baseline")))
        rows.append(_judged(metrics.name, run.path, evaluation))
    else:
        value, sparsity = (None, None) if (last := metrics.last) is None else (last.score.value, last.sparsity)
        role: Role = "dense" if sparsity is None else "sparse"
        rows.append(Row(metrics.name, role, value, sparsity, speed=_speed(run.path), folder=run.path))
    trained = _Trained(metrics.valid, metrics.test, _settings(metrics), metrics.decoding, metrics.made_by)
    command = f"l0drop evaluate {run.path} --baseline RUN"
    return _complete(run.path, "run", metrics.name, rows, {metrics.name: evaluation}, [], trained, command, margin)


def _of_sweep(paths: SweepFolder, margin: float | None) -> Findings:
    folder, sweep = paths.path, Sweep.read(paths.summary)
    continued, scores, split = sweep.continued, sweep.scores, sweep.split
    found = {point.run: evaluation_of(paths.run(point.run)) for point in sweep.points}
    evaluations, notes = comparable(found, folder / continued.run, scores, paths.summary.name, margin)
    rows = []
    for point in sweep.points:
        name, evaluation, path = point.run, evaluations[point.run], folder / point.run
        role: Role = "sparse" if point.is_learned else "rule"
        if evaluation is not None:
            rows.append(_judged(name, path, evaluation, role))
        else:
            value = scores[name].score.value if name in scores else None
            change = point.differences.get(split)
            rows.append(Row(name, role, value, point.sparsity, change, speed=_speed(path), folder=path))
    rows.sort(key=lambda row: (row.role == "rule", _sparsity(row)))
    first = _dense_rows(sweep.baseline.run, continued.run, scores, evaluations)
    one = next(iter(sweep.points), continued)
    valid, test = (one.valid, continued.test) if split == "test" else (continued.valid, one.test)
    trained = _Trained(valid, test, _settings(one), one.decoding or {}, sweep.made_by)
    return _complete(
        folder, "sweep", sweep.name, [*first, *rows], evaluations, notes, trained, f"l0drop evaluate {folder}", margin
    )


def _of_demo(folder: Path, task: DemoTask, margin: float | None) -> Findings:
    systems, continued, path = task.systems, task.continued, folder / "sparse"
    found = {"sparse": evaluation_of(RunFolder(path))}
    evaluations, notes = comparable(found, folder / continued, systems, "the demo's metrics.json", margin)
    speed = Speed(task.dense_by_short_cpu, None, _engine_on(task.made_by))
    if (evaluation := evaluations["sparse"]) is not None:
        sparse = replace(_judged("sparse", path, evaluation, "sparse"), speed=speed)
    else:
        value = systems["sparse"].score.value
        change = value - systems[continued].score.value
        sparse = Row("sparse", "sparse", value, task.sparsity, change, speed=speed, folder=path)
    rows = [*_dense_rows("baseline", continued, systems, evaluations), sparse]
    name = f"demo: {task.task}, gating {task.gating}"
    trained = _Trained(None, systems["sparse"], {"seed": task.seed}, {}, task.made_by)
    command = f"l0drop evaluate {path} --baseline {folder / continued}"
    return _complete(folder, "demo", name, rows, evaluations, notes, trained, command, margin)


def _settings(trained: RunMetrics | Outcome) -> Settings:
    return {"steps": trained.steps, "seed": trained.seed, "dtype": trained.dtype}


def _dense_rows(
    start: str, continued: str, trained: Mapping[str, Scored], evaluations: Mapping[str, Evaluation | None]
) -> list[Row]:
    """The dense models. The first has no evaluation, so its row is present only if the others are scored as in
    training."""
    found = ((name, found) for name, found in evaluations.items() if found is not None and found.is_compared)
    name, judged = next(found, ("", None))
    scored = trained.get(continued)
    value = None if scored is None else scored.score.value
    rows = [Row(continued, "continued", value if judged is None else judged.mean_score("baseline"))]
    alike = judged is None or not differences_to_training(judged, name, trained, continued)
    if alike and start in trained:
        rows.insert(0, Row(start, "start", trained[start].score.value))
    return rows


def _complete(
    folder: Path, kind: SubjectKind, name: str, rows: list[Row], evaluations: Mapping[str, Evaluation | None],
    notes: list[str], trained: _Trained, command: str, margin: float | None,
) -> Findings:  # fmt: skip
    """The parts that all kinds of folders share. evaluations: by run; notes: why some of them are not used; command:
    the command that compares them."""
    runs = [row for row in rows if row.folder is not None]
    judged = [row for row in runs if row.compared is not None]
    known = {run: found for run, found in evaluations.items() if found is not None}
    margin = margin or margin_of(known.values())
    shown = shown_of(runs, margin)
    evaluation = known.get(shown.name) if shown is not None else None
    recipes = [RunFolder(path).recipe for path in (folder, *(row.folder for row in runs if row.folder is not None))]
    recipe = next((file.read_text(encoding="utf-8") for file in recipes if file.is_file()), "")
    scores = [scored.score for scored in (trained.valid, trained.test) if scored is not None]
    examples: list[ExampleSentence] = []
    if evaluation is not None and shown is not None and shown.folder is not None:
        scores += evaluation.first.system.scores.values()
        file = EvaluationFolder(RunFolder(shown.folder).evaluation).examples
        examples = read_examples(file) if file.is_file() else []
    analysed = [folder] if kind == "sweep" else []
    if shown is not None and shown.folder is not None:
        analysed.append(shown.folder)
    analyses = [read_analysis(file) for path in analysed if (file := RunFolder(path).analysis).is_file()]
    return Findings(
        analysed=analysed,
        measured=_measured(analyses),
        name=name,
        kind=kind,
        metric=_metric(evaluation, trained),
        text=_text(evaluation, trained),
        rows=rows,
        compared_with=_compared_with(rows),
        margin=margin,
        shown=shown,
        evaluations=known,
        examples=examples,
        signatures={score.name: score.signature for score in scores},
        recipe=recipe,
        provenance=_provenance(trained, evaluation),
        warning=_warning(analyses, evaluation),
        missing=[*notes, *_missing(analysed, runs, judged, command)],
    )


def _measured(analyses: Sequence[Analysis | SweepAnalysis]) -> dict[str, Table]:
    """The tables of the analyses by title; those of a sweep take precedence over those of one of its points."""
    found: dict[str, Table] = {}
    for analysis in analyses:
        for title, table in tables.tables(analysis):
            found.setdefault(title, table)
    return found


def _warning(analyses: Sequence[Analysis | SweepAnalysis], evaluation: Evaluation | None) -> str | None:
    """That the model shown hardly uses its source: from an analysis, else from the controls of its evaluation."""
    of_analysis = next(filter(None, map(warning_of_analysis, analyses)), None)
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
        if not RunFolder(folder).analysis.is_file()
    ]
    return notes


# --- from the files ---------------------------------------------------------------------------------------------------


def _judged(name: str, folder: Path, evaluation: Evaluation, role: Role | None = None) -> Row:
    """The row of an evaluated run; means over its seeds."""
    sparsity, compared = evaluation.mean_sparsity, evaluation.difference
    return Row(
        name=name,
        role=role or ("dense" if sparsity is None else "sparse"),
        score=evaluation.mean_score("system"),
        sparsity=sparsity,
        difference=None if compared is None else compared.difference,
        compared=compared,
        speed=_speed(folder),
        folder=folder,
    )


def _sparsity(row: Row) -> float:
    return row.sparsity or 0.0


def _metric(evaluation: Evaluation | None, trained: _Trained) -> str:
    if evaluation is not None:
        return evaluation.score_name
    return "score" if trained.scored is None else trained.scored.score.name


def _text(evaluation: Evaluation | None, trained: _Trained) -> str:
    if evaluation is not None:
        return evaluation.text
    if (scored := trained.scored) is None:
        return "no text"
    against = "" if scored.references is None else f", against {scored.references}"
    return f"{scored.sentences:,} lines of the {trained.split} text{against}"


def _compared_with(rows: list[Row]) -> str | None:
    if all(row.difference is None for row in rows):
        return None
    dense = [row for row in rows if not row.is_gated and row.difference is None]
    return dense[-1].label


def _provenance(trained: _Trained, evaluation: Evaluation | None) -> dict[str, Settings]:
    found: dict[str, Settings] = {"training": {**trained.settings, **software(trained.made_by)}}
    decoding = trained.decoding
    if evaluation is not None:
        decoding = evaluation.first.system.decoding or decoding
        found["evaluation"] = software(evaluation.made_by)
    found["decoding"] = {key: value for key, value in decoding.items() if key not in SOFTWARE}
    return found


def software(made_by: Provenance | None) -> dict[str, str | int | None]:
    """Versions and machine."""
    return {} if made_by is None else {key: getattr(made_by, key) for key in SOFTWARE}


def _speed(folder: Path) -> Speed | None:
    """From the decoding benchmark of this run; benchmarks of other models or random weights do not count."""
    file = RunFolder(folder).benchmark
    bench = read_decode_benchmark(file) if file.is_file() else None
    if bench is None or bench.workload.model is None or "engine-dense" not in bench.systems:
        return None
    dense = bench.systems["engine-dense"].times_engine_short
    return None if dense is None else Speed(dense["end_to_end"], dense["decode"], _engine_on(bench.made_by))


def _engine_on(made_by: Provenance | None) -> str:
    return "our engine" if made_by is None else f"our engine, {made_by.machine}"
