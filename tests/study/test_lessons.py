"""What gated runs of a study learn from."""

from pathlib import Path

import pytest

from l0drop import load
from l0drop.recipe import load_recipe
from l0drop.study.lessons import WAYS, Lessons
from tests.training import tiny

TEACHER = Path("runs/on-s1")


@pytest.fixture
def lessons(tmp_path):
    files = tiny.write_text(tmp_path, "train", 9, 4)
    source = Path(files["source"])
    source.write_text(source.read_text() + "\n")  # a blank line, as between documents
    target = Path(files["target"])
    target.write_text(target.read_text() + "\n")
    return Lessons(source, target, tmp_path)


def test_overrides_fit_a_recipe_with_a_teacher(lessons):
    for way in WAYS:
        recipe = load_recipe("recipes/multi30k-target50.yaml", lessons.overrides(way, TEACHER))
        assert (recipe.train.teacher is None) == (way in ("no", "text"))
        if recipe.train.teacher is not None:
            assert recipe.train.teacher.model == str(TEACHER)
        files = {"text": lessons.translated, "both": lessons.translated, "mixed": lessons.mixed[1]}
        given = files.get(way, Path("data/multi30k/train.de.gz"))
        assert Path(recipe.data.train.target) == given
    with pytest.raises(ValueError, match="teaching: expected one of no, distributions"):
        lessons.overrides("all", TEACHER)


def test_the_translated_text_has_a_line_for_each_and_is_made_once(lessons, baseline):
    lessons.write(baseline, ["no", "distributions"], 1)
    assert not lessons.translated.exists()
    lessons.write(baseline, WAYS, 2)
    sources = lessons.source.read_text().splitlines()
    translated = lessons.translated.read_text().splitlines()
    assert translated == [r.text for r in load(baseline, "cpu").generate(sources, num_beams=4)]
    assert len(translated) == len(sources) == 10
    assert translated[-1] == ""
    assert lessons.mixed[0].read_text().splitlines() == [*sources, "", *sources]
    assert lessons.mixed[1].read_text().splitlines() == [*lessons.target.read_text().splitlines(), "", *translated]
    lessons.translated.write_text("as it was\n")
    lessons.write(baseline, ["both"], 1)
    assert lessons.translated.read_text() == "as it was\n"


def test_text_of_another_teacher_is_not_taken(lessons, baseline, tmp_path):
    lessons.translated.write_text("who wrote this?\n")
    with pytest.raises(ValueError, match=r"train\.translated: not known to be what"):
        lessons.write(baseline, ["both"], 1)
    stamp = lessons.translated.with_name("train.translated.json")
    stamp.write_text('{"source": "of another text", "model": "of another run"}')
    with pytest.raises(ValueError, match="remove it, and what was taught by it"):
        lessons.write(baseline, ["text"], 1)
    lessons.write(baseline, ["distributions"], 1)


def test_what_was_begun_of_another_teacher_is_begun_anew(lessons, baseline, caplog):
    half, stamp = (lessons.translated.with_name(f"train.translated{end}") for end in (".partial", ".json"))
    half.write_text("half of a sentence\n")
    half.with_name(f"{half.name}.json").write_text("{}")
    stamp.write_text('{"source": "of another text", "model": "of another run"}')
    lessons.write(baseline, ["text"], 1)
    assert len(lessons.translated.read_text().splitlines()) == 10
    assert not half.exists()
    assert "was begun otherwise (other model, settings, source), and is begun anew" in caplog.text
