"""The table of README.md and the start page: quality of trained models, and speed up to the length of documents."""

import statistics

from l0drop.runs.benchmark import DecodeBenchmark
from l0drop.runs.table import Table
from result_tables import files
from result_tables.labels import SAME_WAY
from result_tables.speed import ratio
from result_tables.studies import PublishedStudy, count

TRAINED = {
    "Multi30k captions, English-German": ("multi30k-translated", "zero-0.47", "decode-multi30k"),
    "Europarl sentences, English-German": ("europarl", "zero-0.46", "decode-europarl"),
}
"""A task: its study, the sparse system, and the timing at its source length and sparsity."""
TIMED = {"articles, simulated": "cnndm", "long documents, simulated": "wikisum"}
"""Lengths at which no model was trained, and the shapes that were timed."""
NOTE = "† "
"""How the note under a table begins; it belongs to the generated block."""


def summary_table() -> Table:
    rows, notes = [], []
    for task, (name, system, timing) in TRAINED.items():
        study, timed = PublishedStudy.read(name), files.decoding(timing)
        differences = study.differences(system, SAME_WAY)
        lost = f"{statistics.mean(differences):+.2f}"
        rows.append([task, _length(timed), f"{study.dropped(system):.1%}", lost, *_speed_ups(timed)])
        baselines = count(study.baselines, "independent baseline")
        notes.append(f"{task.partition(' ')[0]}: {count(len(differences), 'seed')}, {baselines}")
    for task, name in TIMED.items():
        timed = files.decoding_of_shape(name)
        assert timed.workload.shape is not None
        dropped = f"{timed.workload.shape.dropped:.1%} (set)"
        rows.append([task, _length(timed), dropped, "not measured", *_speed_ups(timed)])
    head = ["input", "source length", "encodings dropped", "test BLEU, sparse minus dense †"]
    note = (
        f"{NOTE}Mean difference to a dense model with the same extra training, distilled the same way; no confidence "
        f"intervals yet. {'; '.join(notes)}. All Europarl models share one set of translations, and their sparsity and "
        "training length were chosen after earlier test scores."
    )
    return Table([*head, "speed-up, float32", "speed-up, int8"], rows, note)


def _length(timed: DecodeBenchmark) -> str:
    assert timed.workload.shape is not None
    return f"{timed.workload.shape.source:,} tokens"


def _speed_ups(timed: DecodeBenchmark) -> list[str]:
    """The speed-ups of dropping alone, in float32 and in int8: one engine on the short and on the dense memory."""
    return [f"{ratio(timed, 'end_to_end', f'{name}-short', f'{name}-dense')}×" for name in ("engine", "engine-int8")]
