"""All figures of a folder, drawn from its JSON files."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from l0drop.data.text import read_json
from l0drop.data.whole import locked, whole_folder
from l0drop.report.figures.attention import attention_maps, attention_mass, entropy
from l0drop.report.figures.distribution import density
from l0drop.report.figures.drawing import Drawing
from l0drop.report.figures.scores import quality, scored
from l0drop.report.figures.times import speed, timed
from l0drop.report.figures.words import groups, positions

INDEX = "figures.json"


def drawings(folder: Path) -> Iterator[Drawing]:
    """The figures that the JSON files in a run or sweep folder allow."""
    yield density()
    for file, parts in _FILES.items():
        if not (folder / file).is_file():
            continue
        content = read_json(folder / file)
        try:
            for part, draw in parts:
                holders = [content, *content.get("points", ())]
                if part is None or any(part in holder for holder in holders):
                    yield from draw(content)
        except (KeyError, TypeError, IndexError, AttributeError) as error:
            raise ValueError(f"{folder / file}: unexpected format ({error!r})") from error


def _all_maps(analysis: Mapping[str, Any]) -> Iterator[Drawing]:
    return (attention_maps(analysis, number) for number in range(len(analysis["maps"])))


def _one(draw: Callable[[Mapping[str, Any]], Drawing]) -> Callable[[Mapping[str, Any]], Iterator[Drawing]]:
    return lambda content: iter([draw(content)])


_FILES: dict[str, tuple[tuple[str | None, Callable[[Mapping[str, Any]], Iterator[Drawing]]], ...]] = {
    "sweep.json": ((None, lambda content: iter([quality(content)] if scored(content)[1] else [])),),
    "analysis.json": (
        ("mass", lambda content: iter([attention_mass(content)]) if "mass" in content else iter(())),
        ("maps", _all_maps),
        ("groups", _one(groups)),
        ("entropy", _one(entropy)),
        ("places", _one(positions)),
    ),
    "bench.json": ((None, lambda content: iter([speed(content)] if timed(content) else [])),),
}


def draw_all(folder: Path) -> list[Drawing]:
    """Rewrite `figures/` from the JSON files of a folder, with an index of titles and captions."""
    made = list(drawings(folder))
    index = [{"file": f"{d.name}.svg", "title": d.title, "caption": d.caption} for d in made]
    with locked(folder / "figures"), whole_folder(folder / "figures") as partial:
        for drawing in made:
            (partial / f"{drawing.name}.svg").write_text(drawing.svg, encoding="utf-8")
        (partial / INDEX).write_text(json.dumps(index, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return made
