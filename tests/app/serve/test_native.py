"""Our own dialect against `load(...).generate` and `l0drop translate --json`."""

import json
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from l0drop import load
from l0drop.app.cli import app
from l0drop.app.serve import huggingface, libretranslate, native
from l0drop.app.serve.models import Served
from l0drop.app.serve.requests import json_response
from l0drop.decoding.splitting import split_text
from l0drop.decoding.text import TextModel
from tests.app.serve.running import Running, running

TEXTS = ["the dog sees a cat .", "", "a river knows the stone the bird .", " \t ", "the road ."]
SEARCH = {"num_beams": 3, "max_new_tokens": 12}


def test_answers_are_those_of_translate(service: Running, sparse_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("".join(text.replace("\t", " ") + "\n" for text in TEXTS))
    command = ["translate", str(sparse_folder), "-i", str(tmp_path / "in.txt"), "-o", str(tmp_path / "out.jsonl")]
    done = CliRunner().invoke(app, [*command, "--dtype", "float64", "--beams", "3", "--max-new-tokens", "12"])
    assert done.exit_code == 0, done.output
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    answer = service.post("/v1/generate", {"text": TEXTS, **SEARCH}).json()
    assert answer["model"] == "sparse"
    for line, result in zip(lines, answer["results"], strict=True):
        assert result["text"] == line["text"]
        assert result["score"] == (None if line["score"] is None else pytest.approx(line["score"], abs=1e-6))
        for name in ("kept", "source_tokens", "output_tokens", "cut"):
            assert result[name] == line[name]


def test_one_text_in_one_result_out(service: Running, sparse: TextModel) -> None:
    (result,) = service.post("/v1/generate", {"text": TEXTS[0], "num_beams": 4, "num_return_sequences": 3}).json()[
        "results"
    ]
    (wanted,) = sparse.generate([TEXTS[0]], num_beams=4, num_return_sequences=3)
    assert result["text"] == wanted.text
    assert [other["text"] for other in result["alternatives"]] == [other.text for other in wanted.alternatives]
    assert result["pieces"] == 1
    assert result["seconds"]["decode"] > 0


DIALS: list[dict[str, Any]] = [
    {}, {"keep": 0.2}, {"keep": 0.9}, {"max_memory": 3}, {"shift": 2.0}, {"shift": -2.0}, {"dense": True},
]  # fmt: skip


def test_requests_share_batches_and_change_nothing(service: Running, sparse: TextModel) -> None:
    """Different dials, texts and connections in one batch; each answer is that of decoding alone."""
    nouns = ("dog", "cat", "bird", "river", "stone", "road", "house")
    queries = [
        {"text": f"the {noun} sees " + "the old " * (index % 4) + f"{other} .", **dial}
        for index, (noun, dial) in enumerate(zip(nouns, DIALS, strict=True))
        for other in nouns
    ]
    before = service.metric("l0drop_batch_texts_count", model="sparse")
    with ThreadPoolExecutor(len(queries)) as pool:
        answers = list(pool.map(lambda query: service.post("/v1/generate", {**query, **SEARCH}).json(), queries))
    batches = service.metric("l0drop_batch_texts_count", model="sparse") - before
    assert batches < len(queries) / 2, "requests were decoded together"
    for query, answer in zip(queries, answers, strict=True):
        text, dial = query["text"], {name: value for name, value in query.items() if name != "text"}
        (wanted,) = sparse.generate([text], **SEARCH, **dial)
        (result,) = answer["results"]
        assert result["text"] == wanted.text
        assert result["score"] == wanted.score, "exact in float64"
        assert result["kept"] == [asdict(token) for token in wanted.kept]


def test_scores_in_float32_do_not_depend_on_the_batch(sparse_folder: Path) -> None:
    model = load(sparse_folder, "cpu", "float32")
    texts = [
        f"the {noun} sees " + "the old " * (number % 5) + "dog ." for number in range(8) for noun in ("cat", "road")
    ]
    with running([Served("sparse", model)]) as service, ThreadPoolExecutor(len(texts)) as pool:
        answers = list(pool.map(lambda text: service.post("/v1/generate", {"text": text, **SEARCH}).json(), texts))
    assert max(answer["results"][0]["batch"] for answer in answers) > 1
    for text, answer in zip(texts, answers, strict=True):
        (wanted,) = model.generate([text], **SEARCH)
        assert answer["results"][0]["text"] == wanted.text
        assert answer["results"][0]["score"] == pytest.approx(wanted.score, abs=1e-4)


def test_a_long_text_is_split_and_its_offsets_are_those_of_the_whole(service: Running, sparse: TextModel) -> None:
    sentence = "the dog sees a cat . "
    text = (sentence * 12 + "\n\n") * 3
    (result,) = service.post("/v1/generate", {"text": text, **SEARCH}).json()["results"]
    assert result["pieces"] > 1
    assert result["cut"] == 0
    assert result["source_tokens"] > sparse.max_source
    pieces = split_text(text, lambda part: not sparse.encode([part])[0].cut)
    parts = sparse.generate([text[start:end] for start, end in pieces], **SEARCH)
    assert result["pieces"] == len(pieces)
    assert result["text"].split() == " ".join(part.text for part in parts).split()
    wanted = [
        token.start + start for part, (start, _) in zip(parts, pieces, strict=True) for token in part.kept if token.end
    ]
    assert [token["start"] for token in result["kept"] if token["end"]] == wanted
    (cut,) = service.post("/v1/generate", {"text": text, "long": "cut", **SEARCH}).json()["results"]
    assert cut["pieces"] == 1
    assert cut["cut"] > 0


def test_models_are_chosen_by_name(service: Running, plain: TextModel) -> None:
    answer = service.post("/v1/generate", {"text": TEXTS[0], "model": "plain", **SEARCH}).json()
    assert answer["results"][0]["text"] == plain.generate([TEXTS[0]], **SEARCH)[0].text
    listed = service.get("/v1/models").json()
    assert [model["id"] for model in listed["data"]] == ["sparse", "plain", "short"]
    facts = {model["id"]: model["l0drop"] for model in listed["data"]}
    assert facts["sparse"]["dial"] == ["keep", "max_memory", "shift", "dense"]
    assert facts["plain"]["gated"] is False
    assert facts["plain"]["dial"] == []
    assert service.get("/v1/models/plain").json()["id"] == "plain"


def test_explain_has_gates_and_attention(service: Running, sparse: TextModel) -> None:
    answer = service.post("/v1/explain", {"text": TEXTS[2], **SEARCH}).json()
    wanted = sparse.explain(TEXTS[2], **SEARCH)
    assert answer["text"] == wanted.text
    assert [token["kept"] for token in answer["source"]] == [i in wanted.kept for i in range(len(wanted.source))]
    for row, dropped, expected in zip(
        answer["attention"], answer["dropped_attention"], wanted.attention.tolist(), strict=True
    ):
        assert row == pytest.approx(expected, abs=1e-4)
        assert sum(row) + dropped == pytest.approx(1, abs=1e-3)
    pieces = "".join(answer["text"][token["start"] : token["end"]] for token in answer["output"])
    assert pieces == answer["text"]
    assert service.post("/v1/explain", {"text": TEXTS[2], "model": "plain"}).json()["gated"] is False


def test_a_large_answer_leaves_the_event_loop_free(service: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []
    modules = {"/v1/generate": native, "/translate": libretranslate, "/models/sparse": huggingface}
    bodies = {
        "/v1/generate": {"text": TEXTS, **SEARCH},
        "/translate": {"q": TEXTS, "source": "en", "target": "xx", "kept": True},
        "/models/sparse": {"inputs": TEXTS, "parameters": {"kept": True}},
    }
    for path, module in modules.items():

        def recorded(value: Any) -> Any:
            threads.append(threading.current_thread().name)
            return json_response(value)

        monkeypatch.setattr(module, "json_response", recorded)
        small = service.post(path, bodies[path]).json()
        assert threads.pop() == service.loop_thread
        with monkeypatch.context() as patched:
            patched.setattr("l0drop.app.serve.service.SMALL", 3)
            large = service.post(path, bodies[path]).json()
        assert threads.pop() != service.loop_thread
        if path == "/v1/generate":
            small, large = ([result["kept"] for result in answer["results"]] for answer in (small, large))
        assert large == small


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_answers_are_json(value: Any) -> None:
    """Written in parts, they are what the library writes at once."""
    expected = json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace")
    assert json_response(value).body == expected


def test_an_empty_output_is_explained(service: Running) -> None:
    values = {"text": TEXTS[0], "length_penalty": -10}
    answer = service.post("/v1/explain", values).json()
    assert (answer["text"], answer["output"], answer["attention"], answer["dropped_attention"]) == ("", [], [], [])
    assert len(answer["source"]) > 1


def test_errors_do_not_tell_where_models_are_stored(service: Running, sparse: TextModel) -> None:
    for language in ("source_lang", "target_lang"):
        answer = service.post("/v1/generate", {"text": "x", language: "de"})
        assert answer.status_code == 400
        assert answer.json()["error"].startswith(f"{language}: the tokenizer of sparse knows no languages")
        assert sparse.name not in answer.text


def test_an_explanation_is_limited_and_leaves_the_event_loop_free(
    service: Running, sparse: TextModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    real = native.json_response

    def recorded(value: Any) -> Any:
        threads.append(threading.current_thread().name)
        return real(value)

    monkeypatch.setattr(native, "json_response", recorded)
    answer = service.post("/v1/explain", {"text": TEXTS[2], **SEARCH})
    assert answer.status_code == 200
    assert threads, "the answer was recorded"
    assert service.loop_thread not in threads
    weights = len(answer.json()["output"]) * len(answer.json()["source"])
    monkeypatch.setattr(native, "MOST_WEIGHTS", weights - 1)
    answer = service.post("/v1/explain", {"text": TEXTS[2], **SEARCH})
    assert answer.status_code == 413
    assert "weights" in answer.json()["error"]


def test_seconds_of_a_split_text_decoded_alone_are_those_of_all_pieces(
    service: Running, sparse: TextModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = sparse.decode

    def slow(*arguments: Any) -> Any:
        time.sleep(0.1)
        return real(*arguments)

    monkeypatch.setattr(sparse, "decode", slow)
    text = "the dog sees a cat . " * 24
    for alone in (True, False):
        (result,) = service.post("/v1/generate", {"text": text, "alone": alone, **SEARCH}).json()["results"]
        assert result["pieces"] > 2
        assert (result["seconds"]["decode"] >= 0.1 * result["pieces"]) is alone


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"text": "x", "keep": 0.0}, "keep"),
        ({"text": "x", "keep": 0.5, "shift": 1.0}, "choose one of keep, max_memory and shift"),
        ({"text": "x", "max_memory": 1}, "max_memory: expected at least 2"),
        ({"text": "x", "model": "plain", "keep": 0.5}, "keep: plain has no gates"),
        ({"text": "x", "num_beams": 17}, "num_beams: at most 16"),
        ({"text": "x", "num_beams": 2, "num_return_sequences": 3}, "num_return_sequences: 3 is more than num_beams=2"),
        ({"text": "x", "max_new_tokens": 100_000}, "max_new_tokens: at most"),
        ({"text": "x", "target_lang": "de"}, "target_lang: .* knows no languages"),
        ({"text": "x", "source_lang": "de"}, "source_lang: .* knows no languages"),
        ({"text": "x", "length_penalty": 1e9}, "length_penalty"),
        ({"text": 3}, "text"),
        ({"text": ["x", 3]}, "text"),
        ({"texts": "x"}, "text"),
        ({"text": "x", "beams": 3}, "beams: extra inputs are not permitted"),
        ({"text": "x", "num_beams": "3"}, "num_beams: input should be a valid integer"),
        ({"text": "x", "num_beams": True}, "num_beams: input should be a valid integer"),
        ([], "input should be"),
        (5, "input should be"),
    ],
    ids=str,
)
def test_wrong_values_are_named(service: Running, values: Any, message: str) -> None:
    answer = service.post("/v1/generate", values)
    assert answer.status_code == 400
    assert re.search(message, answer.json()["error"]), answer.json()


def test_health_and_metrics(service: Running) -> None:
    assert service.get("/healthz").json() == {"status": "ok"}
    assert service.get("/readyz").json() == {"status": "ready"}
    service.post("/v1/generate", {"text": TEXTS[0], **SEARCH})
    lines = service.get("/metrics").text
    for name in (
        'l0drop_requests_total{path="/v1/generate",status="200"}', "l0drop_queue_texts 0.0",
        'l0drop_batch_texts_bucket{le="1.0",model="sparse"}', 'l0drop_kept_share_sum{model="sparse"}',
        'l0drop_request_seconds_bucket{le="0.005",path="/v1/generate"}',
    ):  # fmt: skip
        assert name in lines
