"""The documents show the published files."""

import pytest

import results
from l0drop.runs.benchmark import DecodeBenchmark
from l0drop.runs.study import Rivals, StudyResults
from l0drop.runs.table import in_markdown
from result_tables import claims, files, quality, speed, studies, summary, toys
from result_tables.files import ROOT
from result_tables.labels import SYSTEMS, label
from tests.runs.partial import filled


@pytest.mark.parametrize("name", results.DOCUMENTS)
def test_a_document_shows_the_tables_and_numbers_of_the_files(name):
    document = (ROOT / name).read_text(encoding="utf-8")
    assert results.filled(document, results.all_tables(), results.all_numbers()) == document, (
        "run python scripts/results.py"
    )


def test_every_table_is_in_a_document():
    documents = "".join((ROOT / name).read_text(encoding="utf-8") for name in results.DOCUMENTS)
    assert set(results.all_tables()) == {match[2] for match in results.TABLE.finditer(documents)}


def test_only_marked_tables_and_numbers_are_replaced():
    text = "before\n\n<!-- table: a -->\n\n| old |\n|---|\n| 1 |\n\nafter | not a table |\n<!-- table: b -->\n"
    new = results.filled(text, {"a": "| new |\n|---|", "b": "| b |"}, {})
    assert new == ("before\n\n<!-- table: a -->\n\n| new |\n|---|\n\nafter | not a table |\n<!-- table: b -->\n| b |\n")
    assert results.filled(new, {"a": "| new |\n|---|", "b": "| b |"}, {}) == new
    fresh = results.filled("<!-- table: a -->\n\nafter\n", {"a": "| new |"}, {})
    assert fresh == "<!-- table: a -->\n\n| new |\n\nafter\n"
    with pytest.raises(ValueError, match="no table is called b"):
        results.filled(text, {"a": ""}, {})


def test_the_note_under_a_table_is_replaced_with_it():
    text = "<!-- table: a -->\n\n| old |\n\n† old note\n\nafter\n"
    new = results.filled(text, {"a": "| new |\n\n† new note"}, {})
    assert new == "<!-- table: a -->\n\n| new |\n\n† new note\n\nafter\n"
    assert results.filled(new, {"a": "| new |\n\n† new note"}, {}) == new


def test_a_number_in_text_is_replaced():
    text = "by <!-- number: x -->1.0<!-- /number --> and <!-- number: y --><!-- /number -->."
    new = results.filled(text, {}, {"x": "2.0", "y": "3%"})
    assert new == "by <!-- number: x -->2.0<!-- /number --> and <!-- number: y -->3%<!-- /number -->."
    with pytest.raises(ValueError, match="no number is called y"):
        results.filled(text, {}, {"x": "2.0"})


@pytest.mark.parametrize("name", [name for name in results.DOCUMENTS if name != "README.md"])
def test_tables_have_at_most_six_columns_and_results_are_generated(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith(("|---", "| ---"))]
    assert all(row.count("|") <= 7 for row in rows)
    if name.startswith("docs/results"):
        assert len(rows) == len([*results.TABLE.finditer(text)]), "a table without a mark"


def timed(**seconds: list[float]) -> DecodeBenchmark:
    """A benchmark with these CPU seconds by system, in both phases."""
    systems = {
        name.replace("_", "-"): {
            "seconds": {phase: {"cpu": times} for phase in ("decode", "end_to_end")},
            "median": {phase: {"wall": sorted(times)[len(times) // 2]} for phase in ("decode", "end_to_end")},
        }
        for name, times in seconds.items()
    }
    return filled(DecodeBenchmark, {"systems": systems})


def test_a_speed_up_is_the_median_over_rounds_that_both_systems_ran():
    found = timed(engine_dense=[2.0, 3.0, 8.0], engine_short=[1.0, 2.0, 2.0, 9.0])
    assert speed.ratio(found, "decode", "engine-short", "engine-dense") == "2.00"
    assert speed.ratio(found, "decode", "engine-short", "hf-dense") == "-"


def test_speed_ups_equal_the_ratios_that_the_benchmark_wrote():
    for shape in speed.SHAPES:
        found = files.decoding(f"decode-{shape}")
        for one in found.ratios:
            assert speed.ratio(found, one.phase, one.by, one.system) == f"{one.times:.2f}"


def test_the_speed_table_names_both_systems_and_leaves_unmeasured_ones_open():
    found = dict.fromkeys(speed.SHAPES, timed(engine_dense=[1.5], engine_short=[1.0]))
    table = in_markdown(speed.speed_table(found))
    assert "| end to end: engine (short) over engine (dense) | 1.50 | 1.50 | 1.50 |" in table
    assert "engine (short) over Hugging Face `generate` (dense) | - | - | - |" in table


def test_speed_ups_with_several_threads_have_wall_time_too():
    found = dict.fromkeys(speed.SHAPES, timed(engine_dense=[3.0], engine_short=[2.0]))
    assert in_markdown(speed.threads_table(found)).splitlines()[2:] == [
        "| end to end: engine (short) over engine (dense) | 1.50, 1.50 | 1.50, 1.50 | 1.50, 1.50 |",
        "| decoding: engine (short) over engine (dense) | 1.50, 1.50 | 1.50, 1.50 | 1.50, 1.50 |",
    ]


def study(systems: dict[str, dict]) -> StudyResults:
    return filled(StudyResults, {"systems": systems})


def runs(sparsity: float | None, **scores: float) -> list[dict]:
    both = {} if sparsity is None else {"sparsity": sparsity}
    return [
        {"seed": int(name[1:]), **{split: {**both, "score": {"value": score}} for split in ("valid", "test")}}
        for name, score in scores.items()
    ]


@pytest.mark.parametrize(
    ("baselines", "said"),
    [(1, "no verdict: 1 independent baseline"), (4, "non-inferior at 0.5, preliminary"), (5, "non-inferior at 0.5")],
)
def test_the_baselines_of_an_older_file_are_counted_for_the_verdict(baselines, said):
    against = {"difference": 0.1, "interval": [-0.3, 0.4], "lower": -0.25, "margin": 0.5, "seeds": 5, "units": 9}
    starts = runs(None, **{f"s{seed}": 20.0 for seed in range(1, baselines + 1)})
    systems = {"base": {"runs": starts}, "zero": {"runs": [], "against_on": {**against, "unit": "sentence"}}}
    assert studies.PublishedStudy(study(systems)).bound("zero").startswith(f"-0.25, {said}")


def test_systems_of_several_seeds_are_compared_with_the_continued_baseline():
    against = {"difference": -0.25, "interval": [-0.4, 0.1], "lower": -0.35, "margin": 0.5, "seeds": 2}
    against |= {"units": 9, "unit": "sentence"}
    data, train = {"train": {"target": "a.de"}}, {"teacher": {"model": "init"}}
    distilled = {"l0drop": {"gating": "zero"}, "train": train, "data": data}
    systems = {
        "base": {"runs": runs(None, s1=28.0)},
        "on": {"runs": runs(None, s1=29.0, s2=30.0)},
        "zero-0.5": {"runs": runs(0.5, s1=29.0, s2=29.5), "against_on": against, "recipe": distilled},
    }
    assert in_markdown(quality.seeds_table(study(systems))).splitlines()[2:] == [
        "| dense, continued, two seeds | - | 29.50 ± 0.71 | 29.50 ± 0.71 | - | - |",
        "| sparse `zero`, target 0.5, distilled (token), two seeds | 50.0% | 29.25 ± 0.35 | 29.25 ± 0.35 | "
        "-0.25 [-0.40, +0.10] | -0.35, no verdict: 1 independent baseline; three are needed |",
    ]


def test_a_system_that_was_stopped_early_is_not_compared():
    tuned = {"recipe": {"model": {"init": "runs/base-s1"}}}
    systems = {
        "base": {"runs": [{**runs(None, s1=18.0)[0], "steps": 90}]},
        "on": {"runs": [{**runs(None, s1=20.0)[0], "steps": 9}], **tuned},
        "zero-0.3": {"runs": [{**runs(0.3, s1=19.0)[0], "steps": 9}], **tuned},
        "zero-0.7": {"runs": [{**runs(0.7, s1=18.5)[0], "steps": 8}], **tuned},
    }
    rows = quality.single_table(study(systems)).rows
    assert [row[4:] for row in rows] == [["-2.00", "-2.00"], ["-", "-"], ["-1.00", "-1.00"], ["-", "-"]]


def test_a_system_of_one_seed_is_compared_with_the_continued_baseline_of_its_seed():
    other = {"one_seed": {"on": {"interval": [-0.75, -0.25]}}}
    systems = {
        "on": {"runs": runs(None, s1=20.0, s2=30.0)},
        "zero-0.3": {"runs": runs(0.314, s2=29.5), **other},
        "half": {"runs": runs(None, s3=9.0)},
    }
    assert in_markdown(quality.single_table(study(systems))).splitlines()[2:] == [
        "| sparse `zero`, target 0.3 | 31.4% | 29.50 | 29.50 | -0.50 | -0.50 [-0.75, -0.25] |",
        "| dense, half of the text | - | 9.00 | 9.00 | - | - |",
    ]


def test_differences_are_of_the_seeds_that_both_systems_have():
    systems = {
        "zero": {"runs": runs(0.5, s1=20.0, s2=21.0, s3=30.0)},
        "on-taught": {"runs": runs(None, s2=22.0, s1=20.5)},
    }
    assert studies.PublishedStudy(study(systems)).differences("zero", "on-taught") == [-0.5, -1.0]


@pytest.mark.parametrize(
    ("teacher", "target", "way"),
    [(None, "a.de", "no"), ({}, "runs/train.translated", "sequence"), ({"model": "x"}, "a.de", "token")],
)
def test_the_recipe_tells_how_a_run_was_distilled(teacher, target, way):
    assert studies.distilled({"train": {"teacher": teacher}, "data": {"train": {"target": target}}}) == way


def test_labels_speak_of_dense_and_sparse_models():
    assert label("zero-0.47") == "sparse `zero`, target 0.47"
    assert label("mask-0.5-slow-gate") == "sparse `mask`, target 0.5, slow-gate"
    assert label("on-taught") == "dense, continued, distilled the same way"
    assert not any(word in title for title in SYSTEMS.values() for word in ("taught", "trained on", "baseline"))


def test_the_summary_separates_trained_models_from_simulated_lengths():
    table, note = in_markdown(summary.summary_table()).split("\n\n")
    rows = table.splitlines()[2:]
    trained, simulated = rows[: len(summary.TRAINED)], rows[len(summary.TRAINED) :]
    assert len(rows) <= 5
    assert "| -0.30 |" in trained[0]
    assert "Europarl: two seeds, one independent baseline" in note
    assert not any("simulated" in row or "not measured" in row for row in trained)
    assert all("simulated" in row and "(set)" in row and "| not measured |" in row for row in simulated)
    assert all(row.count("×") == 2 for row in rows)


def test_baselines_of_several_lengths_use_the_seeds_of_their_sparse_models(monkeypatch):
    def system(steps: int, **scores: float) -> dict:
        return {"recipe": {"train": {"steps": steps}}, "runs": runs(0.5, **scores)}

    systems = {"base": system(4000, s1=20.0), "on": system(1000, s1=21.0, s2=99.0), "zero": system(1000, s1=20.5)}
    monkeypatch.setattr(quality, "BASELINES", {"one": "zero"})
    table = quality.baselines_table({"one": study(systems)})
    assert in_markdown(table).splitlines()[2:] == ["| 4,000 + 1,000 | 1 | 20.00 | 21.00 | 20.50 at 50.0% | -0.50 |"]


def test_rivals_have_the_spread_of_their_times():
    row = {"run": "on-s1", "beams": 2, "score": {"value": 20.456}, "cpu_seconds": [0.3, 0.1, 0.2], "sentences": 10}
    assert in_markdown(quality.rivals_table(filled(Rivals, {"rows": [row]}))).splitlines()[2:] == [
        "| dense, continued | 2 | 20.46 | 20 | 10 to 30 |"
    ]


def test_every_claim_has_a_verdict_and_evidence():
    found = [*claims.cheap(), *claims.rules(), *claims.layers(), *claims.not_run()]
    for claim in found:
        assert all(claim)
    table = in_markdown(claims.claims_table()).splitlines()
    assert len(table) > len(found) + 2
    assert {line.count(" | ") for line in table if not line.startswith("|---")} == {3}


def test_a_claim_that_rests_on_one_seed_is_not_confirmed():
    for line in in_markdown(claims.claims_table()).splitlines()[2:]:
        _, _, verdict, _, text, _ = (cell.strip() for cell in line.split("|"))
        assert not ("one" in text and verdict.startswith("yes")), line
    verdicts = {claim.paper.split(":")[0]: claim.verdict for claim in claims.not_run()}
    assert verdicts == dict.fromkeys(("WMT14 En-De", "WMT18 Zh-En", "CNN/Daily Mail", "WikiSum"), "not run")


def test_rules_are_sorted_by_sparsity_with_learned_gates():
    def point(run, sparsity, score):
        return {"run": run, "sparsity": sparsity, "score": {"value": score}}

    points = [point("target-0.5", 0.502, 97.0), point("random-0.5", 0.5, 90.0), point("pos", 0.51, 98.5)]
    sweep = {"reference": {"score": {"value": 99.0}}, "points": points}
    assert in_markdown(toys.rules_table({"rules": sweep})).splitlines()[2:] == [
        "| chance (`random`) | 50.0% | 90.00 | -9.00 |",
        "| learned, target 0.5 | 50.2% | 97.00 | -2.00 |",
        "| function words, punctuation, later pieces (`pos`) | 51.0% | 98.50 | -0.50 |",
    ]


def test_a_profile_has_the_lower_bounds_of_the_machine():
    seconds = dict.fromkeys(speed.STEP, 0.0012)
    bounds = {"linear_layers": 0.0015, "cross_attention_short": 0.0001, "cross_attention_dense": 0.0002}
    table = speed.profile_table({"seconds_per_step": {"int8, short": seconds}, "bounds": bounds})
    assert in_markdown(table).splitlines()[:5] == [
        "| ms per step | int8, short | lower bound, float32 |",
        "|---|---|---|",
        "| whole step | 1.2 |  |",
        "| linear layers | 1.2 | 1.5 |",
        "| attention | 1.2 | 0.1 short, 0.2 dense |",
    ]
