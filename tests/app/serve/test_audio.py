"""Transcription: the clients of OpenAI and Hugging Face get the transcripts of `load(...).transcribe`."""

import base64
import io
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import soundfile
import torch
import transformers as hf
from huggingface_hub import InferenceClient
from tokenizers.pre_tokenizers import ByteLevel

from l0drop import L0DropConfig, load, sparsify
from l0drop.app.serve.guard import LOCAL, Access
from l0drop.app.serve.limits import Limits
from l0drop.app.serve.models import Served, ServedSpeech, check_dial
from l0drop.app.serve.requests import Problem
from l0drop.data.audio import log_mel
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


def letters() -> dict[str, int]:
    """The vocabulary of a Whisper without merges: every byte a token."""
    return {letter: number for number, letter in enumerate(sorted(ByteLevel.alphabet()))} | {"<|endoftext|>": 300}


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


def test_a_prompt_is_that_of_generate(spoken: Running, whisper: SpeechModel) -> None:
    """The transcript of Hugging Face's own generate with the same `prompt_ids`; it differs from the one without."""
    client = openai.OpenAI(base_url=spoken.url + "/v1", api_key="unused")
    features = log_mel(whispers.tone(0.4), whisper.extractor, padded=True)[None].double()
    texts = set()
    for word in (3, 11, 17, 29):
        prompt = whispers.tokenizer().convert_ids_to_tokens(word).strip()
        answer = client.audio.transcriptions.create(model="tiny", file=("a.wav", wav(0.4)), prompt=f"  {prompt} ")
        ids = torch.tensor([whispers.PREVIOUS, word])
        assert whisper.prompt_ids(prompt).tolist() == ids.tolist()
        (tokens,) = whisper.model.generate(features, prompt_ids=ids)
        assert answer.text == whisper.tokenizer.decode(tokens, skip_special_tokens=True).strip()
        texts.add(answer.text)
    assert len(texts) > 1, "the prompt has an effect"


def test_of_a_long_prompt_the_end_counts(spoken: Running) -> None:
    tokenizer = hf.WhisperTokenizer(
        vocab={**letters(), "<|startofprev|>": 400},
        merges=[],
        additional_special_tokens=["<|endoftext|>", "<|startofprev|>"],
    )
    model = SpeechModel("many", whispers.build(), whispers.extractor(), tokenizer)
    with pytest.raises(ValueError, match=r"prompt: <\|endoftext\|> is not a word"):
        model.prompt_ids("a <|endoftext|> b")
    assert model.prompt_ids(" ab ").tolist() == tokenizer.get_prompt_ids("ab").tolist()
    most = model.model.config.max_target_positions // 2 - 1
    found = model.prompt_ids("a" * 100 + "b" * most)
    assert found.tolist() == [400, *[tokenizer.convert_tokens_to_ids("b")] * most]
    assert ask(spoken, wav(0.2), prompt="b1 " * 50).status_code == 200


def test_a_temperature_samples_and_the_seed_repeats_it(spoken: Running, whisper: SpeechModel) -> None:
    client = openai.OpenAI(base_url=spoken.url + "/v1", api_key="unused")

    def sampled(seed: int) -> str:
        return client.audio.transcriptions.create(
            model="tiny", file=("a.wav", wav(0.4)), temperature=1.0, extra_body={"seed": seed}
        ).text

    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(sampled, [0, 1, 2, 0, 1, 2]))
    wanted = []
    for seed in range(3):
        torch.manual_seed(seed)
        wanted.append(whisper.transcribe([whispers.tone(0.4)], temperature=1.0)[0].text)
    assert answers == wanted * 2
    assert len(set(wanted)) > 1
    plain = client.audio.transcriptions.create(model="tiny", file=("a.wav", wav(0.4)), temperature=0.0)
    assert plain.text == whisper.transcribe([whispers.tone(0.4)])[0].text


def test_granularities_and_the_language(spoken: Running) -> None:
    client = openai.OpenAI(base_url=spoken.url + "/v1", api_key="unused")
    answer = client.audio.transcriptions.create(
        model="tiny", file=("a.wav", wav(0.4)), response_format="verbose_json", timestamp_granularities=["segment"]
    )
    assert answer.segments
    assert answer.language == "english"
    with pytest.raises(openai.BadRequestError, match="the times of words are not known"):
        client.audio.transcriptions.create(
            model="tiny", file=("a.wav", wav(0.4)), response_format="verbose_json", timestamp_granularities=["word"]
        )
    with pytest.raises(openai.BadRequestError, match="stream: is not supported"):
        client.audio.transcriptions.create(model="tiny", file=("a.wav", wav(0.4)), stream=True)


def test_a_recording_that_nobody_waits_for_is_given_up(
    spoken: Running, whisper: SpeechModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deadline that passes, or a client that goes, ends the decoding before the next window."""
    windows, real = [], whisper.engine.encode

    def slow(*inputs: Any, **settings: Any) -> Any:
        windows.append(time.monotonic())
        time.sleep(0.3)
        return real(*inputs, **settings)

    monkeypatch.setattr(whisper.engine, "encode", slow)
    before = spoken.metric("l0drop_stopped_texts_total", model="tiny")
    for count in (1, 2):
        windows.clear()
        files = {"file": ("a.wav", wav(4.5))}
        with pytest.raises(httpx.ReadTimeout):  # the client goes
            httpx.post(spoken.url + PATH, files=files, data={"model": "tiny"}, timeout=0.5)
        until = time.monotonic() + 10
        while spoken.metric("l0drop_stopped_texts_total", model="tiny") < before + count:
            assert time.monotonic() < until
            time.sleep(0.02)
        assert len(windows) < 5, "of ten windows"
    assert ask(spoken, wav(0.2)).status_code == 200


def test_texts_do_not_wait_for_a_recording(
    spoken: Running, whisper: SpeechModel, sparse: TextModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each model has its own worker: the text is answered while the Whisper is busy."""
    busy, release, real = threading.Event(), threading.Event(), whisper.decode

    def blocked(*arguments: Any) -> Any:
        busy.set()
        assert release.wait(20)
        return real(*arguments)

    monkeypatch.setattr(whisper, "decode", blocked)
    with ThreadPoolExecutor(1) as pool:
        recording = pool.submit(ask, spoken, wav(0.3))
        assert busy.wait(10)
        answer = spoken.post("/v1/generate", {"text": "the dog sees a cat .", "max_new_tokens": 4})
        assert answer.status_code == 200
        assert not recording.done()
        release.set()
        assert recording.result().status_code == 200


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
        (wav(0.2), {"temperature": "1.5"}, 400, "temperature"),
        (wav(0.2), {"temperature": "1e-40"}, 400, "temperature: expected 0, or 0.01 to 1"),
        (wav(0.2), {"temperature": "0.5", "num_beams": "2"}, 400, "num_beams: a temperature above 0 samples"),
        (wav(0.2), {"seed": "-1"}, 400, "seed"),
        (wav(0.2), {"prompt": "<|notimestamps|>"}, 400, "prompt: "),
        (wav(0.2), {"prompt": "x" * 10_001}, 400, "prompt"),
        (wav(0.2), {"stream": "true"}, 400, "stream: is not supported"),
        (wav(0.2), {"timestamp_granularities[]": "segment"}, 400, "needs response_format=verbose_json"),
        (wav(0.2), {"timestamp_granularities[]": "word", "response_format": "verbose_json"}, 400, "ask for segment"),
        (wav(0.2), {"timestamp_granularities[]": "letter", "response_format": "verbose_json"}, 400, "granularities"),
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


def test_fields_that_openai_clients_send_without_effect(spoken: Running) -> None:
    plain = ask(spoken, wav(0.3)).json()
    for fields in ({"language": ""}, {"language": "EN"}, {"language": "English"}, {"chunking_strategy": "auto"}):
        assert ask(spoken, wav(0.3), **fields).json() == plain
    for name, value in (("include[]", "logprobs"), ("chunking_strategy", "server_vad")):
        answer = ask(spoken, wav(0.3), **{name: value})
        assert answer.status_code == 400
        assert answer.json()["error"]["message"].startswith(name)


def test_the_wrong_method_is_told_in_the_form_of_openai(spoken: Running) -> None:
    answer = spoken.get(PATH)
    assert answer.status_code == 405
    assert answer.json()["error"]["type"] == "invalid_request_error"


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


def test_uploads_never_touch_the_disk(spoken: Running) -> None:
    """Not by the client's name, and not in a temporary file."""
    written: list[str] = []
    is_on = [True]

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if is_on[0] and event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            written.append(str(arguments[0]))

    sys.addaudithook(watch)  # for the rest of the process
    try:
        for name in ("../../etc/evil\r\nX: 1.wav", "/tmp/evil.wav", "evil\0.wav", ""):
            files = {"file": (name, wav(3))}
            answer = httpx.post(spoken.url + PATH, files=files, data={"model": "tiny"}, verify=False)
            assert answer.status_code in (200, 400)
            assert answer.status_code == 200 or not name
        assert written == []
        with tempfile.TemporaryFile():
            assert written, "files are watched"
    finally:
        is_on[0] = False


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
    assert served.language("English") == served.language("EN") == {"language": "en"}
    assert served.language("") == served.language(None) == {}
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
