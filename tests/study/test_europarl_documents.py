"""The study of documents: its text, its plan, and training for a limited time."""

import shutil
from pathlib import Path

import pytest
from rich.console import Console

import document_beams
import europarl_documents
from document_text import Documents, whole_documents, write_documents
from europarl_documents import EuroparlDocuments, Limits
from l0drop.data.text import TextFiles, read_lines
from l0drop.data.tokenizer import load_tokenizers
from l0drop.recipe import parse_recipe
from l0drop.runs.json_file import read_any
from l0drop.runs.run import RunFolder, RunMetrics
from l0drop.runs.study import BeamScores, Sources
from l0drop.study.study import Options
from tests.runs.partial import filled
from tests.training import tiny
from time_limit import PLANNED, train_for

SHORT, LONG = 32, 80


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Speeches of one to seven sentences, which blank lines end."""
    folder = tmp_path_factory.mktemp("data")
    for seed, (split, count) in enumerate({"train": 120, "valid": 40, "test": 40}.items()):
        for side, file in tiny.write_text(folder, split, count, seed).items():
            ends, lines = 0, []
            for number, line in enumerate(read_lines(file)):
                lines.append(line)
                if number == ends:
                    lines.append("")
                    ends += 1 + number % 7
            Path(file).unlink()
            (folder / f"{split}.{'en' if side == 'source' else 'de'}").write_text("".join(f"{one}\n" for one in lines))
    return folder


@pytest.fixture(scope="module")
def text(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "text"
    write_documents(data, out, ("en", "de"), 90, SHORT, LONG)
    return out


def lines_of(folder, split, ending="en"):
    return list(read_lines(folder / f"{split}.{ending}"))


def test_training_text_has_every_sentence_at_three_lengths(data, text):
    sentences = [line for line in lines_of(data, "train") if line]
    lines = lines_of(text, "train")
    assert lines[: len(sentences)] == sentences
    rest = lines[len(sentences) :]
    assert " ".join(rest) == " ".join(sentences * 2), "windows, then joined documents, in order"
    tokenizer = load_tokenizers(text).source
    sizes = [len(tokenizer(line)["input_ids"]) for line in rest]
    first_joined = next(n for n in range(len(rest)) if " ".join(rest[:n]) == " ".join(sentences))
    assert max(sizes[:first_joined]) <= SHORT < max(sizes[first_joined:]) <= LONG


def test_windows_stay_inside_documents(data, text):
    speeches = " \n ".join(lines_of(data, "test")).split(" \n  \n ")
    whole = [" ".join(speech.split(" \n ")) for speech in speeches]
    found = Documents.read(text / "documents.json")
    lines = lines_of(text, "test")
    parts = found.lines("test")
    assert [lines[parts[length]] for length in parts] == [lines[: parts[str(SHORT)].stop], lines[parts[str(LONG)]]]
    assert parts[str(LONG)].stop == len(lines)
    for window in lines[parts[str(SHORT)]]:
        assert any(window in speech for speech in whole)


def test_scored_examples_are_about_as_long_as_their_limit(text):
    tokenizer = load_tokenizers(text).source
    found = Documents.read(text / "documents.json")
    for split in ("valid", "test"):
        lines = lines_of(text, split)
        for length, numbers in found.lines(split).items():
            sizes = [len(tokenizer(line, add_special_tokens=False)["input_ids"]) for line in lines[numbers]]
            assert len(sizes) > 1
            assert all(0.6 * int(length) <= size < int(length) for size in sizes)
            assert sum(sizes) == found.source_tokens[split][length]


def test_documents_are_joined_whole_and_long_ones_divided(tmp_path, text):
    tokenizers = load_tokenizers(text)
    sentence = "the dog sees a cat ."
    size = len(tokenizers.source(sentence, add_special_tokens=False)["input_ids"])
    for side in ("a", "b"):
        (tmp_path / side).write_text("\n\n".join("\n".join([sentence] * count) for count in (2, 2, 1, 7, 1)) + "\n")
    joined = whole_documents(TextFiles(tmp_path / "a", tmp_path / "b"), tokenizers, 5 * size + 1)
    found = [pair.source.count("dog") for pair in joined]
    assert found == [5, 5, 3]


def test_text_is_written_once(data, text):
    before = (text / "train.en").stat().st_mtime_ns
    assert write_documents(data, text, ("en", "de"), 90, SHORT, LONG) == Documents.read(text / "documents.json")
    assert (text / "train.en").stat().st_mtime_ns == before


def study(text, runs="runs", **changes):
    return EuroparlDocuments(Options(text, Path(runs), seeds=1, **changes))


def test_all_systems_are_distilled_from_the_baseline(text):
    planned = EuroparlDocuments(Options(text, Path("runs"), seeds=1), ("zero-0.6", "zero-0.45", "mean-0.6"))
    made = {recipe.name: recipe for recipe in planned.plan()}
    assert [*made] == ["base-s1", "on-s1", "zero-0.6-s1", "zero-0.45-s1", "mean-0.6-s1"]
    assert made["base-s1"].tokenizer.pretrained == str(text / "tokenizer")
    assert made["on-s1"].l0drop is None
    for name, recipe in made.items():
        if name != "base-s1":
            assert recipe.model.init == "runs/base-s1"
            assert recipe.train.teacher is not None
            assert recipe.train.teacher.model == "init"
            assert recipe.train.steps == made["on-s1"].train.steps
    assert made["mean-0.6-s1"].l0drop.gating == "mean"
    assert made["zero-0.45-s1"].l0drop.target_sparsity == 0.45


def write_outputs(run, text, wrong):
    run.outputs.mkdir(parents=True)
    for split in ("valid", "test"):
        outputs = ["der"] * wrong + lines_of(text, split, "de")[wrong:]
        (run.outputs / f"{split}.txt").write_text("".join(f"{line}\n" for line in outputs))


def results_of(**steps):
    """steps: of each seed of a system."""
    systems = {
        name.replace("_", "-"): {"recipe": {}, "runs": [{"seed": n, "steps": s} for n, s in enumerate(each, 1)]}
        for name, each in steps.items()
    }
    return filled(europarl_documents.StudyResults, {"what": "", "systems": systems})


def test_scores_by_length(text, tmp_path):
    made = study(text, runs=tmp_path)
    made.plan()
    for name, wrong in (("on", 0), ("zero-0.6", 3)):
        write_outputs(RunFolder(tmp_path / f"{name}-s1"), text, wrong)
    Sources("der", {"test": {str(LONG): 0.6}}).write(tmp_path / "zero-0.6-s1" / "sources.json")
    found = made.lengths(results_of(**{"on": [9], "zero-0.6": [9]}))
    assert len(found.rows) == 8
    assert found.over == []
    dense, sparse = (found.of(name, "test", SHORT)[0] for name in ("on", "zero-0.6"))
    assert dense.score.value == pytest.approx(100)
    assert dense.difference is None
    assert sparse.difference is not None
    assert sparse.difference.difference < 0
    assert sparse.difference.unit == "document"
    (long,) = found.of("zero-0.6", "test", LONG)
    assert (long.sparsity, long.score.value) == (0.6, pytest.approx(100)), "the first lines are windows"
    assert set(long.controls) == {"shuffled_source", "no_source"}
    assert long.controls["shuffled_source"].value < 90
    assert set(dense.controls) == {"shuffled_source"}


def test_runs_of_other_steps_are_not_compared(text, tmp_path):
    """A time limit may stop one of the runs side by side."""
    made = study(text, runs=tmp_path)
    for name in ("base", "on", "zero-0.6"):
        write_outputs(RunFolder(tmp_path / f"{name}-s1"), text, 1)
    found = made.lengths(results_of(**{"base": [20], "on": [9], "zero-0.6": [8]}))
    assert found.difference("zero-0.6", "test", SHORT) is None
    assert found.difference("base", "test", SHORT) is not None


def test_several_baselines_are_compared_over_baselines(text, tmp_path):
    made = EuroparlDocuments(Options(text, tmp_path, seeds=3))
    for seed in (1, 2, 3):
        for name, wrong in (("on", 0), ("zero-0.6", seed)):
            write_outputs(RunFolder(tmp_path / f"{name}-s{seed}"), text, wrong)
    found = made.lengths(results_of(**{"on": [9, 9, 7], "zero-0.6": [9, 9, 8]}))
    against = found.difference("zero-0.6", "test", SHORT)
    assert (against.baselines, against.unit) == (2, "document"), "those of the third seed have other steps"
    first, second, third = found.of("zero-0.6", "test", SHORT)
    assert against.differences == pytest.approx((first.difference.difference, second.difference.difference))
    assert third.difference is None
    assert (first.seed, third.seed) == (1, 3)


def test_another_baseline_is_trained_under_another_seed(text):
    made = {recipe.name: recipe for recipe in study(text, first_seed=2).plan()}
    assert {"base-s2", "on-s2"} < {*made}
    assert made["on-s2"].model.init == "runs/base-s2"
    assert {recipe.seed for recipe in made.values()} == {2}


def test_steps_follow_from_the_speed_of_the_baseline():
    alone = Limits(200, 150)
    assert alone.steps(0.02, 1) == int(0.85 * 130 / (0.02 * 1.35)), "with time to spare"
    assert alone.steps(0.02, 4) == int(0.85 * 130 / (0.02 * 1.35 * 4)), "runs share the GPU"
    beside = Limits(200, 150, beside=7)
    assert beside.steps(0.02, 4) == alone.steps(0.02, 4), "so fast a baseline was not slowed down"
    assert beside.steps(0.3, 4) > alone.steps(0.3, 4), "a slow one had shared it with others"


def test_a_run_that_the_limit_stops_is_scored(tmp_path):
    recipe = parse_recipe(tiny.recipe(tmp_path / "data", train={"steps": 100_000, "save_every": 10}), "test")
    trained = train_for(recipe, tmp_path / "runs", 6)
    folder = RunFolder(tmp_path / "runs" / "tiny")
    metrics = RunMetrics.read(folder.metrics)
    assert 0 < trained.train.steps == metrics.steps < 100_000
    assert metrics.test is not None
    assert read_any(folder.path / PLANNED, "") == {"steps": 100_000}


def test_a_run_within_the_limit_keeps_its_steps(tmp_path):
    recipe = parse_recipe(tiny.recipe(tmp_path / "data"), "test")
    assert train_for(recipe, tmp_path / "runs", 500) == recipe
    assert not (tmp_path / "runs" / "tiny" / PLANNED).exists()


def test_fewer_beams_are_scored_and_timed(data, text, tmp_path):
    """On a CPU, with barely trained models."""
    runs = tmp_path / "runs"
    shutil.copytree(text, runs / "text")
    train_for(parse_recipe(tiny.recipe(tmp_path / "data", "base"), "test"), runs, 500)
    train_for(parse_recipe(tiny.sparse(tmp_path / "data", str(runs / "base"), "sparse"), "test"), runs, 500)
    for ending in ("en", "de"):  # short enough for these models
        cut = [" ".join(line.split()[:6]) for line in lines_of(text, "test", ending)]
        (runs / "text" / f"test.{ending}").write_text("".join(f"{line}\n" for line in cut))
    found = document_beams.measure(runs, ["base", "sparse"], [2, 1], "cpu", "float64", 1, Console(quiet=True))
    assert {row.length for row in found.rows} == {SHORT, LONG}
    rows = [row for row in found.rows if row.length == LONG]
    assert [(row.system, row.beams, row.dense) for row in rows] == [
        ("base", 2, False),
        ("sparse", 2, False),
        ("base", 1, False),
        ("sparse", 1, False),
        ("sparse", 2, True),
    ]
    assert rows[0].difference is None
    assert all(row.difference is not None and len(row.seconds) == 1 for row in rows[1:])
    assert rows[1].score == rows[4].score, "the short and the dense memory give the same outputs"
    found.write(tmp_path / "beams.json")
    assert BeamScores.read(tmp_path / "beams.json") == found
