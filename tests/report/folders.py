"""Folders like those of runs, sweeps and evaluations, made without training."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from l0drop.data import metrics
from l0drop.runs.analysis import Analysis
from l0drop.runs.evaluation import ExampleSentence, Judging
from l0drop.study.evaluate import evaluate
from l0drop.study.evaluation_text import read_files
from l0drop.study.systems import System
from tests.runs.partial import completed
from tests.study.test_significance import GOOD, REFS, damaged

PROVENANCE = {"l0drop": "0", "commit": "abc+", "torch": "2", "transformers": "5", "python": "3", "device": "<b>CPU</b>",
              "threads": 1}  # fmt: skip
HOSTILE = (
    '<script>alert("x")</script><img src=x onerror=alert(1)> ]]> & "q" \'s\' $title @all `a` **b** | [l](http://x)'
)
SCORE = {"name": "BLEU", "value": 50.0, "signature": "nrefs:1|<i>", "details": {}}


def put(file: Path, content: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")


def bleu(texts: list[str]) -> float:
    return metrics.bleu(texts, REFS).value


def evaluated(
    run: Path,
    ours: list[str],
    theirs: list[str] | None,
    sparsity: float | None,
    against: str = "reference",
    sentences: int = len(REFS),
    seeds: Sequence[tuple[list[str], list[str]]] = (),
    **judging: Any,
) -> None:
    """Write an evaluation of outputs on the first `sentences`; `theirs` are the outputs of the run named `against`.

    seeds: outputs of further pairs. Dropped pieces are made up, and the signature is that of the runs.
    """
    texts_folder, outputs = run.parent / f"{run.name}-texts", run.parent / against / "outputs"
    baseline = outputs / ("test.txt" if sentences == len(REFS) else f"first-{sentences}.txt")
    sources = [f"source {number} {HOSTILE}" for number in range(len(REFS))]
    texts = {
        texts_folder / "source": sources,
        texts_folder / "reference": REFS,
        texts_folder / "ours": ours,
        baseline: theirs or [],
    }
    for number, sides in enumerate(seeds):
        texts |= {texts_folder / f"{name}-{number}": side for name, side in zip(("ours", "theirs"), sides, strict=True)}
    for file, side in texts.items():
        put(file, "".join(f"{line}\n" for line in side[:sentences]))
    text = read_files(texts_folder / "source", texts_folder / "reference")
    systems = [texts_folder / "ours", *(texts_folder / f"ours-{number}" for number in range(len(seeds)))]
    baselines = [baseline, *(texts_folder / f"theirs-{number}" for number in range(len(seeds)))] if theirs else []
    sides = [System(file) for file in systems], [System(file) for file in baselines]
    starts = [str(file) for file in baselines] or None  # independent, even if their outputs are equal
    found = evaluate(*sides, text, Judging(resamples=400, **judging), {}, starts=starts)
    replace(found, examples=list(map(struck, found.examples))).write(run / "evaluation")
    file = run / "evaluation" / "metrics.json"
    stored = json.loads(file.read_text())
    for entry in stored["runs"]:
        if sparsity is not None:
            entry["system"]["sparsity"] = sparsity
        if stored["judging"]["tokenize"] == "13a":
            entry["system"]["scores"]["bleu"]["signature"] = SCORE["signature"]
    put(file, stored)


def struck(example: ExampleSentence) -> ExampleSentence:
    """An example with made-up dropped pieces."""
    ((source, _),) = example.source
    return replace(example, source=[(source[:6], "dropped"), (source[6:], "kept"), (" <tail>", "cut")])


def analysed(folder: Path, content: dict[str, Any]) -> None:
    """Write some parts of an analysis."""
    put(folder / "analysis.json", completed(Analysis, content))


def finished(run: Path, sparsity: float | None = None, score: float = 50.0) -> dict[str, Any]:
    """A finished run; returns its test scores as a sweep repeats them."""
    test: dict[str, Any] = {"score": {**SCORE, "value": score}, "sentences": 40}
    test |= {} if sparsity is None else {"sparsity": sparsity}
    found = {"name": run.name, "steps": 3, "seed": 1, "dtype": "fp32", "decoding": {"beams": 4}, "test": test}
    put(run / "metrics.json", {**found, **PROVENANCE})
    put(run / "recipe.yaml", f"name: {run.name}\nabout: {HOSTILE}\n")
    return {"run": run.name, **({} if sparsity is None else {"sparsity": sparsity}), **found}


def bench(run: Path, times: float) -> None:
    systems = {
        name: {
            "median": {phase: {"cpu": 1.0, "wall": 1.0} for phase in ("encode", "decode", "end_to_end")},
            "times_engine_short": {"end_to_end": by, "decode": 2 * by, "encode": by},
        }
        for name, by in {"engine-short": 1.0, "engine-dense": times}.items()
    }
    what = {"what": "lines", "model": str(run), "sentences": 4, "generation": {"num_beams": 4}, "gates": None}
    put(run / "bench.json", {**what, "systems": systems, **PROVENANCE})


OUTPUTS = {"target-0.3": GOOD, "target-0.5": damaged(GOOD, 0.02, 5), "target-0.8": damaged(GOOD, 0.4, 6)}
SPARSITIES = {"target-0.3": 0.31, "target-0.5": 0.52, "target-0.8": 0.79, "pos": 0.45}


def sweep(folder: Path, rules: bool = False, judged: bool = True, margin: float = 10.0) -> Path:
    """Three points, the sparsest of which is much worse than the continued baseline, and optionally a rule."""
    points = []
    outputs = {**OUTPUTS, **({"pos": damaged(GOOD, 0.3, 7)} if rules else {})}
    for name, texts in outputs.items():
        entry = finished(folder / name, SPARSITIES[name], bleu(texts))
        kind, _, value = name.partition("-")
        change = {"test": bleu(texts) - bleu(GOOD)}
        points.append({"kind": kind, "value": float(value) if value else None, **entry, "differences": change})
        if judged:
            evaluated(folder / name, texts, GOOD, SPARSITIES[name], margin=margin)
    content = {
        "name": "a <sweep>", "gating": "zero", "baseline": finished(folder / "baseline", score=40.0),
        "reference": finished(folder / "reference", score=bleu(GOOD)), "points": points, **PROVENANCE,
    }  # fmt: skip
    put(folder / "sweep.json", content)
    return folder


def demo(folder: Path) -> Path:
    """The files of the demo, without its models."""
    systems = {name: {"score": {**SCORE, "value": value}, "sentences": 40} for name, value in
               {"baseline": 40.0, "continued": bleu(GOOD), "sparse": bleu(GOOD)}.items()}  # fmt: skip
    found = {
        "task": "translation", "gating": "zero", "systems": systems, "sparsity": 0.43, 
        "dense_score": SCORE, "dense_by_short_cpu": 1.5, "decoding_cpu_seconds": {"dense": [3.0], "short": [2.0]},
        "seed": 1, **PROVENANCE,
    }  # fmt: skip
    put(folder / "metrics.json", found)
    finished(folder / "sparse", 0.43)
    return folder
