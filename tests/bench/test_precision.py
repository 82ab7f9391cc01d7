"""Rounding in outputs, on a CPU with a tiny model."""

from types import SimpleNamespace

import pytest
import torch

from l0drop import load
from l0drop.bench import precision as module
from l0drop.bench.precision import PrecisionText, changed_share, precision
from l0drop.data.metrics import bleu
from l0drop.report.precision import precision_table
from l0drop.runs.precision import Batching, Precision
from l0drop.runs.table import as_markdown
from tests.bench.test_decoding import l0drop
from tests.decoding import folders

QUIET = {"device": "cpu", "say": lambda _: None}
GENERATION = {"max_new_tokens": 12, "num_beams": 2}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    lines = [folders.SENTENCES[n % 3] + " the dog" * (n // 3) for n in range(9)]
    lines.insert(4, "")
    (folder / "source").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "target").write_text("\n".join(line.upper() for line in lines) + "\n", encoding="utf-8")
    return folder / "source", folder / "target"


@pytest.fixture(scope="module")
def model_folder(baseline, tmp_path_factory):
    return folders.sparse(baseline, tmp_path_factory.mktemp("sparse") / "model")


@pytest.fixture(scope="module")
def saved():
    return []


@pytest.fixture(scope="module")
def result(model_folder, files, saved):
    text = PrecisionText(str(model_folder), *files, alone=4, generation=GENERATION)
    return precision(text, ("float64", "float32", "bfloat16"), (4, 2), save=saved.append, **QUIET)


def row(result, dtype, memory):
    (found,) = [one for one in result.rows if (one.dtype, one.memory) == (dtype, memory)]
    return found


def test_float64_depends_on_nothing(result):
    for memory in ("dense", "short"):
        found = row(result, "float64", memory)
        assert (found.same, found.difference, found.differing) == (1.0, 0.0, None)
        assert found.changed == {"random-4": 0.0, "random-2": 0.0, "alone": 0.0}
    assert row(result, "float64", "short").same_as_dense == 1.0
    assert row(result, "float64", "dense").same_as_dense is None


def test_other_types_are_compared_with_the_first(result, model_folder, files):
    text = load(model_folder, device="cpu", dtype="bfloat16")
    pairs = zip(*(file.read_text(encoding="utf-8").splitlines() for file in files), strict=True)
    sources, references = zip(*(pair for pair in pairs if pair[0]), strict=True)
    results = text.generate(sources, **GENERATION)
    expected = [one.text for one in results]
    exact = [one.text for one in load(model_folder, device="cpu", dtype="float64").generate(sources, **GENERATION)]
    found = row(result, "bfloat16", "short")
    assert found.same == sum(a == b for a, b in zip(expected, exact, strict=True)) / 9
    assert found.score.value == pytest.approx(bleu(expected, references).value)
    assert "tok:13a" in found.score.signature
    kept, tokens = sum(len(one.kept) for one in results), sum(one.source_tokens for one in results)
    assert found.sparsity == pytest.approx(1 - kept / tokens)
    assert found.difference == pytest.approx(found.score.value - bleu(exact, references).value)
    assert (found.differing is None) == (found.same == 1)


def test_batches_are_counted(result):
    assert result.sentences == 9, "one line is blank"
    assert result.batches["own"].sentences == 9
    assert result.batches["random-4"] == Batching(9, 3)
    assert result.batches["random-2"] == Batching(9, 2)
    assert result.batches["alone"] == Batching(4, 1)


class Fickle:
    """A model that writes the length of the batch after every text, and in low precision another text."""

    is_gated = True
    batch_tokens = 1000
    model = SimpleNamespace(device=torch.device("cpu"))

    def __init__(self, dtype):
        self.dtype = dtype

    def encode(self, lines):
        return [SimpleNamespace(ids=[1, 2, 3, 4], text=line) for line in lines]

    def settings(self, language, generation):
        return generation

    def batches(self, sources, limit):
        return [list(range(len(sources)))]

    def decode(self, sources, settings):
        if self.dtype == "float16":
            raise ValueError("encodings: the encoder gives NaN")
        dense = settings.get("dense", False)
        end = {"float32": "", "bfloat16": "x" * (len(sources) if dense else 0)}[self.dtype]
        texts = [f"{source.text} {end}".strip() for source in sources]
        return [SimpleNamespace(text=text, source_tokens=4, kept=(1,)) for text in texts]


def test_changes_are_found(files, monkeypatch):
    monkeypatch.setattr(module, "load", lambda name, device, dtype: Fickle(dtype))
    said = []
    found = precision(PrecisionText("folder", *files, alone=3), random_sizes=(9, 4), device="cpu", say=said.append)
    assert [(one.dtype, one.memory, one.same) for one in found.rows] == [
        ("float32", "dense", 1.0), ("float32", "short", 1.0), ("bfloat16", "dense", 0.0), ("bfloat16", "short", 1.0),
    ]  # fmt: skip
    dense, short = found.rows[2:]
    assert dense.changed == {"random-9": 0.0, "random-4": 1.0, "alone": 1.0}
    assert dense.difference < 0
    assert 50 < dense.differing.value < 100
    assert set(short.changed.values()) == {0.0}
    assert short.same_as_dense == 0.0
    assert short.sparsity == 0.75
    assert found.left_out == {"float16": "encodings: the encoder gives NaN"}
    assert "float16 is left out" in precision_table(found)[1].note
    with pytest.raises(ValueError, match="NaN"):
        precision(PrecisionText("folder", *files), ("float16", "float32"), **QUIET)


def test_shares():
    assert changed_share({0: "a", 2: "b"}, {0: "a", 1: "x", 2: "c"}) == 0.5


def test_results_are_saved_after_every_memory(result, saved, tmp_path):
    assert [len(one.rows) for one in saved] == [1, 2, 3, 4, 5, 6]
    result.write(tmp_path / "precision.json")
    assert Precision.read(tmp_path / "precision.json") == result == saved[-1]
    shown = as_markdown(precision_table(result)[1])
    assert all(f"{one.dtype}, {one.memory}" in shown for one in result.rows)


def test_a_model_without_a_gate_has_one_memory(baseline, files):
    text = PrecisionText(str(baseline), *files, sentences=3, alone=0, generation=GENERATION)
    found = precision(text, ("float32",), (2,), **QUIET)
    assert [(one.memory, one.sparsity) for one in found.rows] == [("dense", None)]
    assert set(found.batches) == {"own", "random-2"}


def test_the_command_writes_the_result(model_folder, files, tmp_path, monkeypatch, capsys):
    output = tmp_path / "precision.json"
    options = "--dtypes float64,float32 --sentences 3 --alone 2 --beams 2 --max-new-tokens 6"
    given = [model_folder, "--input", files[0], "--reference", files[1], *options.split(), "--json", output]
    code, said = l0drop(monkeypatch, capsys, "bench", "precision", *given)
    assert code == 0, said
    assert "3 lines" in said
    found = Precision.read(output)
    assert (found.reference, found.generation["num_beams"], len(found.rows)) == ("float64", 2, 4)
    code, said = l0drop(monkeypatch, capsys, "bench", "precision", *given[:5], "--device", "tpu")
    assert code == 2
    assert "device: expected cpu or cuda" in said
