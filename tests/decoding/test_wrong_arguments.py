"""Arguments of the wrong kind or size end with one line that names them, not inside torch or a tokenizer."""

import gzip
from pathlib import Path
from typing import Any

import pytest
import torch

from l0drop import Engine, Gates, compress, load
from l0drop.decoding.text import TextModel
from tests.decoding import folders

TEXT = folders.SENTENCES[0]
SHORT = {"max_new_tokens": 3}


@pytest.fixture(scope="module")
def model(baseline: Path, tmp_path_factory: pytest.TempPathFactory) -> TextModel:
    return load(folders.sparse(baseline, tmp_path_factory.mktemp("wrong") / "model"))


def one_line(error: Any) -> str:
    said = str(error.value)
    assert "\n" not in said
    return said


@pytest.mark.parametrize(
    ("name", "value"),
    [("num_beams", "2"), ("num_beams", [2]), ("num_beams", True), ("num_beams", 10**30), ("num_beams", 10**400),
     ("num_return_sequences", 10**30), ("max_new_tokens", "3"), ("max_new_tokens", 10**30), ("keep", "0.3"),
     ("max_memory", "3"), ("max_memory", 3.5), ("max_memory", 10**30), ("shift", "1"), ("shift", 10**400),
     ("dense", "yes"), ("batch_tokens", "5"), ("batch_tokens", 0), ("max_source", "5"),
     ("max_source", -1), ("max_source", 10**30), ("prefix", 3), ("prefix", "\ud800"), ("gates", 3), ("gates", [[1.0]]),
     ("length_penalty_style", None)],
    ids=lambda value: repr(value)[:20],
)  # fmt: skip
def test_a_wrong_setting_is_named(name: str, value: Any, model: TextModel) -> None:
    with pytest.raises(ValueError, match=name) as error:
        model.generate([TEXT], **{**SHORT, name: value})
    assert one_line(error).startswith((name, f"`{name}`", "`max_new_tokens`: 1"))


def test_whole_floats_are_counts(model: TextModel) -> None:
    asked = {"num_beams": 2, "max_memory": 3, "max_source": 12, "batch_tokens": 100}
    floats = {name: float(value) for name, value in asked.items()}
    assert model.generate([TEXT], **SHORT, **floats) == model.generate([TEXT], **SHORT, **asked)


@pytest.mark.parametrize("texts", [None, 5, {TEXT: 1}, [None], [3], [b"x"], [[TEXT]], ["\ud800"]], ids=repr)
def test_what_is_no_list_of_texts_is_named(texts: Any, model: TextModel) -> None:
    with pytest.raises(ValueError, match="texts") as error:
        model.generate(texts, **SHORT)
    one_line(error)


def test_any_iterable_of_texts_is_decoded(model: TextModel) -> None:
    expected = model.generate([TEXT, "", TEXT], **SHORT)
    assert model.generate((text for text in (TEXT, "", TEXT)), **SHORT) == expected
    assert model.generate([], **SHORT) == []
    assert model.generate(iter(()), **SHORT) == []


@pytest.mark.parametrize(
    "ids",
    [torch.tensor([5, 6, 1]), torch.tensor(5), torch.ones(1, 2, 3, dtype=torch.long),
     torch.empty(0, 5, dtype=torch.long), torch.empty(2, 0, dtype=torch.long), torch.ones(1, 3),
     torch.ones(1, 3, dtype=torch.bool), torch.ones(1, 3, dtype=torch.uint8), [[5, 6, 1]], [TEXT],
     torch.tensor([[5, 1000]]), torch.tensor([[5, -3]]), torch.ones(1, 100, dtype=torch.long)],
    ids=lambda ids: f"{getattr(ids, 'dtype', '')}{tuple(getattr(ids, 'shape', ()))}",
)  # fmt: skip
def test_wrong_token_ids_are_refused(ids: Any, model: TextModel) -> None:
    with pytest.raises(ValueError, match="inputs: ") as error:
        model.engine.generate(ids, **SHORT)
    one_line(error)


@pytest.mark.parametrize(
    "arguments",
    [{"attention_mask": [[1] * 4]}, {"attention_mask": "x"}, {"gates": 3}, {"gates": Gates(3)}, {"hints": 3},  # type: ignore[arg-type]
     {"hints": {"a": 3}}],
    ids=repr,
)  # fmt: skip
def test_what_is_no_tensor_is_named(arguments: dict[str, Any], model: TextModel) -> None:
    with pytest.raises(ValueError, match=rf"{next(iter(arguments))}.*: expected .*tensor"):
        model.engine.generate(torch.tensor([[5, 6, 7, 1]]), **arguments, **SHORT)


@pytest.mark.parametrize("device", ["meta", "hpu", "foo", "", "cuda:99"])
def test_devices_that_cannot_decode_are_refused(device: str, model: TextModel) -> None:
    with pytest.raises(ValueError, match=f"`device`: {device}"):
        load(model.name, device=device)


@pytest.mark.parametrize("dtype", [3, "x", torch.int64, torch.complex64, torch.float8_e4m3fn])
def test_types_that_cannot_decode_are_refused(dtype: Any, model: TextModel) -> None:
    with pytest.raises(ValueError, match="`dtype`: expected one of float32"):
        load(model.name, dtype=dtype)


def test_nan_encodings_are_called_nan(model: TextModel) -> None:
    broken = load(model.name).model
    with torch.no_grad():
        for name, parameter in broken.named_parameters():
            if "encoder.layers" in name and "fc" in name:
                parameter.mul_(1e38)
    ids = torch.tensor([[5, 6, 7, 1]])
    for decode in (Engine(broken).generate, broken.generate):
        with pytest.raises(ValueError, match=r"Gates\.values: are NaN; the encodings or the gate's weights"):
            decode(ids, **SHORT)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("encodings", ([[1]], Gates(torch.ones(2, 4)), torch.ones(2, 4))),
     ("gates", (torch.ones(2, 4, 8), torch.ones(2, 4), torch.ones(2, 4))),
     ("mask", (torch.ones(2, 4, 8), Gates(torch.ones(2, 4)), None)),
     ("mask", (torch.ones(0, 4, 8), Gates(torch.ones(0, 4)), torch.ones(0, 4)))],
)  # fmt: skip
def test_compress_names_a_wrong_argument(name: str, arguments: Any) -> None:
    with pytest.raises(ValueError, match=f"{name}: expected"):
        compress(*arguments)


def test_names_in_capitals_are_compressed_files_too(tmp_path: Path) -> None:
    from l0drop.data.text import CorpusError, read_lines
    from l0drop.decoding.lines import TextInput, is_jsonl

    (tmp_path / "a.txt.GZ").write_bytes(gzip.compress(b"one\ntwo\n"))
    assert list(read_lines(tmp_path / "a.txt.GZ")) == ["one", "two"]
    assert is_jsonl(tmp_path / "A.JSONL.GZ")
    (tmp_path / "b.gz").write_bytes(b"")
    with pytest.raises(CorpusError, match=r"b\.gz: the file is empty, not a \.gz file"):
        list(read_lines(tmp_path / "b.gz"))
    with (
        pytest.raises(CorpusError, match=r"b\.gz: the file is empty, not a \.gz file"),
        TextInput(tmp_path / "b.gz").opened(),
    ):
        pass
