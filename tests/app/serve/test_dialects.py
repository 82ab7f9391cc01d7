"""Real clients talk to the service unchanged, and get the text of `load(...).generate`."""

import json
import threading
import time
import urllib.error
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError
from libretranslatepy import LibreTranslateAPI

from l0drop.app.serve import libretranslate
from l0drop.app.serve.guard import LOCAL, Access
from l0drop.app.serve.limits import Limits
from l0drop.app.serve.models import Served
from l0drop.decoding.text import TextModel
from tests.app.serve.running import Running, running

TEXTS = ["the dog sees a cat .", "a river knows the stone the bird ."]
KEYS = ["first-secret", "second-secret"]


@pytest.fixture(scope="module")
def locked(sparse: TextModel) -> Iterator[Running]:
    """A service that asks for a key, with a language detector."""
    models = [Served("sparse", sparse, pair=("en", "xx"))]
    found = [{"language": "en", "confidence": 90.0}]
    with running(models, Access(KEYS, LOCAL), detector=lambda text: found) as service:
        yield service


@pytest.fixture(scope="module")
def outputs(sparse: TextModel) -> list[str]:
    return [result.text for result in sparse.generate(TEXTS)]


# --- LibreTranslate ---------------------------------------------------------------------------------------------------


def test_a_libretranslate_client(service: Running, outputs: list[str]) -> None:
    client = LibreTranslateAPI(service.url)
    assert client.translate(TEXTS[0], "en", "xx") == outputs[0]
    assert {"code": "en", "name": "English", "targets": ["xx", "yy"]} in client.languages()
    with pytest.raises(urllib.error.HTTPError) as error:
        client.detect(TEXTS[0])
    assert error.value.code == 400
    assert "no language detector" in json.load(error.value)["error"]


def test_a_libretranslate_client_with_a_key(locked: Running, outputs: list[str]) -> None:
    for key in KEYS:
        client = LibreTranslateAPI(locked.url, key)
        assert client.translate(TEXTS[0], "en", "xx") == outputs[0]
        assert client.languages()[0]["code"] == "en"
        assert client.detect(TEXTS[0])[0]["language"] == "en"
    for bad in (None, "", "first-secre", "first-secret "):
        client = LibreTranslateAPI(locked.url, bad)
        for call in (lambda: client.translate(TEXTS[0], "en", "xx"), client.languages, lambda: client.detect("x")):  # noqa: B023
            with pytest.raises(urllib.error.HTTPError) as error:
                call()
            assert error.value.code == 403


def test_libretranslate_lists_alternatives_and_extra_fields(service: Running, sparse: TextModel) -> None:
    answer = service.post(
        "/translate", {"q": TEXTS, "source": "en", "target": "xx", "alternatives": 2, "kept": True, "keep": 0.4, "x": 1}
    ).json()
    beams = max(3, sparse.engine.search(**sparse.settings(None, {})).beams)
    wanted = sparse.generate(TEXTS, num_beams=beams, num_return_sequences=3, keep=0.4)
    assert answer["translatedText"] == [result.text for result in wanted]
    assert answer["alternatives"] == [[other.text for other in result.alternatives] for result in wanted]
    assert [len(kept) for kept in answer["kept"]] == [sum(t.end is not None for t in r.kept) for r in wanted]
    one = service.post("/translate", {"q": TEXTS[0], "source": "en", "target": "xx", "alternatives": 1}).json()
    assert isinstance(one["translatedText"], str)
    assert len(one["alternatives"]) == 1
    form = httpx.post(service.url + "/translate", data={"q": TEXTS, "source": "en", "target": "xx", "keep": "0.4"})
    assert form.json()["translatedText"] == [result.text for result in sparse.generate(TEXTS, keep=0.4)]


@pytest.mark.parametrize("text", ["Über die Straße .", "the dog %26 a+b"])
def test_forms_of_libretranslate(service: Running, sparse: TextModel, text: str) -> None:
    wanted = {"translatedText": sparse.generate([text])[0].text}
    fields = {"q": text, "source": "en", "target": "xx"}
    raw = "&".join(f"{name}={value.replace('%', '%25').replace('+', '%2B')}" for name, value in fields.items())
    url, form = service.url + "/translate", {"Content-Type": "application/x-www-form-urlencoded"}
    assert httpx.post(url, data=fields).json() == wanted, "percent-encoded"
    assert httpx.post(url, content=raw.encode(), headers=form).json() == wanted, "raw UTF-8, as curl -d sends it"
    parts = [(name, (None, value)) for name, value in fields.items()]
    assert httpx.post(url, files=parts).json() == wanted, "multipart"
    lists = httpx.post(url, files=[*parts, ("q", (None, text))]).json()
    assert lists == {"translatedText": [wanted["translatedText"]] * 2}
    for content in (raw.encode("utf-16"), b"q=\xff&source=en&target=xx", b"q=%ff&source=en&target=xx"):
        assert httpx.post(url, content=content, headers=form).status_code == 400
    assert httpx.post(url, files=[*parts, ("other", ("a.txt", b"x"))]).status_code == 400


def test_a_large_form_leaves_the_event_loop_free(service: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []
    real = libretranslate._form

    def recorded(body: bytes) -> list[tuple[str, str]]:
        threads.append(threading.current_thread().name)
        return real(body)

    monkeypatch.setattr(libretranslate, "_form", recorded)
    for text in ("the dog", "%41" * 1000):
        answer = httpx.post(
            service.url + "/translate",
            content=f"q={text}&source=en&target=none".encode(),
            headers={"Content-Type": "application/x-www-form-urlencoded"},
        )
        assert "'en' to 'none' is not supported" in answer.json()["error"]
    assert threads[0] == service.loop_thread != threads[1]


def test_optional_fields_of_libretranslate_may_be_null(service: Running, outputs: list[str]) -> None:
    optional = ("format", "alternatives", "api_key", "kept", "dense", "keep", "max_memory", "shift")
    values: dict[str, object] = {"q": TEXTS[0], "source": "en", "target": "xx"}
    assert service.post("/translate", {**values, **dict.fromkeys(optional)}).json() == {"translatedText": outputs[0]}
    assert len(service.post("/translate", {**values, "alternatives": "2"}).json()["alternatives"]) == 2
    assert service.post("/translate", {**values, "alternatives": "two"}).status_code == 400


def test_weblate_may_send_the_key_in_the_query(locked: Running) -> None:
    for key, status in ((KEYS[0], 200), ("wrong", 403), ("", 403)):
        assert locked.get("/languages", params={"api_key": key}).status_code == status
    assert locked.get("/languages").status_code == 403


@pytest.mark.parametrize("path", ["/translate", "/detect"])
def test_without_a_key_other_faults_are_not_told(locked: Running, path: str) -> None:
    json_type, authorized = {"Content-Type": "application/json"}, {"Authorization": f"Bearer {KEYS[0]}"}
    faults: list[tuple[str, dict[str, str], bytes, int]] = [
        ("GET", {}, b"", 405),
        ("POST", {"Content-Type": "text/plain"}, b"x", 415),
        ("POST", {**json_type, "Content-Encoding": "gzip"}, b"x", 415),
        ("POST", json_type, b"{", 400),
        ("POST", json_type, b"[]", 400),
        ("POST", json_type, b"{}", 400),
        ("POST", json_type, b" " * 2_000_001, 413),
        ("POST", {"Content-Type": "application/x-www-form-urlencoded"}, b"q=\xff", 400),
    ]
    for method, headers, content, status in faults:
        answer = httpx.request(method, locked.url + path, headers=headers, content=content)
        assert answer.status_code == 403
        assert answer.json() == {"error": "Invalid API key"}
        answer = httpx.request(method, locked.url + path, headers={**headers, **authorized}, content=content)
        assert answer.status_code == status


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"q": "", "source": "en", "target": "xx"}, "missing q parameter"),
        ({"source": "en", "target": "xx"}, "q: field required"),
        ({"q": "x", "source": "en", "target": "xx", "format": "html"}, "format: 'html' is not supported"),
        ({"q": "x", "source": "xx", "target": "en"}, "'xx' to 'en' is not supported"),
        ({"q": "x", "source": "auto", "target": "xx"}, "no language detector"),
        ({"q": "x", "source": "en", "target": "xx", "alternatives": 99}, "num_beams: at most 16"),
        ([], "expected an object"),
    ],
    ids=str,
)
def test_libretranslate_errors(service: Running, values: object, message: str) -> None:
    answer = service.post("/translate", values)
    assert answer.status_code == 400
    assert message in answer.json()["error"]


def test_the_detector_finds_the_source_language(locked: Running, outputs: list[str]) -> None:
    values = {"q": TEXTS[0], "source": "auto", "target": "xx", "api_key": KEYS[1]}
    answer = locked.post("/translate", values).json()
    assert answer == {"translatedText": outputs[0], "detectedLanguage": {"language": "en", "confidence": 90.0}}


def test_a_detector_that_finds_nothing_or_is_slow(sparse: TextModel) -> None:
    threads: list[str] = []

    def detector(text: str) -> list[dict[str, object]]:
        threads.append(threading.current_thread().name)
        return []

    with running([Served("sparse", sparse, pair=("en", "xx"))], limits=Limits(text=10), detector=detector) as service:
        for path, values in (("/translate", {"source": "auto", "target": "xx"}), ("/detect", {})):
            assert service.post(path, {"q": "x" * 11, **values}).status_code == 413
            assert threads == [], "too long a text is not read"
            answer = service.post(path, {"q": "x", **values})
            assert answer.status_code == 400
            assert "could not be detected" in answer.json()["error"]
            assert threads.pop() != service.loop_thread, "the event loop is free"


def test_a_detector_that_hangs_holds_up_nothing_else(sparse: TextModel, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    monkeypatch.setattr(libretranslate, "deadline_of", lambda request: time.monotonic() + 1)
    models = [Served("sparse", sparse, pair=("en", "xx"))]
    with running(models, detector=lambda text: release.wait(60)) as service:
        with ThreadPoolExecutor(40) as pool:
            asked = [pool.submit(service.post, "/detect", {"q": "x"}) for _ in range(40)]
            assert service.post("/v1/explain", {"text": TEXTS[0], "max_new_tokens": 4}).status_code == 200
            assert {one.result().status_code for one in asked} == {504}
        release.set()


def test_libretranslate_settings_and_health(service: Running, locked: Running) -> None:
    settings = service.get("/frontend/settings").json()
    assert settings["keyRequired"] is False
    assert settings["language"]["source"] == {"code": "en", "name": "English"}
    assert locked.get("/frontend/settings").json()["keyRequired"] is True
    assert service.get("/health").json() == {"status": "ok"}


# --- Hugging Face -----------------------------------------------------------------------------------------------------


def test_an_inference_client(service: Running, locked: Running, outputs: list[str]) -> None:
    client = InferenceClient(token="unused")
    model = f"{service.url}/models/sparse"
    assert client.translation(TEXTS[0], model=model).translation_text == outputs[0]
    assert client.translation(TEXTS[0], model=model, src_lang="en", tgt_lang="xx").translation_text == outputs[0]
    assert client.summarization(TEXTS[1], model=f"{service.url}/models/short").summary_text == outputs[1]
    with pytest.raises(HfHubHTTPError, match="is not a model for this pair"):
        client.translation(TEXTS[0], model=model, src_lang="xx", tgt_lang="en")
    with pytest.raises(HfHubHTTPError, match="404"):
        client.translation(TEXTS[0], model=f"{service.url}/models/other")
    model = f"{locked.url}/models/sparse"
    assert InferenceClient(token=KEYS[0]).translation(TEXTS[0], model=model).translation_text == outputs[0]
    with pytest.raises(HfHubHTTPError, match="401"):
        client.translation(TEXTS[0], model=model)


def test_parameters_of_hugging_face_tasks(service: Running, sparse: TextModel) -> None:
    parameters = {"generate_parameters": {"num_beams": 3}, "keep": 0.3, "kept": True}
    answer = service.post("/models/sparse", {"inputs": TEXTS, "parameters": parameters}).json()
    wanted = sparse.generate(TEXTS, num_beams=3, keep=0.3)
    assert [one["translation_text"] for one in answer] == [result.text for result in wanted]
    assert [one["score"] for one in answer] == pytest.approx([result.score for result in wanted], abs=1e-6)
    unknown = service.post("/models/sparse", {"inputs": "x", "parameters": {"beams": 3}})
    assert unknown.status_code == 400
    assert "parameters.beams" in unknown.json()["error"]


def test_parameters_that_older_clients_send(service: Running, sparse: TextModel) -> None:
    def outputs(inputs: object, parameters: object) -> object:
        answer = service.post("/models/sparse", {"inputs": inputs, "parameters": parameters})
        assert answer.status_code == 200, answer.text
        return answer.json()

    (plain,) = sparse.generate(TEXTS[:1])
    assert outputs(TEXTS[0], None) == outputs(TEXTS[0], {"do_sample": False}) == [{"translation_text": plain.text}]
    lengths = {"min_length": 6, "max_length": 7}
    assert outputs(TEXTS[0], lengths) == [{"translation_text": sparse.generate(TEXTS[:1], **lengths)[0].text}]
    several = {"num_beams": 3, "num_return_sequences": 2}
    wanted = [
        [{"translation_text": one.text} for one in (result, *result.alternatives)]
        for result in sparse.generate(TEXTS, **several)
    ]
    assert [len(one) for one in wanted] == [2, 2]
    assert outputs(TEXTS, {"generate_parameters": several}) == wanted
    assert outputs(TEXTS[0], several) == wanted[0]
    for parameters, message in (({"do_sample": True}, "do_sample: texts are not"), ({"max_length": 9999}, "at most")):
        answer = service.post("/models/sparse", {"inputs": "x", "parameters": parameters})
        assert answer.status_code == 400
        assert message in answer.json()["error"]
