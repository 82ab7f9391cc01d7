"""Evaluation of outputs in files: scores, comparisons, controls, and the files it writes."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from l0drop.data import metrics
from l0drop.data.text import CorpusError
from l0drop.runs.evaluation import Judging
from l0drop.runs.json_file import as_json
from l0drop.study.evaluate import Evaluated, check_folder, control_scores
from l0drop.study.evaluate import evaluate as evaluated
from l0drop.study.evaluation_text import has_documents, read_files, with_dense_outputs
from l0drop.study.systems import System
from tests.study.test_significance import BAD, GOOD, REFS

SOURCES = [f"source {number}" for number in range(len(REFS))]


def evaluate(*arguments: Any, **options: Any) -> tuple[dict[str, Any], Evaluated]:
    """The content of metrics.json, and the evaluation."""
    found = evaluated(*arguments, **options)
    return as_json(found.metrics), found


def lines(file: Path, texts: list[str]) -> Path:
    file.write_text("".join(text + "\n" for text in texts), encoding="utf-8")
    return file


def spaced(texts: list[str]) -> list[str]:
    """Adds blank lines before, between and after documents of 7 lines."""
    found = [""]
    for number, text in enumerate(texts, 1):
        found += [text, "", ""] if number % 7 == 0 else [text]
    return found


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    texts = {"source": SOURCES, "reference": REFS, "good": GOOD, "bad": BAD}
    return {name: lines(tmp_path / name, spaced(side)) for name, side in texts.items()}


def test_blank_lines_are_not_scored_but_kept(files: dict[str, Path]) -> None:
    text = read_files(files["source"], files["reference"])
    found, written = evaluate([System(files["good"])], [], text, Judging(), {})
    scores = found["runs"][0]["system"]["scores"]
    for name in ("bleu", "bleu_paper", "chrf", "rouge"):
        assert scores[name] == as_json(getattr(metrics, name)(GOOD, REFS))
    assert (found["lines"], found["scored"], found["documents"], found["one_sided"]) == (51, 40, 6, 0)
    assert written.texts["hypotheses.txt"] == spaced(GOOD)
    assert "differences" not in found["runs"][0]


def test_blank_lines_separate_documents(files: dict[str, Path]) -> None:
    text = read_files(files["source"], files["reference"])
    assert text.documents == [number // 7 for number in range(40)]
    assert not has_documents(text), "six documents are too few to resample by default"
    assert has_documents(replace(text, documents=[number // 4 for number in range(40)]))
    systems = [System(files["bad"])], [System(files["good"])]
    by_sentence, _ = evaluate(*systems, text, Judging(margin=1), {})
    by_document, _ = evaluate(*systems, text, Judging(margin=1, documents=True), {})
    one, other = (found["runs"][0]["differences"]["bleu"] for found in (by_sentence, by_document))
    assert (one["units"], one["unit"], other["units"], other["unit"]) == (40, "sentence", 6, "document")
    assert one["difference"] == other["difference"] == metrics.bleu(BAD, REFS).value - metrics.bleu(GOOD, REFS).value
    assert one["lower"] != other["lower"]


def test_the_worst_sentences_are_named_by_their_line(files: dict[str, Path]) -> None:
    text = read_files(files["source"], files["reference"])
    found, written = evaluate([System(files["bad"])], [System(files["good"])], text, Judging(), {})
    worst = found["runs"][0]["tail"]["chrf"]["worst"][0]
    line = worst["line"] - 1
    slow = [
        metrics.chrf([b], [r]).value - metrics.chrf([g], [r]).value for b, g, r in zip(BAD, GOOD, REFS, strict=True)
    ]
    assert worst["difference"] == pytest.approx(min(slow))
    assert spaced(BAD)[line] == BAD[slow.index(min(slow))]
    shown = {example["line"]: example for example in as_json(written.examples)}
    assert len(shown) == 20
    example = shown[worst["line"]]
    assert example["why"] == "lost most"
    assert (example["baseline"], example["system"]) == (spaced(GOOD)[line], spaced(BAD)[line])
    assert example["reference"] == spaced(REFS)[line]
    losing = sum(difference < -20 for difference in slow) / 40
    assert found["runs"][0]["tail"]["chrf"]["losing"] == pytest.approx(losing)
    assert losing > 0


def test_several_seeds_each_with_its_baseline(files: dict[str, Path], tmp_path: Path) -> None:
    text = read_files(files["source"], files["reference"])
    good, bad = System(files["good"]), System(files["bad"])
    found, written = evaluate([good, bad, good], [bad, good, bad], text, Judging(), {}, starts=["a", "b", "c"])
    gain = metrics.bleu(GOOD, REFS).value - metrics.bleu(BAD, REFS).value
    assert found["over_seeds"]["bleu"]["differences"] == pytest.approx([gain, -gain, gain])
    assert found["over_seeds"]["bleu"]["difference"] == pytest.approx(gain / 3)
    assert found["verdict"].startswith("preliminary: not shown: the loss may exceed 0.5 BLEU, over 3 independent")
    shared, _ = evaluate([good, bad, good], [bad, good, bad], text, Judging(), {})
    assert shared["over_seeds"]["bleu"]["baseline_of"] == [0, 1, 0], "two pairs have the same baseline"
    assert shared["over_seeds"]["bleu"]["difference"] == pytest.approx(0)
    assert shared["verdict"].startswith("no verdict: 2 independent baselines; three are needed")
    with pytest.raises(ValueError, match="3 systems but 1 starts"):
        evaluate([good, bad, good], [bad, good, bad], text, Judging(), {}, starts=["a"])
    assert written.texts["hypotheses-2.txt"] == spaced(BAD)
    assert written.texts["baseline-2.txt"] == spaced(GOOD)
    with pytest.raises(ValueError, match="3 systems but 1 baselines"):
        evaluate([good, bad, good], [bad], text, Judging(), {})


def test_without_references_scores_measure_agreement_with_dense_outputs(files: dict[str, Path], tmp_path: Path) -> None:
    bare = read_files(files["source"], None)
    assert bare.references is None
    assert bare.scored == read_files(files["source"], files["reference"]).scored
    dense, bad, good = (System(files[name]) for name in ("reference", "bad", "good"))
    text = with_dense_outputs(bare, dense, {})
    found, written = evaluate([bad], [good], text, Judging(), {})
    assert found["references"] == f"outputs of {files['reference']}"
    assert "agreement with that model, not quality" in found["meaning"]
    assert "BLEU agreement, for this pair of models only" in found["verdict"]
    run = found["runs"][0]
    assert run["system"]["scores"]["bleu"]["value"] == metrics.bleu(BAD, REFS).value
    assert run["agreement"]["same_outputs"] == sum(b == r for b, r in zip(BAD, REFS, strict=True))
    below = sum(metrics.chrf([b], [r]).value < 80 for b, r in zip(BAD, REFS, strict=True))
    assert run["agreement"]["tail"]["chrf"]["losing"] == pytest.approx(below / 40)
    assert 0 < below < 40
    shown = as_json(written.examples)
    assert all(example["reference"] is None for example in shown), "dense outputs are no human references"
    assert {example["baseline"] for example in shown} <= set(GOOD)
    alone = as_json(evaluated([bad], [], text, Judging(), {}).examples)
    assert {example["baseline"] for example in alone} <= set(REFS)
    written.write(tmp_path / "out")
    assert (tmp_path / "out" / "dense.txt").read_text() == files["reference"].read_text()
    evaluated([bad], [], read_files(files["source"], files["reference"]), Judging(), {}).write(tmp_path / "out")
    assert not (tmp_path / "out" / "dense.txt").exists()


def test_controls_compare_with_other_sources() -> None:
    copies = [f"{number} {number + 1} {number + 2} {number + 3}" for number in range(0, 400, 4)]
    needs = control_scores(copies, copies, without_source="what is it")
    assert metrics.bleu(copies, copies).value == pytest.approx(100)
    assert needs["shuffled_source"].value == 0, "no output may meet its own reference"
    assert needs["no_source"].value == 0
    same = ["always the same four words"] * 10
    needless = control_scores(same, same, same[0])
    assert needless["shuffled_source"].value == needless["no_source"].value == pytest.approx(100)
    assert "no_source" not in control_scores(copies, copies, None)
    with pytest.raises(ValueError, match="1 outputs"):
        control_scores(["a"], ["a"], "")


def test_metrics_json_says_how_to_repeat_every_number(files: dict[str, Path], tmp_path: Path) -> None:
    text = read_files(files["source"], files["reference"])
    _, written = evaluate([System(files["bad"])], [System(files["good"])], text, Judging(controls=True), {})
    written.write(tmp_path / "out")
    stored = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert stored["judging"]["resamples"] == stored["runs"][0]["differences"]["bleu"]["resamples"] == 2000
    assert [len(stamp["sha256"]) for stamp in stored["inputs"]] == [64, 64]
    assert stored["runs"][0]["system"]["files"][0]["path"] == str(files["bad"])
    assert {"commit", "torch", "device"} <= stored.keys()
    for score in stored["runs"][0]["system"]["scores"].values():
        assert score["signature"].startswith("nrefs:1|")
    assert set(stored["runs"][0]["system"]["controls"]) == {"shuffled_source"}


def test_unusable_text_is_named(files: dict[str, Path], tmp_path: Path) -> None:
    blank = lines(tmp_path / "blank", [""] * 51)
    with pytest.raises(CorpusError, match="all of its 51 lines are blank"):
        read_files(blank, blank)
    text = read_files(files["source"], files["reference"])
    short = lines(tmp_path / "short", GOOD)
    with pytest.raises(CorpusError, match=r"short has 40 lines but the source has 51"):
        evaluate([System(short)], [], text, Judging(), {})
    sources, references = lines(tmp_path / "s", SOURCES), lines(tmp_path / "r", REFS)
    plain = read_files(sources, references)
    with pytest.raises(ValueError, match="only one document"):
        evaluate([System(short)], [System(short)], plain, Judging(documents=True), {})
    one_sided = read_files(lines(tmp_path / "o", ["", *SOURCES[1:]]), references)
    assert (one_sided.one_sided, len(one_sided.scored)) == (1, 40)
    with pytest.raises(CorpusError, match="no model folder and no file"):
        System(tmp_path / "absent")
    name = Path("owner-of-models/name")
    assert (System(name).is_model, System(name).folder, System(name).run) == (True, name, None), "on the hub, perhaps"
    with pytest.raises(ValueError, match="no model here"):
        System(tmp_path)
    (tmp_path / "recipe.yaml").write_text("name: run\n")
    with pytest.raises(ValueError, match="is a run"):
        check_folder(tmp_path)
