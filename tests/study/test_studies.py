"""The systems that the study scripts declare. Training is tested elsewhere."""

import shutil
import sys
from pathlib import Path

import pytest
from transformers import MarianConfig, MarianMTModel

import europarl
import multi30k
import tuned
from l0drop.runs.run import LengthPenaltyCurve, LengthPenaltyRow, RunMetrics
from l0drop.runs.study import StudyResults
from l0drop.runs.table import Table
from l0drop.study import study as studies
from l0drop.study.distillation import Distillation
from l0drop.study.parallel import RunError
from l0drop.study.study import Options
from l0drop.training.assemble import load_dense
from result_tables.labels import label
from study_command import in_text
from tests.runs.partial import filled
from tests.training import tiny


@pytest.fixture
def data(tmp_path):
    for split in ("train", "valid", "test"):
        for side, file in tiny.write_text(tmp_path, split, 4, 1).items():
            lines = Path(file).read_text().splitlines(keepends=True)
            if split == "test":
                lines.insert(2, "\n")  # ends a speech
            Path(file).unlink()
            (tmp_path / f"{split}.{'en' if side == 'source' else 'de'}").write_text("".join(lines))
    return tmp_path


def study(data, *parts, runs="runs", **changes):
    return europarl.Europarl(Options(data, Path(runs), parts=parts, **{"seeds": 3, **changes}))


def planned(study):
    return {recipe.name: recipe for recipe in study.plan()}


def counted(recipes):
    """How many seeds each system has."""
    systems = [name.rpartition("-s")[0] for name in recipes]
    return {system: systems.count(system) for system in systems}


def test_the_declared_systems_of_europarl(data, tmp_path):
    of_parts = {
        "seeds": {"base": 3, "on": 3, "zero-0.46": 3, "on-taught": 2, "zero-0.3": 3},
        "rules": dict.fromkeys(("pos", "freq", "inv_freq", "group"), 1),
        "rivals": {"cut": 1},
        "sweep": dict.fromkeys(("zero-0.4", "zero-0.6", "zero-0.7", "mask-0.46"), 1),
        "layers": {"layers-zero": 1, "layers-mask": 1},
        "tried": dict.fromkeys(
            ("zero-no", "zero-distributions", "zero-text", "zero-mixed", "on-falling", "zero-falling", "on-long",
             "zero-long"), 1,
        ),
        "scratch": {"scratch": 1},
        "curve": {"small-vocabulary": 1, "half": 1},
    }  # fmt: skip
    every = {name: count for systems in of_parts.values() for name, count in systems.items()}
    runs = tmp_path / "runs"
    assert list(counted(planned(study(data, *europarl.Europarl.parts, runs=runs))).items()) == list(every.items())
    always = {"base": 1, "on": 1, "zero-0.46": 1}
    assert counted(planned(study(data))) == always
    assert counted(planned(study(data, "sweep"))) == always | {"zero-0.3": 1} | of_parts["sweep"]
    for part in ("rules", "rivals", "layers", "tried", "scratch", "curve"):
        assert counted(planned(study(data, part, runs=runs))) == always | of_parts[part]


def test_recipes_of_europarl(data):
    made = planned(study(data, "seeds", "sweep", "layers", "tried"))
    assert (made["mask-0.46-s1"].l0drop.gating, made["mask-0.46-s1"].l0drop.target_sparsity) == ("mask", 0.46)
    assert made["zero-0.7-s1"].l0drop.target_sparsity == 0.7
    assert made["layers-mask-s1"].l0drop.layerwise is True
    assert made["zero-falling-s1"].train.learning_rate == made["on-falling-s1"].train.learning_rate == 8e-4
    assert made["zero-long-s1"].train.steps == made["on-long-s1"].train.steps == 2 * made["on-s1"].train.steps
    assert made["on-long-s1"].train.teacher is None
    assert made["zero-long-s1"].train.teacher.model == "runs/on-s1"


def test_gated_models_are_distilled_as_the_option_says(data):
    made = planned(study(data, "seeds", "tried"))
    both = made["zero-0.46-s2"]
    assert both.train.teacher.model == "runs/on-s2"
    assert both.data.train.target == "runs/train.translated"
    assert both.l0drop.target_sparsity == 0.46
    assert made["zero-no-s1"].train.teacher is None
    assert made["zero-text-s1"].data.train.target == "runs/train.translated"
    assert made["on-taught-s1"].l0drop is None
    assert made["on-taught-s1"].data.train.target == "runs/train.translated"
    assert "on-taught-s1" not in planned(study(data, "seeds", distil="no"))


def test_selected_systems_bring_the_runs_that_they_need(data, tmp_path):
    def names(*systems, **changes):
        parts = ("seeds", "layers", "curve", "rivals")
        return {*planned(study(data, *parts, runs=tmp_path / "runs", seeds=2, systems=systems, **changes))}

    assert names("half") == {"half-s1"}
    assert names("zero-0.3") == {f"{name}-s{n}" for name in ("base", "on", "zero-0.3") for n in (1, 2)}
    assert names("layers-mask") == {"base-s1", "on-s1", "layers-mask-s1"}
    assert names("cut", distil="no") == {"base-s1", "cut-s1"}, "it is cut from the baseline"
    assert names("half", "on") == {"half-s1", "base-s1", "base-s2", "on-s1", "on-s2"}


def finished_at(sparsity: float) -> RunMetrics:
    return filled(RunMetrics, {"valid": {"sparsity": sparsity}})


@pytest.mark.parametrize(
    ("systems", "after", "more"),
    [
        (["half"], set(), set()),
        (["half", "zero-0.3"], {("on-s1",)}, set()),
        (["cut"], {("base-s1",), ("on-s1",)}, set()),
        (["pos", "layers-mask"], {("on-s1",), ("on-s1", "layers-mask-s1")}, {"pos-s1"}),
        ([], {("on-s1",), ("base-s1",), ("on-s1", "zero-0.46-s1", "cut-s1"), ("on-s1", "layers-mask-s1"),
              ("on-s1", "layers-zero-s1")}, {f"{rule}-s1" for rule in europarl.RULES}),
    ],
)  # fmt: skip
def test_only_selected_systems_are_translated_scored_and_analysed(systems, after, more, data, tmp_path, monkeypatch):
    parts = {*europarl.Europarl.parts} - {"tried"}
    made = study(data, *parts, seeds=1, systems=systems, runs=tmp_path / "runs")
    for name in ("base", "on", "zero-0.46", "cut", "pos"):  # finished runs alone trigger nothing
        (tmp_path / "runs" / f"{name}-s1").mkdir(parents=True)
        finished_at(0.5).write(tmp_path / "runs" / f"{name}-s1" / "metrics.json")
    found, last = [], []
    monkeypatch.setattr(studies, "train_all", lambda *arguments: found.extend(arguments[-2:]))
    for step in ("time_rivals", "analyze"):
        monkeypatch.setattr(made, step, lambda step=step: last.append(step))
    made.train(made.plan())
    assert ({*found[0]}, {*found[1]}) == (after, more)
    assert ("learned-as-pos-s1" in made.recipes) == ("pos-s1" in more)
    assert last == ([] if systems else ["time_rivals", "analyze"])


def test_from_scratch_takes_the_steps_of_baseline_and_fine_tuning(data):
    made = planned(study(data, "scratch", baseline=["train.steps=70"], fine_tune=["train.steps=30"]))
    assert made["scratch-s1"].train.steps == 100
    assert made["scratch-s1"].l0drop.target_sparsity == 0.46


def test_half_of_the_text_is_the_first_half(data, tmp_path):
    half = planned(study(data, "curve", runs=tmp_path / "runs"))["half-s1"].data.train
    for file, whole in ((half.source, "train.en"), (half.target, "train.de")):
        assert Path(file).read_text() == "".join((data / whole).read_text().splitlines(keepends=True)[:2])


def test_the_cut_rival_has_one_layer_of_the_baselines_decoder(data, tmp_path):
    made = study(data, "rivals", runs=tmp_path)
    sizes = {"d_model": 8, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8, "encoder_layers": 3, "decoder_layers": 3}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    base = MarianMTModel(MarianConfig(vocab_size=12, pad_token_id=0, max_position_embeddings=16, **sizes, **heads))
    base.save_pretrained(tmp_path / "base-s1" / "model")
    for name in ("tokenizer", "tokenizer_target"):
        (tmp_path / "base-s1" / name).mkdir()
    rival = planned(made)["cut-s1"]
    assert not Path(rival.model.init).exists()
    made.cut()
    for name in ("tokenizer", "tokenizer_target"):
        assert (Path(rival.model.init) / name).is_dir()
    assert rival.l0drop is None
    assert rival.train.teacher.model == str(tmp_path / "on-s1"), "distilled like the sparse model"
    cut, whole = load_dense(rival.model.init).state_dict(), base.state_dict()
    assert {name for name in whole if name not in cut} == {
        name for name in whole if name.startswith(("model.decoder.layers.1.", "model.decoder.layers.2."))
    }
    assert all(tensor.equal(whole[name]) for name, tensor in cut.items())


def test_the_cut_rival_has_one_vocabulary_if_the_baseline_has_one(data, tmp_path, monkeypatch):
    (tmp_path / "base-s1" / "tokenizer").mkdir(parents=True)
    sizes = {"d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "decoder_attention_heads": 2}
    small = MarianConfig(vocab_size=12, pad_token_id=0, max_position_embeddings=16, encoder_attention_heads=2, **sizes)
    monkeypatch.setattr(europarl, "load_dense", lambda name: MarianMTModel(small))
    study(data, runs=tmp_path).cut()
    found = {path.name for path in (tmp_path / europarl.CUT).iterdir()}
    assert found == {"model", "tokenizer"}


def test_gates_at_the_rate_of_a_rule_follow_once_the_rule_is_trained(data, tmp_path):
    made = study(data, "rules", runs=tmp_path / "runs")
    (tmp_path / "runs" / "pos-s1").mkdir(parents=True)
    finished_at(0.56342).write(tmp_path / "runs" / "pos-s1" / "metrics.json")
    before = {*planned(made)}
    assert {*made.recipes} - before == {"learned-as-pos-s1", "random-as-pos-s1"}
    learned, chance = (made.recipes[f"{how}-as-pos-s1"].l0drop for how in ("learned", "random"))
    assert learned.target_sparsity == 0.563
    assert (chance.gate, chance.gate_args) == ("random", {"rate": 0.563})


def test_rules_are_listed_with_gates_at_their_rates():
    def system(score, sparsity, **against):
        both = {"score": {"value": score}, **({} if sparsity is None else {"sparsity": sparsity})}
        intervals = {other: {"interval": ends} for other, ends in against.items()}
        return {"runs": [{"seed": 1, "valid": both, "test": both}], "one_seed": intervals}

    learned = {"learned-as-pos": [-0.5, 0.25]}
    systems = {
        "on": system(21.0, None),
        "pos": system(19.5, 0.481, **learned),
        "learned-as-pos": system(20.0, 0.49),
        "random-as-pos": system(15.0, 0.48),
        "freq": system(19.0, 0.4),
    }
    single, rules = in_text(europarl.Europarl.tables(filled(StudyResults, {"systems": systems}))).split("\n\n")
    assert "| rule `freq` | 40.0% | 19.00 | 19.00 | -2.00 | -2.00 |" in single
    assert rules.splitlines()[2:] == [
        "| `pos` | 48.1%, 49.0%, 48.0% | 19.50, 20.00, 15.00 | -0.50 [-0.50, +0.25] | -5.00 |"
    ]


def test_the_study_trains_the_gates_that_systems_are_compared_with(data):
    names = {*planned(study(data, "rules", "layers"))}
    for system, other in europarl.Europarl.compared.items():
        if not system.startswith("random-as-"):
            assert f"{system}-s1" in names
        assert f"{other}-s1" in names or other.startswith("learned-as-")


def test_the_declared_systems_of_multi30k(data):
    def systems(**choices):
        return planned(multi30k.Multi30k(Options(data, Path("runs"), seeds=2), **choices))

    gated = {f"{gating}-{target}": 2 for target in (0.5, 0.3, 0.7) for gating in ("zero", "mask", "weight")}
    assert counted(systems()) == {"base": 2, "on": 2, **gated, "elastic": 1}
    few = {"gatings": ["zero"], "targets": [0.47], "elastic": 0}
    made = systems(**few, other_ways=["no", "sequence"], dense=True, long=7, also={"slow": ["train.gate_scale=10"]})
    assert list(counted(made)) == [
        "base", "on", "on-long", "zero-0.47", "zero-0.47-no", "zero-0.47-text", "zero-0.47-slow", "on-taught",
        "zero-0.47-long", "on-taught-long",
    ]  # fmt: skip
    assert all(made[f"{name}-s2"].train.steps == 7 for name in ("on-long", "zero-0.47-long", "on-taught-long"))
    assert made["zero-0.47-slow-s1"].train.gate_scale == 10
    assert made["zero-0.47-no-s1"].train.teacher is None
    assert made["zero-0.47-text-s1"].data.train.target == "runs/train.translated"
    assert made["on-taught-s1"].l0drop is None
    assert made["on-taught-s1"].train.teacher.model == "runs/on-s1"


def test_memories_without_gates_are_trained_like_the_gated_models(data):
    options = Options(data, Path("runs"), seeds=2, fine_tune=["train.steps=9", "train.freeze=all_but_gate"])
    made = planned(multi30k.Multi30k(options, gatings=["zero"], targets=[0.47, 0.7], elastic=0, rivals=[0.47, 0.7]))
    ways = ("mean_pool", "merge", "top_norm", "top_attention")
    rivals = [f"{way}-{sparsity}" for sparsity in (0.47, 0.7) for way in ways]
    assert list(counted(made)) == ["base", "on", "zero-0.47", "zero-0.7", *rivals]
    for name in rivals:
        way, _, sparsity = name.rpartition("-")
        recipe, gated = made[f"{name}-s2"], made[f"zero-{sparsity}-s2"]
        section = recipe.l0drop
        assert (section.shortener, section.shortener_args) == (way, {"keep": pytest.approx(1 - float(sparsity))})
        assert recipe.train == gated.train.model_copy(update={"freeze": "nothing"}), "the same steps and teacher"
        assert (recipe.data, recipe.model, recipe.seed) == (gated.data, gated.model, gated.seed)
    assert made["merge-0.47-s1"].data.train.target == "runs/train.translated"
    assert label("merge-0.47") == "shortener `merge`, target 0.47"


def test_the_screening_trains_variants_and_a_tuned_reference(data):
    made = planned(multi30k.Screening(Options(data, Path("runs"), seeds=3)))
    sides = counted(made)
    assert set(sides.values()) == {3}
    steps = ["500-steps", "2000-steps", "4000-steps"]
    reference = ["rate-0.0001", "rate-0.0006", "rate-0.001", "falling"]
    assert [*sides] == [
        "base", "on", "on-taught", *(f"on-taught-{name}" for name in reference),
        "zero-0.47", *(f"zero-0.47-{name}" for name in tuned.VARIANTS),
        "zero-0.7", *(f"zero-0.7-{name}" for name in tuned.VARIANTS),
        *(f"{side}-{name}" for name in steps for side in ("on-taught", "zero-0.47", "zero-0.7")),
    ], "what the choice does not depend on comes last"  # fmt: skip
    for name, recipe in made.items():
        assert recipe.data.test is None, "nobody can choose by a test score"
        if name.startswith(("on-taught", "zero")):
            assert recipe.train.teacher.model == f"runs/on-s{recipe.seed}", "both sides are distilled the same way"
            assert recipe.data.train.target == "runs/train.translated"
            assert recipe.evaluate == made["on-s1"].evaluate
        assert (recipe.l0drop is None) == name.startswith(("on", "base"))
    assert made["on-taught-rate-0.0006-s2"].train.learning_rate == 6e-4
    assert made["zero-0.7-4000-steps-s1"].train.steps == made["on-taught-4000-steps-s1"].train.steps == 4000
    assert made["zero-0.47-fixed-s1"].train.fixed_gates == 0.3
    assert made["zero-0.47-layers-s1"].l0drop.gate_args == {"layers": [0, 3, 6]}
    assert made["zero-0.7-together-s1"].l0drop.target_sparsity == 0.7
    assert len({recipe.model_dump_json(exclude={"name"}) for recipe in made.values()}) == len(made), "no two are equal"


def test_runs_of_a_screening_are_scored_at_length_penalties_once(data, tmp_path, monkeypatch):
    made = multi30k.Screening(Options(data, tmp_path, seeds=1, systems=["zero-0.7", "zero-0.47"]))
    recipes = made.plan()
    for name in ("base-s1", "on-s1", "zero-0.47-s1"):
        (tmp_path / name).mkdir()
        finished_at(0.5).write(tmp_path / name / "metrics.json")
    tasks = {}
    monkeypatch.setattr(studies, "train_all", lambda *arguments: tasks.update(arguments[-2]))
    curve = LengthPenaltyCurve(run="r", rows=[LengthPenaltyRow(0.6, 30.0)], seed=1, decoding={})
    scored = []
    monkeypatch.setattr(tuned, "length_penalty_curve", lambda run, _: (scored.append(run.name), curve)[1])
    made.train(recipes)
    assert [*tasks] == [("on-s1",), ("zero-0.47-s1",), ("zero-0.7-s1",)], "each is scored while others train"
    for _ in range(2):
        assert tasks["zero-0.47-s1",]() == curve
        assert scored == ["zero-0.47-s1"]
    assert LengthPenaltyCurve.read(tmp_path / "zero-0.47-s1" / "length_penalties.json") == curve


def tuned_system(steps, target, *rows, **more):
    """rows: one for each seed, of validation scores at penalties 0.6 and 1.4."""
    runs = [
        {
            "seed": seed,
            "length_penalties": [{"length_penalty": p, "valid": v} for p, v in zip((0.6, 1.4), row, strict=True)],
            "valid": {"score": {"value": row[0]}, **({"sparsity": target} if target else {})},
        }
        for seed, row in enumerate(rows, 1)
    ]
    gate = {"target_sparsity": target} if target else None
    return {"recipe": {"train": {"steps": steps}, "l0drop": gate}, "runs": runs, **more}


def test_the_tables_of_a_screening_choose_on_the_validation_text():
    found = {
        "on": tuned_system(1000, None, (39, 38)),
        "on-taught": tuned_system(1000, None, (40, 41), (40, 43)),
        "on-taught-falling": tuned_system(1000, None, (41, 40), (41, 40)),
        "on-taught-2000-steps": tuned_system(2000, None, (49, 49), (49, 49)),
        "zero-0.47": tuned_system(1000, 0.47, (40, 39), (40, 39)),
        "zero-0.47-fixed": tuned_system(1000, 0.47, (40.5, 39), (40.5, 39)),
        "zero-0.7": tuned_system(1000, 0.7, (35, 36), (35, 36)),
        "zero-0.7-fixed": tuned_system(1000, 0.7, (35.5, 32), (36, 32)),
        "zero-0.7-network": tuned_system(1000, 0.7, (38, 32), (38, 32)),
        "zero-0.47-settled": tuned_system(1000, 0.47, (40, 39)),
        "zero-0.7-settled": tuned_system(1000, 0.7, (37.5, 39)),
        "zero-0.7-2000-steps": tuned_system(2000, 0.7, (30, 31), (30, 31)),
    }
    tables = multi30k.Multi30k.tables(filled(StudyResults, {"systems": found}))
    screened, chosen, candidates, steps = tables
    assert ["sparse `zero`, target 0.47, fixed", "47.0%", "2", "40.50", "0.6", "40.50"] in screened.rows
    dense = "dense, continued, distilled the same way"
    assert chosen.rows == [
        ["dense", dense, "1.4", "42.00", "-"],
        ["target 0.47", "sparse `zero`, target 0.47, fixed", "0.6", "40.50", "-1.50 (-0.50, -2.50)"],
        ["target 0.7", "sparse `zero`, target 0.7, settled", "1.4", "39.00", "-2.00 (-2.00)"],
    ]
    assert candidates.rows == [["1", "`fixed`", "38.12"], ["2", "`plain`", "38.00"]], (
        "network lacks a target, settled a seed"
    )
    assert steps.rows == [["1,000", "42.00", "40.00", "36.00"], ["2,000", "49.00", "-", "31.00"]]
    assert steps.head[1] == f"{dense}: BLEU, valid"


def confirmed(data, **changes):
    choices = {"variants": ("fixed", "plain"), "sparsities": (0.46, 0.7), "reference": None}
    choices |= {name: changes.pop(name) for name in [*changes] if name in choices}
    return europarl.Confirmed(Options(data, **{"runs": Path("runs"), "seeds": 2, **changes}), **choices)


def test_confirming_runs_have_their_own_teachers_and_no_test_text(data):
    made = planned(confirmed(data, first_seed=4))
    assert counted(made) == dict.fromkeys(
        ("base", "on", *tuned.REFERENCES, "zero-0.46-fixed", "zero-0.46", "zero-0.7-fixed", "zero-0.7"), 2
    )
    assert {recipe.seed for recipe in made.values()} == {4, 5}
    recipes = {name: recipe for name, recipe in made.items() if not name.startswith(("base", "on-s"))}
    for recipe in recipes.values():
        assert recipe.model.init == f"runs/base-s{recipe.seed}"
        assert recipe.train.teacher.model == f"runs/on-s{recipe.seed}"
        assert recipe.data.train.target == f"runs/train-s{recipe.seed}.translated"
    assert all(recipe.data.test is None for recipe in made.values())
    reference, sparse = made["on-taught-s5"], made["zero-0.46-s5"]
    same = ("steps", "learning_rate", "schedule", "warmup", "batch_tokens", "average", "save_every", "clip", "teacher")
    assert all(getattr(reference.train, key) == getattr(sparse.train, key) for key in same)
    assert (reference.data, reference.model, reference.evaluate) == (sparse.data, sparse.model, sparse.evaluate)
    only = counted(planned(confirmed(data, reference="on-taught-falling", variants=["fixed"], sparsities=[0.7])))
    assert [*only] == ["base", "on", "on-taught-falling", "zero-0.7-fixed"]


@pytest.mark.parametrize("text", ["a\nb\n", "a\nb\n\n\n"])
def test_speeches_are_looked_for_before_anything_is_trained(text, data):
    (data / "test.en").write_text(text)
    with pytest.raises(ValueError, match=r"test\.en: blank lines end documents, .* but there is only one"):
        confirmed(data)
    multi30k.Confirmed(Options(data, Path("runs")), ["plain"], [0.47])


def finish(folder, seed, valid, tested):
    folder.mkdir(parents=True, exist_ok=True)
    both = {"valid": {"score": {"value": valid}}, **({"test": {"score": {"value": 1.0}}} if tested else {})}
    filled(RunMetrics, both).write(folder / "metrics.json")
    rows = [LengthPenaltyRow(0.6, valid), LengthPenaltyRow(1.4, valid + 0.25)]
    curve = LengthPenaltyCurve(run=folder.name, rows=rows, seed=seed, decoding={})
    curve.write(folder / "length_penalties.json")


def test_the_test_text_is_decoded_once_everything_is_chosen(data, tmp_path, monkeypatch):
    made = confirmed(data, runs=tmp_path, variants=["fixed"], sparsities=[0.7])
    recipes = made.plan()
    scores = {"on-taught": 30.0, "on-taught-falling": 30.5, "on-taught-rate-0.001": 30.25}
    tasks, decoded = {}, []

    def train_all(*arguments):
        tasks.update(arguments[-2])
        for recipe in recipes:
            finish(tmp_path / recipe.name, recipe.seed, scores.get(recipe.name[:-3], 20.0), tested=False)

    def decode_test(run, penalty, text):
        decoded.append((run.name, penalty))
        assert text == made.test_text
        finish(run, 1, 1.0, tested=True)

    monkeypatch.setattr(studies, "train_all", train_all)
    monkeypatch.setattr(tuned, "decode_test", decode_test)
    assert made.compared_with() == {}
    made.train(recipes)
    assert {name for names in tasks for name in names} == {*made.recipes} - {"base-s1", "base-s2"}
    compared = ["on-s1", "on-s2", "on-taught-falling-s1", "on-taught-falling-s2", "zero-0.7-fixed-s1"]
    assert decoded == [(name, 1.4) for name in [*compared, "zero-0.7-fixed-s2"]]
    assert made.compared_with() == {"zero-0.7-fixed": "on-taught-falling"}
    finish(tmp_path / "on-taught-s1", 1, 1.0, tested=True)
    with pytest.raises(ValueError, match="different references, on-taught, on-taught-falling"):
        made.compared_with()


def test_a_run_that_fails_does_not_keep_others_from_the_test_text(data, tmp_path, monkeypatch):
    made = confirmed(data, runs=tmp_path, seeds=1, sparsities=[0.7])
    recipes, decoded = made.plan(), []

    def train_all(*_):
        for recipe in recipes:
            if recipe.name != "zero-0.7-fixed-s1":
                finish(tmp_path / recipe.name, 1, 20.0, tested=False)
        raise RunError("zero-0.7-fixed-s1: out of memory")

    monkeypatch.setattr(studies, "train_all", train_all)
    monkeypatch.setattr(tuned, "decode_test", lambda run, *_: decoded.append(run.name))
    with pytest.raises(RunError, match="out of memory"):
        made.train(recipes)
    assert decoded == ["on-s1", "on-taught-s1", "zero-0.7-s1"]
    shutil.rmtree(tmp_path / "on-taught-rate-0.001-s1")
    monkeypatch.setattr(studies, "train_all", lambda *_: None)
    with pytest.raises(ValueError, match=r"on-taught-rate-0\.001-s1: not a finished run"):
        made.train(recipes)


def test_each_continued_baseline_decodes_the_training_text_for_its_seed(data, tmp_path, monkeypatch):
    made = confirmed(data, runs=tmp_path, first_seed=2, reference="on-taught")
    recipes = made.plan()
    tasks, written = {}, []
    monkeypatch.setattr(studies, "train_all", lambda *arguments: tasks.update(arguments[-2]))
    monkeypatch.setattr(made, "chosen", lambda: pytest.fail("not before the runs are finished"))
    monkeypatch.setattr(Distillation, "write", lambda self, run, ways, count: written.append((self.outputs, run)))
    with pytest.raises(pytest.fail.Exception):
        made.train(recipes)
    for seed in (2, 3):
        tasks[f"on-s{seed}",]()
    assert written == [(tmp_path / f"train-s{seed}.translated", tmp_path / f"on-s{seed}") for seed in (2, 3)]


def test_confirming_runs_are_shown_with_their_bound_against_the_reference():
    against = {"difference": -0.125, "interval": [-0.4, 0.1], "lower": -0.35, "upper": 0.0, "margin": 0.5, "seeds": 3}
    against |= {"units": 9, "unit": "sentence"}
    one_pair = {**against, "metric": "bleu", "p": 0.01, "non_inferior": True}
    against |= {"baselines": 3, "few_seeds": True}
    found = {
        "on": tuned_system(1000, None, (30, 30)),
        "on-taught": tuned_system(1000, None, (33, 33)),
        "on-taught-falling": tuned_system(1000, None, (31, 31)),
        "zero-0.46-fixed": tuned_system(1000, 0.46, (30, 30), against={"on-taught-falling": against}),
        "zero-0.7-fixed": tuned_system(1000, 0.7, (29, 29)),
        "zero-0.7": tuned_system(1000, 0.7, (29, 29), one_seed={"on-taught-falling": one_pair}),
    }
    for name in ("on", "on-taught-falling", "zero-0.46-fixed", "zero-0.7-fixed", "zero-0.7"):
        for run in found[name]["runs"]:
            run["test"] = {"score": {"value": 25.0}, **({"sparsity": 0.468} if name.startswith("zero") else {})}
    table, screened = europarl.Europarl.tables(filled(StudyResults, {"systems": found}))
    dense = "dense, continued, distilled the same way, falling"
    assert table.head[4] == f'test: difference to "{dense}"'
    assert [row[0] for row in table.rows] == [
        "dense, continued", dense, "sparse `zero`, target 0.46, fixed", "sparse `zero`, target 0.7, fixed",
        "sparse `zero`, target 0.7",
    ]  # fmt: skip
    assert table.rows[2][1:] == [
        "46.8%", "30.00", "25.00", "-0.12 [-0.40, +0.10]", "-0.35, non-inferior at 0.5, preliminary",
    ]  # fmt: skip
    assert table.rows[3][4:] == ["-", "-"]
    assert table.rows[4][5] == "-0.35, no verdict: one baseline", "though it is non-inferior for this pair of models"
    assert len(screened.rows) == 6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--screen", "--distil", "no"], "--screen: needs one way to distil"),
        (["--screen", "--distil", "both", "token"], "--screen: needs one way to distil"),
        (["--also", "slow"], "slow: expected a name and its changes"),
        (["--rivals", "47"], "47: expected a share between 0 and 1"),
        (["--rivals", "half"], "half: expected a share between 0 and 1"),
        (["--confirm", "plain", "--distil", "no"], "--confirm: needs a way to distil"),
        (["--confirm", "slow"], "invalid choice: 'slow'"),
        (["--distil", "no", "both", "--distil-dense"], "--distil-dense: needs a way to distil"),
        (["--systems", "zero-0.31"], "--systems: zero-0.31: unknown in these parts, which have base, on, zero-"),
    ],
)
def test_wrong_options_are_named(options, message, data, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["multi30k.py", "--data", str(data), *options])
    with pytest.raises(SystemExit) as error:
        multi30k.main()
    assert message in capsys.readouterr().err + str(error.value)


def test_without_data_the_option_is_named(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["europarl.py"])
    with pytest.raises(SystemExit):
        europarl.main()
    assert "--data: name the folder that holds the text" in capsys.readouterr().err


def test_the_command_line_trains_and_prints_the_tables(data, tmp_path, monkeypatch, capsys):
    trained, results = [], tmp_path / "results.json"
    one = {"runs": [{"seed": 1, "valid": {"score": {"value": 20.5}}, "test": {"score": {"value": 20.5}}}]}
    found = filled(StudyResults, {"systems": {"on": one}})
    monkeypatch.setattr(studies, "train_all", lambda recipes, *_: trained.extend(recipe.name for recipe in recipes))
    monkeypatch.setattr(studies, "gather", lambda *_, **__: found)
    command = ["europarl.py", "--data", str(data), "--runs", str(tmp_path), "--parts", "--distil", "text"]
    for options, names in (([], ["base-s1", "on-s1", "zero-0.46-s1"]), (["--gather"], [])):
        monkeypatch.setattr(sys, "argv", [*command, *options])
        europarl.main()
        assert trained == names
        trained.clear()
        assert "20.50" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["europarl.py", "--tables", str(results)])
    europarl.main()
    assert "20.50" in capsys.readouterr().out


def test_results_are_gathered_even_if_a_run_failed(data, tmp_path, monkeypatch, capsys):
    found = filled(StudyResults, {"systems": {"on": {"runs": [{"seed": 1, "valid": {"score": {"value": 20.5}}}]}}})

    def train_all(*_):
        raise RunError("zero-s1: out of memory")

    monkeypatch.setattr(studies, "train_all", train_all)
    monkeypatch.setattr(studies, "gather", lambda *_, **__: found)
    monkeypatch.setattr(europarl.Europarl, "tables", staticmethod(lambda found: [Table(["a"], [["20.50"]])]))
    command = ["europarl.py", "--data", str(data), "--runs", str(tmp_path), "--parts", "--distil", "text"]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit, match="out of memory"):
        europarl.main()
    assert (tmp_path / "results.json").exists()
    assert "20.50" in capsys.readouterr().err
