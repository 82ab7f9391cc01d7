"""The recipes of the study scripts. Training is tested elsewhere."""

from argparse import Namespace
from pathlib import Path

import pytest
from transformers import MarianConfig, MarianMTModel

import europarl
from l0drop.runs.run import RunMetrics
from l0drop.runs.study import StudyResults
from l0drop.training.assemble import load_dense
from tests.runs.partial import filled
from tests.training import tiny


@pytest.fixture
def data(tmp_path):
    for split in ("train", "valid", "test"):
        for side, file in tiny.write_text(tmp_path, split, 4, 1).items():
            Path(file).rename(tmp_path / f"{split}.{'en' if side == 'source' else 'de'}")
    return tmp_path


def study(data, **changes):
    values = {"seeds": 3, "baselines": None, "distil": "both", "parallel": 1, "threads": 1, "analyzed": 4}
    values |= {"set": [], "baseline": [], "fine_tune": [], "runs": Path("runs"), "data": data, "systems": None}
    return europarl.Study(Namespace(**{**values, **changes}))


def named(recipes):
    return {recipe.name: recipe for recipe in recipes}


def test_seeds_share_baselines_if_there_are_fewer_of_them(data):
    parts = {"seeds"}
    for count, starts in ((None, [1, 2, 3]), (1, [1, 1, 1]), (2, [1, 2, 1])):
        made = study(data, baselines=count)
        assert [*named(made.baselines(parts))] == [f"base-s{n}" for n in sorted({*starts})]
        continued = made.continued(parts)
        assert [recipe.model.init for recipe in continued] == [f"runs/base-s{n}" for n in starts]
        assert all(recipe.train.teacher is None and recipe.l0drop is None for recipe in continued)


def test_gated_models_are_distilled_as_the_option_says(data):
    made = named(study(data).fine_tuned({"seeds", "tried"}))
    both = made["zero-0.46-s2"]
    assert both.train.teacher.model == "runs/on-s2"
    assert both.data.train.target == "runs/train.translated"
    assert both.l0drop.target_sparsity == 0.46
    assert {name for name in made if name.startswith("zero-") and name[5].isalpha()} == {
        "zero-no-s1", "zero-distributions-s1", "zero-text-s1", "zero-mixed-s1", "zero-falling-s1", "zero-long-s1",
    }  # fmt: skip
    assert made["zero-no-s1"].train.teacher is None
    assert made["on-taught-s1"].l0drop is None
    assert made["on-taught-s1"].data.train.target == "runs/train.translated"
    assert "on-taught-s1" not in named(study(data, distil="no").fine_tuned({"seeds"}))


def test_values_of_the_command_line_come_last(data):
    other = str(data / "valid.en")
    made = study(data, fine_tune=["train.teacher.model=init"], set=[f"data.train.source={other}"])
    (recipe,) = made.fine_tuned(set())
    assert recipe.train.teacher.model == "init"
    assert recipe.data.train.source == other
    assert made.distillation.source == Path(other), "the text that is translated is the text that is read"
    (continued,) = made.continued(set())
    assert continued.train.teacher is None


def test_selected_systems_bring_the_runs_that_they_need(data):
    def planned(*systems, **changes):
        parts = {"seeds", "layers", "curve", "rivals"}
        return {recipe.name for recipe in study(data, seeds=2, systems=[*systems], **changes).plan(parts)}

    assert planned("half") == {"half-s1"}
    assert planned("base") == {"base-s1", "base-s2"}
    assert planned("zero-0.3") == {f"{name}-s{n}" for name in ("base", "on", "zero-0.3") for n in (1, 2)}
    assert planned("layers-mask") == {"base-s1", "on-s1", "layers-mask-s1"}
    assert planned("layers-mask", distil="sequence") == {"base-s1", "on-s1", "layers-mask-s1"}, "on-s1 translates"
    assert planned("cut", distil="no") == {"base-s1", "cut-s1"}, "it is cut from the baseline"
    assert planned("half", "on") == {"half-s1", "base-s1", "base-s2", "on-s1", "on-s2"}
    assert planned("layers-mask") < planned()
    with pytest.raises(
        SystemExit, match="--systems: pos, zero-0.31: unknown in these parts, which have base, on, zero-"
    ):
        planned("zero-0.31", "on", "pos")


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
    made = study(data, seeds=1, systems=systems, runs=tmp_path / "runs")
    for name in ("base", "on", "zero-0.46", "cut", "pos"):  # finished runs alone trigger nothing
        (tmp_path / "runs" / f"{name}-s1").mkdir(parents=True)
        finished_at(0.5).write(tmp_path / "runs" / f"{name}-s1" / "metrics.json")
    found = []
    monkeypatch.setattr(europarl, "train_all", lambda *arguments: found.extend(arguments[-2:]))
    made.train({*europarl.PARTS} - {"tried", "sweep"})
    assert ({*found[0]}, {*found[1]}) == (after, more)
    assert ("learned-as-pos-s1" in made.recipes) == ("pos-s1" in more)


def test_from_scratch_takes_the_steps_of_baseline_and_fine_tuning(data):
    steps = {"baseline": ["train.steps=70"], "fine_tune": ["train.steps=30"]}
    made = named(study(data, **steps).from_scratch({"scratch"}))
    assert made["scratch-s1"].train.steps == 100


def test_the_cut_rival_has_one_layer_of_the_baselines_decoder(data, tmp_path):
    made = study(data, runs=tmp_path)
    sizes = {"d_model": 8, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8, "encoder_layers": 3, "decoder_layers": 3}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    base = MarianMTModel(MarianConfig(vocab_size=12, pad_token_id=0, max_position_embeddings=16, **sizes, **heads))
    base.save_pretrained(tmp_path / "base-s1" / "model")
    for name in ("tokenizer", "tokenizer_target"):
        (tmp_path / "base-s1" / name).mkdir()
    (rival,) = (recipe for recipe in made.fine_tuned({"rivals"}) if recipe.name == "cut-s1")
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
    made = study(data, runs=tmp_path)
    (tmp_path / "pos-s1").mkdir()
    finished_at(0.56342).write(tmp_path / "pos-s1" / "metrics.json")
    learned, chance = made.at_the_rate_of("pos")
    assert learned.l0drop.target_sparsity == 0.563
    assert (chance.l0drop.gate, chance.l0drop.gate_args) == ("random", {"rate": 0.563})
    assert {"learned-as-pos-s1", "random-as-pos-s1"} == set(made.recipes)


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
    single, rules = europarl.tables(filled(StudyResults, {"systems": systems})).split("\n\n")
    assert "| rule `freq` | 40.0% | 19.00 | 19.00 | -2.00 | -2.00 |" in single
    assert rules.splitlines()[2:] == [
        "| `pos` | 48.1%, 49.0%, 48.0% | 19.50, 20.00, 15.00 | -0.50 [-0.50, +0.25] | -5.00 |"
    ]


def test_the_study_trains_the_gates_that_systems_are_compared_with(data):
    made = study(data)
    names = {*named(made.fine_tuned({"rules", "layers"}))}
    for system, other in europarl.COMPARED.items():
        if not system.startswith("random-as-"):
            assert f"{system}-s1" in names
        assert f"{other}-s1" in names or other.startswith("learned-as-")
