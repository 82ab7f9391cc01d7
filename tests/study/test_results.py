"""What the documents say is what the files of results say."""

import pytest

import results
from result_tables import claims, quality, speed, toys
from result_tables.files import ROOT


@pytest.mark.parametrize("name", results.DOCUMENTS)
def test_the_tables_of_a_document_are_those_of_their_files(name):
    document = (ROOT / name).read_text(encoding="utf-8")
    assert results.filled(document, results.all_tables()) == document, "run python scripts/results.py"


def test_every_table_stands_in_a_document():
    documents = "".join((ROOT / name).read_text(encoding="utf-8") for name in results.DOCUMENTS)
    assert set(results.all_tables()) == {match[2] for match in results.MARK.finditer(documents)}


def test_a_table_is_replaced_and_nothing_else():
    text = "before\n\n<!-- table: a -->\n\n| old |\n|---|\n| 1 |\n\nafter | not a table |\n<!-- table: b -->\n"
    new = results.filled(text, {"a": "| new |\n|---|", "b": "| b |"})
    assert new == ("before\n\n<!-- table: a -->\n\n| new |\n|---|\n\nafter | not a table |\n<!-- table: b -->\n| b |\n")
    assert results.filled(new, {"a": "| new |\n|---|", "b": "| b |"}) == new
    fresh = results.filled("<!-- table: a -->\n\nafter\n", {"a": "| new |"})
    assert fresh == "<!-- table: a -->\n\n| new |\n\nafter\n"
    with pytest.raises(ValueError, match="no table is called b"):
        results.filled(text, {"a": ""})


def test_speeds_that_were_not_measured_are_left_open():
    times = [{"phase": "decode", "system": "engine-dense", "by": "engine-short", "times": 1.234}]
    table = speed.speed_table({shape: {"ratios": times} for shape in speed.SHAPES})
    assert "| decode: engine, dense / engine, short | 1.23 | 1.23 | 1.23 |" in table
    assert "generate, dense / engine, short | - | - | - |" in table


@pytest.mark.parametrize(
    ("interval", "non_inferior", "verdict"),
    [([-0.2, 0.3], True, "yes"), ([-0.9, -0.1], False, "not shown"), ([-1.2, -0.6], False, "no")],
)
def test_quality_says_what_several_seeds_show(interval, non_inferior, verdict, monkeypatch):
    def runs(sparsity: float, *scores: float) -> list[dict]:
        return [{"test": {"sparsity": sparsity, "score": {"value": score}}} for score in scores]

    against = {"difference": -0.25, "interval": interval, "margin": 0.5, "non_inferior": non_inferior}
    systems = {
        "zero-0.5": {"runs": runs(0.5, 29.0, 29.5), "against_on": against},
        "on": {"runs": runs(0.0, 29.0, 30.0)},
        "zero-0.7": {"runs": runs(0.7, 20.0)},
    }
    low, high = interval
    timed = {"ratios": [{"phase": "decode", "system": "engine-dense", "by": "engine-short", "times": 1.074}]}
    monkeypatch.setattr(quality, "STUDIES", {"one": "A task", "other": "Another"})
    monkeypatch.setattr(quality, "SPEEDS", {("other", "zero-0.5"): "timed"})
    found = {"systems": systems}
    difference = f"-0.25 [{low:+.2f}, {high:+.2f}]"
    assert quality.quality_table({"one": found, "other": found}, {"timed": timed}).splitlines()[2:] == [
        "| A task | 0 | 29.50 |  |  |  |",
        f"| A task | 50.0% | 29.25 | {difference} | {verdict} |  |",
        "| Another | 0 | 29.50 |  |  |  |",
        f"| Another | 50.0% | 29.25 | {difference} | {verdict} | 1.07 |",
    ]


def test_speeds_of_several_threads_are_told_by_the_clock_too():
    times = [{"phase": "decode", "system": "engine-dense", "by": "engine-short", "times": 1.2}]
    systems = {
        name: {"median": {"decode": {"wall": wall}}} for name, wall in (("engine-dense", 3), ("engine-short", 2))
    }
    table = speed.threads_table({shape: {"ratios": times, "systems": systems} for shape in speed.SHAPES})
    assert table.splitlines()[2:] == [
        "| decode: engine, dense / engine, short | 1.20, 1.50 | 1.20, 1.50 | 1.20, 1.50 |"
    ]


def test_baselines_of_several_lengths_stand_beside_what_came_of_them(monkeypatch):
    def system(steps: int, **scores: float) -> dict:
        runs = [
            {"seed": int(name[1:]), "test": {"sparsity": 0.5, "score": {"value": score}}}
            for name, score in scores.items()
        ]
        return {"recipe": {"train": {"steps": steps}}, "runs": runs}

    systems = {"base": system(4000, s1=20.0), "on": system(1000, s1=21.0, s2=99.0), "zero": system(1000, s1=20.5)}
    monkeypatch.setattr(quality, "BASELINES", {"one": "zero"})
    table = quality.baselines_table({"one": {"systems": systems}})
    assert table.splitlines()[2:] == ["| 4,000, 1,000 | 1 | 20.00 | 21.00 | 20.50 | 50.0% | -0.50 |"]


def test_rivals_are_told_with_the_spread_of_their_times():
    row = {"system": "dense", "beams": 2, "score": {"value": 20.456}, "cpu_seconds": [0.3, 0.1, 0.2], "sentences": 10}
    assert quality.rivals_table({"rows": [row]}).splitlines()[2:] == ["| dense | 2 | 20.46 | 20 | 10 to 30 |"]


def test_no_table_of_results_is_written_by_hand():
    for name in ("results", "studies", "profile"):
        text = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
        heads = [line for line in text.splitlines() if line.startswith(("|---", "| ---"))]
        assert len(heads) == len([*results.MARK.finditer(text)])


def test_every_claim_says_what_was_found_on_what_and_whether_it_holds():
    found = [*claims.cheap(), *claims.rules(), *claims.layers()]
    for claim in found:
        assert all(claim[1:])
    table = claims.claims_table().splitlines()
    assert len(table) > len(found) + 2
    assert {line.count(" | ") for line in table if not line.startswith("|---")} == {3}


def test_rules_are_told_by_sparsity_beside_learned_gates():
    def point(run, sparsity, score):
        return {"run": run, "sparsity": sparsity, "score": {"value": score}}

    points = [point("target-0.5", 0.502, 97.0), point("random-0.5", 0.5, 90.0), point("pos", 0.51, 98.5)]
    sweep = {"reference": {"score": {"value": 99.0}}, "points": points}
    assert toys.rules_table({"rules": sweep}).splitlines()[2:] == [
        "| chance (`random`) | 50.0% | 90.00 | -9.00 |",
        "| learned, target 0.5 | 50.2% | 97.00 | -2.00 |",
        "| function words, punctuation, later pieces (`pos`) | 51.0% | 98.50 | -0.50 |",
    ]


def test_a_profile_ends_with_what_the_machine_could_do():
    seconds = dict.fromkeys(speed.STEP, 0.0012)
    bounds = {"linear_layers": 0.0015, "cross_attention_short": 0.0001, "cross_attention_dense": 0.0002}
    table = speed.profile_table({"after": {"seconds_per_step": {"int8, short": seconds}, "bounds": bounds}})
    assert table.splitlines()[2:] == [
        "| after: int8, short | 1.2 | 1.2 | 1.2 | 1.2 | 1.2 | 1.2 | 1.2 |",
        "| bound, float32 |  | 1.5 | 0.1 short, 0.2 dense |  |  |  |  |",
    ]
