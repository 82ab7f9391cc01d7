"""Write the tables and figures of README.md and docs/ anew, from the JSON in docs/results and docs/studies alone.

    python scripts/results.py

A table stands behind its name, `<!-- table: NAME -->`, and is replaced there; what stands around it is not touched.
Figures go beside the JSON. What the tables hold is in `result_tables`.
"""

import argparse
import re
from collections.abc import Mapping

import europarl
import multi30k
from l0drop.data.whole import write_whole
from l0drop.report.figures import attention_mass, entropy, groups, quality_and_time, seeds_and_sparsity
from l0drop.study.seeds import single_table
from result_tables import quality, speed, toys
from result_tables.claims import claims_table
from result_tables.files import RESULTS, ROOT, TOYS, read

DOCUMENTS = (
    "README.md",
    *(f"docs/{name}.md" for name in ("results", "speed", "profile", "training-speed", "studies")),
)
SINGLE = ("europarl-tried", "europarl-small")
"""One seed of Europarl, taught in several ways; and in another configuration."""
SHORTER = ("europarl-6000", "europarl-short")
"""Several seeds of Europarl with shorter training."""
VARIANTS = "europarl-variants"
"""One seed of Europarl: rules beside gates at their rates, gates between layers, rivals."""
LAYERS = "europarl-layers"
RIVALS = "europarl-rivals"
ANALYSES = "europarl-analysis"
DRAWN = ("multi30k", *SHORTER, "europarl-small")
PROFILED = {"mt": ("before", "after"), "cnndm": ("before", "after"), "wikisum": ("after",)}
"""Shapes at which a decoding step was profiled, and when: before the engine was made fast, and after."""
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
    analyses = read(ANALYSES)
    drawings = {
        **{study: seeds_and_sparsity(read(study), f"results-{study}") for study in DRAWN},
        "europarl-groups": groups(analyses["sweep"]),
        "europarl-entropy": entropy(analyses["sweep"]),
        "europarl-mass": attention_mass(analyses["point"]),
        RIVALS: quality_and_time(read(RIVALS), RIVALS),
    }
    for name, drawing in drawings.items():
        write_whole(RESULTS / f"{name}.svg", drawing.svg)
    print(f"written: {', '.join(different) or 'no document'}, {', '.join(f'{name}.svg' for name in drawings)}")


def all_tables() -> dict[str, str]:
    """Every table by its name."""
    return {"claims": claims_table(), **tables_of_speed(), **tables_of_quality(), **tables_of_toys()}


def tables_of_speed() -> dict[str, str]:
    shapes = {shape: read(f"decode-{shape}") for shape in speed.SHAPES}
    found = {"speed": speed.speed_table(shapes)}
    found["speed-2-threads"] = speed.threads_table(read("decode-2-threads")["shapes"])
    found |= {f"speed-{shape}": speed.systems_table(shape, result) for shape, result in shapes.items()}
    found |= dict(zip(("predict", "predict-check"), speed.predict_tables(read("predict")), strict=True))
    found["ragged"] = speed.ragged_table(read("decode-ragged"), read("decode-even"))
    for shape, times in PROFILED.items():
        found[f"profile-{shape}"] = speed.profile_table({when: read(f"profile-{shape}-{when}") for when in times})
    found["training-speed"] = speed.training_table(read("training-speed"))
    return found


def tables_of_quality() -> dict[str, str]:
    studies = {study: read(study) for study in quality.STEERED}
    timed = {name: read(name) for name in quality.SPEEDS.values()}
    found = {"quality": quality.quality_table({study: studies[study] for study in quality.STUDIES}, timed)}
    for study in (*quality.STUDIES, *SHORTER, VARIANTS):
        script = multi30k if study.startswith("multi30k") else europarl
        for number, table in enumerate(script.tables(studies[study]).split("\n\n"), start=1):
            found[f"{study}-{number}"] = table
    found |= {study: single_table(studies[study], europarl.TITLES_HERE) for study in SINGLE}
    found["europarl-baselines"] = quality.baselines_table(studies)
    found["targets"] = quality.targets_table(studies, europarl.TITLES_HERE)
    choices = quality.choices_tables(read("multi30k-choices"))
    found |= dict(zip(("multi30k-choices-baseline", "multi30k-choices-fine-tuning"), choices, strict=True))
    found[LAYERS] = quality.layers_table(read(LAYERS), europarl.TITLES_HERE)
    found[RIVALS] = quality.rivals_table(read(RIVALS))
    return found | {f"{ANALYSES}-{name}": table for name, table in quality.analyses_tables(read(ANALYSES)).items()}


def tables_of_toys() -> dict[str, str]:
    content = {name: read(name, TOYS) for name in ("targets", "ways", "elastic", "elastic-order", "rules")}
    found = {"toy-targets": toys.targets_table(content["targets"])}
    found |= dict(zip(("toy-ways", "toy-lessons"), toys.ways_tables(content["ways"]), strict=True))
    found["toy-rules"] = toys.rules_table(content["rules"])
    found["toy-dial"] = toys.dial_table(content["elastic"])
    found["toy-order"] = toys.order_table(content["elastic-order"])
    return found


def filled(document: str, tables: Mapping[str, str]) -> str:
    """A document with its tables written anew."""

    def table(match: re.Match[str]) -> str:
        if match[2] not in tables:
            raise ValueError(f"no table is called {match[2]}; there are {', '.join(tables)}")
        behind = document[match.end() : match.end() + 1]  # a mark that had no table yet took the blank line with it
        return f"{match[1]}{tables[match[2]]}\n" + ("" if behind in ("", "\n") else "\n")

    return MARK.sub(table, document)


if __name__ == "__main__":
    main()
