"""The published results."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from l0drop.runs.analysis import Analysis, SweepAnalysis
from l0drop.runs.benchmark import DecodeBenchmark, DecodeBenchmarks
from l0drop.runs.evaluation import Evaluation
from l0drop.runs.json_file import from_json, read_any, remedy
from l0drop.runs.study import Rivals, StudyResults

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results"
TOYS = ROOT / "docs" / "studies"


def read(name: str, folder: Path = RESULTS) -> dict[str, Any]:
    """A file of its own kind: the paper's numbers, a profile, the trials of a study."""
    found: dict[str, Any] = read_any(folder / f"{name}.json", remedy("the script of the study"))
    return found


def study(name: str) -> StudyResults:
    return StudyResults.read(RESULTS / f"{name}.json")


def evaluation(name: str, folder: Path = RESULTS) -> Evaluation:
    return Evaluation.read(folder / f"{name}.json")


def decoding(name: str) -> DecodeBenchmark:
    return DecodeBenchmark.read(RESULTS / f"{name}.json")


def decoding_of_shape(shape: str) -> DecodeBenchmark:
    """The systems of one shape. Those in int8 are from a later run of their own, so ratios hold among them only."""
    found, later = decoding(f"decode-{shape}"), DecodeBenchmarks.read(RESULTS / "decode-int8.json").shapes[shape]
    systems = {name: later.systems.get(name, system) for name, system in found.systems.items()}
    return replace(found, systems=systems, agreement={**found.agreement, **later.agreement})


def whispers() -> list[DecodeBenchmark]:
    """Random Whispers, small models and batches first."""
    found = [DecodeBenchmark.read(file) for file in RESULTS.glob("decode-whisper-*-[0-9]-[0-9].json")]
    return sorted(found, key=lambda one: (one.workload.whisper != "tiny", one.sentences, one.generation["num_beams"]))


def rivals(name: str) -> Rivals:
    return Rivals.read(RESULTS / f"{name}.json")


def sweep_analysis(name: str) -> SweepAnalysis:
    """The sweep in a file that collects the analyses of a study."""
    return from_json(SweepAnalysis, read(name)["sweep"])


def analysis(name: str, part: str) -> Analysis:
    """One run in a file that collects the analyses of a study."""
    return from_json(Analysis, read(name)[part])
