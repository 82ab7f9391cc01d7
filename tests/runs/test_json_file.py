"""Files of runs: what is written is read, old files are read, and broken ones are named with the remedy."""

import gzip
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from l0drop.runs.analysis import Analysis, Closed, SweepAnalysis
from l0drop.runs.benchmark import DecodeBenchmark, DecodeBenchmarks
from l0drop.runs.evaluation import Difference, Evaluation
from l0drop.runs.gpu_benchmark import GpuDecodeBenchmark, GpuTextBenchmark
from l0drop.runs.json_file import (
    FieldError,
    FileError,
    JsonFile,
    as_json,
    flat,
    from_json,
    named,
    optional,
    write_json,
)
from l0drop.runs.precision import Precision
from l0drop.runs.prediction import SpeedPrediction
from l0drop.runs.run import RunMetrics
from l0drop.runs.speech import ClipCounts
from l0drop.runs.study import Rivals, StudyResults
from l0drop.runs.sweep import Sweep, Timings
from l0drop.runs.training_benchmark import TrainingSpeed
from tests.snippets import ROOT

RESULTS = ROOT / "docs" / "results"
STUDIES = ("multi30k", "multi30k-translated", "europarl", "europarl-four-pairs", "europarl-6000", "europarl-variants")


@dataclass(frozen=True)
class Machine:
    device: str
    threads: int | None = None


@dataclass(frozen=True)
class Entry:
    share: float
    ends: tuple[float, float]
    kind: Literal["a", "b"] = "a"


@dataclass(frozen=True, kw_only=True)
class File(JsonFile):
    COMMAND = "l0drop write"
    LATEST = 2

    name: str
    first: int = named("from")
    entries: dict[str, list[Entry]]
    note: str | None = optional()
    counts: dict[str, int] = optional(factory=dict)
    seen: list[int] = field(default_factory=list)
    machine: Machine | None = flat()


FILE = File(name="λ", first=1, entries={"x": [Entry(0.5, (1.0, 2))]}, machine=Machine("a CPU"))


def test_a_written_file_is_read_and_says_its_version(tmp_path: Path) -> None:
    FILE.write(tmp_path / "file.json")
    text = (tmp_path / "file.json").read_text(encoding="utf-8")
    assert json.loads(text) == {
        "name": "λ", "from": 1, "entries": {"x": [{"share": 0.5, "ends": [1.0, 2], "kind": "a"}]}, "seen": [],
        "device": "a CPU", "threads": None, "version": 2,
    }  # fmt: skip
    assert File.read(tmp_path / "file.json") == FILE
    assert [path.name for path in tmp_path.iterdir()] == ["file.json"], "no temporary file is left"


def test_fields_that_older_files_lack_get_their_defaults() -> None:
    found = from_json(File, {"name": "old", "from": 1, "entries": {}, "unknown": "of another version"})
    assert (found.note, found.counts, found.seen, found.machine) == (None, {}, [], None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": 3}, "name: expected text, got 3"),
        ({"from": True}, "from: expected a whole number, got true"),
        ({"from": 1.5}, "from: expected a whole number, got 1.5"),
        ({"entries": []}, "entries: expected an object, got []"),
        ({"entries": {"x": [{"share": "much", "ends": [0, 1]}]}}, 'entries.x[0].share: expected a number, got "much"'),
        ({"entries": {"x": [{"share": 1, "ends": [0]}]}}, "entries.x[0].ends: expected a list of 2, got [0]"),
        ({"entries": {"x": [{"share": 1, "ends": [0, 1], "kind": "c"}]}}, "entries.x[0].kind: expected 'a' or 'b'"),
        ({"entries": {"x": [{"ends": [0, 1]}]}}, "entries.x[0].share: missing"),
        ({"note": 3}, "note: expected text, got 3"),
        ({"device": 3}, "device: expected text, got 3"),
    ],
)
def test_a_field_that_does_not_fit_is_named_with_the_remedy(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    file = tmp_path / "file.json"
    file.write_text(json.dumps({**as_json(FILE), **changes}))
    with pytest.raises(FileError, match=re.escape(f"{file}: {message}")) as error:
        File.read(file)
    assert str(error.value).endswith("; delete the file, and write it again with l0drop write")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not JSON (Expecting property name"),
        ("[" * 200_000, "not JSON"),
        ("[]", "the whole file: expected an object, got []"),
        ('{"version": 3}', "version 3, but this l0drop reads versions up to 2; install a newer l0drop"),
        ('{"version": "x"}', "version 'x', but this l0drop reads versions up to 2"),
    ],
)
def test_broken_files_and_newer_versions_are_named(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "file.json"
    file.write_text(content)
    with pytest.raises(FileError, match=re.escape(f"{file}: {message}")):
        File.read(file)


CLIPS = ClipCounts([1, 2], ["a", "b"], {"wer": "s"}, {"system-1": {"wer": [[0, 1, 0, 5, 4], [0, 0, 0, 3, 3]]}})


def test_equal_values_give_equal_compressed_files(tmp_path: Path) -> None:
    for name in ("one.json.gz", "other.json.gz"):
        CLIPS.write(tmp_path / name)
    assert (tmp_path / "one.json.gz").read_bytes() == (tmp_path / "other.json.gz").read_bytes() == CLIPS.as_bytes()
    assert ClipCounts.read(tmp_path / "one.json.gz") == CLIPS


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "version 2, but this l0drop reads versions up to 1"),
        ({"columns": ["substitutions"]}, "columns: expected substitutions, deletions"),
        ({"lines": ["one"]}, 'lines[0]: expected a whole number, got "one"'),
        ({"what": "sentence statistics"}, "what: expected 'clip statistics'"),
    ],
)
def test_broken_compressed_files_are_named(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    file = tmp_path / "statistics.json.gz"
    file.write_bytes(gzip.compress(json.dumps({**as_json(CLIPS), **change}).encode()))
    with pytest.raises(FileError, match=re.escape(f"{file}: {message}")):
        ClipCounts.read(file)
    for content in (b"text", CLIPS.as_bytes()[:-9], CLIPS.as_bytes()[:12] + b"x" + CLIPS.as_bytes()[13:]):
        file.write_bytes(content)
        with pytest.raises(FileError, match=re.escape(f"{file}: not ")):
            ClipCounts.read(file)


@pytest.mark.parametrize("name", STUDIES)
def test_published_studies_without_a_version_are_read(name: str) -> None:
    content = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    assert "version" not in content
    found = StudyResults.read(RESULTS / f"{name}.json")
    assert found.systems.keys() == content["systems"].keys()
    again = as_json(found)
    for system, entry in content["systems"].items():
        for run, read in zip(entry["runs"], again["systems"][system]["runs"], strict=True):
            assert {key: read[key] for key in run if key != "calibration"} == {
                key: run[key] for key in run if key != "calibration"
            }


def test_published_files_of_every_kind_are_read() -> None:
    for name in ("europarl-evaluation", "multi30k-evaluation"):
        evaluation = Evaluation.read(RESULTS / f"{name}.json")
        first = evaluation.first.differences["bleu"]
        assert first.upper == first.interval[1], "they were written before files had an upper bound"
    assert DecodeBenchmark.read(RESULTS / "decode-ragged.json").workload.model is not None
    assert len(Rivals.read(RESULTS / "europarl-rivals.json").rows) > 3
    content = json.loads((RESULTS / "europarl-analysis.json").read_text(encoding="utf-8"))
    assert as_json(from_json(SweepAnalysis, content["sweep"])) == content["sweep"]
    assert from_json(Analysis, content["point"]).interventions is not None


BENCHMARKS: dict[str, type[JsonFile]] = {
    **{path.stem: DecodeBenchmark for path in RESULTS.glob("decode-*.json")},
    "decode-2-threads": DecodeBenchmarks,
    "decode-int8": DecodeBenchmarks,
    **{
        path.stem: GpuDecodeBenchmark if path.stem in ("decode-gpu", "decode-gpu-whisper") else GpuTextBenchmark
        for path in RESULTS.glob("decode-gpu*")
    },
    **{path.stem: Precision for path in RESULTS.glob("precision-*.json")},
    "predict": SpeedPrediction,
    "training-speed": TrainingSpeed,
}


@pytest.mark.parametrize("name", sorted(BENCHMARKS))
def test_published_benchmarks_lose_nothing_when_they_are_read(name: str) -> None:
    """Every key of the file is a field, so writing it again gives the same content."""
    content = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    content.pop("version", None)  # is checked and written by JsonFile
    again = as_json(BENCHMARKS[name].read(RESULTS / f"{name}.json"))
    assert again | content == again


def test_an_older_sweep_has_another_name_for_its_continued_baseline(tmp_path: Path) -> None:
    score = {"score": {"name": "BLEU", "value": 30.0, "signature": "s"}, "sentences": 4}
    older = {"name": "s", "gating": None, "baseline": {"run": "b"}, "reference": {"run": "reference", "test": score}}
    (tmp_path / "sweep.json").write_text(json.dumps({**older, "points": []}))
    found = Sweep.read(tmp_path / "sweep.json")
    assert (found.continued.run, found.split, list(found.scores)) == ("reference", "test", ["reference"])


def test_an_older_run_has_fewer_fields(tmp_path: Path) -> None:
    run = {"name": "r", "steps": 3, "seed": 1, "dtype": "fp32", "decoding": {"beams": 4}, "commit": "abc"}
    (tmp_path / "metrics.json").write_text(json.dumps(run))
    found = RunMetrics.read(tmp_path / "metrics.json")
    assert found.last is None
    assert found.made_by is not None
    assert (found.made_by.commit, found.made_by.torch) == ("abc", None)


def test_timings_of_older_sweeps_are_read(tmp_path: Path) -> None:
    file = tmp_path / "timings.json"
    file.write_text('{"unit": "wall seconds", "continued": 2.5}')
    assert Timings.read(file).seconds == {"continued": 2.5}


@pytest.mark.parametrize(
    ("content", "message"),
    [("[]", "expected an object"), ('{"continued": "long"}', "continued: expected a number"), ("{", "not JSON")],
)
def test_broken_timings_are_named(content: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "timings.json"
    file.write_text(content)
    with pytest.raises(FileError, match=f"{re.escape(str(file))}: .*{message}.*l0drop sweep"):
        Timings.read(file)


@pytest.mark.parametrize(
    ("kind", "content"), [(Closed, {}), (Difference, {"interval": 3}), (Difference, {"interval": [1.0]})]
)
def test_older_forms_with_broken_fields_are_refused(kind: type, content: dict[str, object]) -> None:
    with pytest.raises(FieldError):
        from_json(kind, content)


def test_nan_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "a.json", {"score": float("nan")})
    assert list(tmp_path.iterdir()) == []
