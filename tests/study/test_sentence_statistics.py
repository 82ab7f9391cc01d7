"""The file of per-sentence statistics: scores and intervals are recomputed from it alone, exactly."""

import gzip
import json
import re
from pathlib import Path

import pytest
from sacrebleu.metrics import BLEU, CHRF

from l0drop.data import metrics
from l0drop.data.score import METRICS
from l0drop.runs.evaluation import CountedMetric, Judging
from l0drop.runs.json_file import FileError, as_json
from l0drop.study.evaluate import evaluate, recomputed
from l0drop.study.evaluation_text import read_files
from l0drop.study.sentence_statistics import SentenceStatistics, columns
from l0drop.study.systems import System
from tests.study.test_evaluate import SOURCES, lines, spaced
from tests.study.test_significance import BAD, GOOD, REFS

STATISTICS_FILE = "statistics.json.gz"


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """Three systems with their baselines; two of them share a start."""
    texts = {"source": SOURCES, "reference": REFS, "good": GOOD, "bad": BAD}
    files = {name: lines(tmp_path / name, spaced(side)) for name, side in texts.items()}
    text = read_files(files["source"], files["reference"])
    good, bad = System(files["good"]), System(files["bad"])
    found = evaluate(
        [good, bad, good], [bad, good, good], text, Judging(documents=True, languages=("en", "de")), {},
        starts=["a", "b", "a"],
    )  # fmt: skip
    found.write(tmp_path / "out")
    return tmp_path / "out"


def test_scores_are_sacrebleus(written: Path) -> None:
    found = SentenceStatistics.read(written / STATISTICS_FILE)
    for label, outputs in (("system-1", GOOD), ("baseline-1", BAD), ("system-2", BAD)):
        assert found.systems[label]["bleu"].score == BLEU().corpus_score(outputs, [REFS]).score
        assert found.systems[label]["chrf"].score == CHRF().corpus_score(outputs, [REFS]).score
        assert found.systems[label]["bleu_paper"].score == metrics.bleu_paper(outputs, REFS).value
        assert found.systems[label]["rouge"].score == pytest.approx(metrics.rouge(outputs, REFS).value)
    assert found.metrics["bleu"] == CountedMetric("BLEU", metrics.bleu(GOOD, REFS).signature, columns("bleu"))


def test_scores_and_intervals_are_those_of_metrics_json(written: Path) -> None:
    stored = json.loads((written / "metrics.json").read_text())
    again = as_json(recomputed(written))
    assert again["over_seeds"] == stored["over_seeds"]
    assert again["over_seeds"]["bleu"]["baselines"] == 2
    assert again["differences"] == [run["differences"] for run in stored["runs"]]
    for number, run in enumerate(stored["runs"], 1):
        for side in ("system", "baseline"):
            for metric in METRICS:
                value = run[side]["scores"][metric]["value"]
                assert again["scores"][f"{side}-{number}"][metric] == pytest.approx(value)


def test_columns_hold_the_counts_of_each_sentence(written: Path) -> None:
    content = json.loads(gzip.decompress((written / STATISTICS_FILE).read_bytes()))
    assert content["metrics"]["bleu"]["columns"] == columns("bleu")
    bleu = dict(zip(columns("bleu"), content["systems"]["system-1"]["bleu"], strict=True))
    expected = [BLEU().corpus_score([hyp], [[ref]]) for hyp, ref in zip(GOOD, REFS, strict=True)]
    assert bleu["hypothesis_length"] == [score.sys_len for score in expected]
    assert bleu["reference_length"] == [score.ref_len for score in expected]
    assert [list(found) for found in zip(*(bleu[f"matches{n}"] for n in range(1, 5)), strict=True)] == [
        score.counts for score in expected
    ]
    assert bleu["totals2"] == [score.totals[1] for score in expected]
    chrf = dict(zip(columns("chrf"), content["systems"]["system-1"]["chrf"], strict=True))
    assert chrf["hypothesis1"] == [len("".join(hyp.split())) for hyp in GOOD]
    assert chrf["reference2"] == [len("".join(ref.split())) - 1 for ref in REFS]
    assert content["lines"][0] == 2, "the first line is blank"
    assert content["documents"] == [number // 7 for number in range(40)]


def test_no_text_is_in_the_file(written: Path) -> None:
    content = gzip.decompress((written / STATISTICS_FILE).read_bytes()).decode()
    assert not any(word in content for text in (GOOD, REFS, SOURCES) for word in text[0].split() if len(word) > 3)


def test_other_files_are_refused_by_name(tmp_path: Path, written: Path) -> None:
    content = json.loads(gzip.decompress((written / STATISTICS_FILE).read_bytes()))
    file = tmp_path / "other.json.gz"
    for damaged, message in (
        (b"no gzip", "not a gzip file"),
        (gzip.compress(b"no JSON"), "not JSON"),
        (gzip.compress(b"{}"), "metrics: missing"),
        (gzip.compress(json.dumps({**content, "format": 2}).encode()), "format: expected 1, got 2"),
        (gzip.compress(json.dumps({**content, "what": "clip statistics"}).encode()), "what: expected"),
        ((written / STATISTICS_FILE).read_bytes()[:-20], "not a gzip file"),
    ):
        file.write_bytes(damaged)
        with pytest.raises(FileError, match=rf"{re.escape(str(file))}: {message}.*l0drop evaluate"):
            SentenceStatistics.read(file)


def test_other_columns_are_refused_by_name(tmp_path: Path, written: Path) -> None:
    content = json.loads(gzip.decompress((written / STATISTICS_FILE).read_bytes()))
    content["metrics"]["bleu"]["columns"] = ["matches1"]
    file = tmp_path / "other.json.gz"
    file.write_bytes(gzip.compress(json.dumps(content).encode()))
    with pytest.raises(FileError, match=r"other\.json\.gz: metrics\.bleu\.columns: .*hypothesis_length"):
        SentenceStatistics.read(file)


def test_a_file_without_a_version_is_read(tmp_path: Path, written: Path) -> None:
    content = json.loads(gzip.decompress((written / STATISTICS_FILE).read_bytes()))
    assert content.pop("version") == 1
    (tmp_path / "older.json.gz").write_bytes(gzip.compress(json.dumps(content).encode()))
    older, newer = (SentenceStatistics.read(file) for file in (tmp_path / "older.json.gz", written / STATISTICS_FILE))
    assert older.counts == newer.counts
