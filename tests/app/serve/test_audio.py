"""Transcription: the clients of OpenAI and Hugging Face get the transcripts of `load(...).transcribe`."""

import base64
import io
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import soundfile
from huggingface_hub import InferenceClient

from l0drop import L0DropConfig, load, sparsify
from l0drop.app.serve.guard import LOCAL, Access
from l0drop.app.serve.limits import Limits
from l0drop.app.serve.models import Served, ServedSpeech, check_dial
from l0drop.app.serve.requests import Problem
from l0drop.decoding.recordings import subtitles
from l0drop.decoding.speech import SpeechModel
from l0drop.decoding.text import TextModel
from tests.app.serve.running import Running, running
from tests.models import whispers
from tests.models.whispers import wav

PATH = "/v1/audio/transcriptions"


@pytest.fixture(scope="module")
def spoken(whisper: SpeechModel, sparse: TextModel) -> Iterator[Running]:
    limits = Limits(audio_seconds=5, audio_body=1_000_000)
    with running([ServedSpeech("tiny", whisper), Served("sparse", sparse)], limits=limits) as service:
        yield service


def ask(service: Running, content: bytes, **fields: Any) -> httpx.Response:
    return httpx.post(
        service.url + PATH, files={"file": ("a.wav", content)}, data={"model": "tiny", **fields}, timeout=30
    )


@pytest.mark.parametrize("seconds", [0.4, 1.7])
def test_the_openai_client(spoken: Running, whisper: SpeechModel, seconds: float) -> None:
    client = openai.OpenAI(base_url=spoken.url + "/v1", api_key="unused")
    content = wav(seconds)
    (wanted,) = whisper.transcribe([whispers.tone(seconds)])
    assert wanted.text
    answer = client.audio.transcriptions.create(model="tiny", file=("speech.wav", content))
    assert answer.text == wanted.text
    (timed,) = whisper.transcribe([whispers.tone(seconds)], return_timestamps=True)
    verbose = client.audio.transcriptions.create(
        model="tiny", file=("speech.wav", content), response_format="verbose_json", language="en"
    )
    assert verbose.text == timed.text
    assert verbose.duration == pytest.approx(seconds)
    segments = [(part.start, part.end, part.text) for part in verbose.segments or []]
    assert segments == [(part.start, part.end, part.text) for part in timed.segments]
    texts = {
        kind: client.audio.transcriptions.create(model="tiny", file=("a.wav", content), response_format=kind)
        for kind in ("text", "srt", "vtt")
    }
    assert str(texts["text"]).strip() == wanted.text
    assert str(texts["vtt"]).startswith("WEBVTT\n\n00:00:00.")
    cues = re.findall(r"(\d+)\n(\d\d:\d\d:\d\d,\d{3}) --> (\d\d:\d\d:\d\d,\d{3})\n(.*)\n", str(texts["srt"]))
    assert [cue[3] for cue in cues] == [part.text for part in timed.segments]
    assert str(texts["srt"]) == subtitles(timed, "srt")
    assert [model.id for model in client.models.list()] == ["tiny", "sparse"]


def test_kept_frames_and_the_dial(spoken: Running, whisper: SpeechModel) -> None:
    answer = ask(spoken, wav(0.4), kept="true", keep="0.3").json()
    (wanted,) = whisper.transcribe([whispers.tone(0.4)], keep=0.3)
    assert answer["text"] == wanted.text
    assert answer["kept"] == [list(frame) for frame in wanted.kept]
    assert answer["dropped"] == pytest.approx(wanted.sparsity)
    dense = ask(spoken, wav(0.4), dense="true").json()
    assert dense["text"] == whisper.transcribe([whispers.tone(0.4)], dense=True)[0].text


def test_the_inference_client(spoken: Running, whisper: SpeechModel) -> None:
    client = InferenceClient(token="unused")
    model = f"{spoken.url}/models/tiny"
    (wanted,) = whisper.transcribe([whispers.tone(0.4)])
    assert client.automatic_speech_recognition(wav(0.4), model=model).text == wanted.text
    body = {"generation_parameters": {"num_beams": 2}, "return_timestamps": True}
    answer = client.automatic_speech_recognition(wav(0.4), model=model, extra_body=body)
    (timed,) = whisper.transcribe([whispers.tone(0.4)], num_beams=2, return_timestamps=True)
    assert answer.text == timed.text
    assert [chunk.text for chunk in answer.chunks or []] == [part.text for part in timed.segments]


def test_clips_of_several_clients_are_decoded_together(spoken: Running, whisper: SpeechModel) -> None:
    before = spoken.metric("l0drop_batch_texts_count", model="tiny")
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda seed: ask(spoken, wav(0.2 + 0.02 * seed, seed)).json()["text"], range(12)))
    assert answers == [whisper.transcribe([whispers.tone(0.2 + 0.02 * seed, seed)])[0].text for seed in range(12)]
    assert spoken.metric("l0drop_batch_texts_count", model="tiny") - before < 12


@pytest.mark.parametrize(
    ("content", "fields", "status", "message"),
    [
        (b"no sound", {}, 400, "cannot be read as audio"),
        (b"", {}, 400, "is empty"),
        (wav(6), {}, 400, "is longer than 5 seconds"),
        (wav(16), {}, 413, "larger than"),
        (wav(0.2), {"model": "other"}, 404, "no model of this name"),
        (wav(0.2), {"model": "sparse"}, 404, "sparse does not read audio"),
        (wav(0.2), {"language": "de"}, 400, "transcribes English only"),
        (wav(0.2), {"temperature": "0.5"}, 400, "temperature"),
        (wav(0.2), {"prompt": "x"}, 400, "prompt"),
        (wav(0.2), {"response_format": "xml"}, 400, "response_format"),
        (wav(0.2), {"beams": "3"}, 400, "beams"),
        (wav(0.2), {"keep": "x"}, 400, "keep"),
        (wav(0.2), {"num_beams": "99"}, 400, "num_beams"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_errors_have_the_form_of_openai(
    spoken: Running, content: bytes, fields: dict[str, str], status: int, message: str
) -> None:
    answer = ask(spoken, content, **fields)
    assert answer.status_code == status
    assert message in answer.json()["error"]["message"]
    assert ask(spoken, wav(0.2)).status_code == 200


def test_bad_forms(spoken: Running) -> None:
    for content, kind in (
        (b"{}", "application/json"),
        (b"x", "multipart/form-data"),
        (b"x", "multipart/form-data; boundary=a"),
    ):
        answer = httpx.post(spoken.url + PATH, content=content, headers={"Content-Type": kind})
        assert answer.status_code in (400, 415)
    assert httpx.post(spoken.url + PATH, files={"other": b"x"}, data={"model": "tiny"}).status_code == 400
    assert spoken.post("/models/tiny", {"inputs": "no base64"}).status_code == 400
    assert spoken.post("/v1/generate", {"text": "x", "model": "tiny"}).status_code == 404
    assert spoken.post("/v1/generate", {"text": "x"}).json()["model"] == "sparse"


def test_file_names_of_clients_are_not_used(spoken: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files = {"file": ("../../etc/evil\r\nX: 1.wav", wav(0.2))}
    answer = httpx.post(spoken.url + PATH, files=files, data={"model": "tiny"})
    assert answer.status_code == 200
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("search", "name"),
    [
        ({"num_beams": 99}, "num_beams"),
        ({"max_new_tokens": 9999}, "max_new_tokens"),
        ({"max_new_tokens": 1000}, "max_new_tokens"),
        ({"max_new_tokens": 39}, "max_new_tokens: at most 36"),
        ({"num_return_sequences": 2}, "num_return_sequences"),
    ],
    ids=str,
)
def test_searches_that_cannot_be_done(spoken: Running, search: dict[str, int], name: str) -> None:
    audio = base64.b64encode(wav(0.2)).decode()
    answer = spoken.post("/models/tiny", {"inputs": audio, "parameters": {"generation_parameters": search}})
    assert answer.status_code == 400
    assert name in answer.json()["error"]


def test_memory_that_runs_out_is_507(spoken: Running, whisper: SpeechModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*others: Any, **settings: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(whisper, "decode", failing)
    assert ask(spoken, wav(0.2)).status_code == 507


def test_clips_are_grouped_as_they_are_decoded(whisper: SpeechModel) -> None:
    """A clip that is a little longer than a window has no more frames than one."""
    served, hop = ServedSpeech("tiny", whisper), whisper.extractor.hop_length
    window = whisper.window_frames * hop
    for samples, is_long in ((window, False), (window + 1, False), (window + hop - 1, False), (window + hop, True)):
        clip = whisper.read(np.ones(samples, np.float32), "clip")
        assert served.kind(clip) is is_long
        assert len(whisper.batches([clip, whisper.read(np.ones(100, np.float32), "short")])) == 1 + is_long


@pytest.mark.parametrize("gating", ["zero", "mean"])
def test_one_row_is_too_few_with_a_shared_row(tmp_path: Path, gating: Any) -> None:
    made = sparsify(whispers.build(multilingual=False), L0DropConfig(gating=gating))
    served = ServedSpeech("tiny", load(whispers.save(made, tmp_path)), frozenset({"max_memory"}))
    with pytest.raises(Problem, match="max_memory: expected at least 2 rows"):
        check_dial(served, {"max_memory": 1})


def test_a_language_that_a_whisper_does_not_know(tmp_path: Path) -> None:
    served = ServedSpeech("many", load(whispers.save(whispers.build(multilingual=True), tmp_path)))
    assert served.language("English") == served.language("en") == {"language": "en"}
    with pytest.raises(Problem, match="language: many does not know 'xx'"):
        served.language("xx")


def test_silence_has_a_blank_transcript(spoken: Running) -> None:
    file = io.BytesIO()
    soundfile.write(file, [0.0] * 4000, 16_000, format="WAV")
    assert ask(spoken, file.getvalue()).json() == {"text": ""}


def test_audio_needs_a_key_too(whisper: SpeechModel) -> None:
    with running([ServedSpeech("tiny", whisper)], Access(["secret-key"], LOCAL)) as service:
        assert ask(service, wav(0.2)).status_code == 401
        client = openai.OpenAI(base_url=service.url + "/v1", api_key="secret-key")
        assert client.audio.transcriptions.create(model="tiny", file=("a.wav", wav(0.2))).text
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=service.url + "/v1", api_key="wrong-key").models.list()
