"""Keys: nothing but the exceptions answers without one. The description: schemathesis finds nothing."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)
from starlette.datastructures import URL
from starlette.requests import Request
from starlette.routing import Route
from typer.testing import CliRunner

from l0drop.app.cli import app
from l0drop.app.serve import command
from l0drop.app.serve.guard import KEY_IN_BODY, LOCAL, OPEN_PATHS, Access
from l0drop.app.serve.limits import Limits
from l0drop.app.serve.models import Served, ServedSpeech
from l0drop.app.serve.openapi import description
from l0drop.app.serve.server import application
from l0drop.decoding.speech import SpeechModel
from l0drop.decoding.text import TextModel
from tests.app.serve.running import Running, running
from tests.models.whispers import wav

KEYS = ["first-secret", "second-secret"]


@pytest.fixture(scope="module")
def locked(sparse: TextModel) -> Iterator[Running]:
    access = Access(KEYS, LOCAL, ["https://friend.example"])
    with running([Served("sparse", sparse, pair=("en", "xx"))], access) as found:
        yield found


BODIES: dict[str, dict[str, Any]] = {
    "/v1/generate": {"text": "x"},
    "/v1/explain": {"text": "x"},
    "/v1/transcribe": {},
    "/v1/audio/transcriptions": {},
    "/models/sparse": {"inputs": "x"},
    "/translate": {"q": "x", "source": "en", "target": "xx"},
    "/detect": {"q": "x"},
}


UNKNOWN = ["/nothing", "/openapi.json/", "//metrics", "/metrics/"]


def paths(service: Running) -> list[str]:
    """Every route, and paths that are none."""
    routes = [route.path for route in application(service.service).routes if isinstance(route, Route)]
    return [*(path.replace("{name:path}", "sparse") for path in routes), *UNKNOWN]


def ask(service: Running, path: str, headers: Any = None, **fields: Any) -> httpx.Response:
    if path in BODIES:
        return service.post(path, {**BODIES[path], **fields}, headers=headers)
    return service.get(path, headers=headers)


@pytest.mark.parametrize("key", [None, "wrong", "first-secre", "first-secret2", "FIRST-SECRET", "\u00e9"])
def test_nothing_else_answers_without_a_key(locked: Running, key: str | None) -> None:
    headers = {} if key is None else {"Authorization": f"Bearer {key}".encode("latin-1")}
    for path in paths(locked):
        fields = {"api_key": key} if path in ("/translate", "/detect") else {}
        answer = ask(locked, path, headers, **fields)
        if path in OPEN_PATHS:
            assert answer.status_code == 200, path
        else:
            assert answer.status_code in (401, 403), path
            assert set(answer.json()) == {"error"}


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
def test_no_method_answers_without_a_key(locked: Running, method: str) -> None:
    for path in paths(locked):
        answer = httpx.request(method, locked.url + path, headers={"Content-Type": "application/json"})
        if path in OPEN_PATHS:
            assert answer.status_code == (200 if method in ("GET", "HEAD") else 405), path
        else:
            assert answer.status_code in (401, 403), path


@pytest.mark.parametrize("host", ["localhost/health?", "localhost/health#", "localhost/translate?"])
def test_the_host_header_opens_nothing(locked: Running, monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    """Older versions of Starlette put this header into `request.url` as it is."""
    monkeypatch.setattr(
        Request, "url", property(lambda self: URL(f"http://{self.headers['host']}{self.scope['path']}"))
    )
    for path in ("/v1/models", "/v1/generate"):
        assert ask(locked, path, {"Host": host}).status_code == 401


@pytest.mark.parametrize("key", KEYS)
def test_every_key_opens_everything(locked: Running, key: str) -> None:
    for path in paths(locked):
        expected = {"/detect": 400, "/v1/transcribe": 415, "/v1/audio/transcriptions": 415}
        status = expected.get(path, 404 if path in UNKNOWN else 200)
        assert ask(locked, path, {"Authorization": f"bearer {key}"}).status_code == status, path


def test_allowed_origins_may_call(locked: Running) -> None:
    headers = {"Origin": "https://friend.example", "Authorization": f"Bearer {KEYS[0]}"}
    answer = locked.post("/v1/generate", {"text": "x"}, headers=headers)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "https://friend.example"
    refused = locked.get("/healthz", headers={"Origin": "https://evil.example"})
    assert refused.status_code == 403
    assert "access-control-allow-origin" not in refused.headers


def test_keys_that_a_header_cannot_carry_are_refused(tmp_path: Path) -> None:
    for key in ("schlüssel-1", "second\x07secret"):
        (tmp_path / "keys").write_text(f"first-secret\n{key}\n", encoding="utf-8")
        with pytest.raises(ValueError, match="--keys: key 2 has characters that a header cannot carry"):
            command.serve(["any"], keys=tmp_path / "keys")


def test_keys_of_the_environment_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("L0DROP_KEYS", "long-enough short")
    with pytest.raises(ValueError, match="L0DROP_KEYS: key 2 has fewer than 8 characters"):
        command.serve(["any"])
    monkeypatch.setenv("L0DROP_KEYS", "third-secret")
    (tmp_path / "keys").write_text("first-secret\nsecond-secret\n")
    assert set(command._keys(tmp_path / "keys")) == {"first-secret", "second-secret", "third-secret"}


def test_names_and_origins_are_those_that_browsers_send() -> None:
    assert [command._host(name) for name in ("Example.ORG", "::1", "10.0.0.1")] == ["example.org", "::1", "10.0.0.1"]
    assert [command._origin(name) for name in ("https://Example.org:8443", "*")] == ["https://example.org:8443", "*"]
    for name in ("example.org:8000", "https://example.org", ""):
        with pytest.raises(ValueError, match="--allow-host: expected a host name without a port"):
            command._host(name)
    for name in ("example.org", "https://example.org/", "null"):
        with pytest.raises(ValueError, match="--cors: expected an origin"):
            command._origin(name)


def test_probes_ask_by_address(locked: Running) -> None:
    """A container's health check, and those of Kubernetes, do not know the names of the service."""
    for path in ("/healthz", "/readyz", "/health"):
        assert locked.get(path, headers={"Host": "10.1.2.3:8000"}).status_code == 200
    for path in ("/", "/frontend/settings", "/v1/models"):
        assert locked.get(path, headers={"Host": "10.1.2.3:8000"}).status_code == 421


def test_a_list_of_languages_reads_no_large_body(locked: Running) -> None:
    for content in (b"a=b&" * 5000, b"%41" * 5000):
        assert httpx.request("GET", locked.url + "/languages", content=content).status_code == 413


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module:f", "no_such_module cannot be imported"),
        ("json:no_such_function", "json has no function no_such_function"),
        ("json", "expected MODULE:NAME"),
        (":f", "expected MODULE:NAME"),
        (".json:loads", "expected MODULE:NAME"),
    ],
)
def test_detectors_that_cannot_be_found(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"--detector: {message}"):
        command._detector(name)


def test_a_port_that_cannot_be() -> None:
    ran = CliRunner().invoke(app, ["serve", "any", "--port", "70000"])
    assert ran.exit_code == 2
    assert "65535" in ran.output


# --- the description --------------------------------------------------------------------------------------------------


def test_the_description_names_every_route(service: Running) -> None:
    document = service.get("/openapi.json").json()
    routes = {
        route.path.replace(":path", "") for route in application(service.service).routes if isinstance(route, Route)
    }
    assert routes - {"/", "/openapi.json"} == set(document["paths"])


def test_the_description_says_how_to_send_a_key(locked: Running) -> None:
    document = locked.get("/openapi.json", headers={"Authorization": f"Bearer {KEYS[0]}"}).json()
    for path, methods in document["paths"].items():
        for operation in methods.values():
            if path in KEY_IN_BODY:
                assert {} in operation["security"]
                assert "401" not in operation["responses"]
                assert "api_key" in operation["responses"]["403"]["description"]
            else:
                assert ("401" in operation["responses"]) == (path not in OPEN_PATHS)


@pytest.fixture(scope="module")
def fuzzed(sparse: TextModel, plain: TextModel, whisper: SpeechModel) -> Iterator[Running]:
    texts = [Served("sparse", sparse, pair=("en", "xx")), Served("plain", plain)]
    with running([*texts, ServedSpeech("tiny", whisper)], limits=Limits(new_tokens=16, beams=3)) as found:
        yield found


CHECKS = [
    not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance,
    negative_data_rejection, unsupported_method,
]  # fmt: skip


OPERATIONS = [
    "/v1/generate",
    "/v1/explain",
    "/v1/transcribe",
    "/v1/audio/transcriptions",
    "/models/{name}",
    "/translate",
    "/detect",
]


UPLOADS = ("/v1/transcribe", "/v1/audio/transcriptions")


@pytest.mark.parametrize("mode", list(GenerationMode))
@pytest.mark.parametrize("path", OPERATIONS)
def test_schemathesis_finds_nothing(fuzzed: Running, path: str, mode: GenerationMode) -> None:
    document = description(fuzzed.service, Access())
    timed = ("Generate", "Explain", "Transcribe") if mode.is_positive else ()  # a deadline that passes is 504, rightly
    for name in timed:
        document["components"]["schemas"][name]["properties"]["timeout"] = {"type": "number", "minimum": 30}
    operation = schemathesis.openapi.from_dict(document)[path]["POST"]
    sound = wav(0.2)
    answers: list[int] = []

    @settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case: schemathesis.Case) -> None:
        if mode.is_positive and path in UPLOADS:
            # Random bytes and names are refused before any decoding. Schemathesis takes bytes in a body that it did not
            # write itself for a violation of the schema, so its check that violations are refused is left out here.
            assert isinstance(case.body, dict)
            case.body |= {"file": sound, "model": "tiny"}
            answer = case.call_and_validate(
                base_url=fuzzed.url, checks=[check for check in CHECKS if check is not negative_data_rejection]
            )
            answers.append(answer.status_code)
        else:
            case.call_and_validate(base_url=fuzzed.url, checks=CHECKS)

    check()
    if mode.is_positive and path in UPLOADS:
        assert 200 in answers


def test_answers_to_get_fit_the_description(fuzzed: Running) -> None:
    document = description(fuzzed.service, Access())
    schema = schemathesis.openapi.from_dict(document)
    for path in [path for path, methods in document["paths"].items() if "get" in methods]:
        case = schema[path]["GET"].Case(path_parameters={"name": "sparse"} if "{name}" in path else {})
        case.call_and_validate(base_url=fuzzed.url, checks=CHECKS)
