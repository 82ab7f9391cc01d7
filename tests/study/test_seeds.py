"""Studies with several seeds: the order of runs, gathering, comparison."""

import json
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from l0drop.data.tokenizer import load_tokenizers
from l0drop.recipe import Evaluate, parse_recipe
from l0drop.runs.evaluation import DifferenceOverBaselines
from l0drop.runs.json_file import as_json, from_json
from l0drop.runs.run import RunFolder
from l0drop.study import parallel, seeds
from l0drop.study.sentence_statistics import SentenceStatistics
from l0drop.study.verdict import verdict
from tests.training import tiny


def gathered(*arguments, **options):
    """The content of results.json."""
    return as_json(seeds.gather(*arguments, **options))


def run_folder(folder, outputs, seed, sparse):
    (folder / "outputs").mkdir(parents=True)
    (folder / "outputs" / "test.txt").write_text("".join(f"{line}\n" for line in outputs))
    value = {"name": "BLEU", "value": 50.0 + seed, "signature": "s"}
    score = {"score": value, "sentences": len(outputs), **({"sparsity": 0.5} if sparse else {})}
    provenance = {**dict.fromkeys(("commit", "device", "torch", "transformers", "python"), "x"), "threads": 1}
    run = {"name": folder.name, "steps": 3, "seed": seed, "dtype": "fp32", "decoding": {}}
    (folder / "metrics.json").write_text(json.dumps({**run, "valid": score, "test": score, **provenance}))
    (folder / "recipe.yaml").write_text(f"name: {folder.name}\nseed: {seed}\nabout: text\ntrain: {{steps: 3}}\n")
    (folder / "log.jsonl").write_text(
        '{"step": 1, "train_runtime": 2.0}\n{"step": 3, "loss": 1.0}\n{"step": 3, "train_runtime": 4.5}\n'
    )


def test_runs_are_gathered_by_system_and_compared_with_the_baseline_of_their_seed(tmp_path, monkeypatch):
    truth = [f"the small house\u2028number {n} stands there" for n in range(30)]  # only a line feed ends a line
    worse = [line.replace("house", "tree") if n % 3 else line for n, line in enumerate(truth)]
    monkeypatch.setattr(seeds, "load_recipe", lambda path, text: SimpleNamespace(evaluate=Evaluate()))
    monkeypatch.setattr(seeds, "build_tokenizers", lambda *arguments: None)
    monkeypatch.setattr(seeds, "references", lambda recipe, tokenizers, split: truth)
    for seed in (1, 2):
        run_folder(tmp_path / f"on-s{seed}", truth, seed, sparse=False)
        run_folder(tmp_path / f"zero-0.5-s{seed}", worse if seed == 1 else truth, seed, sparse=True)
    names = [f"{system}-s{seed}" for system in ("on", "zero-0.5") for seed in (1, 2, 3)]
    found = gathered(tmp_path, names, "a test", 0.5)["systems"]
    assert list(found) == ["on", "zero-0.5"]
    assert [run["seed"] for run in found["zero-0.5"]["runs"]] == [1, 2]
    assert found["on"]["recipe"] == {"train": {"steps": 3}}
    assert [run["train_seconds"] for run in found["on"]["runs"]] == [6.5, 6.5], "both parts of a run that was resumed"
    digests = [[run["outputs_sha256"] for run in found[system]["runs"]] for system in ("on", "zero-0.5")]
    assert digests[0][0] == digests[0][1] == digests[1][1] != digests[1][0]
    differences = found["zero-0.5"]["against_on"]["differences"]
    assert differences[0] < -10
    assert differences[1] == 0
    assert "against_on" not in found["on"]
    assert found["zero-0.5"]["against_on"]["baselines"] == 2, "each run of `on` is its own start here"


def test_fine_tuned_runs_with_other_numbers_of_steps_are_not_compared(tmp_path, monkeypatch):
    truth = [f"the small house number {n} stands there" for n in range(30)]
    monkeypatch.setattr(seeds, "load_recipe", lambda path, text: SimpleNamespace(evaluate=Evaluate()))
    monkeypatch.setattr(seeds, "build_tokenizers", lambda *arguments: None)
    monkeypatch.setattr(seeds, "references", lambda recipe, tokenizers, split: truth)
    systems = {"on": 3, "zero-0.5": 3, "zero-0.5-500-steps": 2, "scratch": 9}
    for system, steps in systems.items():
        for seed in (1, 2):
            folder = tmp_path / f"{system}-s{seed}"
            run_folder(folder, truth, seed, sparse=system != "on")
            metrics = json.loads((folder / "metrics.json").read_text())
            (folder / "metrics.json").write_text(json.dumps({**metrics, "steps": steps}))
            if system != "scratch":
                start = f"model: {{init: runs/base-s{seed}}}\n"
                (folder / "recipe.yaml").write_text((folder / "recipe.yaml").read_text() + start)
    found = gathered(tmp_path, [f"{system}-s{seed}" for system in systems for seed in (1, 2)], "a test", 0.5)["systems"]
    assert {name for name, system in found.items() if "against_on" in system} == {"zero-0.5", "scratch"}


def test_runs_that_were_not_decoded_are_listed_but_not_compared(tmp_path, monkeypatch):
    truth = [f"the small house number {n} stands there" for n in range(30)]
    texts = []
    monkeypatch.setattr(
        seeds, "load_recipe", lambda path, text: texts.append(text) or SimpleNamespace(evaluate=Evaluate())
    )
    monkeypatch.setattr(seeds, "build_tokenizers", lambda *arguments: None)
    monkeypatch.setattr(seeds, "references", lambda recipe, tokenizers, split: truth)
    for system in ("on", "on-taught", "on-taught-falling", "zero-0.5"):
        for seed in (1, 2):
            folder = tmp_path / f"{system}-s{seed}"
            run_folder(folder, truth, seed, sparse=system.startswith("zero"))
            if system == "on-taught":
                metrics = json.loads((folder / "metrics.json").read_text())
                del metrics["test"]
                (folder / "metrics.json").write_text(json.dumps(metrics))
                (folder / "outputs" / "test.txt").unlink()
    names = [path.name for path in sorted(tmp_path.iterdir())]
    also, text = {"zero-0.5": "on-taught-falling"}, ["data.test.source=x"]
    found = gathered(tmp_path, names, "a test", 0.5, also, tmp_path / "statistics.json.gz", text=text)
    systems = found["systems"]
    assert texts == [text]
    assert len(systems["on-taught"]["runs"]) == 2
    assert "outputs_sha256" not in systems["on-taught"]["runs"][0]
    assert "against_on" not in systems["on-taught"]
    assert systems["zero-0.5"]["against"]["on-taught-falling"]["baselines"] == 2
    stored = SentenceStatistics.read(tmp_path / found["statistics"]["file"])
    assert not any(name.startswith("on-taught-s") for name in stored.systems)
    (tmp_path / "on-s1" / "outputs" / "valid.txt").write_text("".join(f"{line}\n" for line in truth))
    on_valid = gathered(tmp_path, ["on-s1"], "a test", 0.5, split="valid")
    assert on_valid["systems"]["on"]["runs"][0]["outputs_sha256"]


def test_documents_can_be_the_unit_of_resampling(baseline, tmp_path, monkeypatch):
    """Blank lines end documents; lines of one side only, and documents without any other, do not count."""
    source = [
        "the dog sees a cat .",
        "the cat .",
        "",
        "",
        "a dog .",
        "",
        "the cat .",
        "the dog sees a cat .",
        "the dog sees a cat .",
        "",
        "a",
        "",
    ]
    target = [
        "der Hund sieht ein Katze .",
        "",
        "",
        "",
        "der Hund sieht ein Katze .",
        "",
        "der Hund sieht ein Katze .",
        "der Hund sieht ein Katze .",
        "der Hund sieht ein Katze .",
        "",
        "",
        "",
    ]
    for side, lines in (("source", source), ("target", target)):
        (tmp_path / side).write_text("".join(f"{line}\n" for line in lines))
    values = tiny.recipe(tmp_path / "data")
    values["data"]["test"] = {side: str(tmp_path / side) for side in ("source", "target")}
    recipe, tokenizers = parse_recipe(values, "test"), load_tokenizers(baseline)
    assert seeds.document_numbers(recipe, tokenizers, "test") == [0, 1, 2, 2, 2]
    monkeypatch.setattr(seeds, "load_recipe", lambda path, text: recipe)
    monkeypatch.setattr(seeds, "build_tokenizers", lambda *arguments: tokenizers)
    for seed in (1, 2):
        for system, outputs in (
            ("on", ["der Hund sieht ein Katze ."] * 5),
            ("zero-0.5", ["der Hund sieht ein Katze ."] * 2 + ["der Hund sieht ein Hund ."] * 3),
        ):
            run_folder(tmp_path / "runs" / f"{system}-s{seed}", outputs, seed, sparse=system != "on")
    names = [path.name for path in sorted((tmp_path / "runs").iterdir())]
    results = {}
    for by_document in (True, False):
        file = tmp_path / "statistics.json.gz"
        found = gathered(tmp_path / "runs", names, "a test", 0.5, None, file, by_document=by_document)
        results[by_document] = found["systems"]["zero-0.5"]["against_on"]
        assert SentenceStatistics.read(file).documents == ([0, 1, 2, 2, 2] if by_document else [0, 1, 2, 3, 4])
    assert (results[True]["unit"], results[True]["units"]) == ("document", 3)
    assert (results[False]["unit"], results[False]["units"]) == ("sentence", 5)
    assert results[True]["difference"] == results[False]["difference"]
    assert results[True]["lower"] != results[False]["lower"]


def test_pairs_that_start_from_one_baseline_are_one_unit(tmp_path, monkeypatch):
    truth = [f"the small house number {n} stands there" for n in range(30)]
    monkeypatch.setattr(seeds, "load_recipe", lambda path, text: SimpleNamespace(evaluate=Evaluate()))
    monkeypatch.setattr(seeds, "build_tokenizers", lambda *arguments: None)
    monkeypatch.setattr(seeds, "references", lambda recipe, tokenizers, split: truth)
    for seed in (1, 2, 3, 4):
        for system in ("on", "zero-0.5"):
            folder = tmp_path / f"{system}-s{seed}"
            wrong = [line.replace("house", "tree") if n % (seed + 2) == 0 else line for n, line in enumerate(truth)]
            run_folder(folder, truth if system == "on" else wrong, seed, sparse=system != "on")
            start = 1 if seed == 4 else seed
            text = (folder / "recipe.yaml").read_text() + f"model: {{init: runs/base-s{start}}}\n"
            (folder / "recipe.yaml").write_text(text)
    names = [f"{system}-s{seed}" for system in ("on", "zero-0.5") for seed in (1, 2, 3, 4)]
    result = gathered(tmp_path, names, "a test", 0.5, statistics_file=tmp_path / "statistics.json.gz")
    against = result["systems"]["zero-0.5"]["against_on"]
    assert (against["baselines"], against["seeds"], against["baseline_of"]) == (3, 4, [0, 1, 2, 0])
    assert verdict(from_json(DifferenceOverBaselines, against), "BLEU").preliminary
    found = SentenceStatistics.read(tmp_path / result["statistics"]["file"])
    assert list(found.systems) == names
    ours = [found.systems[f"zero-0.5-s{seed}"]["bleu"].score for seed in (1, 2, 3, 4)]
    assert against["differences"] == pytest.approx([score - 100 for score in ours])


def test_one_seed_is_compared_over_sentences_with_other_systems_too(tmp_path, monkeypatch):
    truth = [f"the small house number {n} stands there" for n in range(30)]
    monkeypatch.setattr(seeds, "load_recipe", lambda path, text: SimpleNamespace(evaluate=Evaluate()))
    monkeypatch.setattr(seeds, "build_tokenizers", lambda *arguments: None)
    monkeypatch.setattr(seeds, "references", lambda recipe, tokenizers, split: truth)
    for system, every in (("on", 99), ("learned", 5), ("rule", 3)):
        wrong = [line.replace("house", "tree") if n % every == 1 else line for n, line in enumerate(truth)]
        run_folder(tmp_path / f"{system}-s1", wrong, 1, sparse=system != "on")
    names = ["on-s1", "learned-s1", "rule-s1"]
    found = gathered(tmp_path, names, "a test", 0.5, {"rule": "learned", "other": "learned"})["systems"]
    assert [sorted(found[system].get("one_seed", {})) for system in found] == [[], ["on"], ["learned", "on"]]
    against = {other: compared["difference"] for other, compared in found["rule"]["one_seed"].items()}
    assert against["on"] < against["learned"] < 0
    assert against["on"] - against["learned"] == pytest.approx(found["learned"]["one_seed"]["on"]["difference"])
    low, high = found["rule"]["one_seed"]["learned"]["interval"]
    assert low < against["learned"] < high
    alone = gathered(tmp_path, ["learned-s1", "rule-s1"], "a test", 0.5)["systems"]
    assert not any("one_seed" in system for system in alone.values())


def test_a_system_is_compared_with_the_continued_baseline_trained_in_its_way():
    systems = ("on", "on-long", "zero-0.5", "zero-0.5-long", "zero-long", "zero-0.5-text")
    found = [seeds.continued_of(system, systems) for system in systems]
    assert found == ["on", "on", "on", "on-long", "on-long", "on"]


def test_runs_that_read_the_same_text_prepare_it_once(tmp_path, monkeypatch):
    train = {"steps": 2, "save_every": 2, "eval_every": 2}
    recipes = [
        parse_recipe({**tiny.recipe(tmp_path, train=train), "name": f"base-s{seed}", "seed": seed}, "test")
        for seed in (1, 2)
    ]
    trained = []
    monkeypatch.setattr(
        seeds, "train_in_parallel", lambda todo, *_, **__: iter(trained.append(r.name) or r.name for r in todo)
    )
    seeds.train_all(recipes, tmp_path / "runs", 2, 1, Console(quiet=True))
    assert trained == ["base-s1", "base-s2"]
    for part in ("tokenizer", "data"):
        first, second = (tmp_path / "runs" / recipe.name / part for recipe in recipes)
        assert not first.is_symlink()
        assert second.resolve() == first.resolve()


def test_separate_vocabularies_are_both_shared(tmp_path, monkeypatch):
    separate = tiny.recipe(tmp_path, tokenizer={"vocab_size": 60, "shared": False})
    recipes = [parse_recipe({**separate, "name": f"base-s{seed}", "seed": seed}, "test") for seed in (1, 2)]
    monkeypatch.setattr(seeds, "train_in_parallel", lambda *_, **__: iter(()))
    seeds.train_all(recipes, tmp_path / "runs", 2, 1, Console(quiet=True))
    first, second = (load_tokenizers(tmp_path / "runs" / recipe.name) for recipe in recipes)
    assert not second.shared
    assert second.fingerprints == first.fingerprints
    assert (tmp_path / "runs" / "base-s2" / "tokenizer_target").is_symlink()


def test_the_first_ready_recipe_starts_first(tmp_path, monkeypatch):
    recipes = [parse_recipe({**tiny.recipe(tmp_path), "name": name}, "test") for name in ("later", "now", "next")]
    finished = []

    def start(recipe, folder, threads, bars):
        process = subprocess.Popen([sys.executable, "-c", ""])
        return parallel.RunProcess(recipe, folder / recipe.name, process, bars.add_task(""), time.perf_counter())

    monkeypatch.setattr(parallel, "start", start)
    found = parallel.train_in_parallel(
        recipes, tmp_path, 1, 1, Console(quiet=True), lambda *_: None, lambda r: r.name != "later" or len(finished) == 2
    )
    for name in found:
        finished.append(name)
    assert finished == ["now", "next", "later"]


class Pool:
    """Replaces `train_in_parallel`, two at a time: starts ready recipes, and finishes the oldest run."""

    def __init__(self, runs):
        self.runs, self.order = runs, []

    def __call__(self, todo, folder, parallel, threads, console, spent, ready, more, busy):
        waiting, running = list(todo), []
        while waiting or running:
            while len(running) < parallel and (able := next(filter(ready, waiting), None)):
                waiting.remove(able)
                running.append(able.name)
                self.order.append(able.name)
            if running:
                done = running.pop(0)
                (self.runs / done / "metrics.json").write_text("{}")
                waiting += more(done)
                yield done


def family(tmp_path):
    """A baseline, it continued, a sparse model distilled from that on its outputs, and an unrelated run."""
    runs = tmp_path / "runs"
    distilled = {"teacher": {"model": str(runs / "on-s1")}}

    def recipe(name, init=None, train=None, target=None):
        values = tiny.recipe(tmp_path) if init is None else tiny.sparse(tmp_path, init, train=train or {})
        if target is not None:
            values["data"]["train"]["target"] = str(target)
        return parse_recipe({**values, "name": name}, "test")

    base, on = str(runs / "base-s1"), recipe("on-s1", str(runs / "base-s1"))
    return runs, [
        recipe("zero-s1", base, distilled, runs / "translated"), on, recipe("base-s1"), recipe("apart-s1"),
    ]  # fmt: skip


def test_runs_that_read_the_same_outputs_tokenize_them_once(tmp_path, monkeypatch):
    runs, (zero, on, base, _) = family(tmp_path)
    dense = zero.model_copy(update={"name": "on-taught-s1", "l0drop": None})
    rule = zero.model_copy(update={"name": "freq-s1", "l0drop": zero.l0drop.model_copy(update={"gate": "freq"})})
    other = zero.model_copy(
        update={"name": "zero-s2", "model": on.model.model_copy(update={"init": str(runs / "apart-s1")})}
    )
    pool = Pool(runs)
    monkeypatch.setattr(seeds, "train_in_parallel", pool)
    monkeypatch.setattr(seeds, "_check_dependencies", lambda *_: None)
    (runs / "apart-s1").mkdir(parents=True)
    (runs / "apart-s1" / "metrics.json").write_text("{}")
    then = {("on-s1",): lambda: (runs / "translated").write_text("x\n")}
    seeds.train_all([zero, dense, rule, other, on, base], runs, 2, 1, Console(quiet=True), then)
    shared = [runs / name / "data" for name in ("on-taught-s1", "zero-s1")]  # whichever starts first has the data
    assert shared[0].resolve() == shared[1].resolve()
    assert [path.is_symlink() for path in shared].count(True) == 1
    for name in ("freq-s1", "zero-s2", "on-s1"):
        assert not (runs / name / "data").exists(), f"{name} reads other text, or with hints"
    assert len(pool.order) == 6


def test_runs_start_as_soon_as_their_dependencies_are_finished(tmp_path, monkeypatch):
    runs, recipes = family(tmp_path)
    pool, written = Pool(runs), []

    def translate():
        assert (runs / "on-s1" / "metrics.json").exists()
        written.append(1)
        (runs / "translated").write_text("x\n")

    monkeypatch.setattr(seeds, "train_in_parallel", pool)
    seeds.train_all(recipes, runs, 2, 1, Console(quiet=True), {("on-s1",): translate})
    assert pool.order[:2] == ["base-s1", "apart-s1"], "a waiting recipe occupies no slot"
    assert pool.order[2:] == ["on-s1", "zero-s1"]
    (runs / "zero-s1" / "metrics.json").unlink()
    seeds.train_all(recipes, runs, 2, 1, Console(quiet=True), {("on-s1",): translate})
    assert pool.order[4:] == ["zero-s1"], "finished runs are not trained again"
    assert written == [1, 1], "tasks of runs that were finished before start too"


def test_a_finished_run_can_add_recipes(tmp_path, monkeypatch):
    runs, (zero, on, base, apart) = family(tmp_path)
    (tmp_path / "runs").mkdir()
    (runs / "translated").write_text("x\n")
    pool, asked = Pool(runs), []

    def brought():
        asked.append((runs / "on-s1" / "metrics.json").exists())
        return [zero, apart]

    monkeypatch.setattr(seeds, "train_in_parallel", pool)
    seeds.train_all([base, on], runs, 1, 1, Console(quiet=True), more={"on-s1": brought})
    assert pool.order == ["base-s1", "on-s1", "zero-s1", "apart-s1"]
    (runs / "zero-s1" / "metrics.json").unlink()
    seeds.train_all([base, on], runs, 1, 1, Console(quiet=True), more={"on-s1": brought})
    assert pool.order[4:] == ["zero-s1"], "also if the run that adds it was finished before"
    assert asked == [True, True]


def test_a_failed_run_does_not_end_the_others(tmp_path, monkeypatch):
    names = ("bad", "good", "follower", "last", "brought")
    recipes = {name: parse_recipe({**tiny.recipe(tmp_path), "name": name}, "test") for name in names}
    started = []

    def start(recipe, folder, threads, bars):
        started.append(recipe.name)
        (folder / recipe.name).mkdir()
        RunFolder(folder / recipe.name).process_output.write_text("error: no room\n")
        process = subprocess.Popen([sys.executable, "-c", f"raise SystemExit({int(recipe.name == 'bad')})"])
        return parallel.RunProcess(recipe, folder / recipe.name, process, bars.add_task(""), time.perf_counter())

    monkeypatch.setattr(parallel, "start", start)
    todo = [recipes[name] for name in names[:4]]
    found = parallel.train_in_parallel(
        todo, tmp_path, 1, 1, Console(quiet=True), lambda *_: None, lambda r: r.name != "follower",
        lambda name: [recipes["brought"]] if name == "last" else [],
    )  # fmt: skip
    with pytest.raises(parallel.RunError, match="bad: no room"):
        list(found)
    assert started == ["bad", "good", "last", "brought"], "and a recipe that depends on it does not wait for ever"


def test_after_a_failure_background_tasks_are_still_waited_for(tmp_path, monkeypatch):
    recipes = [parse_recipe({**tiny.recipe(tmp_path), "name": name}, "test") for name in ("bad", "waits")]
    started, looks = [], []

    def start(recipe, folder, threads, bars):
        started.append(recipe.name)
        (folder / recipe.name).mkdir()
        RunFolder(folder / recipe.name).process_output.write_text("error: before\nerror: no room\n")
        process = subprocess.Popen([sys.executable, "-c", f"raise SystemExit({int(recipe.name == 'bad')})"])
        return parallel.RunProcess(recipe, folder / recipe.name, process, bars.add_task(""), time.perf_counter(), 14)

    def busy():
        looks.append(1)
        return len(looks) < 5

    monkeypatch.setattr(parallel, "start", start)
    found = parallel.train_in_parallel(
        recipes, tmp_path, 1, 1, Console(quiet=True), lambda *_: None,
        lambda recipe: recipe.name == "bad" or len(looks) > 2, busy=busy,
    )  # fmt: skip
    with pytest.raises(parallel.RunError, match="bad: no room"):
        list(found)
    assert started == ["bad", "waits"]


def test_an_error_of_an_earlier_execution_is_not_reported_again(tmp_path):
    RunFolder(tmp_path).process_output.write_text("error: of yesterday\nkilled\n")
    process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(1)"])
    process.wait()
    recipe = parse_recipe(tiny.recipe(tmp_path), "test")
    assert "ended with code 1" in parallel.RunProcess(recipe, tmp_path, process, 0, 0.0, 20).error
    assert parallel.RunProcess(recipe, tmp_path, process, 0, 0.0).error == "of yesterday killed"


def test_a_teacher_that_is_a_copy_of_the_start_is_no_dependency(tmp_path):
    values = tiny.sparse(tmp_path, "base-s1", train={"teacher": {"model": "init"}})
    assert seeds.builds_on(parse_recipe(values, "test"), Path()) == ["base-s1"]


def test_a_failed_background_task_ends_the_runs_that_need_it(tmp_path, monkeypatch):
    runs, recipes = family(tmp_path)

    def fails():
        raise OSError("no room for the translations")

    pool = Pool(runs)
    monkeypatch.setattr(seeds, "train_in_parallel", pool)
    with pytest.raises(OSError, match="no room"):
        seeds.train_all(recipes, runs, 1, 1, Console(quiet=True), {("on-s1",): fails})
    assert "zero-s1" not in pool.order


def test_a_failed_background_task_that_no_run_needs_is_reported_at_the_end(tmp_path, monkeypatch):
    runs, recipes = family(tmp_path)
    runs.mkdir()
    (runs / "translated").write_text("x\n")
    pool = Pool(runs)

    def fails():
        raise OSError("no room for the analysis")

    monkeypatch.setattr(seeds, "train_in_parallel", pool)
    with pytest.raises(OSError, match="no room"):
        seeds.train_all(recipes, runs, 1, 1, Console(quiet=True), {("base-s1", "on-s1"): fails})
    assert set(pool.order) == {recipe.name for recipe in recipes}


def test_missing_dependencies_are_named(tmp_path):
    runs, (zero, on, base, _) = family(tmp_path)
    for recipes, then, message in (
        ([zero, base], {}, "on-s1: zero-s1 needs it"),
        ([on], {}, "base-s1: on-s1 needs it"),
        ([base], {("base-s1", "on-s1"): print}, "on-s1: a background task needs it"),
    ):
        with pytest.raises(ValueError, match=message):
            seeds.train_all(recipes, runs, 2, 1, Console(quiet=True), then)


def test_text_is_found_in_a_folder(tmp_path):
    for split in ("train", "valid", "test"):
        for ending in ("en", "de.xz"):
            (tmp_path / f"{split}.{ending}").touch()
    found = seeds.text_in(tmp_path, "en", "de")
    assert len(found) == 6
    assert f"data.valid.target={tmp_path / 'valid.de.xz'}" in found
    with pytest.raises(ValueError, match="no train.fr"):
        seeds.text_in(tmp_path, "en", "fr")
