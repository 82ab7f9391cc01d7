"""Whole analyses of runs and sweeps: their parts, omitted parts with reasons, refused input."""

import json
import math
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from l0drop import Gates, L0DropConfig, sparsify
from l0drop.core.groups import GROUPS
from l0drop.data.text import CorpusError
from l0drop.decoding.folder import load_model
from l0drop.runs.analysis import Analysis, SweepAnalysis
from l0drop.runs.json_file import as_json, from_json, write_json
from l0drop.study.analysis.annotate import looks_english
from l0drop.study.analysis.attention import Attention
from l0drop.study.analysis.dropped import DroppedStudy
from l0drop.study.analysis.parts import (
    EARLY,
    NEEDS,
    SHORT,
    Pass,
    typical_point,
    write_parts,
)
from l0drop.study.analysis.parts import analyze as analysed
from l0drop.study.analysis.parts import analyze_sweep as analysed_sweep
from l0drop.study.analysis.subject import Reading, impossible, opened
from l0drop.study.analysis.tables import BY_LAYER, CLOSED, tables
from l0drop.study.analysis.timing import decoder_time, timed
from l0drop.study.source_need import QUESTION
from tests.models import zoo
from tests.study.analysis.conftest import write_run


def analyze(*arguments, **options):
    """The content of analysis.json."""
    return as_json(analysed(*arguments, **options))


def analyze_sweep(*arguments, **options):
    return as_json(analysed_sweep(*arguments, **options))


def tables_of(content):
    """The tables of a file, by title: head and rows."""
    kind = SweepAnalysis if "points" in content else Analysis
    return {title: (table.head, table.rows) for title, table in tables(from_json(kind, content))}


def swept(result, *points):
    """The analysis of a sweep whose points are the same model."""
    shared = {key: result[key] for key in ("text", "decoding", "dtype")}
    return {"sweep": "s", "points": [{"value": 0.1, "scores": {}, **result, **point} for point in points], **shared}


@pytest.fixture(scope="module")
def whole(runs):
    with opened(str(runs / "sparse"), Reading(sentences=10), entmax=str(runs / "entmax")) as subject:
        yield analyze(subject), subject


def test_an_analysis_has_every_part_and_can_be_repeated(whole) -> None:
    result, subject = whole
    assert set(NEEDS) <= set(result)
    assert result["left_out"] == {} == result["missing"]
    json.dumps(result)
    assert {"commit", "device", "torch", "threads", "dtype", "decoding", "models", "text"} <= set(result)
    assert result["text"]["sentences"] == 10
    assert result["text"]["target"] == "reference"
    assert result["text"]["source_tokens"] == sum(len(e.source) for e in subject.material.corpus)
    assert list(result["models"]) == list(result["fingerprints"]) == ["sparse", "baseline", "entmax"]
    assert len(set(result["fingerprints"].values())) == 3
    assert result["text"]["tagging"] == {"tagger": "perceptron", "language": "en"}


def test_its_parts_agree_with_each_other(whole) -> None:
    result, subject = whole
    _, meter = subject.material.decode(subject.models["sparse"])
    assert result["sparsity"] == meter.sparsity == result["gates"]["sparsity"]
    groups = result["groups"]["groups"]
    assert list(groups) == list(GROUPS)
    weighted = sum(g["tokens"] * (g["sparsity"] or 0) for g in groups.values())
    assert weighted / result["text"]["source_tokens"] == pytest.approx(result["sparsity"])
    assert groups["EOS"]["tokens"] == 10
    mass = result["mass"]
    source, target = result["text"]["source_tokens"], result["text"]["target_tokens"]
    assert mass["target_tokens"] == target
    assert 0 < mass["share_on_zero_row"] == mass["share_on_dropped"]["sparse"] < 1
    for name in ("baseline", "entmax"):
        assert mass["systems"][name]["mean"] == pytest.approx(target / source, rel=1e-4)
    kept = mass["systems"]["sparse"]
    assert kept["words"] == round((1 - result["sparsity"]) * source)
    assert kept["mean"] * kept["words"] == pytest.approx(target * (1 - mass["share_on_dropped"]["sparse"]), rel=1e-4)
    assert mass["systems"]["baseline_renormalised"]["words"] == kept["words"]
    assert result["entropy"]["positions"]["kept"] == kept["words"]
    for name in ("sparse", "baseline"):
        for kind in ("kept", "dropped"):
            assert 0 < result["entropy"][name][kind] <= result["entropy"]["uniform"][kind] <= math.log(32)
    assert result["interventions"]["systems"]["sparse"][0]["sparsity"] == result["sparsity"]
    assert result["source"]["own_source"]["score"] == result["interventions"]["systems"]["sparse"][0]["score"]


def read(file):
    return json.loads(file.read_text(encoding="utf-8"))


def test_new_parts_are_merged_with_earlier_ones_of_the_same_models_and_text(whole, tmp_path) -> None:
    result, subject = whole
    file = tmp_path / "analysis.json"
    before = {part: value for part, value in result.items() if part not in ("time", "source")}
    before |= {
        "mass": {**result["mass"], "target_tokens": 0},
        "left_out": {"time": "no clock", "source": "one sentence"},
        "commit": "earlier",
    }
    write_json(file, before)
    write_parts(analysed(subject, ["mass", "time"]), file)
    got = read(file)
    assert NEEDS.keys() - got.keys() == {"source"} == got["left_out"].keys()
    assert got["mass"] == result["mass"], "measured again"
    assert got["commit"] == result["commit"]
    assert [*got["earlier"]] == ["maps", "gates", "groups", "words", "places", "entropy", "interventions"]
    assert got["earlier"]["gates"] == {**got["earlier"]["gates"], "commit": "earlier", "torch": result["torch"]}
    write_parts(analysed(subject, ["source"]), file)
    again = read(file)
    assert again.keys() == got.keys() | {"source"}
    assert again["left_out"] == {}
    assert again["sparsity"] == result["sparsity"]
    assert again["earlier"] == got["earlier"], "mass and time were measured like source"


@pytest.mark.parametrize("key", ["fingerprints", "text", "decoding", "dtype"])
def test_parts_of_other_models_texts_or_settings_are_replaced(whole, tmp_path, key) -> None:
    result, subject = whole
    file = tmp_path / "analysis.json"
    others = {
        "fingerprints": {"sparse": "another"}, "text": {**result["text"], "name": "another"},
        "decoding": {"beams": 99}, "dtype": "another",
    }  # fmt: skip
    write_json(file, {**result, key: others[key]})
    write_parts(analysed(subject, ["gates"]), file)
    assert NEEDS.keys() & read(file).keys() == {"gates"}


@pytest.mark.parametrize("content", ['{"mass": ', '{"sweep": "s", "points": []}'])
def test_a_damaged_file_or_one_of_a_sweep_is_replaced(whole, tmp_path, content) -> None:
    _, subject = whole
    file = tmp_path / "analysis.json"
    file.write_text(content, encoding="utf-8")
    result = analysed(subject, ["gates"])
    write_parts(result, file)
    assert read(file) == {**as_json(result), "version": 1}


def test_tables_have_the_same_numbers(whole) -> None:
    result, _ = whole
    found = tables_of(result)
    assert [*found] == [
        "Sparsity by group of tokens", "Attention mass per word", "Entropy of the encoder's attention", CLOSED,
        QUESTION,
    ]  # fmt: skip
    for head, rows in found.values():
        assert rows
        assert {len(row) for row in rows} == {len(head)}
    (group, kept), (_, mass) = found["Sparsity by group of tokens"], found["Attention mass per word"]
    assert group[2] == f"{result['sparsity']:.1%} dropped"
    groups = result["groups"]["groups"]
    assert sum(int(row[1].replace(",", "")) for row in kept) == sum(found["tokens"] for found in groups.values())
    assert ["later pieces (BPEO)", f"{groups['BPEO']['tokens']:,}", f"{groups['BPEO']['sparsity']:.1%}"] in kept
    assert mass[0][:4] == ["", "dense, all words", *_cells(result["mass"]["systems"]["baseline"])]
    assert mass[-1][0] in ("", group[2])
    closed = result["interventions"]["systems"]["sparse"][0]
    own = result["source"]["own_source"]
    assert found[QUESTION][1][0] == ["own source", f"{own['cross_entropy']:.3f}", f"{own['score']['value']:.2f}"]
    assert found[CLOSED][1][0][:4] == ["sparse", closed["closed"], "", f"{closed['sparsity']:.1%}"]


def _cells(mass) -> list[str]:
    return [f"{mass['words']:,}", f"{mass['mean']:.2f}"]


def test_tables_of_a_sweep_have_a_column_per_point(whole) -> None:
    result, _ = whole
    points = [
        {"sparsity": 0.9, "kind": "target", "run": "target-0.9"},
        {"kind": "pos", "run": "pos"},
        {"kind": "lambda", "run": "lambda-0.3"},
    ]
    found = tables_of(swept(result, *points))
    dropped = f"{result['sparsity']:.1%} dropped"
    assert found["Sparsity by group of tokens"][0][2:] == [f"pos, {dropped}", dropped, "90.0% dropped"]
    labels = [row[1] for row in found["Attention mass per word"][1]]
    assert labels.count("dense, all words") == 1
    assert labels.count("sparse, kept words") == 3
    assert CLOSED not in found
    notes = [table.note for _, table in tables(from_json(Analysis, result))]
    assert all(note[0].isupper() and note.endswith(".") for note in notes)
    bare = {key: result[key] for key in ("models", "fingerprints", "text", "decoding", "dtype")}
    assert tables_of(bare) == {}


def test_gates_between_layers_have_a_table(whole) -> None:
    result, _ = whole
    bare = {key: result[key] for key in ("models", "fingerprints", "text", "decoding", "dtype")}
    layers = [{**result["gates"], "sparsity": share} for share in (0.0, 0.125)]
    bare["gates"] = {**result["gates"], "layers": layers}
    ((title, content),) = tables_of({**bare, "sparsity": 0.1}).items()
    near = [{"run": "r", "kind": "target", "sparsity": share} for share in (0.1001, 0.0999)]
    ((_, rows),) = tables_of(swept(bare, *near)).values()
    assert len(rows) == 2
    assert (title, content) == (BY_LAYER, (["gates after layer", "1", "2"], [["10.0% dropped", "0.0%", "12.5%"]]))


def test_maps_of_sentences(whole) -> None:
    result, subject = whole
    assert len(result["maps"]) == 3
    for sentence in result["maps"]:
        example = subject.material.corpus[sentence["sentence"]]
        assert len(sentence["source"]) == len(example.source) <= SHORT
        assert set(sentence["systems"]) == {"sparse", "baseline", "entmax"}
        shown = np.array(sentence["systems"]["sparse"]["weights"])
        assert shown.shape == (len(example.target), len(example.source))
        assert not shown[:, ~np.array(sentence["kept"])].any()
        entmax = np.array(sentence["systems"]["entmax"]["weights"])
        assert (entmax == 0).any()
        baseline = np.array(sentence["systems"]["baseline"]["weights"])
        np.testing.assert_allclose(baseline.sum(1), 1, atol=5e-3)
        kept = np.array(sentence["kept"])
        np.testing.assert_allclose(sentence["systems"]["baseline"]["on_dropped"], baseline[:, ~kept].sum(1), atol=5e-3)
    with pytest.raises(ValueError, match="`show`: there is no sentence 10"):
        analyze(subject, ["maps"], [10])
    assert [m["sentence"] for m in analyze(subject, ["maps"], [4])["maps"]] == [4]


def test_representative_sentences_are_near_the_average() -> None:
    collected = Pass(DroppedStudy(4))
    mask = torch.ones(1, 10, dtype=torch.bool)
    for index, dropped in ((0, 9), (1, 5), (2, 1), (3, 4), (EARLY, 5), (4, 6)):
        values = (torch.arange(10) >= dropped).float()[None]
        attention = Attention(torch.zeros(1, 1, 10), None, mask, Gates(values), None)
        collected.note([index], {"sparse": attention})
        collected.dropped.overall.add(values, mask)
    long = torch.ones(1, SHORT + 1, dtype=torch.bool)
    collected.note([7], {"sparse": Attention(torch.zeros(1, 1, 1), None, long, None, None)})
    assert collected.representative == [1, 3, 4], "nearest to half; long and late sentences are not shown"


def test_another_gating_has_no_zero_row(runs) -> None:
    with opened(str(runs / "mask"), Reading(sentences=6)) as subject:
        result = analyze(subject, ["mass", "entropy"])
    assert result["mass"]["share_on_dropped"]["sparse"] == result["mass"]["share_on_zero_row"] == 0
    assert result["mass"]["share_on_dropped"]["baseline"] > 0
    assert result["sparsity"] > 0
    assert "groups" not in result


def test_a_baseline_alone(runs, baseline) -> None:
    with opened(str(baseline), Reading(sentences=4)) as subject:
        result = analyze(subject)
        with pytest.raises(ValueError, match="groups: .* has no gates; give a run that was trained with l0drop"):
            analyze(subject, ["groups"])
    assert set(result["left_out"]) == {"gates", "groups", "words", "places", "entropy", "interventions"}
    assert list(result["mass"]["systems"]) == ["baseline"]
    assert "sparsity" not in result
    assert len(result["maps"]) == 3
    with (
        pytest.raises(ValueError, match="`baseline`: .* is a baseline itself"),
        opened(str(baseline), Reading(), baseline=str(runs / "sparse")),
    ):
        pass


def test_text_without_references_is_measured_on_the_models_outputs(runs, tmp_path) -> None:
    file = tmp_path / "source.txt"
    file.write_text("the dog sees a cat .\n\na bird finds the road .\n", encoding="utf-8")
    with opened(str(runs / "sparse"), Reading(source=file)) as subject:
        assert subject.material.target == "output of sparse"
        texts, _ = subject.material.decode(subject.models["sparse"])
        assert list(subject.material.references) == texts
        result = analyze(subject, ["mass", "interventions", "source"])
    assert result["text"]["target"] == "output of sparse"
    assert result["text"]["sentences"] == 2
    rows = [(name, row) for name, found in result["interventions"]["systems"].items() for row in found]
    unscored = [(name, row["closed"]) for name, row in rows if row["score"] is None]
    assert unscored == [("sparse", "the model's choice")], "its outputs would score 100 against themselves"
    assert "they measure agreement, not quality" in result["interventions"]["what"]
    assert result["source"]["own_source"]["score"] is None
    assert result["source"]["no_source"]["score"]["value"] < 100
    head, shown = tables_of(result)[CLOSED]
    assert (head[-1], shown[0][-1]) == ("BLEU agreement", "")


def test_languages(runs, tmp_path) -> None:
    file = tmp_path / "source.txt"
    file.write_text("der Hund sieht eine Katze .\nein Vogel findet den Weg .\n", encoding="utf-8")
    assert not looks_english(file.read_text(encoding="utf-8").splitlines())
    assert looks_english(["the dog sees a cat ."])
    with opened(str(runs / "sparse"), Reading(source=file)) as subject:
        result = analyze(subject, None)
        with pytest.raises(ValueError, match='groups: the source does not look like English.*`language="en"`'):
            analyze(subject, ["groups"])
    assert set(result["left_out"]) == {"groups", "interventions"}
    assert result["words"]["tokens"] > 0, "words are found without a tagger"
    german = opened(str(runs / "sparse"), Reading(source=file, language="de"))
    with german as subject, pytest.raises(ValueError, match="groups: `language`: perceptron tags English, not 'de'"):
        analyze(subject, ["groups"])
    with opened(str(runs / "sparse"), Reading(source=file, language="en")) as subject:
        assert "groups" in analyze(subject, ["groups"])


def test_a_masked_model_is_also_measured_with_a_zero_row(runs) -> None:
    with opened(str(runs / "mask"), Reading(sentences=6)) as subject:
        result = analyze(subject, ["mass", "entropy"], zero_row=True)
        plain = analyze(subject, ["mass"])
        with pytest.raises(ValueError, match="`zero_row`: measures the attention mass"):
            analyze(subject, ["groups"], zero_row=True)
    systems = dict(result["mass"]["systems"])
    assert systems.pop("sparse_zero_row")["words"] <= systems["sparse"]["words"]
    assert systems == plain["mass"]["systems"], "the model's own measurements stay"
    assert result["mass"]["share_on_zero_row"] == 0
    _, rows = tables_of(result)["Attention mass per word"]
    assert [row[1] for row in rows][-1] == "the same with a zero row, without training for it"


def test_refusals(runs, baseline, tmp_path) -> None:
    def refused(message, name, reading=None, **options):
        with (
            pytest.raises((ValueError, CorpusError), match=message),
            opened(str(name), reading or Reading(sentences=4), **options),
        ):
            pass

    refused("no-such-run", tmp_path / "no-such-run")
    refused("`baseline`: .* should be a plain model", runs / "sparse", baseline=str(runs / "mask"))
    refused("`entmax`: .* does not have sparse attention", runs / "sparse", entmax=str(baseline))
    refused("sparse attention and is only compared with others; give it as `entmax`", runs / "entmax")
    refused("`source`: .* has no recipe with a test set", tmp_path_model(runs, tmp_path))
    refused("`reference`: needs `source`", runs / "sparse", Reading(reference=tmp_path / "x"))
    fine = opened(str(runs / "sparse"), Reading(sentences=4))
    with fine as subject, pytest.raises(ValueError, match="`only`: 'mess' is not one of mass, maps"):
        analyze(subject, ["mess"])


def tmp_path_model(runs, tmp_path):
    """A model folder outside of any run, with its tokenizer."""
    folder = tmp_path / "alone"
    folder.mkdir()
    for file in (*(runs / "sparse" / "model").iterdir(), *(runs / "sparse" / "tokenizer").iterdir()):
        (folder / file.name).symlink_to(file)
    return folder


def test_a_model_folder_has_no_baseline(runs, tmp_path) -> None:
    file = tmp_path / "source.txt"
    file.write_text("the dog sees a cat .\nthe bird finds a road .\n", encoding="utf-8")
    with opened(str(tmp_path_model(runs, tmp_path)), Reading(source=file)) as subject:
        result = analyze(subject, ["mass", "entropy"])
    assert "has no recipe that names its baseline; give `baseline`" in result["missing"]["baseline"]
    assert list(result["mass"]["systems"]) == ["sparse"]
    assert "baseline" not in result["entropy"]


def test_a_missing_baseline(runs, baseline, tmp_path) -> None:
    folder = tmp_path / "moved"
    folder.mkdir()
    for name in ("model", "tokenizer"):
        (folder / name).symlink_to((runs / "sparse" / name).resolve(), target_is_directory=True)
    recipe = (runs / "sparse" / "recipe.yaml").read_text(encoding="utf-8")
    changed = "\n".join("  init: runs/gone" if "  init:" in line else line for line in recipe.splitlines())
    (folder / "recipe.yaml").write_text(changed, encoding="utf-8")
    with opened(str(folder), Reading(sentences=4)) as subject:
        assert subject.missing["baseline"].startswith("the baseline runs/gone of ")
    with opened(str(folder), Reading(sentences=4), baseline=str(baseline)) as subject:
        assert subject.names["baseline"] == str(baseline)


def test_parts_that_a_model_or_text_does_not_allow_are_omitted(baseline, tmp_path) -> None:
    base = load_model(str(baseline), baseline / "model", torch.float32)
    model = sparsify(base, L0DropConfig(gating="mask", layerwise=True))
    section = {"gating": "mask", "layerwise": True, "lambda_": 0.3}
    run = write_run(tmp_path, baseline, "layers", model, l0drop=section)
    file = tmp_path / "one.txt"
    file.write_text("the dog sees a cat .\n", encoding="utf-8")
    with opened(str(run), Reading(source=file)) as subject:
        result = analyze(subject)
    assert set(result["left_out"]) == {"interventions", "source"}
    assert "gates between layers" in result["left_out"]["interventions"]
    assert "one sentence" in result["left_out"]["source"]
    assert len(result["gates"]["layers"]) == 1
    led = zoo.build("led")
    assert "self-attention" in impossible(led, subject.material)
    assert "self-attention" not in impossible(base, subject.material)


def test_a_sweep(runs, tmp_path) -> None:
    start = {"run": "base"}
    summary = {"name": "tiny-sweep", "gating": "zero", "baseline": start, "continued": start, "points": []}
    for name, value in (("sparse", 0.3), ("mask", 0.5)):
        (tmp_path / name).symlink_to(runs / name, target_is_directory=True)
        score = {"score": {"name": "BLEU", "value": 10.0, "signature": "s"}, "sentences": 24}
        summary["points"].append({"run": name, "kind": "lambda", "value": value, "test": score})
    (tmp_path / "sweep.json").write_text(json.dumps(summary), encoding="utf-8")
    result = analyze_sweep(tmp_path, Reading(sentences=5), say=lambda text: None)
    assert [point["run"] for point in result["points"]] == ["sparse", "mask"]
    for point in result["points"]:
        assert {"groups", "entropy", "mass", "gates", "sparsity", "scores"} <= set(point)
        assert "text" not in point
    with opened(str(runs / "mask"), Reading(sentences=5)) as subject:
        alone = analyze(subject, ["groups"])
    assert result["points"][1]["groups"] == alone["groups"]
    assert result["text"]["sentences"] == 5
    rates = {"a": ("target", 0.3), "b": ("target", 0.6), "pos": ("pos", 0.5)}
    points = [{"run": run, "kind": kind, "sparsity": sparsity} for run, (kind, sparsity) in rates.items()]
    assert typical_point(from_json(SweepAnalysis, swept(alone, *points))) == "b"
    assert typical_point(from_json(SweepAnalysis, swept(alone, *points[2:]))) == "pos"
    (tmp_path / "sweep.json").write_text(json.dumps({**summary, "points": []}), encoding="utf-8")
    with pytest.raises(ValueError, match="sweep.json: no point of this sweep is finished"):
        analyze_sweep(tmp_path, Reading(), say=lambda text: None)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ('{"points": [', "not JSON"),
        ("3", "the whole file: expected an object, got 3"),
        ('{"name": "x", "gating": null}', "baseline: missing; delete the file, and write it again with l0drop sweep"),
        ('{"name": 3}', "name: expected text, got 3"),
    ],
)
def test_a_damaged_sweep_is_named(tmp_path, content, complaint) -> None:
    file = tmp_path / "sweep.json"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=re.escape(f"{file}: {complaint}")):
        analyze_sweep(tmp_path, Reading(), say=lambda text: None)


def test_time_in_cross_attention(runs) -> None:
    with opened(str(runs / "sparse"), Reading(sentences=3)) as subject:
        got = decoder_time(subject.models, subject.material)
        hooked = [m for model in subject.models.values() for m in model.modules() if m._forward_hooks]
    assert hooked == []
    assert list(got.systems) == ["sparse, dense", "sparse, short", "baseline"]
    for system in got.systems.values():
        assert 0 < system.share < 1
        assert system.cross_attention_seconds < system.decoder_seconds


def test_a_timer_adds_up_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    class Slow(torch.nn.Module):
        def forward(self, x):
            nonlocal now
            now += 0.02
            return x

    monkeypatch.setattr("l0drop.study.analysis.timing.time", SimpleNamespace(perf_counter=lambda: now))
    module = Slow()
    with timed([module], torch.device("cpu")) as timer:
        for _ in range(3):
            module(1)
        now += 0.05
    assert timer.seconds == pytest.approx(0.06)
    module(1)
    assert timer.seconds == pytest.approx(0.06)
