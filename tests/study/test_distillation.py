"""The training text of distilled runs, and the recipe overrides for each way to distil."""

from pathlib import Path

import pytest

from l0drop import load
from l0drop.recipe import load_recipe
from l0drop.study.distillation import WAYS, Distillation, folder_name, way_named
from tests.training import tiny

TEACHER = Path("runs/on-s1")


@pytest.fixture
def distillation(tmp_path):
    files = tiny.write_text(tmp_path, "train", 9, 4)
    source = Path(files["source"])
    source.write_text(source.read_text() + "\n")  # a blank line, as between documents
    target = Path(files["target"])
    target.write_text(target.read_text() + "\n")
    return Distillation(source, target, tmp_path)


def test_overrides_fit_a_recipe_with_a_teacher(distillation):
    for way in WAYS:
        recipe = load_recipe("recipes/multi30k-target50.yaml", distillation.overrides(way, TEACHER))
        assert (recipe.train.teacher is None) == (way in ("no", "sequence"))
        if recipe.train.teacher is not None:
            assert recipe.train.teacher.model == str(TEACHER)
        files = {"sequence": distillation.outputs, "both": distillation.outputs, "mixed": distillation.mixed[1]}
        given = files.get(way, Path("data/multi30k/train.de.gz"))
        assert Path(recipe.data.train.target) == given
    with pytest.raises(ValueError, match="distillation: expected one of no, token"):
        distillation.overrides("all", TEACHER)


def test_earlier_names_are_accepted_and_kept_in_folder_names(distillation):
    for earlier, now in (("distributions", "token"), ("text", "sequence"), ("both", "both")):
        assert way_named(earlier) == now
        assert distillation.overrides(earlier, TEACHER) == distillation.overrides(now, TEACHER)
        assert folder_name(now) == earlier


def test_every_line_is_decoded_once(distillation, baseline):
    distillation.write(baseline, ["no", "token"], 1)
    assert not distillation.outputs.exists()
    distillation.write(baseline, WAYS, 2)
    sources = distillation.source.read_text().splitlines()
    outputs = distillation.outputs.read_text().splitlines()
    assert outputs == [r.text for r in load(baseline, "cpu").generate(sources, num_beams=4)]
    assert len(outputs) == len(sources) == 10
    assert outputs[-1] == ""
    assert distillation.mixed[0].read_text().splitlines() == [*sources, "", *sources]
    assert distillation.mixed[1].read_text().splitlines() == [
        *distillation.target.read_text().splitlines(), "", *outputs,
    ]  # fmt: skip
    distillation.outputs.write_text("as it was\n")
    distillation.write(baseline, ["both"], 1)
    assert distillation.outputs.read_text() == "as it was\n"


def test_outputs_of_another_teacher_are_refused(distillation, baseline):
    distillation.outputs.write_text("unknown origin\n")
    with pytest.raises(ValueError, match=r"train\.translated\.json does not say that"):
        distillation.write(baseline, ["both"], 1)
    stamp = distillation.outputs.with_name("train.translated.json")
    stamp.write_text('{"source": "of another text", "model": "of another run"}')
    with pytest.raises(ValueError, match="remove the file and the runs that were distilled from it"):
        distillation.write(baseline, ["sequence"], 1)
    distillation.write(baseline, ["token"], 1)


def test_partial_outputs_of_another_teacher_are_discarded(distillation, baseline, caplog):
    half, stamp = (distillation.outputs.with_name(f"train.translated{end}") for end in (".partial", ".json"))
    half.write_text("half of a sentence\n")
    half.with_name(f"{half.name}.json").write_text("{}")
    stamp.write_text('{"source": "of another text", "model": "of another run"}')
    distillation.write(baseline, ["text"], 1)
    assert len(distillation.outputs.read_text().splitlines()) == 10
    assert not half.exists()
    assert "different model, settings, source; decoding starts again" in caplog.text
