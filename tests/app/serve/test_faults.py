"""Faults of clients and of the engine: the right status for the guilty request, and a service that lives on."""

import gzip
import json
import logging
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from l0drop.app.serve.limits import Limits
from l0drop.app.serve.models import Served
from l0drop.decoding.text import OutOfMemoryError, TextModel
from tests.app.serve.running import Running, process, running

TEXT = "the dog sees a cat ."
SEARCH = {"num_beams": 2, "max_new_tokens": 8}
LIMITS = Limits(
    body=20_000, text=5_000, texts=20, queue=40, requests=60, seconds=20, body_seconds=1.5, header_seconds=1.5
)


@pytest.fixture(scope="module")
def strict(sparse: TextModel) -> Iterator[Running]:
    """A service with small limits."""
    with running([Served("sparse", sparse, pair=("en", "xx"))], limits=LIMITS) as found:
        yield found


@pytest.fixture(autouse=True)
def alive(strict: Running) -> Iterator[None]:
    """After every fault the service answers, and nothing is left in its queue."""
    yield
    assert strict.post("/v1/generate", {"text": TEXT, **SEARCH}).status_code == 200
    assert strict.service.scheduler.waiting == 0


def raw(service: Running, request: bytes, wait: float = 5.0) -> bytes:
    """The answer to bytes on a connection."""
    with socket.create_connection(("127.0.0.1", service.port), timeout=wait) as connection:
        connection.sendall(request)
        answer = b""
        while chunk := connection.recv(65536):
            answer += chunk
        return answer


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def head(path: str, length: int, *more: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json", "Connection: close"]
    return "\r\n".join([*lines, f"Content-Length: {length}", *more, "", ""]).encode()


# --- bodies -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "JSON"),
        (b"{", "JSON"),
        (b'{"text": "x",}', "JSON"),
        (b'{"text": "\xff"}', "byte 10 is not valid UTF-8"),
        (b'{"text": "x", "text": "y"}', "the key 'text' occurs twice"),
        (b'{"text": "x", "keep": NaN}', "NaN is not a JSON value"),
        (b'{"text": "x", "shift": Infinity}', "Infinity is not a JSON value"),
        (b'{"text": "x", "shift": 1e999}', "shift"),
        (b'{"text": "x", "num_beams": ' + b"9" * 5000 + b"}", "JSON"),
        (b"[" * 9_000, "JSON"),
        (b'{"text": ' * 1500 + b"1" + b"}" * 1500, "JSON"),
        (b'{"text": "\\ud800"}', "half of a surrogate pair"),
        (b'{"\\ud800": 1}', "valid string"),
    ],
)
def test_bad_json(strict: Running, body: bytes, message: str) -> None:
    answer = httpx.post(strict.url + "/v1/generate", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    assert message in answer.json()["error"]


@pytest.mark.parametrize("path", ["/v1/generate", "/v1/explain", "/models/sparse", "/translate", "/detect"])
@pytest.mark.parametrize("kind", ["text/plain", "", "application/xml", "multipart/form-data; boundary=x"])
def test_wrong_content_types(strict: Running, path: str, kind: str) -> None:
    answer = httpx.post(strict.url + path, content=b"{}", headers={"Content-Type": kind})
    is_form = kind.startswith("multipart") and path in ("/translate", "/detect")
    assert answer.status_code == (400 if is_form else 415)


def test_compressed_bodies_are_refused_unread(strict: Running) -> None:
    bomb = gzip.compress(b'{"text": "' + b"a" * 10_000_000 + b'"}')
    assert len(bomb) < LIMITS.body
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    assert httpx.post(strict.url + "/v1/generate", content=bomb, headers=headers).status_code == 415


def test_a_large_body_is_refused_before_it_is_read(strict: Running) -> None:
    answer = raw(strict, head("/v1/generate", 50_000_000))
    assert status_of(answer) == 413


def test_a_large_body_without_a_length_is_refused(strict: Running) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(1000):
            yield b" " * 50_000

    try:
        status = httpx.post(
            strict.url + "/v1/generate", content=chunks(), headers={"Content-Type": "application/json"}
        ).status_code
    except httpx.WriteError:  # the service hung up on a client that kept sending
        status = 413
    assert status == 413


def test_a_slow_body_is_given_up(strict: Running) -> None:
    began = time.monotonic()
    answer = raw(strict, head("/v1/generate", 100) + b'{"te')
    assert status_of(answer) == 408
    assert time.monotonic() - began < 6


def test_a_slow_head_is_given_up(strict: Running) -> None:
    assert raw(strict, b"POST /v1/generate HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A: ") == b""


def test_a_slow_head_on_a_used_connection_is_given_up(strict: Running) -> None:
    request = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with socket.create_connection(("127.0.0.1", strict.port), timeout=5) as connection:
        for _ in range(2):
            connection.sendall(request)
            answer = b""
            while not answer.endswith(b'{"status": "ok"}'):
                answer += connection.recv(65536)
        time.sleep(LIMITS.header_seconds + 0.5)  # a used connection may wait
        connection.sendall(request[:10])
        began = time.monotonic()
        time.sleep(0.5)
        connection.sendall(request[10:20])
        assert connection.recv(65536) == b""
        assert time.monotonic() - began < 4


def test_too_many_or_too_long_texts(strict: Running) -> None:
    assert strict.post("/v1/generate", {"text": ["x"] * 21}).status_code == 413
    assert strict.post("/v1/generate", {"text": "x" * 5_001}).status_code == 413
    assert strict.post("/translate", {"q": ["x"] * 21, "source": "en", "target": "xx"}).status_code == 413
    assert strict.post("/models/sparse", {"inputs": ["x"] * 21}).status_code == 413
    assert strict.post("/v1/generate", {"text": []}).json()["results"] == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n\t ",
        "\u2028",
        "<script>alert(1)</script>",
        "שלום العالم \u202e",
        "\x00\x07",
        "👩‍👩‍👧‍👦" * 20,
        "e\u0301" * 50,
        "\ufeffx",
    ],
    ids=ascii,
)
def test_odd_texts_are_texts(strict: Running, sparse: TextModel, text: str) -> None:
    for path, field in (("/v1/generate", "text"), ("/models/sparse", "inputs")):
        assert strict.post(path, {field: text}).status_code == 200
    (result,) = strict.post("/v1/generate", {"text": text, "long": "cut", **SEARCH}).json()["results"]
    assert result["text"] == sparse.generate([text], **SEARCH)[0].text


# --- heads ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "../sparse",
        "..%2f..%2fetc%2fpasswd",
        "sparse/../../x",
        "/etc/passwd",
        "%00",
        "sparse%0d%0aX-Evil:%201",
        "a" * 5000,
    ],
)
def test_odd_names_of_models_are_unknown(strict: Running, name: str) -> None:
    answer = raw(strict, head(f"/models/{name}", 15) + b'{"inputs": "x"}')
    assert status_of(answer) == 404
    assert b"x-evil" not in answer.lower()
    assert (
        status_of(
            raw(strict, f"GET /v1/models/{name} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        )
        == 404
    )
    assert strict.post("/v1/generate", {"text": "x", "model": name}).status_code == 404


def test_other_hosts_and_sites_are_refused(strict: Running) -> None:
    answer = strict.get("/v1/models", headers={"Host": "evil.example"})
    assert answer.status_code == 421
    answer = strict.post("/v1/generate", {"text": TEXT}, headers={"Origin": "https://evil.example"})
    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers
    own = strict.post("/v1/generate", {"text": TEXT, **SEARCH}, headers={"Origin": strict.url})
    assert own.status_code == 200


@pytest.mark.parametrize(
    "line", [b"GARBAGE\r\n\r\n", b"GET / HTTP/9\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00", b"GET /" + b"a" * 100_000]
)
def test_what_is_not_http_is_refused(strict: Running, line: bytes) -> None:
    answer = raw(strict, line)
    assert answer == b"" or status_of(answer) in (400, 414, 431)


def test_unknown_paths_and_methods(strict: Running) -> None:
    assert strict.get("/nothing").status_code == 404
    assert strict.get("/v1/generate").status_code == 405
    assert strict.get("/../../etc/passwd").status_code == 404
    assert httpx.request("TRACE", strict.url + "/").status_code == 405


def test_security_headers(strict: Running) -> None:
    for answer in (strict.get("/healthz"), strict.get("/nothing"), strict.get("/")):
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "server" not in answer.headers


# --- clients that leave, wait, or are too many ------------------------------------------------------------------------


class SlowEngine:
    """Decoding that takes its time, and counts."""

    def __init__(self, model: TextModel, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
        self.batches: list[list[str]] = []
        real = model.decode

        def slow(sources: Any, *others: Any) -> Any:
            self.batches.append([source.name for source in sources])
            time.sleep(seconds)
            return real(sources, *others)

        monkeypatch.setattr(model, "decode", slow)


def test_the_texts_of_a_client_that_has_gone_are_not_decoded(
    strict: Running, sparse: TextModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = SlowEngine(sparse, monkeypatch, 0.3)
    body = json.dumps({"text": [TEXT] * 10, "alone": True}).encode()
    with socket.create_connection(("127.0.0.1", strict.port)) as connection:
        connection.sendall(head("/v1/generate", len(body)) + body)
        while not engine.batches:
            time.sleep(0.01)
        assert strict.service.scheduler.waiting > 0
    began = time.monotonic()
    while strict.service.scheduler.waiting:
        time.sleep(0.01)
        assert time.monotonic() - began < 2
    assert len(engine.batches) < 5


def test_a_client_that_does_not_read_holds_up_nobody(strict: Running) -> None:
    body = json.dumps({"text": [TEXT] * 3}).encode()
    connections = [socket.create_connection(("127.0.0.1", strict.port)) for _ in range(5)]
    for connection in connections:
        connection.sendall((head("/v1/generate", len(body)).replace(b"Connection: close\r\n", b"") + body) * 3)
    began = time.monotonic()
    assert strict.post("/v1/generate", {"text": TEXT, **SEARCH}).status_code == 200
    assert time.monotonic() - began < 4
    for connection in connections:
        connection.close()
    while strict.service.scheduler.waiting:
        time.sleep(0.01)


def test_a_full_queue_answers_503_and_accepted_texts_are_answered(
    strict: Running, sparse: TextModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    SlowEngine(sparse, monkeypatch, 0.2)
    wanted = sparse.generate([TEXT])[0].text

    def ask(_: int) -> httpx.Response:
        return strict.post("/v1/generate", {"text": [TEXT] * 10})

    with ThreadPoolExecutor(30) as pool:
        answers = list(pool.map(ask, range(30)))
    statuses = {answer.status_code for answer in answers}
    assert statuses == {200, 503}
    for answer in answers:
        if answer.status_code == 503:
            assert int(answer.headers["retry-after"]) >= 1
        else:
            assert [result["text"] for result in answer.json()["results"]] == [wanted] * 10


def test_a_deadline_that_passes_is_504(strict: Running, sparse: TextModel, monkeypatch: pytest.MonkeyPatch) -> None:
    SlowEngine(sparse, monkeypatch, 0.5)
    answer = strict.post("/v1/generate", {"text": TEXT, "timeout": 0.1})
    assert answer.status_code == 504
    time.sleep(0.5)


def test_clients_take_turns(strict: Running, sparse: TextModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """One text of a second client does not wait for all texts of the first."""
    SlowEngine(sparse, monkeypatch, 0.1)
    monkeypatch.setattr("l0drop.app.serve.native.client_of", lambda request: request.headers["x-client"])

    def ask(client: str, count: int) -> float:
        strict.post("/v1/generate", {"text": [TEXT] * count, "alone": True}, headers={"X-Client": client})
        return time.monotonic()

    with ThreadPoolExecutor(2) as pool:
        many = pool.submit(ask, "many", 15)
        time.sleep(0.25)
        one = pool.submit(ask, "one", 1)
        assert one.result() < many.result() - 0.5


# --- the engine -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "status"), [(RuntimeError("boom"), 500), (OutOfMemoryError("boom"), 507), (MemoryError(), 507)]
)
def test_only_the_guilty_text_fails(
    strict: Running, sparse: TextModel, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    real = sparse.engine.generate
    bad = sparse.encode(["the bad road ."])[0].ids

    def failing(inputs: Any, *others: Any, **settings: Any) -> Any:
        if any(row[: len(bad)].tolist() == list(bad) for row in inputs):
            raise error
        return real(inputs, *others, **settings)

    monkeypatch.setattr(sparse.engine, "generate", failing)
    texts = [f"the {noun} sees a cat ." for noun in ("dog", "bird", "stone", "river")] + ["the bad road ."]
    with caplog.at_level(logging.ERROR), ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda text: strict.post("/v1/generate", {"text": text, **SEARCH}), texts * 4))
    for text, answer in zip(texts * 4, answers, strict=True):
        assert answer.status_code == (status if "bad" in text else 200)
        if "bad" in text:
            assert "boom" not in answer.text
            assert "Traceback" not in answer.text
    assert "the bad road" not in caplog.text, "no texts in the log"


def test_a_fault_of_the_scheduler_fails_one_batch(strict: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("boom")

    with monkeypatch.context() as patched:
        patched.setattr(strict.service.scheduler, "observe", broken)
        answer = strict.post("/v1/generate", {"text": [TEXT] * 3, **SEARCH})
    assert answer.status_code == 500
    assert "boom" not in answer.text


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("CUDA error: out of memory")])
def test_memory_that_runs_out_in_explain_is_507(
    strict: Running, sparse: TextModel, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def failing(*others: Any, **settings: Any) -> Any:
        raise error

    monkeypatch.setattr(sparse, "explain", failing)
    assert strict.post("/v1/explain", {"text": TEXT}).status_code == 507


def test_sigterm_finishes_what_was_accepted(sparse_folder: Path, tmp_path: Path) -> None:
    body = {"text": [TEXT] * 30, "num_beams": 8, "alone": True}
    with process(sparse_folder, tmp_path / "log") as (url, service), ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(httpx.post, url + "/v1/generate", json=body, timeout=60) for _ in range(4)]
        until = time.monotonic() + 30
        while b"l0drop_requests_in_progress 5.0" not in httpx.get(url + "/metrics").content:  # with this one
            assert time.monotonic() < until
        service.send_signal(signal.SIGTERM)
        answers = [one.result() for one in asked]
        assert [answer.status_code for answer in answers] == [200] * 4
        assert all(len(answer.json()["results"]) == 30 for answer in answers)
        assert service.wait(20) in (0, -signal.SIGTERM)
    assert TEXT not in (tmp_path / "log").read_text(), "no texts in the log"
