"""Requests that take what belongs to others: time on the event loop, the tokenizer, slots, and connections."""

import io
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile
from pydantic import BaseModel

from l0drop.app.serve import requests
from l0drop.app.serve.guard import LOCAL, Access
from l0drop.app.serve.huggingface import Inputs
from l0drop.app.serve.libretranslate import Translate
from l0drop.app.serve.limits import Limits
from l0drop.app.serve.models import Served, ServedSpeech
from l0drop.app.serve.native import Generate
from l0drop.app.serve.requests import Problem, checked, form_value, parse_json
from l0drop.decoding.speech import SpeechModel
from l0drop.decoding.text import TextModel
from tests.app.serve.running import Running, running
from tests.models.whispers import wav

TEXT = "the dog sees a cat ."
KEY = "first-secret"
AUTHORIZED = {"Authorization": f"Bearer {KEY}"}
LIMITS = Limits(text=5_000, queue=300, requests=3, strangers=2, seconds=20, answer_seconds=0.7)


@pytest.fixture(scope="module")
def locked(sparse: TextModel, whisper: SpeechModel) -> Iterator[Running]:
    models: Any = [Served("sparse", sparse, pair=("en", "xx")), ServedSpeech("tiny", whisper)]
    with running(models, Access([KEY], LOCAL), LIMITS) as found:
        yield found


def ask(service: Running, **values: Any) -> httpx.Response:
    return service.post("/v1/generate", {"max_new_tokens": 4, **values}, headers=AUTHORIZED)


def request(path: str, length: int, *more: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json", f"Content-Length: {length}"]
    return "\r\n".join([*lines, *more, "", ""]).encode()


class SlowTokenizer:
    """Counts what is tokenized, and takes its time."""

    def __init__(self, model: TextModel, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
        self.texts: list[str] = []
        real = model.encode

        def slow(texts: list[str], **options: Any) -> Any:
            self.texts += texts
            time.sleep(seconds)
            return real(texts, **options)

        monkeypatch.setattr(model, "encode", slow)


# --- the event loop ---------------------------------------------------------------------------------------------------


def test_repeated_names_are_found_in_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "MOST_NAMES", 1_000_000)
    names = [f'"{number}":1' for number in range(100_000)]
    began = time.monotonic()
    with pytest.raises(Problem, match="the key '99999' occurs twice"):
        parse_json(f"{{{','.join([*names, names[-1]])}}}".encode())
    assert time.monotonic() - began < 3


@pytest.mark.parametrize("kind", [Generate, Inputs, Translate])
@pytest.mark.parametrize("value", ["1", "{}", "[]"])
def test_a_million_faults_are_one(kind: type[BaseModel], value: str) -> None:
    field = {Generate: "text", Inputs: "inputs", Translate: "q"}[kind]
    values = json.loads(f'{{"{field}": [{",".join([value] * 600_000)}]}}')
    began = time.monotonic()
    with pytest.raises(Problem, match=field):
        checked(kind, values)
    assert time.monotonic() - began < 1


@pytest.mark.parametrize("part", ["[]", "{}", '["a]"]', '{"a}":[]}'])
def test_json_with_many_lists_and_objects_is_refused_unread(part: str) -> None:
    body = f"[{','.join([part] * 200_000)}]".encode()
    began = time.monotonic()
    with pytest.raises(Problem, match="JSON: has more than 10,000 lists and objects"):
        parse_json(body)
    assert time.monotonic() - began < 3


def test_brackets_in_texts_are_no_lists() -> None:
    text = '[{ "quoted" \\[\\\n]} é ' * 10_000
    assert parse_json(json.dumps({"text": [text, "["], "x": "{"}).encode()) == {"text": [text, "["], "x": "{"}
    assert len(parse_json(json.dumps([[]] * 9_999).encode())) == 9_999


def test_a_large_body_with_audio_is_read_at_once(locked: Running) -> None:
    """Twenty million bytes of lists would take seconds to read; while they do, nobody is answered."""
    for part in (b"[]", b"1", b'""'):
        body = b'{"inputs": [' + b",".join([part] * 6_000_000) + b"]}"
        headers = {**AUTHORIZED, "Content-Type": "application/json"}
        answer = httpx.post(locked.url + "/models/tiny", content=body, headers=headers, timeout=30)
        assert (answer.status_code, answer.json()) == (400, {"error": "inputs: expected audio as base64"})


def test_objects_with_many_names_are_refused() -> None:
    with pytest.raises(Problem, match="an object has 1,001 keys; at most 1,000 are read"):
        parse_json(json.dumps(dict.fromkeys(map(str, range(1001)))).encode())


# --- the tokenizer ----------------------------------------------------------------------------------------------------


def test_a_prefix_counts_as_text(locked: Running) -> None:
    answer = ask(locked, text="the dog", prefix="x" * 4_994)
    assert answer.status_code == 413
    assert "text 1 has 5,001 characters with its prefix" in answer.json()["error"]


@pytest.mark.parametrize("path", ["/v1/generate", "/v1/explain"])
@pytest.mark.parametrize("long", ["split", "cut"])
def test_a_prefix_that_leaves_no_room_is_refused_at_once(
    locked: Running, sparse: TextModel, monkeypatch: pytest.MonkeyPatch, path: str, long: str
) -> None:
    tokenizer = SlowTokenizer(sparse, monkeypatch, 0)
    extra = {"long": long} if path == "/v1/generate" else {}
    values = {"text": "the dog " * 200, "prefix": "the dog " * 300, **extra}
    answer = locked.post(path, values, headers=AUTHORIZED)
    assert answer.status_code == 400
    assert answer.json()["error"].startswith("prefix: it leaves no room")
    assert len(tokenizer.texts) == 2, "the text and its first character"


def test_the_deadline_covers_tokenizing_and_ends_it(
    locked: Running, sparse: TextModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = SlowTokenizer(sparse, monkeypatch, 0.05)
    before = locked.metric("l0drop_expired_texts_total")
    began = time.monotonic()
    answer = ask(locked, text=[TEXT] * 100, timeout=0.3)
    assert answer.status_code == 504
    assert time.monotonic() - began < 2
    assert locked.metric("l0drop_expired_texts_total") > before
    time.sleep(0.2)
    tried = len(tokenizer.texts)
    time.sleep(0.2)
    assert len(tokenizer.texts) == tried < 30


def test_a_client_that_has_gone_ends_tokenizing(
    locked: Running, sparse: TextModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = SlowTokenizer(sparse, monkeypatch, 0.05)
    body = json.dumps({"text": [TEXT] * 100}).encode()
    with socket.create_connection(("127.0.0.1", locked.port)) as connection:
        connection.sendall(request("/v1/generate", len(body), f"Authorization: Bearer {KEY}") + body)
        while len(tokenizer.texts) < 3:
            time.sleep(0.01)
    time.sleep(0.3)
    tried = len(tokenizer.texts)
    time.sleep(0.3)
    assert len(tokenizer.texts) == tried < 30


def test_one_client_does_not_hold_up_the_tokenizer(
    locked: Running, sparse: TextModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    SlowTokenizer(sparse, monkeypatch, 0.05)
    monkeypatch.setattr("l0drop.app.serve.native.client_of", lambda request: request.headers["x-client"])

    def asked(client: str, count: int) -> float:
        headers = {**AUTHORIZED, "X-Client": client}
        answer = locked.post("/v1/generate", {"text": [TEXT] * count, "max_new_tokens": 2}, headers=headers)
        assert answer.status_code == 200
        return time.monotonic()

    with ThreadPoolExecutor(2) as pool:
        many = pool.submit(asked, "many", 40)
        time.sleep(0.3)
        one = pool.submit(asked, "one", 1)
        assert one.result() < many.result() - 0.8


def test_the_deadline_covers_the_reading_of_audio(locked: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    def blocked(*_: Any) -> Iterator[None]:
        yield release.wait(10)

    monkeypatch.setattr("l0drop.app.serve.service.read_in_steps", blocked)
    began = time.monotonic()
    answer = httpx.post(
        locked.url + "/v1/transcribe", files={"file": wav(0.2)}, data={"timeout": "0.3"}, headers=AUTHORIZED
    )
    release.set()
    assert answer.status_code == 504
    assert time.monotonic() - began < 5


def sound_of(seconds: float, channels: int, rate: int) -> bytes:
    """A small file with many samples."""
    file = io.BytesIO()
    with soundfile.SoundFile(file, "w", rate, channels, format="FLAC") as written:
        for _ in range(round(10 * seconds)):
            written.write(np.zeros((rate // 10, channels), np.float32))
    return file.getvalue()


def test_a_recording_of_many_samples_holds_up_neither_memory_nor_others(
    locked: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a minute of eight channels takes long to decompress. Clients take turns, and the deadline ends it."""
    monkeypatch.setattr("l0drop.app.serve.speech.client_of", lambda request: request.headers["x-client"])
    blocks, real = list[int](), soundfile.SoundFile.read

    def read(file: Any, *arguments: Any, **settings: Any) -> Any:
        block = real(file, *arguments, **settings)
        if file.channels == 8:
            blocks.append(block.size)
            time.sleep(0.05)
        return block

    monkeypatch.setattr(soundfile.SoundFile, "read", read)
    bomb = sound_of(30, 8, 192_000)
    assert len(bomb) < 100_000

    def heard(client: str, content: bytes, timeout: float) -> int:
        answer = httpx.post(
            locked.url + "/v1/transcribe",
            files={"file": content},
            data={"timeout": str(timeout)},
            headers={**AUTHORIZED, "X-Client": client},
            timeout=60,
        )
        return answer.status_code

    with ThreadPoolExecutor(2) as pool:
        slow = pool.submit(heard, "many", bomb, 1.0)
        while not blocks and not slow.done():
            time.sleep(0.01)
        assert pool.submit(heard, "one", wav(0.2), 20).result() == 200
        assert slow.result() == 504
    time.sleep(0.1)  # the block in progress is the last one
    tried = len(blocks)
    time.sleep(0.2)
    assert len(blocks) == tried < 30 * 192_000 * 8 / 1_000_000
    assert max(blocks) <= 1_000_000


def test_a_slow_body_counts_for_the_deadline(locked: Running) -> None:
    body = json.dumps({"text": TEXT, "timeout": 0.5}).encode()
    with socket.create_connection(("127.0.0.1", locked.port), timeout=10) as connection:
        connection.sendall(request("/v1/generate", len(body), f"Authorization: Bearer {KEY}") + body[:5])
        time.sleep(0.7)
        connection.sendall(body[5:])
        assert connection.recv(65536).startswith(b"HTTP/1.1 504")


# --- slots, the queue, connections ------------------------------------------------------------------------------------


def test_strangers_do_not_take_the_slots_of_clients_with_a_key(locked: Running) -> None:
    slow = [socket.create_connection(("127.0.0.1", locked.port)) for _ in range(3)]
    for connection in slow:
        connection.sendall(request("/translate", 100) + b"{")
    slow[2].settimeout(5)
    assert slow[2].recv(65536).startswith(b"HTTP/1.1 503")
    values = {"q": TEXT, "source": "en", "target": "xx"}
    assert locked.post("/translate", {**values, "api_key": KEY}).status_code == 503
    assert locked.post("/translate", values, headers=AUTHORIZED).status_code == 200
    assert ask(locked, text=TEXT).status_code == 200
    assert locked.post("/v1/generate", {"text": TEXT}).status_code == 401
    for connection in slow:
        connection.close()
    until = time.monotonic() + 5
    while locked.post("/translate", {**values, "api_key": KEY}).status_code != 200:
        assert time.monotonic() < until
    assert locked.post("/translate", values).status_code == 403


def test_too_many_requests_with_a_key_are_refused(
    locked: Running, sparse: TextModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    SlowTokenizer(sparse, monkeypatch, 0.5)
    with ThreadPoolExecutor(4) as pool:
        statuses = sorted(answer.status_code for answer in pool.map(lambda _: ask(locked, text=TEXT), range(4)))
    assert statuses == [200, 200, 200, 503]


def test_bodies_and_recordings_of_all_requests_are_bounded(sparse: TextModel, whisper: SpeechModel) -> None:
    models: Any = [Served("sparse", sparse), ServedSpeech("tiny", whisper)]
    sound = wav(0.2)
    with running(models, limits=Limits(held=2 * len(sound) + 1000)) as service, socket.socket() as waiting:

        def heard() -> httpx.Response:
            return httpx.post(service.url + "/v1/transcribe", files={"file": sound}, timeout=30)

        assert heard().status_code == 200
        waiting.connect(("127.0.0.1", service.port))
        waiting.sendall(request("/v1/generate", len(sound)) + b" " * (len(sound) - 1))
        while service.service.held.bytes < len(sound) - 1:
            time.sleep(0.01)
        answer = heard()
        assert answer.status_code == 503
        assert "too many large requests" in answer.json()["error"]
        assert int(answer.headers["retry-after"]) > 0
        assert service.post("/v1/generate", {"text": TEXT}).status_code == 200
        waiting.close()
        until = time.monotonic() + 5
        while service.service.held.bytes:
            assert time.monotonic() < until
        service.service.held.most = len(sound) + 1000  # room for the body alone
        assert heard().status_code == 503
        assert service.service.held.bytes == 0


def test_what_the_queue_can_never_hold_is_too_large(locked: Running) -> None:
    limits = Limits(queue=2)
    with running([Served("sparse", locked.service.models.for_text(None).model)], limits=limits) as small:
        for text in ([TEXT] * 3, f"{TEXT} " * 60):
            answer = small.post("/v1/generate", {"text": text})
            assert answer.status_code == 413
            assert "the queue holds 2" in answer.json()["error"]
            assert "retry-after" not in answer.headers


def test_an_answer_that_nobody_takes_ends_the_connection(locked: Running) -> None:
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        connection.connect(("127.0.0.1", locked.port))
        connection.settimeout(5)
        connection.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 400)
        time.sleep(LIMITS.answer_seconds + 1)
        taken = 0
        while chunk := connection.recv(1 << 20):
            taken += len(chunk)
    assert 0 < taken < 400 * len(locked.get("/").content), "the rest was not sent"


def test_beams_make_batches_smaller(locked: Running) -> None:
    (*results,) = ask(locked, text=[TEXT] * 40, num_beams=16, max_new_tokens=2).json()["results"]
    assert {result["batch"] for result in results} == {16, 8}


# --- malformed input --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("header", ["Host: [", "Host: [::1", "Host: 127.0.0.1\r\nOrigin: http://["])
def test_headers_that_are_no_address(locked: Running, header: str) -> None:
    with socket.create_connection(("127.0.0.1", locked.port), timeout=5) as connection:
        connection.sendall(f"GET /healthz HTTP/1.1\r\n{header}\r\nConnection: close\r\n\r\n".encode())
        assert connection.recv(65536).startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize(("path", "status"), [("/healthz", b"200"), ("/readyz", b"200"), ("/", b"421")])
def test_probes_need_no_host(locked: Running, path: str, status: bytes) -> None:
    with socket.create_connection(("127.0.0.1", locked.port), timeout=5) as connection:
        connection.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        assert connection.recv(65536).split(b" ")[1] == status


@pytest.mark.parametrize("name", ["alternatives", "keep"])
@pytest.mark.parametrize("value", ["9" * 5000, "٣", "", "-", "1_0" * 20])
def test_numbers_in_forms(name: str, value: str) -> None:
    with pytest.raises(Problem, match=f"^{name}: expected a .*number, got") as raised:
        form_value(name, value)
    assert len(raised.value.message) < 100


def test_samples_beyond_sound_are_the_fault_of_the_file(locked: Running) -> None:
    file = io.BytesIO()
    soundfile.write(file, np.full(4000, 1e30), 16_000, format="WAV", subtype="FLOAT")
    answer = httpx.post(locked.url + "/v1/transcribe", files={"file": file.getvalue()}, headers=AUTHORIZED)
    assert answer.status_code == 400
    assert answer.json()["error"].startswith("file: has samples far beyond full scale")
