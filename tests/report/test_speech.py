"""The report on a run with audio: its numbers, its spectrograms, and text from data as text."""

import itertools
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile

from l0drop import sparsify
from l0drop.data.audio import RATE
from l0drop.data.speech_metrics import clip_errors, wer
from l0drop.report import write_report
from l0drop.report.figures.speech import LINES, STRIP, pixels, placed
from l0drop.runs.speech import ShownClip, SpeechAnalysis, SpeechEvaluation, SpeechJudging, TimedWord
from l0drop.study.speech.analysis import SpeechAnalysisJob
from l0drop.study.speech.evaluate import SpeechJob
from tests.models import whispers
from tests.report import folders
from tests.report.folders import HOSTILE
from tests.report.test_page import read

SPEAKERS = ("<img src=x onerror=alert(1)>", "b")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A gated model with an evaluation at three settings of the dial, and an analysis, all with hostile names."""
    folder = tmp_path_factory.mktemp("speech")
    base = whispers.build(multilingual=False)
    whispers.save(base, folder / "dense")
    whispers.save(whispers.spread_gates(sparsify(base)), folder / "sparse")
    lines = []
    for number in range(6):
        name = f"<b>{number}.wav"
        soundfile.write(folder / name, whispers.tone(0.2 + 0.04 * number, number), RATE)
        text = "" if number == 5 else "a0 b1 c2 d3"
        lines.append(f"{name}\t{SPEAKERS[number % 2]}\t{text}\n")
    (folder / "list.tsv").write_text("".join(lines))
    judging = SpeechJudging(margin=50.0, resamples=200)
    run, audio = folder / "sparse", folder / "list.tsv"
    (folder / "perfect.txt").write_text("a0 b1 c2 d3\n" * 5 + "\n")  # a random model is no worse than another
    SpeechJob([run], audio, folder / "perfect.txt", judging, keep=(0.3, 0.6, 1.0)).run()
    found = SpeechAnalysisJob(str(run), audio, str(folder / "dense")).run()
    first = replace(found.shown[0], text=HOSTILE, words=[TimedWord(HOSTILE, 0.0, 0.1)])
    replace(found, shown=[first, *found.shown[1:]]).write(run / "analysis.json")
    return run


def evaluation(run: Path) -> SpeechEvaluation:
    return SpeechEvaluation.read(run / "evaluation" / "metrics.json")


def test_the_page_has_all_parts_and_their_numbers(run: Path) -> None:
    page, markdown = (file.read_text(encoding="utf-8") for file in write_report(run))
    titles = re.findall(r"<h2>(.*?)</h2>", page)
    assert titles == [
        "Verdict", "WER and sparsity", "Spectrograms", "Speakers", "Tail risk", "Time", "Dropped rows", "Settings",
        "Background",
    ]  # fmt: skip
    (system,) = evaluation(run).systems
    words = " ".join("".join(read(page).words).split())
    for text in (words, markdown):
        assert f"{system.scores['wer'].value:.2f} WER and {system.scores['cer'].value:.2f} CER" in text
        assert f"{system.sparsity:.1%}" in text
        assert f"{system.sparsity_of_all:.1%}" in text
        assert f"{system.differences['wer'].difference:+.2f}" in text
    assert words.count(str(system.verdict)) == 1
    assert "unit:word" in words
    assert "unit:word" in markdown
    analysis = SpeechAnalysis.read(run / "analysis.json")
    assert f"{analysis.covered.sparsity:.1%}" in words
    drawn = sorted(file.name for file in (run / "figures").glob("*.svg"))
    assert drawn == [
        "error-curve.svg",
        "hard-concrete.svg",
        "spectrogram-2.svg",
        "spectrogram-3.svg",
        "spectrogram.svg",
    ]


def test_hostile_names_and_transcripts_are_text(run: Path) -> None:
    file = run / "evaluation" / "transcripts-1.txt"
    before = file.read_text()
    file.write_text(f"{HOSTILE}\n" * 6)
    try:
        page = read(write_report(run)[0].read_text(encoding="utf-8"))
    finally:
        file.write_text(before)
    tags = {tag for tag, _ in page.tags}
    assert not tags & {"script", "img", "b", "i"}
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    words = "".join(page.words)
    tail = evaluation(run).systems[0].tail
    assert tail is not None
    assert tail.worst, "or there is nothing to show"
    assert words.count(HOSTILE) >= len(tail.worst) + 2, "in each worst clip, and in a figure and its caption"
    assert SPEAKERS[0] in words


def test_another_margin_changes_the_verdict(run: Path) -> None:
    upper = evaluation(run).systems[0].differences["wer"].upper
    wide, narrow = (write_report(run, margin)[1].read_text() for margin in (upper + 1, 1e-6))
    assert upper > 0
    assert f"non-inferior at {upper + 1:g}" in wide
    assert "non-inferior" not in narrow


def test_a_blank_reference_counts_insertions(run: Path) -> None:
    """The last clip has no words, so its transcript adds errors and no words."""
    scores = evaluation(run).systems[0].scores["wer"]
    texts = (run / "evaluation" / "transcripts-1.txt").read_text().splitlines()
    spoken = wer(texts[:5], ["a0 b1 c2 d3"] * 5).details
    (last,) = clip_errors(texts[5:], [""])
    assert scores.details["length"] == spoken["length"]
    assert scores.details["errors"] == spoken["errors"] + last.insertions
    assert last.insertions > 0


def test_an_audio_run_without_an_evaluation_says_what_is_missing(tmp_path: Path) -> None:
    folders.finished(tmp_path, 0.4, 12.5)
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    metrics["test"]["score"]["name"] = "WER"
    (tmp_path / "metrics.json").write_text(json.dumps(metrics))
    page, markdown = (file.read_text(encoding="utf-8") for file in write_report(tmp_path))
    for text in (page, markdown):
        assert "drops 40.0% of the rows that audio covers and reaches 12.50 WER on 40 clips" in text
        assert "l0drop analyze" in text
        assert "l0drop evaluate" in text
        assert "encodings" not in text.split("Background")[0], "a word of the report on text"


def test_dropped_rows_are_grey_and_kept_ones_coloured() -> None:
    kept = [True, False, True, False]
    clip = ShownClip(1, "a.wav", 0.08, 0.02, [[0, 99], [0, 99], [99, 0], [50, 50]], kept, [], "")
    image = pixels(clip)
    shown, strip = image[:-STRIP], image[-STRIP:]
    assert shown.shape[:2] == (2, 4)
    is_grey = np.ptp(shown[..., :3], axis=-1).max(0) == 0
    assert is_grey.tolist() == [not one for one in kept]
    assert strip[-1, :, 3].tolist() == kept
    assert shown[0, 0, 0] > shown[1, 0, 0], "the high tone is loud, and stands above"


def test_words_do_not_overlap_while_there_is_room() -> None:
    words = [TimedWord("word" * (1 + n % 2), 0.2 * n, 0.2 * n + 0.2) for n in range(20)]
    found = placed(words, 5.0, 0.05)
    assert {text for _, _, text in found} == {word.text for word in words}
    for line in range(LINES):
        here = [(at, at + len(text) * 0.05) for at, one, text in found if one == line]
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(here))
    assert all(at + len(text) * 0.05 <= 5.0 for at, _, text in found)
    assert [at for at, _, _ in found[:3]] == [0.0, 0.2, 0.4], "words stand at their times"
