"""A study: its plan, the order of its runs, its results. Runs are stand-ins that write their outputs at once."""

import json
from pathlib import Path

import pytest
import yaml

from l0drop.runs.study import StudyResults
from l0drop.study import seeds
from l0drop.study.distillation import Distillation
from l0drop.study.sentence_statistics import SentenceStatistics
from l0drop.study.study import Options, Study, SystemRecipe, UnknownSystemError, at_target, continued
from tests.training import tiny


class Tiny(Study):
    """A sparsity with every seed, single systems, and one that is known once another is trained."""

    what, endings, margin = "tiny text", ("source", "target"), 0.5
    fine_tuning = ("train.steps=30",)

    def systems(self):
        return [
            at_target("zero-0.5", 0.5),
            SystemRecipe("alone", ("train.steps=40",), seeds=1, from_scratch=True),
            SystemRecipe("short", ("l0drop.gating=mask",), seeds=1, distil="token", needs=("alone-s1",)),
            continued("on-long", "train.steps=60", seeds=1),
        ]

    def follow_ups(self):
        return {"short-s1": lambda: [at_target("follows", 0.6, seeds=1)]}

    @staticmethod
    def tables(found):
        return []


@pytest.fixture
def study(tmp_path):
    data = tmp_path / "data"
    base, sparse = tiny.recipe(data), tiny.sparse(data, "elsewhere", train={"teacher": {"weight": 1.0}})
    for name, values in (("base", base), ("sparse", sparse)):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(values))
    Tiny.base_recipe, Tiny.sparse_recipe = tmp_path / "base.yaml", tmp_path / "sparse.yaml"
    return lambda kind=Tiny, **options: kind(Options(data, tmp_path / "runs", **{"seeds": 2, **options}))


def planned(study):
    return {recipe.name: recipe for recipe in study.plan()}


def test_baselines_come_first_and_every_system_has_its_seeds(study):
    assert list(planned(study())) == [
        "base-s1", "base-s2", "on-s1", "on-s2", "zero-0.5-s1", "zero-0.5-s2", "alone-s1", "short-s1", "on-long-s1",
    ]  # fmt: skip


def test_seeds_share_baselines_if_there_are_fewer_of_them(study, tmp_path):
    for count, starts in ((None, [1, 2, 3]), (1, [1, 1, 1]), (2, [1, 2, 1]), (9, [1, 2, 3])):
        made = planned(study(seeds=3, baselines=count))
        assert [name for name in made if name.startswith("base")] == [f"base-s{n}" for n in sorted({*starts})]
        of_seeds = [made[f"on-s{seed}"] for seed in (1, 2, 3)]
        assert [recipe.model.init for recipe in of_seeds] == [str(tmp_path / f"runs/base-s{n}") for n in starts]
        assert all(recipe.train.teacher is None and recipe.l0drop is None for recipe in of_seeds)
        assert [recipe.seed for recipe in of_seeds] == [1, 2, 3]


def test_options_replace_the_studys_values_and_systems_replace_both(study):
    options = {"baseline": ["train.steps=5"], "fine_tune": ["train.steps=6", "l0drop.target_sparsity=0.2"]}
    made = planned(study(every_run=["train.warmup=2"], **options))
    steps = {name: recipe.train.steps for name, recipe in made.items()}
    assert (steps["base-s2"], steps["on-s1"], steps["alone-s1"], steps["on-long-s1"]) == (5, 6, 40, 60)
    assert planned(study())["on-s1"].train.steps == 30
    assert made["zero-0.5-s1"].l0drop.target_sparsity == 0.5
    assert made["short-s1"].l0drop.target_sparsity == 0.2
    assert {recipe.train.warmup for recipe in made.values()} == {2}


def test_a_continued_baseline_has_no_teacher_even_if_the_options_set_one(study):
    made = planned(study(fine_tune=["train.teacher.model=init"]))
    assert made["zero-0.5-s1"].train.teacher.model == "init"
    assert made["on-s1"].train.teacher is made["on-long-s1"].train.teacher is None


def test_the_text_that_is_decoded_is_the_text_that_is_read(study, tmp_path):
    other = tmp_path / "data" / "valid.source"
    made = study(every_run=[f"data.train.source={other}"])
    assert made.teachers[1].source == other
    assert planned(made)["zero-0.5-s1"].data.train.source == str(other)


def test_selected_systems_bring_the_runs_that_they_need(study):
    def names(*systems, **options):
        return {*planned(study(systems=systems, **options))}

    assert names("alone") == {"alone-s1"}
    assert names("base") == {"base-s1", "base-s2"}
    assert names("zero-0.5") == {f"{name}-s{n}" for name in ("base", "on", "zero-0.5") for n in (1, 2)}
    assert names("short") == {"base-s1", "on-s1", "alone-s1", "short-s1"}, "of other systems the needed seeds alone"
    assert names("zero-0.5", distil="no") == {f"{name}-s{n}" for name in ("base", "zero-0.5") for n in (1, 2)}
    assert names("zero-0.5", distil="sequence", baselines=1, seeds=3) == {
        "base-s1", "on-s1", *(f"zero-0.5-s{n}" for n in (1, 2, 3)),
    }, "on-s1 decodes the training text for all"  # fmt: skip
    with pytest.raises(UnknownSystemError, match="nine, two: unknown in these parts, which have base, on, zero-0.5, a"):
        names("two", "on", "nine")


def test_two_systems_of_one_name_are_refused(study):
    class Twice(Tiny):
        def systems(self):
            return [at_target("same", 0.3), at_target("same", 0.4)]

    with pytest.raises(ValueError, match="same: the study has two systems of this name"):
        study(Twice).plan()


class StandIns:
    """Replaces `train_in_parallel`: every run finishes at once, with the references as outputs.

    Outputs of sparse runs are wrong in every third line. The decoded training text must exist before a run reads it.
    """

    def __init__(self, runs):
        self.runs, self.order = runs, []

    def __call__(self, todo, folder, parallel, threads, console, spent, ready, more, busy):
        waiting = list(todo)
        while waiting:
            if (recipe := next(filter(ready, waiting), None)) is None:
                continue
            waiting.remove(recipe)
            assert Path(recipe.data.train.target).exists()
            self.order.append(recipe.name)
            self.finish(recipe)
            waiting += more(recipe.name)
            yield recipe.name

    def finish(self, recipe):
        lines = Path(recipe.data.test.target).read_text().splitlines()
        if recipe.l0drop is not None:
            lines = ["Hund" if number % 3 == 0 else line for number, line in enumerate(lines)]
        folder = self.runs / recipe.name
        (folder / "outputs").mkdir()
        (folder / "outputs" / "test.txt").write_text("".join(f"{line}\n" for line in lines))
        (folder / "log.jsonl").write_text('{"step": 3, "train_runtime": 2.0}\n')
        score = {"score": {"name": "BLEU", "value": 50.0, "signature": "s"}, "sentences": len(lines)}
        about = {"name": recipe.name, "steps": 3, "seed": recipe.seed, "dtype": "fp32", "decoding": {}}
        (folder / "metrics.json").write_text(json.dumps({**about, "valid": score, "test": score}))


def test_a_study_from_its_plan_to_its_results(study, tmp_path, monkeypatch):
    runs = tmp_path / "runs"
    stand_ins, decoded, called = StandIns(runs), [], []

    def write(self, run, ways, processes):
        decoded.append((run.name, ways, processes))
        self.outputs.write_text(self.target.read_text())

    class WithTask(Tiny):
        decoders = 2

        def background(self):
            return {("short-s1",): lambda: called.append(self.trains("short"))}

    monkeypatch.setattr(Distillation, "write", write)
    monkeypatch.setattr(seeds, "train_in_parallel", stand_ins)
    made = study(WithTask, parallel=3)
    made.train(made.plan())
    made.gather()
    assert decoded == [("on-s1", ["both", "no", "token"], 2)]
    assert called == [True]
    first = [stand_ins.order.index(name) for name in ("base-s1", "on-s1", "zero-0.5-s1", "short-s1", "follows-s1")]
    assert first[0] < first[1] < min(first[2:4])
    assert first[3] < first[4]
    found = StudyResults.read(runs / "results.json")
    assert {name: len(system.runs) for name, system in found.systems.items()} == {
        "base": 2, "on": 2, "zero-0.5": 2, "alone": 1, "short": 1, "on-long": 1, "follows": 1,
    }  # fmt: skip
    assert found.what == "tiny text"
    assert found.systems["zero-0.5"].against_on.difference < -5
    assert found.systems["short"].one_seed["on"].difference < -5
    assert (runs / found.statistics.file).exists()
    before = (runs / "results.json").read_text()
    again = study(WithTask)
    assert "follows-s1" not in planned(again)
    assert "follows-s1" in again.recipes, "a follow-up of a finished run is gathered"
    again.gather()
    assert (runs / "results.json").read_text() == before


@pytest.mark.parametrize(
    ("evaluate", "metric", "signature"),
    [
        ("evaluate.metric=rouge", "rouge", "rouge"),
        ("evaluate.metric=chrf", "chrf", "nc:6"),
        ("evaluate.tokenize=zh", "bleu", "tok:zh"),
    ],
)
def test_results_are_compared_in_the_metric_of_the_recipe(evaluate, metric, signature, study, tmp_path, monkeypatch):
    class Few(Tiny):
        def systems(self):
            return [at_target("zero-0.5", 0.5)]

    monkeypatch.setattr(seeds, "train_in_parallel", StandIns(tmp_path / "runs"))
    made = study(Few, seeds=1, distil="token", every_run=[evaluate])
    made.train(made.plan())
    found = made.gather()
    stored = SentenceStatistics.read(tmp_path / "runs" / found.statistics.file)
    assert signature in stored.metrics[metric].signature.lower()
    ours, theirs = (stored.systems[f"{name}-s1"][metric].score for name in ("zero-0.5", "on"))
    assert theirs == pytest.approx(100)
    assert found.systems["zero-0.5"].one_seed["on"].difference == pytest.approx(ours - theirs)
    assert ours < 95


def test_nothing_is_decoded_if_no_run_reads_it(study, monkeypatch):
    found = {}
    monkeypatch.setattr("l0drop.study.study.train_all", lambda *arguments: found.update(arguments[-2]))
    for way, expected in (("token", []), ("no", []), ("mixed", [("on-s1",)]), ("sequence", [("on-s1",)])):
        found.clear()
        made = study(distil=way)
        made.train(made.plan())
        assert list(found) == expected
