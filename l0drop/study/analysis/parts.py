"""The analysis of a run, or of all runs of a sweep. Most parts are measured in one pass over the text."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch

from l0drop.data.batches import collate
from l0drop.data.score import Score
from l0drop.data.whole import locked
from l0drop.runs.analysis import Analysis, AttentionMap, ModelAnalysis, PointAnalysis, SweepAnalysis
from l0drop.runs.json_file import FileError, as_json
from l0drop.runs.provenance import provenance
from l0drop.runs.run import SPLITS
from l0drop.runs.sweep import SweepFolder
from l0drop.study.analysis.annotate import marks
from l0drop.study.analysis.attention import (
    ZERO_ROW,
    Attention,
    EntropyStudy,
    MassStudy,
    attend,
    attention_map,
    cells_per_sentence,
    observable,
    with_zero_row,
)
from l0drop.study.analysis.dropped import DroppedStudy
from l0drop.study.analysis.interventions import interventions
from l0drop.study.analysis.material import Material, inputs_of
from l0drop.study.analysis.source_use import source_use
from l0drop.study.analysis.subject import Reading, Subject, opened
from l0drop.study.analysis.timing import decoder_time
from l0drop.study.sweep import finished_points

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

    def parts(self, material: Material, gating: str | None) -> dict[str, Any]:
        """The parts that one pass measures, by name. gating: of the sparse model, if there is one."""
        result: dict[str, Any] = {"mass": self.mass.result(gating)}
        if self.dropped is None:
            return result
        source = material.tokenizers.source
        return result | {
            "gates": self.dropped.gate_values(),
            "groups": self.dropped.by_group(),
            "words": self.dropped.by_word(lambda token: str(source.decode([token])).strip()),
            "places": self.dropped.by_place(),
            "entropy": self.entropy.result(),
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
    subject: Subject,
    only: Sequence[str] | None = None,
    shown: Sequence[int] = (),
    bar: Bar = no_bar,
    zero_row: bool = False,
) -> Analysis:
    """The analysis of one run.

    shown: sentences, counted from 0, to draw attention maps of. zero_row: measure the attention mass of a model of
    gating `mask` also with a zero row (`with_zero_row`).
    """
    parts, omitted = chosen_parts(subject, only)
    material = subject.material
    for index in shown:
        if not 0 <= index < len(material):
            raise ValueError(f"`show`: there is no sentence {index}; the text has 0 to {len(material) - 1}")
    device = next(iter(subject.models.values())).device
    sparse = subject.models.get("sparse")
    gating = None if sparse is None else sparse.config.l0drop.gating
    watched = {name: observable(model) for name, model in subject.models.items()}
    in_pass = dict(watched)
    if zero_row:
        if sparse is None or "mass" not in parts:
            raise ValueError(
                "`zero_row`: measures the attention mass of a sparse model; there is none, or no such part"
            )
        in_pass[ZERO_ROW] = observable(with_zero_row(sparse))
    found: dict[str, Any] = {}
    if set(parts) & {"mass", "maps", "gates", "groups", "words", "places", "entropy"}:
        collected = one_pass(in_pass, material, "entropy" in parts, bar)
        if collected.dropped is not None:
            found["sparsity"] = collected.dropped.sparsity
        found |= {part: value for part, value in collected.parts(material, gating).items() if part in parts}
        if "maps" in parts:
            found["maps"] = maps(watched, material, shown or collected.representative)
    if "time" in parts:
        with bar("decoder time", 1) as tick:
            found["time"] = decoder_time({k: m for k, m in subject.models.items() if k != "entmax"}, material)
            tick(1)
    if "interventions" in parts:
        with bar("interventions", 0) as tick:
            found["interventions"] = interventions(subject.models, material, tick)
    if "source" in parts:
        model = sparse if sparse is not None else subject.models["baseline"]
        with bar("decoding", len(material)) as tick:
            texts, _ = material.decode(model, tick)
        with bar("other sources", 3 * len(material)) as tick:
            role = "sparse" if sparse is not None else "baseline"
            score = None if role == material.target_of else material.score(texts)
            found["source"] = source_use(model, material, texts, score, tick)
    return Analysis(
        models=subject.names,
        fingerprints=subject.fingerprints,
        text=subject.text,
        decoding=material.decoding,
        dtype="float32",
        gating=gating,
        **found,
        missing={name: why for name, why in subject.missing.items() if name in ROLES},
        left_out=omitted,
        made_by=provenance(device),
    )


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
                compared = {name: found for name, found in systems.items() if name in ("sparse", "baseline")}
                collected.entropy.add(compared, systems["sparse"].kept)
            collected.note(batch["index"].tolist(), systems)
            tick(len(batch["index"]))
    return collected


def maps(watched: dict[str, Any], material: Material, shown: Sequence[int]) -> list[AttentionMap]:
    """Attention maps of some sentences, for every model."""
    sentences = []
    for index in shown:
        example = material.corpus[index]
        batch = collate([example], material.pad_id)
        systems = {name: attend(model, *inputs_of(batch, model)) for name, model in watched.items()}
        kept = next(iter(systems.values())).mask if "sparse" not in systems else systems["sparse"].kept
        assert example.target is not None
        source = list(material.tokenizers.source.convert_ids_to_tokens(example.source.tolist()))
        target = list(material.tokenizers.target.convert_ids_to_tokens(example.target.tolist()))
        weights = {
            name: attention_map(attention, 0, len(source), len(target), kept) for name, attention in systems.items()
        }
        sentences.append(AttentionMap(index, source, target, kept[0].tolist(), weights))
    return sentences


# --- sweeps and files -------------------------------------------------------------------------------------------------


def analyze_sweep(
    folder: Path, reading: Reading, baseline: str | None = None, bar: Bar = no_bar, say: Say = print
) -> SweepAnalysis:
    """Dropped tokens and attention of every point of a sweep, with its scores from the sweep."""
    points: list[PointAnalysis] = []
    for point in finished_points(SweepFolder(folder).summary):
        name = str(folder / point.run)
        say(f"analysing {name}")
        with opened(name, reading, baseline=baseline) as subject:
            parts, omitted = chosen_parts(subject, None)
            result = analyze(subject, [part for part in OF_A_SWEEP if part in parts], bar=bar)
        measured = {one.name: getattr(result, one.name) for one in fields(ModelAnalysis)}
        measured["left_out"] = {part: why for part, why in omitted.items() if part in OF_A_SWEEP}
        scores: dict[str, Score] = {
            split: scored.score for split in SPLITS if (scored := point.scored(split)) is not None
        }
        points.append(PointAnalysis(run=point.run, kind=point.kind, value=point.value, scores=scores, **measured))
    return SweepAnalysis(
        sweep=str(folder), points=points, text=result.text, decoding=result.decoding, dtype=result.dtype,
        made_by=result.made_by,
    )  # fmt: skip


def typical_point(analysis: SweepAnalysis) -> str:
    """The run of an analysed sweep to analyse in full: among learned gates, the sparsity nearest to half."""
    points = [point for point in analysis.points if point.is_learned] or analysis.points
    return min(points, key=lambda point: abs((point.sparsity or 0.0) - 0.5)).run


def with_earlier(result: Analysis, before: Analysis) -> Analysis:
    """An analysis with further parts from an earlier one, if models, text and settings are the same.

    `earlier` has the commit, device and versions of those parts, if they differ.
    """
    if _made_of(before) != _made_of(result):
        return result
    stay = {
        part: getattr(before, part)
        for part in ("sparsity", *NEEDS)
        if getattr(result, part) is None and getattr(before, part) is not None
    }
    omitted = {part: why for part, why in before.left_out.items() if getattr(result, part) is None}
    measured = {part: (before.earlier or {}).get(part, before.made_by) for part in stay if part in NEEDS}
    earlier = {part: how for part, how in measured.items() if how is not None and how != result.made_by}
    return replace(result, **stay, left_out=omitted | result.left_out, earlier=earlier)


def _made_of(analysis: Analysis) -> object:
    """Must be equal in two analyses whose parts are merged into one file."""
    return as_json([analysis.fingerprints, analysis.text, analysis.decoding, analysis.dtype])


def write_parts(result: Analysis, file: Path) -> None:
    """Write some parts of an analysis; other parts in the file stay if models, text and settings are the same."""
    with locked(file):
        try:
            before = Analysis.read(file) if file.is_file() else None
        except FileError:  # a damaged file is replaced
            before = None
        (result if before is None else with_earlier(result, before)).write(file)
