"""A model with a shortener in the service: texts are decoded, and settings of gates are refused."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
from typer.testing import CliRunner

from l0drop import L0DropConfig, load, sparsify
from l0drop.app.cli import app
from l0drop.app.serve.models import Served
from tests.app.serve.running import Running, running
from tests.decoding import folders

TEXT = "the dog sees a cat ."


@pytest.fixture(scope="module")
def folder(baseline: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = AutoModelForSeq2SeqLM.from_pretrained(baseline / "model")
    model = sparsify(base, L0DropConfig(shortener="merge", shortener_args={"keep": 0.5}))
    tokenizer = AutoTokenizer.from_pretrained(baseline / "model")
    return folders.saved(model, tokenizer, tmp_path_factory.mktemp("merged") / "model")


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[Running]:
    with running([Served("merged", load(folder, "cpu", "float64"))]) as found:
        yield found


def test_texts_are_decoded(service: Running, folder: Path) -> None:
    (result,) = service.post("/v1/generate", {"text": [TEXT], "num_beams": 2}).json()["results"]
    expected = load(folder, "cpu", "float64").generate([TEXT], num_beams=2)[0]
    assert result["text"] == expected.text
    assert len(result["kept"]) == len(expected.kept) == round(0.5 * expected.source_tokens)


@pytest.mark.parametrize("dial", [{"keep": 0.5}, {"max_memory": 4}, {"shift": 1.0}, {"dense": True}])
def test_the_dial_is_refused(dial: dict[str, float], service: Running) -> None:
    answer = service.post("/v1/generate", {"text": [TEXT], **dial})
    assert answer.status_code == 400
    assert f"{next(iter(dial))}: acts on gates, and the memory of merged comes from Merge instead" in answer.text


def test_an_explanation_is_refused(service: Running) -> None:
    answer = service.post("/v1/explain", {"text": TEXT})
    assert answer.status_code == 400
    assert "an explanation shows gates, and the memory of merged comes from Merge" in answer.text


def test_the_list_of_models_offers_no_dial(service: Running) -> None:
    (model,) = service.get("/v1/models").json()["data"]
    model = model["l0drop"]
    assert (model["dial"], model["gating"], model["gated"], model["shortener"]) == ([], None, True, "Merge")


def test_shadow_mode_needs_another_model(folder: Path) -> None:
    ran = CliRunner().invoke(app, ["serve", f"merged={folder}", "--shadow", "0.1", "--device", "cpu"])
    assert "--shadow: merged has a shortener instead of gates" in str(ran.exception)
