"""Readers copy what stands in the documents: it must run as written."""

from pathlib import Path

import pytest
import torch
import transformers

from l0drop import L0DropConfig, sparsify
from l0drop.data.tokenizer import train_tokenizer
from tests.models import zoo
from tests.snippets import ROOT, python_blocks


def test_the_readme_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As written, but for the weights: a tiny model built from a config stands in for the public checkpoint."""
    tokenizer = train_tokenizer(["the house is small .", "a small house"] * 20, vocab_size=60).source
    config = zoo.build("marian").config
    config.update({"vocab_size": 97, "pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id})
    model = transformers.MarianMTModel(config).eval()
    name = "Helsinki-NLP/opus-mt-en-de"

    def stand_in(kind: object):  # type: ignore[no-untyped-def]
        def from_pretrained(asked: str):  # type: ignore[no-untyped-def]
            assert asked == name
            return kind

        return from_pretrained

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", stand_in(tokenizer))
    monkeypatch.setattr(transformers.AutoModelForSeq2SeqLM, "from_pretrained", stand_in(model))
    namespace: dict[str, object] = {}
    exec(python_blocks("README.md")[0], namespace)
    assert capsys.readouterr().out.startswith("[")
    expected = model.generate(**tokenizer(["The house is small."], return_tensors="pt"), num_beams=4)
    assert torch.equal(namespace["tokens"], expected), "the model starts open"  # type: ignore[arg-type]


def test_the_custom_gate_of_the_docs_drops_every_second_token(tmp_path: Path) -> None:
    (block,) = python_blocks("docs/gates.md")
    assert len(block.splitlines()) < 40
    namespace: dict[str, object] = {"__name__": "documented_gate"}
    exec(block, namespace)
    batch = zoo.ragged_batch()
    model = sparsify(zoo.build("bart"), L0DropConfig(gate="every", gate_args={"step": 2}))
    for explanation in model.explain(**batch):
        assert explanation.kept == list(range(0, len(explanation.gates), 2))
    memory = model.get_encoder()(**batch)
    assert memory.last_hidden_state.shape[1] == 12 + 1
    model.save_pretrained(tmp_path)
    loaded = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert torch.equal(loaded.generate(**batch, max_new_tokens=6), model.generate(**batch, max_new_tokens=6))


def test_links_between_documents_lead_somewhere() -> None:
    import re

    for document in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for link in re.findall(r"\]\((?!https?:)([^)#]+)", document.read_text(encoding="utf-8")):
            assert (document.parent / link).exists(), f"{document.name}: {link}"


def test_the_tree_in_the_readme_names_what_exists() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    tree = text.split("## The house")[1].split("```")[1]
    folder = ROOT
    for line in tree.strip().splitlines():
        name, depth = line.split()[0], (len(line) - len(line.lstrip())) // 2
        if depth == 0:
            folder = ROOT / name
            assert folder.exists(), name
        elif depth == 1:
            room = ROOT / "l0drop" / name
            assert room.exists(), name
        else:
            assert (room / name).exists(), name


def test_the_readme_decodes_a_run(
    baseline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "sparse").symlink_to(baseline, target_is_directory=True)
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    exec(python_blocks("README.md")[2], namespace)
    result = namespace["result"]
    assert result.score < 0  # type: ignore[attr-defined]
    assert result.text in capsys.readouterr().out  # type: ignore[attr-defined]
