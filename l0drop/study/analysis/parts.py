"""The analysis of a run, or of all runs of a sweep. Most parts are measured in one pass over the text."""

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from l0drop.core.memory import has_shared_row
from l0drop.data.batches import collate
from l0drop.data.text import read_json
from l0drop.data.whole import locked, write_whole
from l0drop.runs.provenance import provenance
from l0drop.study.analysis.annotate import marks
from l0drop.study.analysis.attention import (
    Attention,
    EntropyStudy,
    MassStudy,
    attend,
    attention_map,
    cells_per_sentence,
    observable,
)
from l0drop.study.analysis.dropped import DroppedStudy
from l0drop.study.analysis.interventions import interventions
from l0drop.study.analysis.material import Material, inputs_of
from l0drop.study.analysis.source_use import source_use
from l0drop.study.analysis.subject import Reading, Subject, opened
from l0drop.study.analysis.timing import decoder_time
from l0drop.study.sweep import LEARNED, NAMED, SUMMARY, finished_points

NEEDS: dict[str, tuple[str, ...]] = {
    "mass": (),
    "maps": (),
    "gates": ("sparse",),
    "groups": ("sparse", "groups"),
    "words": ("sparse",),
    "places": ("sparse",),
    "entropy": ("sparse", "self-attention"),
    "time": (),
    "interventions": ("sparse", "groups", "single gate"),
    "source": ("other sources",),
}
"""The parts of an analysis, and the requirements of each."""
ROLES = ("sparse", "baseline", "entmax")
OF_A_SWEEP = ("mass", "gates", "groups", "entropy")
RESULT = "analysis.json"
MADE_OF = ("fingerprints", "text", "decoding", "dtype")
"""Keys that must be equal in two analyses whose parts are merged into one file."""
CELLS = 1 << 26
"""Attention weights of a batch in memory at once, per model: a quarter of a gigabyte."""
MAPS = 3
EARLY, SHORT = 100, 24
"""Default maps show sentences among the first EARLY with at most SHORT source tokens, which are readable."""

Say = Callable[[str], None]
Bar = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]
"""A progress bar: called with a title and a total; gives a function that adds finished items."""


def no_bar(title: str, total: int) -> AbstractContextManager[Callable[[int], None]]:
    return nullcontext(lambda done: None)


@dataclass
class Pass:
    """The results of one pass over the text."""

    dropped: DroppedStudy | None
    mass: MassStudy = field(default_factory=MassStudy)
    entropy: EntropyStudy = field(default_factory=EntropyStudy)
    candidates: dict[int, float] = field(default_factory=dict)
    """Short, early sentences that may be shown, with their sparsities."""

    def note(self, indices: Sequence[int], systems: dict[str, Attention]) -> None:
        first = systems.get("sparse") or next(iter(systems.values()))
        for index, real, kept in zip(indices, first.mask.sum(1).tolist(), first.kept.sum(1).tolist(), strict=True):
            if index < EARLY and real <= SHORT:
                self.candidates[index] = 1 - kept / real

    @property
    def representative(self) -> list[int]:
        """The early short sentences whose sparsity is nearest to the text's."""
        overall = 0.0 if self.dropped is None else self.dropped.sparsity
        return sorted(self.candidates, key=lambda index: (abs(self.candidates[index] - overall), index))[:MAPS]

    def as_json(self, material: Material) -> dict[str, Any]:
        result: dict[str, Any] = {"mass": self.mass.as_json()}
        if self.dropped is None:
            return result
        source = material.tokenizers.source
        return result | {
            "gates": self.dropped.gates_json(),
            "groups": self.dropped.groups_json(),
            "words": self.dropped.words_json(lambda token: str(source.decode([token])).strip()),
            "places": self.dropped.places_json(),
            "entropy": self.entropy.as_json(),
        }


def chosen_parts(subject: Subject, only: Sequence[str] | None) -> tuple[list[str], dict[str, str]]:
    """The possible parts, and the reasons why the others are omitted; an impossible part that was requested by name
    raises ValueError."""
    for name in only or ():
        if name not in NEEDS:
            raise ValueError(f"`only`: {name!r} is not one of {', '.join(NEEDS)}")
    omitted = {}
    for part in only or NEEDS:
        lacking = [need for need in NEEDS[part] if need in subject.missing]
        if lacking:
            omitted[part] = subject.missing[lacking[0]]
            if only:
                raise ValueError(f"{part}: {omitted[part]}")
    return [part for part in NEEDS if part in (only or NEEDS) and part not in omitted], omitted


def analyze(
    subject: Subject, only: Sequence[str] | None = None, shown: Sequence[int] = (), bar: Bar = no_bar
) -> dict[str, Any]:
    """The analysis of one run; shown: sentences, counted from 0, to draw attention maps of."""
    parts, omitted = chosen_parts(subject, only)
    material = subject.material
    for index in shown:
        if not 0 <= index < len(material):
            raise ValueError(f"`show`: there is no sentence {index}; the text has 0 to {len(material) - 1}")
    device = next(iter(subject.models.values())).device
    result: dict[str, Any] = {
        "models": subject.names,
        "fingerprints": subject.fingerprints,
        "text": subject.text,
        "decoding": material.decoding,
        "dtype": "float32",
    }
    sparse = subject.models.get("sparse")
    watched = {name: observable(model) for name, model in subject.models.items()}
    if sparse is not None:
        result["gating"] = sparse.config.l0drop.gating
    if set(parts) & {"mass", "maps", "gates", "groups", "words", "places", "entropy"}:
        collected = one_pass(watched, material, "entropy" in parts, bar)
        if collected.dropped is not None:
            result["sparsity"] = collected.dropped.sparsity
        result |= {part: value for part, value in collected.as_json(material).items() if part in parts}
        if "maps" in parts:
            result["maps"] = maps(watched, material, shown or collected.representative)
    if "time" in parts:
        with bar("decoder time", 1) as tick:
            result["time"] = decoder_time({k: m for k, m in subject.models.items() if k != "entmax"}, material)
            tick(1)
    if "interventions" in parts:
        with bar("interventions", 0) as tick:
            result["interventions"] = interventions(subject.models, material, tick)
    if "source" in parts:
        model = sparse if sparse is not None else subject.models["baseline"]
        with bar("decoding", len(material)) as tick:
            texts, _ = material.decode(model, tick)
        with bar("other sources", 3 * len(material)) as tick:
            role = "sparse" if sparse is not None else "baseline"
            score = None if role == material.target_of else material.score(texts)
            result["source"] = source_use(model, material, texts, score, tick)
    if "mass" in result and sparse is not None:
        shared = has_shared_row(result["gating"])
        result["mass"]["share_on_zero_row"] = result["mass"]["share_on_dropped"]["sparse"] if shared else 0.0
    missing = {name: why for name, why in subject.missing.items() if name in ROLES}
    return {**result, "missing": missing, "left_out": omitted, **provenance(device)}


@torch.no_grad()
def one_pass(watched: dict[str, Any], material: Material, with_entropy: bool, bar: Bar) -> Pass:
    """Run every model over the text once, batch by batch."""
    gated = "sparse" in watched
    vocabulary = next(iter(watched.values())).get_input_embeddings().num_embeddings
    collected = Pass(DroppedStudy(vocabulary) if gated else None)
    largest = max(watched.values(), key=lambda model: cells_per_sentence(model, 1, 1))
    with bar("attention", len(material)) as tick:
        for batch in material.batches(lambda source, target: cells_per_sentence(largest, source, target), CELLS):
            systems = {name: attend(model, *inputs_of(batch, model)) for name, model in watched.items()}
            collected.mass.add(systems)
            if collected.dropped is not None:
                collected.dropped.add(systems["sparse"], batch["input_ids"], marks(batch["hints"], material.tagged))
            if with_entropy:
                compared = {name: found for name, found in systems.items() if name != "entmax"}
                collected.entropy.add(compared, systems["sparse"].kept)
            collected.note(batch["index"].tolist(), systems)
            tick(len(batch["index"]))
    return collected


def maps(watched: dict[str, Any], material: Material, shown: Sequence[int]) -> list[dict[str, Any]]:
    """Attention maps of some sentences, for every model."""
    sentences = []
    for index in shown:
        example = material.corpus[index]
        batch = collate([example], material.pad_id)
        systems = {name: attend(model, *inputs_of(batch, model)) for name, model in watched.items()}
        kept = next(iter(systems.values())).mask if "sparse" not in systems else systems["sparse"].kept
        source = material.tokenizers.source.convert_ids_to_tokens(example.source.tolist())
        assert example.target is not None
        target = material.tokenizers.target.convert_ids_to_tokens(example.target.tolist())
        sentences.append(
            {
                "sentence": index,
                "source": source,
                "target": target,
                "kept": kept[0].tolist(),
                "systems": {
                    name: attention_map(attention, 0, len(source), len(target), kept)
                    for name, attention in systems.items()
                },
            }
        )
    return sentences


# --- sweeps and files -------------------------------------------------------------------------------------------------


def analyze_sweep(
    folder: Path, reading: Reading, baseline: str | None = None, bar: Bar = no_bar, say: Say = print
) -> dict[str, Any]:
    """Dropped tokens and attention of every point of a sweep, with its scores from the sweep."""
    points, shared = [], {}
    for point in finished_points(folder / SUMMARY):
        name = str(folder / point["run"])
        say(f"analysing {name}")
        with opened(name, reading, baseline=baseline) as subject:
            parts, omitted = chosen_parts(subject, None)
            result = analyze(subject, [part for part in OF_A_SWEEP if part in parts], bar=bar)
        shared = {key: result.pop(key) for key in ("text", "decoding", "dtype", *provenance())}
        omitted = {part: why for part, why in omitted.items() if part in OF_A_SWEEP}
        scores = {split: point[split]["score"] for split in ("valid", "test") if split in point}
        varied = {key: point[key] for key in NAMED}
        points.append({**varied, "scores": scores, **result, "left_out": omitted})
    return {"sweep": str(folder), "points": points, **shared}


def typical_point(analysis: dict[str, Any]) -> str:
    """The run of an analysed sweep to analyse in full: among learned gates, the sparsity nearest to half."""
    points = [point for point in analysis["points"] if point["kind"] in LEARNED] or analysis["points"]
    return str(min(points, key=lambda point: abs(point["sparsity"] - 0.5))["run"])


def with_earlier(result: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """An analysis with further parts from an earlier one, if models, text and settings are the same.

    `earlier` has the commit, device and versions of those parts, if they differ.
    """
    if any(before.get(key) != result[key] for key in MADE_OF):
        return result
    stay = {key: before[key] for key in ("sparsity", *NEEDS) if key in before and key not in result}
    omitted = {part: why for part, why in before.get("left_out", {}).items() if part not in result}
    now = {key: result[key] for key in provenance()}
    then = {key: before.get(key) for key in now}
    measured = {part: before.get("earlier", {}).get(part, then) for part in stay if part in NEEDS}
    earlier = {part: how for part, how in measured.items() if how != now}
    return {**result, **stay, "left_out": omitted | result["left_out"], "earlier": earlier}


def write_parts(result: dict[str, Any], file: Path) -> None:
    """Write some parts of an analysis; other parts in the file stay if models, text and settings are the same."""
    with locked(file):
        try:
            before = read_json(file) if file.is_file() else {}
        except ValueError:  # a damaged file is replaced
            before = {}
        write(with_earlier(result, before), file)


def write(result: dict[str, Any], file: Path) -> None:
    write_whole(file, json.dumps(result, indent=1, ensure_ascii=False) + "\n")
