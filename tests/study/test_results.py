"""What the results say is what their files say."""

import importlib.util
import json
from typing import Any

import pytest

from tests.snippets import ROOT


@pytest.fixture(scope="module")
def script() -> Any:
    spec = importlib.util.spec_from_file_location("multi30k", ROOT / "scripts" / "multi30k.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tables_of_multi30k_are_those_of_its_file(script):
    found = json.loads((ROOT / "docs" / "results" / "multi30k.json").read_text(encoding="utf-8"))
    document = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    for table in script.tables(found).split("\n\n"):
        assert table in document


def run_folder(folder, outputs, seed, sparse):
    (folder / "outputs").mkdir(parents=True)
    (folder / "outputs" / "test.txt").write_text("".join(f"{line}\n" for line in outputs))
    score = {"score": {"value": 50.0 + seed}, "sentences": len(outputs), **({"sparsity": 0.5} if sparse else {})}
    provenance = dict.fromkeys(("commit", "device", "torch", "transformers", "python", "threads"), "x")
    (folder / "metrics.json").write_text(json.dumps({"valid": score, "test": score, "steps": 3, **provenance}))
    (folder / "recipe.yaml").write_text(f"name: {folder.name}\nseed: {seed}\nabout: text\ntrain: {{steps: 3}}\n")
    (folder / "log.jsonl").write_text('{"step": 3, "loss": 1.0}\n{"step": 3, "train_runtime": 4.5}\n')


def test_results_gather_runs_by_system_and_compare_them_with_the_baseline_of_their_seed(script, tmp_path, monkeypatch):
    truth = [f"the small house number {n} stands there" for n in range(30)]
    worse = [line.replace("house", "tree") if n % 3 else line for n, line in enumerate(truth)]
    monkeypatch.setattr(script, "load_recipe", lambda path: None)
    monkeypatch.setattr(script, "build_tokenizers", lambda *arguments: None)
    monkeypatch.setattr(script, "references", lambda recipe, tokenizers, split: truth)
    for seed in (1, 2):
        run_folder(tmp_path / f"on-s{seed}", truth, seed, sparse=False)
        run_folder(tmp_path / f"zero-0.5-s{seed}", worse if seed == 1 else truth, seed, sparse=True)
    names = [f"{system}-s{seed}" for system in ("on", "zero-0.5") for seed in (1, 2, 3)]
    found = script.results(tmp_path, names)["systems"]
    assert list(found) == ["on", "zero-0.5"]
    assert [run["seed"] for run in found["zero-0.5"]["runs"]] == [1, 2]
    assert found["on"]["recipe"] == {"train": {"steps": 3}}
    differences = found["zero-0.5"]["against_on"]["differences"]
    assert differences[0] < -10
    assert differences[1] == 0
    assert "against_on" not in found["on"]
    assert "| zero at 0.5 | 2 | 50.0% | 51.50 ± 0.71 |" in script.tables({"systems": found})
