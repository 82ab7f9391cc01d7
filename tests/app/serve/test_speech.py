"""Our own dialect for audio: everything that `load(...).transcribe` knows, and the spectrogram."""

import io
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile

from l0drop.app.serve.guard import LOCAL, Access
from l0drop.app.serve.limits import Limits
from l0drop.app.serve.models import Served, ServedSpeech
from l0drop.app.serve.openapi import description
from l0drop.app.serve.speech import MOST_COLUMNS, spectrogram
from l0drop.data.audio import as_audio
from l0drop.decoding.speech import SpeechModel
from l0drop.decoding.text import TextModel
from tests.app.serve.running import Running, running
from tests.models import whispers
from tests.models.whispers import wav


@pytest.fixture(scope="module")
def spoken(whisper: SpeechModel, sparse: TextModel) -> Iterator[Running]:
    limits = Limits(audio_seconds=5, audio_body=1_000_000)
    with running([Served("sparse", sparse), ServedSpeech("tiny", whisper)], limits=limits) as service:
        yield service


def ask(service: Running, content: bytes, headers: Any = None, **fields: str) -> httpx.Response:
    url, files = service.url + "/v1/transcribe", {"file": ("a.wav", content)}
    return httpx.post(url, files=files, data=fields, headers=headers, timeout=30)


@pytest.mark.parametrize("seconds", [0.3, 1.7])
@pytest.mark.parametrize("dial", [{}, {"keep": "0.3"}, {"dense": "true"}], ids=str)
def test_the_answer_is_the_transcript(
    spoken: Running, whisper: SpeechModel, seconds: float, dial: dict[str, str]
) -> None:
    answer = ask(spoken, wav(seconds), num_beams="2", **dial)
    assert answer.status_code == 200
    values = answer.json()
    given = {"dense": {"dense": True}, "keep": {"keep": 0.3}}.get(next(iter(dial), ""), {})
    (wanted,) = whisper.transcribe([whispers.tone(seconds)], num_beams=2, return_timestamps=True, **given)
    assert values["text"] == wanted.text
    assert values["score"] == pytest.approx(wanted.score, abs=1e-9)
    assert [(part["start"], part["end"], part["text"]) for part in values["segments"]] == [
        (part.start, part.end, part.text) for part in wanted.segments
    ]
    assert np.allclose(np.reshape(values["kept"], (-1, 2)), np.reshape(wanted.kept, (-1, 2)), atol=1e-4)
    assert values["dropped"] == pytest.approx(wanted.sparsity)
    assert values["dropped_of_all"] == pytest.approx(wanted.sparsity_of_all)
    assert (values["covered"], values["rows"], values["rows_kept"]) == (wanted.covered, wanted.rows, wanted.rows_kept)
    assert values["audio_seconds"] == pytest.approx(seconds)
    assert values["seconds"]["decode"] > 0
    assert "spectrogram" not in values
    promised = description(spoken.service, Access())["paths"]["/v1/transcribe"]["post"]["responses"]["200"]
    assert set(values) == set(promised["content"]["application/json"]["schema"]["required"])


def test_the_spectrogram_is_that_of_the_extractor(spoken: Running) -> None:
    found = ask(spoken, wav(0.3), spectrogram="true").json()["spectrogram"]
    wanted = whispers.extractor()(whispers.tone(0.3), sampling_rate=16_000, return_tensors="np").input_features[0]
    assert found["column_seconds"] == pytest.approx(0.01)
    assert np.allclose(found["columns"], wanted[:, :30].T, atol=0.006)


def test_a_long_spectrogram_has_wider_columns(whisper: SpeechModel) -> None:
    found = spectrogram(ServedSpeech("tiny", whisper), as_audio(whispers.tone(40), "tone"))
    assert found["column_seconds"] == pytest.approx(0.03)
    assert 4000 / 3 <= len(found["columns"]) <= min(MOST_COLUMNS, 4000 / 3 + 1)


def test_without_timestamps_the_transcript_is_whole(spoken: Running, whisper: SpeechModel) -> None:
    values = ask(spoken, wav(0.4), timestamps="false").json()
    (wanted,) = whisper.transcribe([whispers.tone(0.4)])
    assert (values["text"], len(values["segments"])) == (wanted.text, 1)


def test_silence(spoken: Running) -> None:
    file = io.BytesIO()
    soundfile.write(file, [0.0] * 4000, 16_000, format="WAV")
    values = ask(spoken, file.getvalue(), spectrogram="true").json()
    assert (values["text"], values["rows"], values["score"]) == ("", 0, None)
    assert len(values["spectrogram"]["columns"]) == 25


@pytest.mark.parametrize(
    ("content", "fields", "status", "message"),
    [
        (b"no sound", {}, 400, "cannot be read as audio"),
        (wav(6), {}, 400, "is longer than 5 seconds"),
        (wav(16), {}, 413, "larger than"),
        (wav(0.2), {"model": "sparse"}, 404, "sparse does not read audio"),
        (wav(0.2), {"language": "de"}, 400, "transcribes English only"),
        (wav(0.2), {"num_beams": "99"}, 400, "num_beams"),
        (wav(0.2), {"max_new_tokens": "9999"}, 400, "max_new_tokens"),
        (wav(0.2), {"keep": "2"}, 400, "keep"),
        (wav(0.2), {"timeout": "nan"}, 400, "timeout"),
        (wav(0.2), {"promt": "x"}, 400, "promt"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_errors(spoken: Running, content: bytes, fields: dict[str, str], status: int, message: str) -> None:
    answer = ask(spoken, content, **fields)
    assert answer.status_code == status
    assert message in answer.json()["error"]


def test_a_service_of_texts_says_that_it_does_not_hear(service: Running) -> None:
    answer = ask(service, wav(0.2))
    assert (answer.status_code, answer.json()["error"]) == (404, "model: no model here reads audio")


def test_a_key_is_needed(whisper: SpeechModel) -> None:
    with running([ServedSpeech("tiny", whisper)], Access(["secret-key"], LOCAL)) as locked:
        assert ask(locked, wav(0.2)).status_code == 401
        assert ask(locked, wav(0.2), {"Authorization": "Bearer secret-key"}).json()["text"]
