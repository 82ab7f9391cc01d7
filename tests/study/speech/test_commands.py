"""The commands on runs with audio, from the recipe to the files they write."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result
from typer.testing import CliRunner

from l0drop import sparsify
from l0drop.app.cli import app
from l0drop.runs.speech import SpeechAnalysis, SpeechEvaluation
from tests.models import whispers
from tests.training import tiny_speech


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with gates as training leaves it, next to the model it started from."""
    folder = tmp_path_factory.mktemp("audio")
    recipe: dict[str, Any] = tiny_speech.recipe(folder, "sparse")
    recipe["data"]["test"]["speaker_column"] = 1
    run = folder / "sparse"
    whispers.save(whispers.spread_gates(sparsify(whispers.build(multilingual=False))), run / "model")
    (run / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    return folder


def invoke(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def evaluated(folder: Path, *words: object) -> SpeechEvaluation:
    found = invoke("evaluate", folder / "sparse", "--resamples", 100, *words)
    assert found.exit_code == 0, found.output
    return SpeechEvaluation.read(folder / "sparse" / "evaluation" / "metrics.json")


def test_a_run_is_scored_on_its_test_clips_with_its_settings(folder: Path) -> None:
    found = evaluated(folder, "--baseline", folder / "whisper")
    (system,) = found.systems
    assert found.audio.path == str(folder / "test" / "list.tsv")
    assert found.clips == 6
    assert list(system.speakers) == ["speaker"]
    assert (system.decoding or {})["max_new_tokens"] == 8, "the recipe's"
    assert system.differences["wer"].speakers == 1
    assert system.tail is not None
    assert system.verdict is not None


def test_another_list_and_other_settings(folder: Path) -> None:
    """A list without speakers: the evaluation says so, and has none."""
    lines = [line.split("\t") for line in (folder / "valid" / "list.tsv").read_text().splitlines()]
    other = folder / "valid" / "pairs.tsv"
    other.write_text("".join(f"{line[0]}\t{line[2]}\n" for line in lines))
    found = evaluated(folder, "--baseline", folder / "whisper", "--audio", other, "--max-new-tokens", 5)
    (system,) = found.systems
    assert found.audio.path == str(other)
    assert (system.decoding or {})["max_new_tokens"] == 5
    assert (system.speakers, system.differences["wer"].speakers) == ({}, 0)
    assert "whose speakers are not known" in (system.verdict or "")


def test_a_list_that_cannot_be_judged_is_refused_before_decoding(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("l0drop.study.speech.evaluate.transcribed", lambda *_, **__: pytest.fail("decoded"))
    listed = folder / "valid" / "short.tsv"
    lines = (folder / "valid" / "list.tsv").read_text().splitlines(keepends=True)
    listed.write_text(lines[0])
    words = ("evaluate", folder / "sparse", "--baseline", folder / "whisper", "--audio", listed)
    assert "short.tsv: has one clip" in str(invoke(*words).exception)
    listed.write_text(lines[0] + "missing.wav\tspeaker\ta0\n" + lines[1])
    assert re.search(r"short\.tsv, line 2: .*missing\.wav: there is no such file", str(invoke(*words).exception))


@pytest.mark.parametrize("words", [("--tokenize", "intl"), ("--controls",), ("--source", "a.txt")])
def test_options_for_text_are_refused(folder: Path, words: tuple[str, ...]) -> None:
    found = invoke("evaluate", folder / "sparse", *words)
    assert found.exit_code != 0
    assert f"{words[0]}: for text only" in str(found.exception)


def test_a_report_has_the_curve_along_the_dial(folder: Path) -> None:
    found = evaluated(folder, "--baseline", folder / "whisper", "--keep", 0.3, "--keep", 0.9)
    assert [row.keep for row in found.curve] == [0.3, 0.9]
    assert found.curve[0].sparsity > found.curve[1].sparsity
    ran = invoke("report", folder / "sparse")
    assert ran.exit_code == 0, ran.output
    page = (folder / "sparse" / "report.html").read_text(encoding="utf-8")
    assert "Word error rate against sparsity" in page
    assert f"{found.curve[0].sparsity:.1%}" in page
    refused = invoke("evaluate", folder / "whisper", "--audio", folder / "test" / "list.tsv", "--keep", 0.3)
    assert "--keep" in str(refused.exception)


def test_an_analysis_of_a_run_takes_words_from_its_start(folder: Path, tmp_path: Path) -> None:
    found = invoke("analyze", folder / "sparse", "--sentences", 4, "--output", tmp_path)
    assert found.exit_code == 0, found.output
    analysis = SpeechAnalysis.read(tmp_path / "analysis.json")
    assert (analysis.clips, analysis.dense) == (4, str(folder / "whisper"))
    assert analysis.left_out == {}
    assert sum(rate.tokens for rate in analysis.words.values()) == analysis.covered.tokens
    assert (tmp_path / "figures" / "spectrogram.svg").is_file()
    refused = invoke("analyze", folder / "sparse", "--only", "mass")
    assert "--only: for text only" in str(refused.exception)
