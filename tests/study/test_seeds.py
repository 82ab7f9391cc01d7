"""Runs of several seeds, gathered and compared."""

import json

import pytest
from rich.console import Console

from l0drop.recipe import parse_recipe
from l0drop.study import seeds
from tests.training import tiny


def run_folder(folder, outputs, seed, sparse):
    (folder / "outputs").mkdir(parents=True)
    (folder / "outputs" / "test.txt").write_text("".join(f"{line}\n" for line in outputs))
    score = {"score": {"value": 50.0 + seed}, "sentences": len(outputs), **({"sparsity": 0.5} if sparse else {})}
    provenance = dict.fromkeys(("commit", "device", "torch", "transformers", "python", "threads"), "x")
    (folder / "metrics.json").write_text(json.dumps({"valid": score, "test": score, "steps": 3, **provenance}))
    (folder / "recipe.yaml").write_text(f"name: {folder.name}\nseed: {seed}\nabout: text\ntrain: {{steps: 3}}\n")
    (folder / "log.jsonl").write_text('{"step": 3, "loss": 1.0}\n{"step": 3, "train_runtime": 4.5}\n')


def test_results_gather_runs_by_system_and_compare_them_with_the_baseline_of_their_seed(tmp_path, monkeypatch):
    truth = [f"the small house number {n} stands there" for n in range(30)]
    worse = [line.replace("house", "tree") if n % 3 else line for n, line in enumerate(truth)]
    monkeypatch.setattr(seeds, "load_recipe", lambda path: None)
    monkeypatch.setattr(seeds, "build_tokenizers", lambda *arguments: None)
    monkeypatch.setattr(seeds, "references", lambda recipe, tokenizers, split: truth)
    for seed in (1, 2):
        run_folder(tmp_path / f"on-s{seed}", truth, seed, sparse=False)
        run_folder(tmp_path / f"zero-0.5-s{seed}", worse if seed == 1 else truth, seed, sparse=True)
    names = [f"{system}-s{seed}" for system in ("on", "zero-0.5") for seed in (1, 2, 3)]
    found = seeds.gather(tmp_path, names, "a test", 0.5)["systems"]
    assert list(found) == ["on", "zero-0.5"]
    assert [run["seed"] for run in found["zero-0.5"]["runs"]] == [1, 2]
    assert found["on"]["recipe"] == {"train": {"steps": 3}}
    differences = found["zero-0.5"]["against_on"]["differences"]
    assert differences[0] < -10
    assert differences[1] == 0
    assert "against_on" not in found["on"]
    assert "| zero at 0.5 | 2 | 50.0% | 51.50 ± 0.71 |" in seeds.table({"systems": found})


def test_systems_have_titles():
    assert [seeds.title(name, {"on": "trained on"}) for name in ("on", "zero-0.5", "zero-0.5-text", "half")] == [
        "trained on",
        "zero at 0.5",
        "zero at 0.5, text",
        "half",
    ]


def test_a_table_needs_a_comparison():
    with pytest.raises(ValueError, match="compared with 'on'"):
        seeds.table({"systems": {"on": {"runs": []}}})


def test_a_single_run_stands_beside_the_baseline_of_its_seed():
    def scored(seed, value, **more):
        both = {split: {"score": {"value": value + up}, **more} for split, up in (("valid", 1.0), ("test", 0.0))}
        return {"seed": seed, **both}

    on = {"runs": [scored(1, 20.0), scored(2, 30.0)]}
    systems = {"on": on, "zero-0.3": {"runs": [scored(2, 29.5, sparsity=0.314)]}, "half": {"runs": [scored(3, 9.0)]}}
    lines = seeds.single_table({"systems": systems}).splitlines()
    assert lines[2:] == [
        "| zero at 0.3 | 31.4% | 30.50 | 29.50 | -0.50, -0.50 |",
        "| half | - | 10.00 | 9.00 | - |",
    ]


def test_runs_that_read_the_same_text_prepare_it_once(tmp_path, monkeypatch):
    train = {"steps": 2, "save_every": 2, "eval_every": 2}
    recipes = [
        parse_recipe({**tiny.recipe(tmp_path, train=train), "name": f"base-s{seed}", "seed": seed}, "test")
        for seed in (1, 2)
    ]
    trained = []
    monkeypatch.setattr(seeds, "side_by_side", lambda todo, *_: iter(trained.append(r.name) or r.name for r in todo))
    seeds.train_all(recipes, tmp_path / "runs", 2, 1, Console(quiet=True))
    assert trained == ["base-s1", "base-s2"]
    for part in ("tokenizer", "data"):
        first, second = (tmp_path / "runs" / recipe.name / part for recipe in recipes)
        assert not first.is_symlink()
        assert second.resolve() == first.resolve()


def test_text_is_found_in_a_folder(tmp_path):
    for split in ("train", "valid", "test"):
        for ending in ("en", "de.xz"):
            (tmp_path / f"{split}.{ending}").touch()
    found = seeds.text_in(tmp_path, "en", "de")
    assert len(found) == 6
    assert f"data.valid.target={tmp_path / 'valid.de.xz'}" in found
    with pytest.raises(ValueError, match="no train.fr"):
        seeds.text_in(tmp_path, "en", "fr")
