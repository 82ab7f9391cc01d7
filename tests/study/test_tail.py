"""Numbers, names, negations and lengths, on sentences with obvious answers."""

from collections import Counter

import numpy as np
import pytest

from l0drop.runs.json_file import as_json
from l0drop.study.tail import capitalised, names, negations, numbers, tail_risk


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1,000 and 1.000", {"1000": 2}),
        ("at 07:30 or 7.30", {"730": 2}),
        ("3.5, 3,5 and 35", {"35": 3}),
        ("1\u202f000\u00a0000 or 1’000’000", {"1000000": 2}),
        ("１２ and ١٢", {"12": 2}),
        ("the 2nd of 1990s, B2B", {"2": 2, "1990": 1}),
        ("0, 00 and 007", {"0": 2, "7": 1}),
        ("rows 1, 2, 3.", {"1": 1, "2": 1, "3": 1}),
        ("two dozen ½", {}),
    ],
)
def test_numbers_are_their_digits(text: str, expected: dict[str, int]) -> None:
    assert numbers(text) == Counter(expected)


def test_names_are_capitalised_inside_sentences_and_copied() -> None:
    source = 'Yesterday I met Anna-Lena in Paris. "Berlin is far," said Tom: Nobody knew NATO or Anna-Lena\'s Dog.'
    assert capitalised(source) == Counter({"Anna-Lena": 2, "Paris": 1, "Tom": 1, "NATO": 1, "Dog": 1})
    reference = "Gestern traf ich Anna-Lena in Paris. „Berlin ist weit“, sagte Tom: Niemand kannte die nato oder Hund."
    assert names(source, reference) == Counter({"Anna-Lena": 1, "Paris": 1, "Tom": 1})


@pytest.mark.parametrize(
    ("language", "negated", "plain"),
    [
        ("en", ["I do not know", "It isn’t so", "NOTHING works", "he can't", "a day without rain"], ["a note", "knot"]),
        ("de", ["Er kommt nicht.", "Keinerlei Ahnung", "mit keinem Wort", "Nie!", "ohne dich"], ["Knie", "sichtbar"]),
    ],
)
def test_negations(language: str, negated: list[str], plain: list[str]) -> None:
    assert all(negations(text, language) for text in negated)
    assert not any(negations(text, language) for text in plain)


SOURCES = ["It costs 20 or 30 in Rome.", "He did not see Tom.", "Nothing is left.", "All is well."]
REFERENCES = ["Es kostet 20 in Rome.", "Er sah Tom nicht.", "Es ist leer.", "Alles ist gut."]
BASELINE = ["Es kostet 20 oder 30 in Rom.", "Er sah Tom nicht.", "Nichts ist da.", "Alles ist gut und recht so."]
OUTPUTS = ["Es kostet viel in Rome.", "Er sah Tim.", "Nichts ist da.", ""]


def risk(languages: tuple[str, str] | None = ("en", "de"), outputs: list[str] = OUTPUTS) -> dict:
    chrf, before = np.array([50.0, 40, 90, 0]), np.array([70.0, 61, 60, 5])
    return as_json(tail_risk(SOURCES, REFERENCES, outputs, BASELINE, chrf, before, languages))


def test_missing_items_are_counted_for_system_baseline_and_reference() -> None:
    found = risk()
    assert found["numbers"] == {
        "expected": 2,
        "missing": {"system": 1.0, "baseline": 0.0, "reference": 0.5},
        "lost": 1,  # 30 is not in the reference, so it is not required
        "gained": 0,
    }
    assert found["names"] == {
        "capitalised_in_source": 2,
        "expected": 2,
        "missing": {"system": 0.5, "baseline": 0.5, "reference": 0.0},
        "lost": 1,  # Tom
        "gained": 1,  # Rome
    }
    assert found["negations"] == {
        "counted": True,
        "expected_from": "source",
        "expected": 2,
        "missing": {"system": 0.5, "baseline": 0.0, "reference": 0.5},
        "lost": 1,
        "gained": 0,
    }


def test_a_baseline_against_itself_loses_nothing() -> None:
    found = risk(outputs=BASELINE)
    for kind in ("numbers", "names", "negations"):
        assert (found[kind]["lost"], found[kind]["gained"]) == (0, 0)
        assert found[kind]["missing"]["system"] == found[kind]["missing"]["baseline"]


def test_languages_without_a_list_are_named() -> None:
    assert "not known" in risk(None)["negations"]["why"]
    assert risk(("en", "fr"))["negations"] == {
        "counted": False,
        "why": "no word list for fr; there are lists for en, de",
    }
    from_reference = risk(("zh", "de"))["negations"]
    assert from_reference["expected_from"] == "reference"
    assert (from_reference["expected"], from_reference["missing"]["system"]) == (1, 1.0)


def test_losses_and_gains_beyond_the_threshold() -> None:
    assert risk()["chrf"] == {
        "threshold": 20.0,
        "losing": 1 / 4,  # 21 points; 20 are not more than 20
        "gaining": 1 / 4,
        "worst": [
            {"line": 2, "difference": -21.0},
            {"line": 1, "difference": -20.0},
            {"line": 4, "difference": -5.0},
        ],
    }


def test_lengths_relative_to_the_reference() -> None:
    found = risk()["length"]
    assert found["system"] == {
        "ratio": sum(map(len, OUTPUTS)) / sum(map(len, REFERENCES)),
        "under_half": 1 / 4,
        "over_double": 0.0,
        "empty": 1,
    }
    assert found["baseline"]["ratio"] > 1


def test_there_is_no_rate_if_nothing_is_expected() -> None:
    found = as_json(tail_risk(["a"], ["b"], ["c"], ["d"], np.zeros(1), np.zeros(1)))
    assert found["numbers"]["missing"] == {"system": None, "baseline": None, "reference": None}
