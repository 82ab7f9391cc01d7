"""Error rates within speakers, tail risk, trimming, places of rows, and both jobs on a tiny random Whisper."""

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

from l0drop import load, sparsify
from l0drop.data.audio import RATE, Audio, trimmed
from l0drop.data.speech_metrics import clip_errors, wer
from l0drop.data.spoken import SpokenClip, read_spoken
from l0drop.data.text import CorpusError
from l0drop.report.speech_tables import errors_table, speech_tail_table
from l0drop.runs.speech import SpeechAnalysis, SpeechEvaluation, SpeechJudging, TimedWord
from l0drop.study.significance import resampled
from l0drop.study.speech.analysis import RowStudy, SpeechAnalysisJob
from l0drop.study.speech.evaluate import ClipStatistics, SpeechJob, compare_errors, error_verdict, recomputed
from l0drop.study.speech.tail import speech_tail
from l0drop.study.speech.words import AFTER, BEFORE, BETWEEN, EDGE, INSIDE, places
from tests.models import whispers

REFS = ["we walked into town", "they say smith has nine cats", "no no no", "it is a long way home"]
BASE = ["we walked into town", "They say Smith has 9 cats.", "No no no.", "It is a long way home."]
OURS = ["we walked into the", "They say has cats.", "", "It is a long way home."]


def counts(outputs: list[str]) -> ClipStatistics:
    return ClipStatistics.of(clip_errors(outputs, REFS))


def test_clips_are_drawn_within_their_speaker() -> None:
    """Each drawn corpus has as many clips of a speaker as the list; strata of one clip are drawn together."""

    class Ones(ClipStatistics):
        @staticmethod
        def score_of(sums: np.ndarray) -> float:
            return float(sums[0])

    speakers = ["a", "a", "a", "b", "b", "c", "d"]
    of_a = Ones(np.array([[1.0], [1], [1], [0], [0], [0], [0]]))
    of_c = Ones(np.array([[0.0], [0], [0], [0], [0], [1], [0]]))
    drawn = resampled([of_a, of_c], 200, 1, speakers)
    assert set(drawn[0]) == {3.0}
    assert set(drawn[1]) == {0.0, 1.0, 2.0}
    plain, one = (resampled([of_c], 200, 1, strata) for strata in (None, ["x"] * 7))
    assert np.array_equal(plain, one)


def test_a_rise_of_the_error_rate_is_a_loss() -> None:
    judging = SpeechJudging(margin=0.5, resamples=500)
    found = compare_errors("wer", counts(OURS), counts(BASE), ["a", "a", "b", "b"], judging)
    assert found.system == pytest.approx(wer(OURS, REFS).value)
    assert found.difference > 0
    assert not found.non_inferior
    better = compare_errors("wer", counts(BASE), counts(OURS), ["a", "a", "b", "b"], judging)
    assert better.non_inferior
    assert better.interval == pytest.approx((-found.interval[1], -found.interval[0]))
    assert error_verdict(better).startswith("non-inferior at 0.5 WER")


def test_tail_risk_counts_lost_numbers_and_names() -> None:
    clips = [SpokenClip(f"{n}.wav", Path(f"{n}.wav"), "a", text, n + 1) for n, text in enumerate(REFS)]
    tail = speech_tail(clips, OURS, BASE, clip_errors(OURS, REFS), clip_errors(BASE, REFS))
    assert (tail.rising, tail.falling) == (3, 0)
    assert (tail.worst[0].line, tail.worst[0].difference) == (3, 100.0)
    assert tail.empty == {"system": 1, "baseline": 0}
    assert (tail.numbers.lost, tail.names.lost) == (1, 1), "9 and Smith"


def test_passages_that_a_transcript_lacks_are_skipped() -> None:
    spoken = [f"wo{one}{other}" for one in "rstu" for other in "abcdefghij"]
    gone = " ".join(spoken[:5] + spoken[16:20] + spoken[29:])
    found, other = clip_errors([gone, ""], [" ".join(spoken), "yes it is"])
    assert (found.deletions, found.skipped) == (20, 11), "11 words in a row, then 9"
    assert (other.deletions, other.skipped) == (3, 0), "a short text is not a passage"
    assert clip_errors([gone], [" ".join(spoken)], "character")[0].skipped == 0
    clips = [SpokenClip("a.wav", Path("a.wav"), "a", " ".join(spoken), 1)]
    tail = speech_tail(clips, [gone], [" ".join(spoken)], [found], clip_errors([clips[0].text], [clips[0].text]))
    assert tail.skipped == {"system": 11, "baseline": 0}


def test_trimming_cuts_quiet_ends_only() -> None:
    loud, quiet = np.full(RATE, 0.5, np.float32), np.full(RATE, 0.001, np.float32)
    clip = Audio("clip", np.concatenate([quiet, loud, quiet, loud, quiet]))
    assert trimmed(clip, 40).seconds == pytest.approx(3.2)
    assert trimmed(clip, 60).seconds == 5.0
    with pytest.raises(ValueError, match="`trim`: expected decibels above 0"):
        trimmed(clip, 0)


def test_places_of_rows() -> None:
    """Quiet rows at a boundary are a pause; a short dip inside a word is not."""
    energy = np.zeros(40)
    energy[:6] = energy[18:24] = energy[34:] = -60
    energy[10:12] = -60
    found = places([TimedWord("a", 0.0, 0.4), TimedWord("b", 0.4, 0.8)], energy)
    assert set(found[:6]) == {BEFORE}
    assert found[6:18].tolist() == [EDGE] * 2 + [INSIDE] * 8 + [EDGE] * 2
    assert set(found[18:24]) == {BETWEEN}
    assert set(found[34:]) == {AFTER}


def test_rows_by_energy_and_padding() -> None:
    study = RowStudy(100)
    kept = np.zeros(100, dtype=bool)
    kept[10:20] = True
    study.add(kept, np.arange(20.0))
    assert [one.sparsity for one in study.by_energy().bins] == [1.0] * 5 + [0.0] * 5
    assert (study.covered.rate([0]).sparsity, study.padding.rate([0]).sparsity) == (0.5, 1.0)
    assert sum(one.tokens for one in study.by_distance().bins) == 80


def test_lists_name_the_line_at_fault(tmp_path: Path) -> None:
    (tmp_path / "a.wav").touch()
    file = tmp_path / "list.tsv"
    for line, message in (
        ("a.wav", "line 1: 1 tab-separated"),
        ("a.wav\tx\ty\na.wav\ty", "line 2: 2 tab-separated columns, expected 3"),
        ("a.wav\tx\t ", "none of its lines has a text"),
        ("b.wav\tx\ty", "no such"),
    ):
        file.write_text(line + "\n")
        with pytest.raises(CorpusError, match=message):
            read_spoken(file)
    rows = tmp_path / "list.jsonl"
    rows.write_text(json.dumps({"file": "a.wav", "text": "y"}) + "\n")
    assert read_spoken(rows) == [SpokenClip("a.wav", tmp_path / "a.wav", "", "y", 1)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("speech")
    base = whispers.build(multilingual=False)
    whispers.save(base, folder / "dense")
    whispers.save(whispers.spread_gates(sparsify(base)), folder / "sparse")
    lines = []
    for number in range(6):
        soundfile.write(folder / f"{number}.wav", whispers.tone(0.2 + 0.04 * number, number), RATE)
        lines.append(f"{number}.wav\tspeaker {number % 2}\ta0 b1 c2 d3\n")
    (folder / "list.tsv").write_text("".join(lines))
    return folder


def test_an_evaluation_and_its_files(folder: Path, tmp_path: Path) -> None:
    job = SpeechJob(
        [folder / "sparse"], folder / "list.tsv", folder / "dense", SpeechJudging(resamples=200), output=tmp_path
    )
    target, found = job.run()
    assert SpeechEvaluation.read(target / "metrics.json") == found
    (system,) = found.systems
    assert recomputed(target) == [system.differences]
    assert found.baseline is not None
    assert found.baseline.sparsity is None
    assert 0 < (system.sparsity or 0) < 1
    assert [one.clips for one in system.speakers.values()] == [3, 3]
    assert system.time is not None
    assert system.time.cpu_seconds > 0
    texts = (target / "transcripts-1.txt").read_text().splitlines()
    _, again = SpeechJob([target / "transcripts-1.txt"], folder / "list.tsv", output=tmp_path / "again").run()
    assert len(texts) == 6
    assert again.systems[0].scores == system.scores


def test_long_recordings_are_scored_window_by_window(folder: Path, tmp_path: Path) -> None:
    """In a list with short clips; rows of overlapping windows count once, and timestamps are asked for."""
    seconds = (1.3, 0.3, 0.9)
    lines = []
    for number, length in enumerate(seconds):
        soundfile.write(tmp_path / f"{number}.wav", whispers.tone(length, number), RATE)
        lines.append(f"{number}.wav\tspeaker {number % 2}\t{'a0 b1 c2 d3 ' * 8}\n")
    (tmp_path / "list.tsv").write_text("".join(lines))
    settings = {"max_new_tokens": 8}
    job = SpeechJob(
        [folder / "sparse"], tmp_path / "list.tsv", folder / "dense", SpeechJudging(resamples=50), settings,
        output=tmp_path / "out",
    )  # fmt: skip
    target, found = job.run()
    assert SpeechEvaluation.read(target / "metrics.json") == found
    assert found.long == 2
    (system,) = found.systems
    model = load(folder / "sparse")
    expected = model.transcribe([tmp_path / f"{number}.wav" for number in range(3)], **settings)
    assert [one.windows > 1 for one in expected] == [True, False, True]
    assert (target / "transcripts-1.txt").read_text().splitlines() == [one.text for one in expected]
    kept, covered = sum(len(one.kept) for one in expected), sum(one.covered for one in expected)
    assert covered == sum(-(-round(100 * length) // 2) for length in seconds)
    assert system.sparsity == pytest.approx(1 - kept / covered)
    assert system.tail is not None
    assert system.tail.skipped is not None
    assert system.tail.skipped["system"] > 0
    assert "2 recordings have more than one window" in errors_table(found).note
    table = speech_tail_table(found)
    assert table is not None
    assert table.rows[0][table.head.index("words skipped")] == str(system.tail.skipped["system"])


def test_an_analysis_counts_every_row_once(folder: Path, tmp_path: Path) -> None:
    found = SpeechAnalysisJob(str(folder / "sparse"), folder / "list.tsv", str(folder / "dense")).run()
    found.write(tmp_path / "analysis.json")
    assert SpeechAnalysis.read(tmp_path / "analysis.json") == found
    assert found.covered.tokens + found.padding.tokens == 6 * whispers.ROWS
    for bins in (found.energy.bins, found.position.bins, list(found.words.values())):
        assert sum(one.tokens for one in bins) == found.covered.tokens
        dropped = sum(one.tokens * (one.sparsity or 0) for one in bins)
        assert dropped / found.covered.tokens == pytest.approx(found.covered.sparsity)
    assert [one.line for one in found.shown] == [1, 2, 3]
    assert len(found.shown[0].levels) == len(found.shown[0].kept) == 10
    bare = SpeechAnalysisJob(str(folder / "sparse"), folder / "list.tsv").run()
    assert "give `baseline`" in bare.left_out["words"]
