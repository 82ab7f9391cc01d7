"""Audio in, text out: transcripts, kept frames, silence, long recordings, explanations."""

from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

import l0drop
from l0drop import L0DropConfig, sparsify
from l0drop.data.audio import AudioError
from l0drop.decoding.speech import Segment, SpeechModel, Transcript, load_speech
from l0drop.decoding.text import load as load_text
from tests.models import whispers
from tests.models.whispers import tone


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = whispers.spread_gates(sparsify(whispers.build(), L0DropConfig(gating="zero")))
    return whispers.save(model, tmp_path_factory.mktemp("whisper"))


@pytest.fixture(scope="module")
def model(folder: Path) -> SpeechModel:
    return l0drop.load(folder)


def test_load_gives_a_speech_model(folder: Path, model: SpeechModel) -> None:
    assert isinstance(model, SpeechModel)
    assert model.is_gated
    with pytest.raises(ValueError, match="is a speech model"):
        load_text(folder)
    half = whispers.save(whispers.build().half(), folder.parent / "half")
    assert load_speech(half).dtype == "float32"
    assert load_speech(half, dtype="int8").dtype == "int8"


def test_files_and_arrays_of_any_length_in_order(model: SpeechModel, tmp_path: Path) -> None:
    sounds = [tone(0.4, 1), tone(1.7, 2), tone(0.2, 3), np.zeros(8_000, np.float32), tone(0.48, 4), tone(2.9, 5)]
    soundfile.write(tmp_path / "a.wav", sounds[1], 16_000, subtype="FLOAT")
    results = model.transcribe([sounds[0], tmp_path / "a.wav", *sounds[2:]], language="en", batch_size=2)
    assert [result.seconds for result in results] == pytest.approx([len(sound) / 16_000 for sound in sounds])
    assert results[3] == Transcript("", seconds=0.5)
    for index, result in enumerate(results):
        (alone,) = model.transcribe([sounds[index]], language="en")
        assert alone.text == result.text
        assert alone.segments == result.segments
        if index != 3:
            assert result.text
            assert result.score == pytest.approx(alone.score, abs=1e-4)
    assert results[0].windows == 1
    assert results[1].windows >= 4
    assert results[0].segments == (Segment(0.0, 0.4, results[0].text),)


def test_the_tokens_of_generate_from_features_of_the_extractor(model: SpeechModel) -> None:
    sound, extractor = tone(0.4, 1), whispers.extractor()
    features = extractor(sound, sampling_rate=16_000, return_tensors="pt").input_features
    for way in ({"num_beams": 3}, {"return_timestamps": True}):
        tokens = model.model.generate(features, language="en", **way)[0]
        expected = model.tokenizer.decode([t for t in tokens if t < whispers.EOS]).strip()
        (result,) = model.transcribe([sound], language="en", **way)
        assert expected.startswith(result.text)
        assert result.text


def test_kept_frames_and_sparsity(model: SpeechModel) -> None:
    sound = tone(0.3, 7)
    features = whispers.extractor()(sound, sampling_rate=16_000, return_tensors="pt").input_features
    mask = torch.arange(whispers.FRAMES)[None] < 30
    (explanation,) = model.model.explain(input_features=features, attention_mask=mask)
    (result,) = model.transcribe([sound], language="en")
    covered = [row for row in explanation.kept if row < 15]
    assert [frame.start for frame in result.kept] == pytest.approx([0.02 * row for row in covered])
    assert result.covered == 15
    assert result.sparsity == pytest.approx(explanation.sparsity)
    assert result.sparsity_of_all == pytest.approx(explanation.sparsity_of_all)
    (less,) = model.transcribe([sound], language="en", keep=0.2)
    assert less.rows_kept == round(0.2 * whispers.ROWS)


def test_windows_that_overlap_count_each_moment_once(model: SpeechModel) -> None:
    (result,) = model.transcribe([tone(3.0, 8)], language="en")
    assert result.covered == 150
    starts = [frame.start for frame in result.kept]
    assert starts == sorted(starts)
    assert starts[-1] < 3.0
    assert 0 < result.sparsity < 1


def test_explain(model: SpeechModel) -> None:
    sound = tone(0.3, 7)
    explained = model.explain(sound, language="en", num_beams=2)
    (result,) = model.transcribe([sound], language="en", num_beams=2)
    assert explained.text == result.text
    assert explained.covered == 15
    assert explained.attentions.shape == (2, 4, len(explained.output), whispers.ROWS)
    total = explained.attentions.sum(-1) + explained.zero_row
    torch.testing.assert_close(total, torch.ones_like(total))
    dropped = [row for row in range(whispers.ROWS) if row not in explained.kept]
    assert float(explained.attentions[..., dropped].abs().max()) == 0
    assert explained.output[-1] == "<|endoftext|>" or len(explained.output) > 10
    with pytest.raises(ValueError, match="audio: has 1 seconds; explain takes one window"):
        model.explain(tone(1.0))
    with pytest.raises(ValueError, match="audio: is silent"):
        model.explain(np.zeros(4_000, np.float32))


def test_every_recording_has_its_own_language(model: SpeechModel) -> None:
    """Batches are sorted by length, languages are in the order of the recordings."""
    sounds, languages = [tone(0.2, 1), tone(0.4, 2), np.zeros(800, np.float32), tone(0.3, 4)], ["de", "en", "en", "en"]
    expected = [
        model.transcribe([sound], language=language)[0].text for sound, language in zip(sounds, languages, strict=True)
    ]
    assert [result.text for result in model.transcribe(sounds, language=languages)] == expected
    other = [model.transcribe([sound], language="de")[0].text for sound in sounds]
    assert expected != other
    with pytest.raises(ValueError, match="`language`: 3 languages for 4 recordings"):
        model.transcribe(sounds, language=languages[:3])
    with pytest.raises(ValueError, match="`language`: expected one language"):
        model.settings({"language": languages})


def test_bad_audio_is_named(model: SpeechModel, tmp_path: Path) -> None:
    with pytest.raises(AudioError, match=r"missing\.wav: there is no such file"):
        model.transcribe([tone(0.2), tmp_path / "missing.wav"])
    with pytest.raises(AudioError, match=r"audio\[1\]: has NaN"):
        model.transcribe([tone(0.2), np.full(100, np.nan, np.float32)])
    with pytest.raises(ValueError, match="audio: expected a list of files or arrays, got one"):
        model.transcribe(str(tmp_path / "a.wav"))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"`num_beems`: not a generation setting; did you mean `num_beams`\?"):
        model.transcribe([tone(0.2)], num_beems=2)
