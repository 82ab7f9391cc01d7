"""The tables of Whisper tiny.en show the published files."""

import pytest

from l0drop.recipe import load_recipe
from result_tables import speech
from result_tables.files import ROOT, read


def test_the_reference_comes_first_and_is_not_compared_with_itself():
    for name in ("pooled", "joined", "long"):
        first, *others = speech.rates_table(name).rows
        assert first[0] == "dense, continued"
        assert first[-2:] == ["-", "-"]
        assert all("[" in row[-2] for row in others)


@pytest.mark.parametrize(
    ("against", "said"),
    [
        ({"non_inferior": True, "lower": -0.2, "margin": 0.3}, "yes (0.3)"),
        ({"non_inferior": False, "lower": 0.2, "margin": 0.3}, "not shown (0.3)"),
        ({"non_inferior": False, "lower": 0.4, "margin": 0.3}, "no (0.3)"),
    ],
)
def test_a_loss_is_shown_absent_or_open(against, said):
    assert speech._verdict(against) == said


def test_error_rates_follow_from_the_counted_errors():
    for name in ("pooled", "joined", "long"):
        for system in speech.evaluation(name).values():
            details = system["scores"]["wer"]["details"]
            assert speech.wer_of(system) == pytest.approx(100 * details["errors"] / details["length"])


def test_speed_ups_follow_from_the_seconds_of_the_clips():
    clips = read("whisper-tiny-race")["clips"]
    for _, _, systems in speech.races():
        seconds = {name: one["seconds"]["end_to_end"]["cpu"] for name, one in systems.items()}
        assert {len(times) for times in seconds.values()} == {clips}
        expected = sum(seconds["dense"]) / sum(seconds["early-1"])
        assert speech.speed_up(systems, "early-1", "dense") == pytest.approx(expected)


def test_published_files_have_no_texts_and_no_names_of_clips():
    for name in (
        "whisper-tiny-pooled",
        "whisper-tiny-joined",
        "whisper-tiny-long",
        "whisper-tiny-race",
        "whisper-tiny-small",
    ):
        text = str(read(name))
        assert not any(part in text for part in (".opus", ".wav", "'texts'", "/tmp", "worst"))


def test_the_small_training_is_the_recipe():
    content = read("whisper-tiny-small")
    recipe = load_recipe(ROOT / "recipes" / "whisper-tiny-small.yaml")
    for name, section in (("train", recipe.train), ("l0drop", recipe.l0drop)):
        assert type(section).model_validate(content["recipe"][name]) == section, "newer keys have defaults"
    assert {key: content["recipe"][key] for key in ("seed", "timestamps", "cut", "join")} == {
        "seed": recipe.seed, "timestamps": recipe.data.timestamps, "cut": recipe.data.cut, "join": recipe.data.join,
    }  # fmt: skip
    long = content["evaluations"]["long recordings"]
    assert long["long"] == long["clips"] == 4
