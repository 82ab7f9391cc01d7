"""Shadow mode: what /metrics says about a second decoding."""

import time
from typing import Any

import httpx
import pytest

from l0drop.app.serve.command import shadow_reference
from l0drop.app.serve.limits import Limits
from l0drop.app.serve.models import Models, Served, ServedSpeech
from l0drop.app.serve.shadow import SHADOW_PART
from l0drop.decoding.speech import SpeechModel
from l0drop.decoding.text import TextModel
from tests.app.serve.running import Running, running
from tests.models.whispers import wav

TEXTS = [f"the {noun} sees a {other} ." for noun in ("dog", "cat", "bird") for other in ("stone", "river")]


def wait_for(service: Running, count: int, **labels: str) -> None:
    until = time.monotonic() + 10
    while service.metric("l0drop_shadow_texts_total", **labels) < count:
        assert time.monotonic() < until
        time.sleep(0.01)


def test_the_same_model_dense_agrees_unless_clients_turn_the_dial(sparse: TextModel) -> None:
    labels = {"model": "sparse", "reference": "dense"}
    with running([Served("sparse", sparse)], shadow=1.0) as service:
        answer = service.post("/v1/generate", {"text": TEXTS, "num_beams": 2}).json()
        wait_for(service, len(TEXTS), **labels)
        assert service.metric("l0drop_shadow_same_texts_total", **labels) == len(TEXTS)
        assert service.metric("l0drop_shadow_agreement", **labels) == 1
        assert service.metric("l0drop_shadow_chrf", **labels) == 100
        kept = [len(result["kept"]) / result["source_tokens"] for result in answer["results"]]
        assert service.metric("l0drop_shadow_kept_share", **labels) == pytest.approx(sum(kept) / len(kept))
        service.post("/v1/generate", {"text": TEXTS * 4, "num_beams": 2, "keep": 0.05})
        wait_for(service, 5 * len(TEXTS), **labels)
        assert service.metric("l0drop_shadow_agreement", **labels) < 1
        assert service.metric("l0drop_shadow_chrf", **labels) < 100


def test_another_model_is_the_reference(sparse: TextModel, plain: TextModel) -> None:
    base = Served("plain", plain)
    with running([Served("sparse", sparse), base], shadow=1.0, reference=base) as service:
        answer = service.post("/v1/generate", {"text": TEXTS}).json()
        service.post("/v1/generate", {"text": TEXTS, "model": "plain"})
        wait_for(service, len(TEXTS), model="sparse", reference="plain")
        same = [
            result["text"] == other.text for result, other in zip(answer["results"], plain.generate(TEXTS), strict=True)
        ]
        agreement = service.metric("l0drop_shadow_agreement", model="sparse", reference="plain")
        assert agreement == pytest.approx(sum(same) / len(same))
        assert service.metric("l0drop_shadow_texts_total", model="plain", reference="plain") == 0


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_a_share_of_texts_is_decoded_again(sparse: TextModel, share: float) -> None:
    values: dict[str, Any] = {"text": [f"{text} {number}" for number in range(20) for text in TEXTS], "num_beams": 1}
    with running([Served("sparse", sparse)], shadow=share) as service:
        service.post("/v1/generate", values)
        texts = len(values["text"])
        wait_for(service, 0.5 * share * texts, model="sparse", reference="dense")
        time.sleep(0.3)
        again = service.metric("l0drop_shadow_texts_total", model="sparse", reference="dense")
        assert 0.5 * share * texts <= again <= 1.5 * share * texts


def test_what_would_be_decoded_in_the_same_way_is_left_out(sparse: TextModel, plain: TextModel) -> None:
    with running([Served("sparse", sparse), Served("plain", plain)], shadow=1.0) as service:
        service.post("/v1/generate", {"text": TEXTS, "model": "plain"})
        service.post("/v1/generate", {"text": TEXTS, "dense": True})
        service.post("/v1/generate", {"text": TEXTS[:1]})
        wait_for(service, 1, model="sparse", reference="dense")
        assert "plain" not in {model for model, _ in service.service.shadow._recent}
        assert service.metric("l0drop_shadow_texts_total", model="sparse", reference="dense") == 1


def test_metrics_of_live_traffic_leave_out_second_decodings(sparse: TextModel) -> None:
    with running([Served("sparse", sparse)], shadow=1.0) as service:
        service.post("/v1/generate", {"text": TEXTS})
        wait_for(service, len(TEXTS), model="sparse", reference="dense")
        for name in ("l0drop_batch_texts_sum", "l0drop_kept_share_count"):
            assert service.metric(name, model="sparse") == len(TEXTS)
        assert service.metric("l0drop_queue_seconds_count") == len(TEXTS)
        results = service.post("/v1/generate", {"text": TEXTS}).json()["results"]
        tokens = 2 * sum(result["output_tokens"] for result in results)
        assert service.metric("l0drop_output_tokens_total", model="sparse") == tokens


def test_recordings_are_decoded_dense_again(whisper: SpeechModel, sparse: TextModel) -> None:
    labels = {"model": "tiny", "reference": "dense"}

    def heard(service: Running, seconds: float, **fields: str) -> Any:
        url, files = service.url + "/v1/transcribe", {"file": wav(seconds)}
        answer = httpx.post(url, files=files, data={"model": "tiny", **fields}, timeout=30)
        assert answer.status_code == 200
        return answer.json()

    with running([ServedSpeech("tiny", whisper), Served("sparse", sparse)], shadow=1.0) as service:
        kept = [1 - heard(service, seconds)["dropped"] for seconds in (0.3, 1.7)]
        wait_for(service, 2, **labels)
        assert service.metric("l0drop_shadow_agreement", **labels) == 1
        assert service.metric("l0drop_shadow_kept_share", **labels) == pytest.approx(sum(kept) / 2)
        assert service.metric("l0drop_kept_share_count", model="tiny") == 2, "live traffic"
        heard(service, 0.3, dense="true")
        heard(service, 0.3, temperature="1", seed="3")
        wait_for(service, 3, **labels)
        assert service.metric("l0drop_shadow_agreement", **labels) == 1
        heard(service, 1.7, keep="0.05")
        wait_for(service, 4, **labels)
        assert service.metric("l0drop_shadow_agreement", **labels) == 0.75
        assert service.metric("l0drop_shadow_chrf", **labels) < 100
        assert service.service.held.bytes == 0
    with running(
        [ServedSpeech("tiny", whisper), base := Served("sparse", sparse)], shadow=1.0, reference=base
    ) as other:
        heard(other, 0.3)
        assert not other.service.shadow._tasks


def test_second_decodings_leave_room_in_the_queue_for_live_traffic(
    sparse: TextModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, labels = sparse.decode, {"model": "sparse", "reference": "dense"}

    def slow(*arguments: Any) -> Any:
        time.sleep(0.1)
        return real(*arguments)

    monkeypatch.setattr(sparse, "decode", slow)
    limits = Limits(queue=SHADOW_PART * 4)
    with running([Served("sparse", sparse)], limits=limits, shadow=1.0) as service:
        for _ in range(3):
            texts = [f"{text} {number}" for number in range(10) for text in TEXTS]
            assert service.post("/v1/generate", {"text": texts}).status_code == 200
            assert len(service.service.shadow._tasks) <= 4
        skipped = service.metric("l0drop_shadow_skipped_texts_total", **labels)
        wait_for(service, 180 - skipped, **labels)
        assert 180 - 3 * 8 <= skipped <= 180 - 4
        long = "the dog sees a cat . " * 48
        assert service.post("/v1/generate", {"text": long}).json()["results"][0]["pieces"] > 4
        assert service.metric("l0drop_shadow_skipped_texts_total", **labels) == skipped + 1, "its pieces are counted"
        assert service.service.shadow._pieces == 0


def test_a_second_decoding_that_fails_is_logged_once(
    sparse: TextModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with running([Served("sparse", sparse)], shadow=1.0) as service:
        real = sparse.decode

        def failing(sources: Any, *others: Any) -> Any:
            if sources[0].dial:
                raise RuntimeError("boom")
            return real(sources, *others)

        monkeypatch.setattr(sparse, "decode", failing)
        assert service.post("/v1/generate", {"text": TEXTS[0]}).status_code == 200
        until = time.monotonic() + 10
        while service.service.shadow._tasks or "a second decoding failed" not in caplog.text:
            assert time.monotonic() < until
            time.sleep(0.01)
        assert service.post("/v1/generate", {"text": TEXTS[0]}).status_code == 200
    assert TEXTS[0] not in caplog.text


@pytest.mark.parametrize(
    ("names", "share", "reference", "message"),
    [
        ("sparse plain", 0.0, "plain", "--shadow-model: without --shadow SHARE"),
        ("sparse plain", 0.1, "other", "--shadow-model: other is not one of the text models"),
        ("sparse", 0.1, "sparse", "--shadow-model: no text model other than sparse has gates"),
        ("plain", 0.1, None, "--shadow: no model has gates"),
    ],
)
def test_options_without_an_effect_are_refused(
    sparse: TextModel, plain: TextModel, names: str, share: float, reference: str | None, message: str
) -> None:
    served = {"sparse": Served("sparse", sparse), "plain": Served("plain", plain)}
    models = Models([served[name] for name in names.split()])
    with pytest.raises(ValueError, match=message):
        shadow_reference(models, share, reference)
    assert shadow_reference(Models(list(served.values())), 0.1, "plain") is served["plain"]
