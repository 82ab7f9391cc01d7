"""Figures: their numbers, and SVG that a page can embed."""

import json
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes

from l0drop.bench.peers import SYSTEMS
from l0drop.core import hard_concrete
from l0drop.report import figures
from l0drop.report.figures.distribution import binary_concrete_density
from l0drop.report.figures.drawing import INK
from l0drop.report.figures.files import INDEX
from l0drop.report.figures.times import SYSTEMS as DRAWN
from l0drop.runs.analysis import Analysis, SweepAnalysis
from l0drop.runs.benchmark import DecodeBenchmark
from l0drop.runs.json_file import FileError, as_json, from_json, read_as
from l0drop.runs.study import Rivals, StudyResults
from l0drop.runs.sweep import Sweep
from tests.mutations import fields, mutated
from tests.runs.partial import completed, filled

SVG = "{http://www.w3.org/2000/svg}"
TEXT = {
    "name": "data.test of runs/tiny/recipe.yaml",
    "sentences": 24,
    "source_tokens": 300,
    "target_tokens": 280,
    "target": "reference",
}


def score(value: float) -> dict:
    return {"score": {"name": "BLEU", "value": value, "signature": "tok:13a"}, "sentences": 24}


def group_rates(sparsity: float) -> dict:
    names = ("BPEH", "BPEO", "function", "content", "punctuation", "rest", "EOS")
    rates = {name: {"tokens": 10 + i, "sparsity": min(1.0, sparsity * i / 3)} for i, name in enumerate(names)}
    return {"groups": {**rates, "rest": {"tokens": 0, "sparsity": None}}}


def entropies(shift: float) -> dict:
    kinds = {"kept": 2.0 + shift, "dropped": 1.5 + shift}
    return {"sparse": kinds, "baseline": {"kept": 1.9, "dropped": None}, "uniform": {"kept": 3.0, "dropped": 3.1}}


@pytest.fixture(scope="module")
def sweep() -> dict:
    points = [
        {"run": f"lambda-{v}", "kind": "lambda", "value": v, "sparsity": s, "test": score(b)}
        for v, s, b in ((0.2, 0.1, 30.0), (0.5, 0.4, 29.0), (0.8, 0.6, 25.0))
    ]
    start = {"baseline": {"run": "base", "test": score(29.5)}, "reference": {"run": "reference", "test": score(31.0)}}
    return completed(Sweep, {"name": "tiny-sweep", "gating": "zero", "points": points, **start})


@pytest.fixture(scope="module")
def analysis() -> dict:
    masses = {
        "words": 20,
        "mean": 1.1,
        "share_under_0.6": 0.25,
        "share_under_0.6_of_mean": 0.3,
        "histogram": {"bin_width": 0.1, "counts": [1] * 20 + [0] * 40, "above": 0},
    }
    bins = [{"from": 1, "to": 10, "tokens": 5, "sparsity": 0.2}, {"from": 11, "to": None, "tokens": 4, "sparsity": 0.5}]
    tenths = [{"from": i / 10, "to": (i + 1) / 10, "tokens": 3, "sparsity": None if i else 0.4} for i in range(10)]
    drawn = {"weights": [[0.5, 0.5, 0.0], [0.0, 0.9, 0.0]], "on_dropped": [0.0, 0.1]}
    content = {
        "text": TEXT,
        "sparsity": 0.45,
        "models": {"sparse": "runs/tiny"},
        "mass": {
            "systems": dict.fromkeys(("baseline", "baseline_renormalised", "sparse"), masses),
            "share_on_dropped": {"sparse": 0.07, "baseline": 0.2},
        },
        "maps": [
            {
                "sentence": 4,
                "source": ["▁a$b$", "<x>", "</s>"],
                "target": ["▁ä", "</s>"],
                "kept": [True, True, False],
                "systems": {
                    "baseline": {"weights": [[0.2, 0.8, 0], [0, 0.1, 0.9]], "on_dropped": [0, 0.9]},
                    "sparse": drawn,
                },
            }
        ],
        "groups": group_rates(0.45),
        "entropy": entropies(0.1),
        "places": {
            "by_length": {"bins": bins},
            "by_position": {"bins": bins},
            "by_relative_position": {"bins": tenths},
        },
    }
    return completed(Analysis, content)


@pytest.fixture(scope="module")
def swept(sweep) -> dict:
    points = [
        {
            **{key: point[key] for key in ("run", "kind", "value", "sparsity")},
            "groups": group_rates(point["sparsity"]),
            "entropy": entropies(point["sparsity"]),
        }
        for point in sweep["points"]
    ]
    return completed(SweepAnalysis, {"sweep": "runs/tiny-sweep", "text": TEXT, "points": points})


@pytest.fixture(scope="module")
def bench() -> dict:
    def system(encode: float, decode: float, times: float) -> dict:
        median = {"encode": {"cpu": encode}, "decode": {"cpu": decode}}
        return {"median": median, "times_engine_short": {"end_to_end": times}}

    content = {
        "what": "one batch",
        "sentences": 10,
        "gates": {"sparsity": 0.476, "source_tokens": 4000, "longest_source": 400},
        "generation": {"num_beams": 4},
        "systems": {"engine-short": system(1.0, 2.0, 1.0), "hf-dense": system(1.0, 6.5, 2.5)},
        "device": "a machine",
        "threads": 1,
    }
    return completed(DecodeBenchmark, content)


def texts(svg: str) -> list[str]:
    return ["".join(node.itertext()) for node in ET.fromstring(svg).iter(f"{SVG}text")]


@pytest.fixture(scope="module")
def every(sweep, analysis, swept, bench) -> dict[str, figures.Drawing]:
    return {
        "density": figures.density(),
        "quality": figures.quality(from_json(Sweep, sweep)),
        "mass": figures.attention_mass(from_json(Analysis, analysis)),
        "maps": figures.attention_maps(from_json(Analysis, analysis)),
        "groups": figures.groups(from_json(Analysis, analysis)),
        "groups of a sweep": figures.groups(from_json(SweepAnalysis, swept)),
        "entropy": figures.entropy(from_json(Analysis, analysis)),
        "entropy of a sweep": figures.entropy(from_json(SweepAnalysis, swept)),
        "speed": figures.speed(from_json(DecodeBenchmark, bench)),
        "places": figures.positions(from_json(Analysis, analysis)),
    }


def test_figures_take_the_text_colour_of_the_page(every) -> None:
    for drawing in every.values():
        root = ET.fromstring(drawing.svg)
        assert root.tag == f"{SVG}svg"
        assert root.get("class") == "l0drop-figure"
        assert INK not in drawing.svg
        assert drawing.svg.count("currentColor") > 10
        assert "#000000" not in drawing.svg
        assert "#ffffff" not in drawing.svg.lower(), "the background is the page's"
        assert root.find(f"{SVG}title").text == drawing.title
        assert root.find(f"{SVG}desc").text == drawing.caption
        assert texts(drawing.svg), "text stays text"


def test_ids_differ_between_figures_and_references_resolve(every) -> None:
    ids: dict[str, set[str]] = {}
    for drawing in every.values():
        found = re.findall(r'\bid="([^"]+)"', drawing.svg)
        assert len(found) == len(set(found))
        ids.setdefault(drawing.name, set()).update(found)
        wanted = re.findall(r'href="#([^"]+)"', drawing.svg) + re.findall(r"url\(#([^)]+)\)", drawing.svg)
        assert set(wanted) <= set(found)
    names = list(ids)
    for i, one in enumerate(names):
        for other in names[i + 1 :]:
            assert not ids[one] & ids[other]


def test_the_same_numbers_give_the_same_file(sweep, every) -> None:
    assert figures.quality(from_json(Sweep, sweep)) == every["quality"]
    for point in sweep["points"]:
        point["test"]["references"] = "outputs of the teacher"
    assert "sentences (against outputs of the teacher), gating" in figures.quality(from_json(Sweep, sweep)).caption


def test_density_against_samples() -> None:
    torch.manual_seed(0)
    s = torch.sigmoid((torch.logit(torch.rand(400_000)) + 0.7) / (2 / 3)).numpy()
    counts, edges = np.histogram(s, bins=20, range=(0.05, 0.95))
    middle = (edges[1:] + edges[:-1]) / 2
    np.testing.assert_allclose(
        counts / 400_000 / (edges[1] - edges[0]), binary_concrete_density(middle, 0.7, 2 / 3), rtol=0.04
    )
    gates = hard_concrete.sample(torch.full((400_000,), 0.7), torch.rand(400_000), 2 / 3, 0.1)
    shown = " ".join(texts(figures.density(0.7).svg))
    for end in (0, 1):
        share = float((gates == end).float().mean())
        value = float(re.search(rf"P\(g = {end}\) = ([\d.]+)", shown).group(1))
        assert value == pytest.approx(share, abs=0.01)


def test_captions_name_the_text_measured_on(every) -> None:
    for name in ("places", "mass", "maps", "groups", "groups of a sweep", "entropy", "entropy of a sweep"):
        assert "24 sentences, 300 source and 280 target tokens, target: reference" in every[name].caption
    assert "puts 7.0% of its attention" in every["mass"].caption
    assert "tok:13a" in every["quality"].caption
    assert "3 models of the sweep runs/tiny-sweep" in every["groups of a sweep"].caption
    assert "10 sentences, 4,000 source tokens (longest 400), 47.6% dropped; a machine" in every["speed"].caption


def test_maps_mark_dropped_tokens(every) -> None:
    found = texts(every["maps"].svg)
    assert found.count("a$b$") == 2, "text, not mathematics; once per system"
    assert found.count("✕ </s>") == 1
    assert "5.0% of the attention" in every["maps"].caption


def test_tokens_are_drawn_as_text(analysis) -> None:
    tokens = ["▁<script>alert(1)</script>", "-->", "&lt;", "\x07\n", "]]>", "▁", "▁ab", "cd"]
    weights = {"weights": np.eye(8).tolist(), "on_dropped": [0.0] * 8}
    sentence = {"sentence": 0, "source": tokens, "target": tokens, "kept": [True] * 8, "systems": {"baseline": weights}}
    content = {**analysis, "maps": [sentence], "models": {"sparse": r"C:\runs\1"}}
    svg = figures.attention_maps(from_json(Analysis, content)).svg
    expected = ["<script>alert(1)</script>", "-->", "&lt;", "\ufffd\ufffd", "]]>", "␣", "ab", "·cd"]
    assert [text for text in texts(svg) if text in expected] == expected * 2
    assert "<script" not in svg
    assert r"C:\runs\1" in ET.fromstring(svg).find(f"{SVG}desc").text


HOSTILE = '<script>alert(1)</script><a href="javascript:x" onload="y">]]>&--> \x07\x00 id="z'
NAMES = ("name", "run", "model", "sparse", "baseline", "device", "signature", "commit", "what")


def hostile(content):
    """The content with a script in every name."""
    if isinstance(content, list):
        return [hostile(item) for item in content]
    if not isinstance(content, dict):
        return content
    return {key: HOSTILE if key in NAMES and isinstance(v, str) else hostile(v) for key, v in content.items()}


@pytest.mark.filterwarnings("ignore:Glyph")
def test_scripts_in_names_are_drawn_as_text(analysis, sweep, bench, tmp_path) -> None:
    content = {"analysis.json": {**analysis, "models": {"sparse": "x"}}, "sweep.json": sweep, "bench.json": bench}
    for name, values in content.items():
        (tmp_path / name).write_text(json.dumps(hostile(values)))
    made = figures.draw_all(tmp_path)
    assert len(made) > 5
    assert any("<script>alert(1)" in text for drawing in made for text in (drawing.caption, *texts(drawing.svg)))
    for drawing in made:
        tree = ET.fromstring(drawing.svg)
        for element in tree.iter():
            assert element.tag.removeprefix(SVG) not in ("script", "a", "foreignObject")
            assert not any(name.startswith("on") for name in element.attrib)
            links = [value for name, value in element.attrib.items() if name.endswith("href")]
            assert all(link.startswith(("#", "data:image/png")) for link in links)


def test_values_are_labelled(every) -> None:
    assert {"λ 0.2", "λ 0.5", "λ 0.8", "BLEU", "sparsity"} <= set(texts(every["quality"].svg))
    shown = texts(every["groups"].svg)
    assert "content words, 13" in shown
    assert not any("the rest" in text for text in shown), "a group without tokens has no rate"
    assert any("7.5 s" in text and "2.50×" in text for text in texts(every["speed"].svg))
    assert "mean 1.10" in texts(every["mass"].svg)


def test_points_without_a_part_say_why(swept) -> None:
    points = [{"sparsity": point["sparsity"], "left_out": {"groups": "no tagger"}} for point in swept["points"]]
    with pytest.raises(ValueError, match=r"groups: none of the points has them \(no tagger\)"):
        figures.groups(filled(SweepAnalysis, {**swept, "points": points}))
    with pytest.raises(ValueError, match="sweep.json: none of its points has a score"):
        figures.quality(filled(Sweep, {"name": "x", "reference": {}, "points": [{"run": "a", "sparsity": 0.1}]}))


def test_a_folder(analysis, sweep, bench, tmp_path) -> None:
    for name, content in (("analysis.json", analysis), ("sweep.json", sweep), ("bench.json", bench)):
        (tmp_path / name).write_text(json.dumps(content), encoding="utf-8")
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "old.svg").write_text("of an earlier analysis", encoding="utf-8")
    made = figures.draw_all(tmp_path)
    index = json.loads((tmp_path / "figures" / INDEX).read_text(encoding="utf-8"))
    files = {"hard-concrete", "quality", "attention-mass", "attention-maps", "groups", "entropy", "positions", "speed"}
    assert {entry["file"] for entry in index} == {f"{name}.svg" for name in files}
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {f"{n}.svg" for n in files} | {INDEX}
    assert all(entry["caption"] and entry["title"] for entry in index)
    assert len(made) == len(files)


def test_benchmarks_without_gates_or_with_int8_are_drawn(bench, tmp_path) -> None:
    alone = {"median": {"encode": {"cpu": 1.0}, "decode": {"cpu": 2.0}}, "times_engine_short": None}
    for names, labels in (
        (["ct2-float32"], {"CTranslate2, float32"}),
        (
            ["engine-int8-short", "engine-int8-dense"],
            {"our engine, int8, short memory", "our engine, int8, dense memory"},
        ),
    ):
        content = completed(DecodeBenchmark, {**bench, "gates": None, "systems": dict.fromkeys(names, alone)})
        (tmp_path / "bench.json").write_text(json.dumps(content), encoding="utf-8")
        drawing = figures.draw_all(tmp_path)[-1]
        assert labels <= set(texts(drawing.svg))
        assert "One batch: 10 sentences; a machine, 1 thread(s), beam 4." in drawing.caption
        assert "in brackets" not in drawing.caption


def test_every_measured_system_has_a_label() -> None:
    assert set(DRAWN) == set(SYSTEMS)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("bench.json", {"shapes": {"mt": {"systems": {}}}, "device": "a machine"}),
        ("bench.json", {"run": "sparse", "split": "test", "rows": []}),
        ("bench.json", {"points": {"decode": [], "encode": []}, "table": []}),
        ("bench.json", {"what": "random weights", "systems": {}}),
        ("sweep.json", {"name": "x", "reference": {"run": "r"}, "points": [{"run": "a", "sparsity": 0.1}]}),
        ("sweep.json", {"name": "x", "reference": {"run": "r"}, "points": []}),
    ],
)
def test_files_with_nothing_to_draw_are_skipped(name, content, tmp_path) -> None:
    content = completed(Sweep, content) if name == "sweep.json" else content
    (tmp_path / name).write_text(json.dumps(content), encoding="utf-8")
    assert [drawing.name for drawing in figures.draw_all(tmp_path)] == ["hard-concrete"]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ('{"points": [', "not JSON"),
        ("[" * 200_000, "not JSON"),
        ("[]", "the whole file: expected an object, got []"),
        ('{"name": "x", "gating": "zero", "baseline": {"run": "b"}, "points": []}', "continued: missing"),
    ],
)
def test_damaged_files_are_named(content, complaint, tmp_path) -> None:
    file = tmp_path / "sweep.json"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=re.escape(f"{file}: {complaint}")):
        figures.draw_all(tmp_path)


@pytest.mark.parametrize("kind", ["nan", "string", "list", "null", "delete", "huge"])
def test_every_broken_number_is_named_or_drawn(kind, sweep, analysis, tmp_path) -> None:
    """A file with a broken field is refused by its name, or drawn without NaN."""
    for name, content in (("sweep.json", sweep), ("analysis.json", analysis)):
        file = tmp_path / name
        for field in fields(content):
            file.write_text(json.dumps(mutated(content, field, kind)), encoding="utf-8")
            try:
                said, read = "", as_json(read_as(Sweep if name == "sweep.json" else Analysis, file, "a command"))
            except FileError as error:
                said, read = str(error), None
            assert (str(file) in said and "\n" not in said) or "NaN" not in json.dumps(read), field
        file.unlink()


def test_rules_are_not_part_of_the_curves(swept) -> None:
    rule = {**swept["points"][0], "run": "pos", "kind": "pos", "value": None, "sparsity": 0.99}
    learned = [point for point in swept["points"] if point["kind"] in ("lambda", "target")]
    for draw in (figures.groups, figures.entropy):
        with_rule = draw(filled(SweepAnalysis, {**swept, "points": [*learned, rule]}))
        assert with_rule.svg == draw(filled(SweepAnalysis, {**swept, "points": learned})).svg
        assert draw(filled(SweepAnalysis, {**swept, "points": [rule]})).svg != with_rule.svg


def test_a_sweeps_analysis_in_a_folder(swept, tmp_path) -> None:
    (tmp_path / "analysis.json").write_text(json.dumps(swept), encoding="utf-8")
    assert [drawing.name for drawing in figures.draw_all(tmp_path)] == ["hard-concrete", "groups", "entropy"]


def test_differences_over_seeds_are_drawn_with_the_margin():
    def runs(values: dict[int, float], sparsity: float | None = None) -> dict:
        more = {} if sparsity is None else {"sparsity": sparsity}
        return {"runs": [{"seed": seed, "test": {**score(value), **more}} for seed, value in values.items()]}

    compared = {"against_on": {"difference": -0.2, "interval": [-0.6, 0.1], "margin": 0.5}}
    systems = {
        "on": runs({1: 30.0, 2: 31.0}),
        "zero-0.5": {**runs({1: 29.8, 2: 30.8}, 0.5), **compared},
        "zero-0.3": runs({2: 30.9}, 0.3),
        "mask-0.5": runs({9: 20.0}, 0.5),
        "scratch": runs({1: 12.0}, 0.5),
        "freq": runs({1: 29.0}, 0.45),
    }
    svg = figures.seeds_and_sparsity(filled(StudyResults, {"what": "A <test>", "systems": systems}), "seeds").svg
    texts = {element.text for element in ET.fromstring(svg).iter(f"{SVG}text")}
    assert {"zero", "dense, continued", "margin of 0.5", "rule freq"} <= texts
    assert "mask" not in texts, "there is no baseline of its seed"
    assert "scratch" not in texts
    assert "A &lt;test&gt;" in svg


def test_quality_against_time(monkeypatch):
    rows = [
        {
            "system": system,
            "beams": beams,
            "score": {"name": "BLEU", "value": value + beams},
            "cpu_seconds": [9.0 * beams, 1.0 * beams, 2.0 * beams],
            "sentences": 4,
        }
        for system, value in (("dense", 20.0), ("zero <at> 0.5", 19.0))
        for beams in (4, 1, 2)
    ]
    drawn = []
    plot = Axes.plot
    monkeypatch.setattr(Axes, "plot", lambda axes, x, *rest, **how: drawn.append(x) or plot(axes, x, *rest, **how))
    drawing = figures.quality_and_time(filled(Rivals, {"what": "A test", "rows": rows, "device": "a CPU"}), "rivals")
    texts = [element.text for element in ET.fromstring(drawing.svg).iter(f"{SVG}text")]
    assert {"dense", "zero <at> 0.5", "BLEU", "CPU time per sentence, ms"} <= {*texts}
    assert all(texts.count(beams) >= 2 for beams in "124")
    assert drawn == [[500.0, 1000.0, 2000.0]] * 2, "the median round, by sentence, in ms"
    assert "one thread (a CPU), median of 3 rounds on 4 sentences" in drawing.caption
