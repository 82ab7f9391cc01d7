"""Rewrite the tables, numbers and figures of README.md and docs/ from the JSON in docs/results and docs/studies.

    python scripts/results.py

A table follows its name, `<!-- table: NAME -->`; a line below it that begins with † belongs to it. A number stands
inside its name, `<!-- number: NAME -->1.00<!-- /number -->`. Only these are replaced. Figures are written next to the
JSON. The contents are in `result_tables`.
"""

import argparse
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from l0drop.data.whole import write_whole
from l0drop.report.figures import attention_mass, entropy, groups, quality_and_time, seeds_and_sparsity
from l0drop.runs.benchmark import DecodeBenchmarks
from l0drop.runs.gpu_benchmark import GpuDecodeBenchmark, GpuTextBenchmark
from l0drop.runs.precision import Precision
from l0drop.runs.prediction import SpeedPrediction
from l0drop.runs.study import LengthScores
from l0drop.runs.table import Table, in_markdown
from l0drop.runs.training_benchmark import TrainingSpeed
from result_tables import files, quality, speech, speed, toys
from result_tables.claims import claims_table
from result_tables.documents import lengths_table
from result_tables.files import RESULTS, ROOT, TOYS, read
from result_tables.gpu import gpu_profile_table, gpu_tables, gpu_text_table, gpu_whisper_tables, precision_tables
from result_tables.numbers import all_numbers
from result_tables.summary import NOTE, summary_table

DOCUMENTS = (
    "README.md",
    "docs/index.md",
    "docs/results.md",
    *(f"docs/results/{name}.md" for name in ("multi30k", "europarl", "whisper-tiny", "toy", "log")),
    "docs/speed.md",
    *(f"docs/speed/{name}.md" for name in ("training", "profile", "gpu")),
)
SEEDS = ("multi30k", "multi30k-translated", "europarl", "europarl-6000", "europarl-short")
"""Studies with a table of systems trained with several seeds."""
SINGLE = ("europarl", "europarl-6000", "europarl-variants", "europarl-short", "europarl-tried", "europarl-small")
"""Studies with a table of systems trained with one seed."""
LAYERS, RIVALS, ANALYSES = "europarl-layers", "europarl-rivals", "europarl-analysis"
DRAWN = ("multi30k", "europarl-6000", "europarl-short", "europarl-small")
PROFILED = ("mt", "cnndm", "wikisum")
GPU_PROFILED = ("b10-n2048", "b256-n2048")
TABLE = re.compile(rf"(<!-- table: (\S+) -->\n+)((?:\|.*\n)*(?:\n{NOTE}.*\n)?)")
NUMBER = re.compile(r"(<!-- number: (\S+) -->)([^<]*)(<!-- /number -->)")


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    tables, numbers, changed = all_tables(), all_numbers(), []
    for name in DOCUMENTS:
        file = ROOT / name
        old = file.read_text(encoding="utf-8")
        new = filled(old, tables, numbers)
        if new != old:
            changed.append(name)
            write_whole(file, new)
    sweep, rivals = files.sweep_analysis(ANALYSES), files.rivals(RIVALS)
    rows = [replace(row, system=quality.system_of(row).replace("`", "")) for row in rivals.rows]
    drawings = {
        **{study: seeds_and_sparsity(files.study(study), f"results-{study}") for study in DRAWN},
        "europarl-groups": groups(sweep),
        "europarl-entropy": entropy(sweep),
        "europarl-mass": attention_mass(files.analysis(ANALYSES, "point")),
        RIVALS: quality_and_time(replace(rivals, rows=rows), RIVALS),
    }
    for name, drawing in drawings.items():
        write_whole(RESULTS / f"{name}.svg", drawing.svg)
    print(f"written: {', '.join(changed) or 'no document'}, {', '.join(f'{name}.svg' for name in drawings)}")


def all_tables() -> dict[str, str]:
    """Every table by its name, as Markdown."""
    found = {
        "summary": summary_table(),
        "tasks": quality.tasks_table(),
        "claims": claims_table(),
        **speed_tables(),
        **quality_tables(),
        **toy_tables(),
        **speech.speech_tables(),
    }
    return {name: in_markdown(table) for name, table in found.items()}


def speed_tables() -> dict[str, Table]:
    shapes = {shape: files.decoding_of_shape(shape) for shape in speed.SHAPES}
    found = {"speed": speed.speed_table(shapes, speed.SHORT), "speed-all": speed.speed_table(shapes)}
    found["speed-2-threads"] = speed.threads_table(DecodeBenchmarks.read(RESULTS / "decode-2-threads.json").shapes)
    found |= {f"speed-{shape}": speed.systems_table(shape, result) for shape, result in shapes.items()}
    predicted = speed.predict_tables(SpeedPrediction.read(RESULTS / "predict.json"))
    found |= dict(zip(("predict", "predict-check", "predict-pays"), predicted, strict=True))
    whisper = speed.whisper_tables(files.whispers())
    found |= dict(zip(("whisper-float32", "whisper-int8", "whisper-seconds"), whisper, strict=True))
    ragged = speed.ragged_tables(files.decoding("decode-ragged"), files.decoding("decode-even"))
    found |= dict(zip(("ragged", "ragged-ratios"), ragged, strict=True))
    found |= {f"profile-{shape}": speed.profile_table(read(f"profile-{shape}-after")) for shape in PROFILED}
    before = {shape: read(f"profile-{shape}-before") for shape in PROFILED[:2]}
    found["profile-before"] = speed.profile_before_table(before)
    found["training-speed"] = speed.training_table(TrainingSpeed.read(RESULTS / "training-speed.json"))
    found["gpu-profile"] = gpu_profile_table(read("profile-gpu"), GPU_PROFILED)
    return found | gpu_tables(GpuDecodeBenchmark.read(RESULTS / "decode-gpu.json")) | published_gpu_tables(RESULTS)


def published_gpu_tables(folder: Path) -> dict[str, Table]:
    """The tables of the folder's further measurements on a GPU: real text, rounding, Whisper."""
    found: dict[str, Table] = {}
    for file in sorted(folder.glob("decode-gpu-*.json")):
        if file.stem == "decode-gpu-whisper":
            found |= gpu_whisper_tables(GpuDecodeBenchmark.read(file))
        else:
            found[file.stem.removeprefix("decode-")] = gpu_text_table(GpuTextBenchmark.read(file))
    for file in sorted(folder.glob("precision-*.json")):
        found |= precision_tables(Precision.read(file), file.stem)
    return found


def quality_tables() -> dict[str, Table]:
    found = {f"{study}-seeds": quality.seeds_table(files.study(study)) for study in SEEDS}
    found |= {f"{study}-single": quality.single_table(files.study(study)) for study in SINGLE}
    found["multi30k-same-way"] = quality.same_way_table(["multi30k-translated"])
    found["europarl-same-way"] = quality.same_way_table(["europarl"])
    found["multi30k-repetition"] = quality.repetition_table(read("multi30k-repetition"))
    found["multi30k-elastic"] = quality.elastic_table(files.study("multi30k"))
    found["tail"] = quality.tail_table()
    found["europarl-baselines"] = quality.baselines_table({name: files.study(name) for name in quality.BASELINES})
    found["europarl-rules"] = quality.rules_table(files.study("europarl-variants"))
    found["targets"] = quality.targets_table()
    choices = quality.choices_tables(read("multi30k-choices"))
    found |= dict(zip(("multi30k-choices-baseline", "multi30k-choices-fine-tuning"), choices, strict=True))
    found["documents-stopped"] = lengths_table(LengthScores.read(RESULTS / "documents-stopped.json"))
    found[LAYERS] = quality.layers_table(LAYERS)
    found[RIVALS] = quality.rivals_table(files.rivals(RIVALS))
    return found | {f"{ANALYSES}-{name}": table for name, table in quality.analyses_tables(ANALYSES).items()}


def toy_tables() -> dict[str, Table]:
    content = {name: read(name, TOYS) for name in ("targets", "ways", "elastic", "elastic-order", "rules")}
    found = {"toy-targets": toys.targets_table(content["targets"])}
    found |= dict(zip(("toy-ways", "toy-source-only"), toys.ways_tables(content["ways"]), strict=True))
    found["toy-rules"] = toys.rules_table(content["rules"])
    found["toy-dial"] = toys.dial_table(content["elastic"])
    found["toy-order"] = toys.order_table(content["elastic-order"])
    return found


def filled(document: str, tables: Mapping[str, str], numbers: Mapping[str, str]) -> str:
    """A document with its tables and numbers replaced."""

    def table(match: re.Match[str]) -> str:
        content = _named(tables, match[2], "table")
        after = document[match.end() : match.end() + 1]  # a new mark without a table took the blank line with it
        return f"{match[1]}{content}\n" + ("" if after in ("", "\n") else "\n")

    def number(match: re.Match[str]) -> str:
        return f"{match[1]}{_named(numbers, match[2], 'number')}{match[4]}"

    return NUMBER.sub(number, TABLE.sub(table, document))


def _named(contents: Mapping[str, str], name: str, kind: str) -> str:
    if name not in contents:
        raise ValueError(f"no {kind} is called {name}; there are {', '.join(contents)}")
    return contents[name]


if __name__ == "__main__":
    main()
