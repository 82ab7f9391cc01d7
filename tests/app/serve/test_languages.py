"""Multilingual models: the service starts, translates every pair, and refuses pairs that the model does not have."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import transformers as hf

from l0drop import load
from l0drop.app.serve import command
from l0drop.app.serve.models import Served
from l0drop.decoding.text import TextModel
from tests.app.serve.running import Running, running
from tests.decoding import folders

PAIR = ("deu_Latn", "fra_Latn")
TEXT = "the dog"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    letters = {c: i for i, c in enumerate(["<s>", "<pad>", "</s>", "<unk>", *"▁abcdefghijklmnopqrstuvwxyz."])}
    tokenizer = hf.NllbTokenizer(vocab=letters, merges=[])
    made = folders.saved(folders.resized("m2m100", tokenizer), tokenizer, tmp_path_factory.mktemp("served") / "nllb")
    config = hf.GenerationConfig.from_pretrained(made)
    config.max_new_tokens = 8
    config.save_pretrained(made)
    return made


@pytest.fixture(scope="module")
def nllb(folder: Path) -> TextModel:
    return load(folder, "cpu", "float64")


@pytest.fixture(scope="module")
def service(nllb: TextModel) -> Iterator[Running]:
    with running([Served("nllb", nllb)]) as found:
        yield found


def test_every_dialect_translates(service: Running, nllb: TextModel) -> None:
    source, target = PAIR
    wanted = nllb.generate([TEXT], source_lang=source, target_lang=target)[0].text
    native = {"text": TEXT, "source_lang": source, "target_lang": target}
    assert service.post("/v1/generate", native).json()["results"][0]["text"] == wanted
    libre = {"q": TEXT, "source": source, "target": target}
    assert service.post("/translate", libre).json() == {"translatedText": wanted}
    task = {"inputs": TEXT, "parameters": {"src_lang": source, "tgt_lang": target}}
    assert service.post("/models/nllb", task).json() == [{"translation_text": wanted}]


def test_alternatives_are_in_the_target_language(service: Running, nllb: TextModel) -> None:
    source, target = PAIR
    answer = service.post("/translate", {"q": TEXT, "source": source, "target": target, "alternatives": 2})
    assert answer.status_code == 200
    search = {"num_beams": 3, "num_return_sequences": 3}
    (wanted,) = nllb.generate([TEXT], source_lang=source, target_lang=target, **search)
    assert answer.json()["alternatives"] == [other.text for other in wanted.alternatives]


def test_the_target_language_is_needed(service: Running) -> None:
    answer = service.post("/v1/generate", {"text": TEXT})
    assert answer.status_code == 400
    assert "target_lang" in answer.json()["error"]


def test_a_pair_narrows_the_list_of_languages(nllb: TextModel) -> None:
    with running([Served("nllb", nllb, pair=PAIR)]) as service:
        assert [one["code"] for one in service.get("/languages").json()] == [*PAIR]
        values = {"q": TEXT, "source": PAIR[0], "target": PAIR[1]}
        assert service.post("/translate", values).status_code == 200


def test_a_pair_that_the_model_does_not_have_is_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"`languages`: 'en' is not a language of nllb; it has 20\d"):
        command.load_models([f"nllb={folder}"], ["nllb=en:deu_Latn"], [], "cpu", None)


def test_a_model_that_cannot_decode_stops_the_service(
    folder: Path, nllb: TextModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: object, **settings: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr(TextModel, "generate", broken)
    with pytest.raises(ValueError, match="a model cannot decode: boom"):
        command.serve([f"nllb={folder}"], port=0, device="cpu")
