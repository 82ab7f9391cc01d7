"""All figures of a folder, drawn from its JSON files."""

from collections.abc import Iterator
from pathlib import Path

from l0drop.data.whole import locked, whole_folder
from l0drop.report.figures.attention import attention_maps, attention_mass, entropy
from l0drop.report.figures.distribution import density
from l0drop.report.figures.drawing import Drawing
from l0drop.report.figures.scores import quality, scored
from l0drop.report.figures.speech import can_be_drawn, error_curve, spectrograms
from l0drop.report.figures.times import speed, timed
from l0drop.report.figures.words import groups, positions
from l0drop.runs.analysis import Analysis, SweepAnalysis, read_analysis
from l0drop.runs.benchmark import read_decode_benchmark
from l0drop.runs.evaluation import EvaluationFolder
from l0drop.runs.json_file import write_json
from l0drop.runs.run import RunFolder
from l0drop.runs.speech import SPEECH_ANALYSIS, SPEECH_EVALUATION, SpeechAnalysis, SpeechEvaluation, kind_of
from l0drop.runs.sweep import Sweep, SweepFolder

INDEX = "figures.json"


def drawings(folder: Path) -> Iterator[Drawing]:
    """The figures that the JSON files in a run or sweep folder allow."""
    yield density()
    sweep, run = SweepFolder(folder), RunFolder(folder)
    if sweep.is_sweep and scored(found := Sweep.read(sweep.summary)):
        yield quality(found)
    metrics = EvaluationFolder(run.evaluation).metrics
    if kind_of(metrics) == SPEECH_EVALUATION and can_be_drawn(heard := SpeechEvaluation.read(metrics)):
        yield error_curve(heard)
    if kind_of(run.analysis) == SPEECH_ANALYSIS:
        yield from spectrograms(SpeechAnalysis.read(run.analysis))
    elif run.analysis.is_file():
        yield from of_analysis(read_analysis(run.analysis))
    bench = read_decode_benchmark(run.benchmark) if run.benchmark.is_file() else None
    if bench is not None and timed(bench):
        yield speed(bench)


def of_analysis(analysis: Analysis | SweepAnalysis) -> Iterator[Drawing]:
    """The figures of the parts that were measured."""
    points = analysis.points if isinstance(analysis, SweepAnalysis) else [analysis]
    run = analysis if isinstance(analysis, Analysis) else None
    if run is not None and run.mass is not None:
        yield attention_mass(run)
    if run is not None:
        yield from (attention_maps(run, number) for number in range(len(run.maps or ())))
    if any(point.groups is not None for point in points):
        yield groups(analysis)
    if any(point.entropy is not None for point in points):
        yield entropy(analysis)
    if run is not None and run.places is not None:
        yield positions(run)


def draw_all(folder: Path) -> list[Drawing]:
    """Rewrite `figures/` from the JSON files of a folder, with an index of titles and captions."""
    made = list(drawings(folder))
    index = [{"file": f"{d.name}.svg", "title": d.title, "caption": d.caption} for d in made]
    figures = RunFolder(folder).figures
    with locked(figures), whole_folder(figures) as partial:
        for drawing in made:
            (partial / f"{drawing.name}.svg").write_text(drawing.svg, encoding="utf-8")
        write_json(partial / INDEX, index)
    return made
