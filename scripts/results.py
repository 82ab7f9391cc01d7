"""Write the tables and figures of README.md and docs/ anew, from the JSON in docs/results alone.

    python scripts/results.py

A table stands behind its name, `<!-- table: NAME -->`, and is replaced there; what stands around it is not touched.
Figures go beside the JSON.
"""

import argparse
import importlib.util
import json
import re
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from l0drop.data.whole import write_whole
from l0drop.study.analysis import tables as analysis_tables
from l0drop.study.figures import attention_mass, entropy, groups, quality_and_time, seeds_and_sparsity
from l0drop.study.report.markdown import table as markdown_table
from l0drop.study.seeds import single_table, verdict

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"
DOCUMENTS = ("README.md", "docs/results.md", "docs/speed.md")
SHAPES = {"mt": "30 tokens (`mt`)", "cnndm": "400 (`cnndm`)", "wikisum": "2,048 (`wikisum`)"}
RATIOS = {
    "decode: CTranslate2 float32, dense / engine, dense": ("decode", "ct2-float32", "engine-dense"),
    "decode: engine, dense / engine, short": ("decode", "engine-dense", "engine-short"),
    "encode + decode: CTranslate2 float32, dense / engine, short": ("end_to_end", "ct2-float32", "engine-short"),
    "encode + decode: Hugging Face's generate, dense / engine, short": ("end_to_end", "hf-dense", "engine-short"),
    "decode, int8: engine, dense / engine, short": ("decode", "engine-int8-dense", "engine-int8-short"),
    "encode + decode, int8: CTranslate2, dense / engine, short": ("end_to_end", "ct2-int8", "engine-int8-short"),
}
"""A row of the table of speeds: phase, system, and by which it is divided."""
STUDIES = {
    "multi30k": "Multi30k",
    "multi30k-translated": "Multi30k, sparse ones taught by translations too",
    "europarl": "Europarl, sparse ones taught by translations too",
}
SPEEDS = {
    ("multi30k-translated", "zero-0.47"): "decode-multi30k",
    ("europarl", "zero-0.46"): "decode-europarl",
}
"""Where decoding was timed at the length and the sparsity of a study's text."""
SHORTEST = 64
"""The shortest source that the table of predictions shows; below it, nothing is to be gained."""
SINGLE = ("europarl-tried", "europarl-small")
"""One seed of Europarl, taught in several ways; and in another configuration."""
SHORTER = ("europarl-6000", "europarl-short")
"""Several seeds of Europarl with shorter training."""
BASELINES = {"europarl-tried": "zero-both", "europarl-6000": "zero-0.47", "europarl": "zero-0.46"}
"""Europarl with baselines of several lengths, and the gated models at nearly half that were taught alike."""
VARIANTS = "europarl-variants"
"""One seed of Europarl: rules beside gates at their rates, gates between layers, rivals."""
LAYERS = "europarl-layers"
RIVALS = "europarl-rivals"
ANALYSES = "europarl-analysis"
DRAWN = ("multi30k", *SHORTER, "europarl-small")
DENSE = {"on": "0", "on-taught": "0, taught alike"}
MARK = re.compile(r"(<!-- table: (\S+) -->\n+)((?:\|.*\n)*)")


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    tables, different = all_tables(), []
    for name in DOCUMENTS:
        file = ROOT / name
        old = file.read_text(encoding="utf-8")
        new = filled(old, tables)
        if new != old:
            different.append(name)
            write_whole(file, new)
    analyses = _read(ANALYSES)
    drawings = {
        **{study: seeds_and_sparsity(_read(study), f"results-{study}") for study in DRAWN},
        "europarl-groups": groups(analyses["sweep"]),
        "europarl-entropy": entropy(analyses["sweep"]),
        "europarl-mass": attention_mass(analyses["point"]),
        RIVALS: quality_and_time(_read(RIVALS), RIVALS),
    }
    for name, drawing in drawings.items():
        write_whole(RESULTS / f"{name}.svg", drawing.svg)
    print(f"written: {', '.join(different) or 'no document'}, {', '.join(f'{name}.svg' for name in drawings)}")


def all_tables() -> dict[str, str]:
    """Every table by its name."""
    shapes = {shape: _read(f"decode-{shape}") for shape in SHAPES}
    found = {"speed": speed_table(shapes)}
    found["speed-2-threads"] = threads_table(_read("decode-2-threads")["shapes"])
    found |= {f"speed-{shape}": systems_table(shape, result) for shape, result in shapes.items()}
    found |= dict(zip(("predict", "predict-check"), predict_tables(_read("predict")), strict=True))
    found["quality"] = quality_table({study: _read(study) for study in STUDIES})
    found["ragged"] = ragged_table(_read("decode-ragged"), _read("decode-even"))
    for study in (*STUDIES, *SHORTER, VARIANTS):
        for number, table in enumerate(_script(study.partition("-")[0]).tables(_read(study)).split("\n\n"), start=1):
            found[f"{study}-{number}"] = table
    found["europarl-baselines"] = baselines_table({study: _read(study) for study in BASELINES})
    found |= {f"{ANALYSES}-{name}": table for name, table in analyses_tables(_read(ANALYSES)).items()}
    titles = _script("europarl").TITLES_HERE
    layered = [(titles[name], analysis) for name, analysis in _read(LAYERS).items() if name in titles]
    found[LAYERS] = markdown_table(analysis_tables.layers_table(layered))
    found[RIVALS] = rivals_table(_read(RIVALS))
    return found | {study: single_table(_read(study), titles) for study in SINGLE}


def filled(document: str, tables: Mapping[str, str]) -> str:
    """A document with its tables written anew."""

    def table(match: re.Match[str]) -> str:
        if match[2] not in tables:
            raise ValueError(f"no table is called {match[2]}; there are {', '.join(tables)}")
        behind = document[match.end() : match.end() + 1]  # a mark that had no table yet took the blank line with it
        return f"{match[1]}{tables[match[2]]}\n" + ("" if behind in ("", "\n") else "\n")

    return MARK.sub(table, document)


def speed_table(shapes: Mapping[str, Mapping[str, Any]]) -> str:
    """How many times as long one system takes as another, at every shape."""
    lines = [f"| how many times as long, CPU time | {' | '.join(SHAPES.values())} |", "|---" * (1 + len(SHAPES)) + "|"]
    for label, which in RATIOS.items():
        lines.append(f"| {label} | {' | '.join(_ratio(shapes[shape], *which) for shape in SHAPES)} |")
    return "\n".join(lines)


def _ratio(result: Mapping[str, Any], phase: str, system: str, by: str) -> str:
    found = [r["times"] for r in result["ratios"] if (r["phase"], r["system"], r["by"]) == (phase, system, by)]
    return f"{found[0]:.2f}" if found else "-"


def threads_table(shapes: Mapping[str, Mapping[str, Any]]) -> str:
    """The same of several threads, by the clock too: CPU time counts threads that wait for each other."""
    lines = [
        f"| how many times as long: CPU time, wall time | {' | '.join(SHAPES.values())} |",
        "|---" * (1 + len(SHAPES)) + "|",
    ]
    for label, (phase, system, by) in RATIOS.items():
        row = [label]
        for shape in SHAPES:
            systems = shapes[shape]["systems"]
            if not {system, by} <= set(systems):
                break
            walls = [systems[name]["median"][phase]["wall"] for name in (system, by)]
            row.append(f"{_ratio(shapes[shape], phase, system, by)}, {walls[0] / walls[1]:.2f}")
        else:
            lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def predict_tables(result: Mapping[str, Any]) -> tuple[str, str]:
    """What the short memory was predicted to bring, and what was then measured at other shapes."""
    batches = sorted({cell["batch"] for cell in result["table"]})
    cells = {(cell["source"], cell["batch"]): cell["speed_up"] for cell in result["table"]}
    lines = [
        f"| source tokens | {' | '.join(f'batch {batch}' for batch in batches)} |",
        "|---" * (1 + len(batches)) + "|",
    ]
    for source in sorted({source for source, _ in cells if source >= SHORTEST}):
        speed_ups = (cells[source, batch] for batch in batches)
        found = [f"{speed_up['decode']:.2f} ({speed_up['both']:.2f})" for speed_up in speed_ups]
        lines.append(f"| {source} | {' | '.join(found)} |")
    checks = [
        "| batch | source | dropped | decode dense, CPU s | decode short | dense/short | encode |",
        "|---" * 7 + "|",
    ]
    for check in result["check"]:
        shape, measured, error, ratio = check["shape"], check["measured"], check["error"], check["speed_up"]
        times = {name: f"{measured[name]:.2f} ({error[name]:+.0%})" for name in measured}
        times["ratio"] = f"{ratio['measured']:.2f} ({ratio['predicted'] / ratio['measured'] - 1:+.0%})"
        row = [str(shape["batch"]), str(shape["source"]), f"{shape['dropped']:.0%}"]
        checks.append(f"| {' | '.join(row + [times[name] for name in ('dense', 'short', 'ratio', 'encode')])} |")
    return "\n".join(lines), "\n".join(checks)


def quality_table(studies: Mapping[str, Mapping[str, Any]]) -> str:
    """What several seeds of the paper's gating lose against the baseline trained on, and what decoding gains."""
    lines = [
        "| task | encodings dropped | BLEU, test | against the baseline trained on as long | "
        "non-inferior at 0.5 BLEU | decoding, dense / short |",
        "|---" * 6 + "|",
    ]
    for study, found in studies.items():
        systems = {
            name: v
            for name, v in found["systems"].items()
            if name in ("on", "on-taught") or re.fullmatch(r"zero-[0-9.]+", name)
        }
        rows = []
        for name, system in ((name, system) for name, system in systems.items() if len(system["runs"]) > 1):
            tests = [run["test"] for run in system["runs"]]
            sparsity = statistics.mean(test.get("sparsity", 0.0) for test in tests)
            score = statistics.mean(test["score"]["value"] for test in tests)
            row = [STUDIES[study], f"{sparsity:.1%}" if sparsity else DENSE[name], f"{score:.2f}"]
            if (against := system.get("against_on")) is None:
                row += ["", ""]
            else:
                low, high = against["interval"]
                row += [f"{against['difference']:+.2f} [{low:+.2f}, {high:+.2f}]", verdict(against)]
            timed = SPEEDS.get((study, name))
            row.append(_ratio(_read(timed), "decode", "engine-dense", "engine-short") if timed else "")
            rows.append((sparsity, f"| {' | '.join(row)} |"))
        lines += [row for _, row in sorted(rows)]
    return "\n".join(lines)


def baselines_table(studies: Mapping[str, Mapping[str, Any]]) -> str:
    """Where gated models end, and where dense ones do, from baselines of several lengths."""
    lines = [
        "| steps: baseline, then others | seeds | baseline | trained on | gated | dropped | gated less trained on |",
        "|---" * 7 + "|",
    ]
    for study, gated in BASELINES.items():
        systems = studies[study]["systems"]
        seeds = {run["seed"] for run in systems[gated]["runs"]}  # the others have nothing to be compared with
        runs = {name: [run for run in systems[name]["runs"] if run["seed"] in seeds] for name in ("base", "on", gated)}
        scores = {name: statistics.mean(run["test"]["score"]["value"] for run in runs[name]) for name in runs}
        steps = [systems[name]["recipe"]["train"]["steps"] for name in ("base", "on")]
        sparsity = statistics.mean(run["test"]["sparsity"] for run in runs[gated])
        row = [f"{steps[0]:,}, {steps[1]:,}", str(len(seeds)), *(f"{score:.2f}" for score in scores.values())]
        lines.append(f"| {' | '.join(row)} | {sparsity:.1%} | {scores[gated] - scores['on']:+.2f} |")
    return "\n".join(lines)


def rivals_table(found: Mapping[str, Any]) -> str:
    """Quality and time of what costs about as much."""
    lines = ["| system | beams | BLEU, test | CPU time of a sentence, ms: median | of all rounds |", "|---" * 5 + "|"]
    for row in found["rows"]:
        times = [1000 * seconds / row["sentences"] for seconds in row["cpu_seconds"]]
        span = f"{statistics.median(times):.0f} | {min(times):.0f} to {max(times):.0f}"
        lines.append(f"| {row['system']} | {row['beams']} | {row['score']['value']:.2f} | {span} |")
    return "\n".join(lines)


def analyses_tables(found: Mapping[str, Any]) -> dict[str, str]:
    """What a sweep drops, where attention goes, and what closing gates by hand costs."""
    sweep = found["sweep"]["points"]
    contents = {
        "groups": analysis_tables.groups_table(sweep),
        "mass": analysis_tables.mass_table(sweep),
        "entropy": analysis_tables.entropy_table(sweep),
        "closed": analysis_tables.interventions_table(found["point"]),
    }
    return {name: markdown_table(content) for name, content in contents.items()}


def systems_table(shape: str, result: Mapping[str, Any]) -> str:
    """Seconds, memory and agreement of every system at one shape."""
    lines = [
        f"| {shape} | encode | decode | both | peak memory, MiB | cross-attention K/V, MiB | same tokens |",
        "|---" * 7 + "|",
    ]
    for name, system in result["systems"].items():
        seconds = {phase: found["cpu"] for phase, found in system["median"].items()}
        times, agreement = system["times_engine_short"], result["agreement"][name]
        row = [name, f"{seconds['encode']:.2f}"]
        row += [f"{seconds[phase]:.2f} ({times[phase]:.2f})" for phase in ("decode", "end_to_end")]
        cache = system["memory"]["cross_cache"]
        row += [f"{system['memory']['beyond_loaded'] / 2**20:.0f}", "" if cache is None else f"{cache / 2**20:.0f}"]
        row.append("reference" if agreement is None else f"{agreement['same']} of {result['sentences']}")
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def ragged_table(ragged: Mapping[str, Any], even: Mapping[str, Any]) -> str:
    """Text of many lengths, and beside it a shape in which all are as long as their mean."""
    lines = [
        "| system | sentences per second | P50, ms | P99, ms | decode | both | even lengths: decode | both |",
        "|---" * 8 + "|",
    ]
    for name, system in ragged["systems"].items():
        latency = system["latency_ms"]["cpu"]
        row = [name, f"{system['sentences_per_second']:.2f}", f"{latency['p50']:.0f}", f"{latency['p99']:.0f}"]
        for result in (ragged, even):
            times = result["systems"].get(name, {}).get("times_engine_short", {})
            row += [f"{times[phase]:.2f}" if phase in times else "-" for phase in ("decode", "end_to_end")]
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def _read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def _script(name: str) -> Any:
    """The script of a study, which knows its tables."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
