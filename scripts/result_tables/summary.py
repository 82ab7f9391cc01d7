"""The two tables of README.md: quality of trained models, and speed at the length of documents."""

import statistics

from l0drop.runs.benchmark import DecodeBenchmark
from l0drop.runs.table import Table
from result_tables import files
from result_tables.labels import SAME_WAY
from result_tables.speed import ratio
from result_tables.studies import PublishedStudy, count

TRAINED = {
    "Multi30k, captions": ("multi30k-translated", "zero-0.47", "decode-multi30k"),
    "Europarl, sentences": ("europarl", "zero-0.46", "decode-europarl"),
}
"""A task: its study, the sparse system, and the timing at its source length and sparsity."""
TIMED = ("cnndm", "wikisum")
NOTE = "† "
"""How the note under a table begins; it belongs to the generated block."""


def quality_table() -> Table:
    rows, notes = [], []
    for task, (name, system, timing) in TRAINED.items():
        study, timed = PublishedStudy.read(name), files.decoding(timing)
        differences = study.differences(system, SAME_WAY)
        assert timed.workload.shape is not None
        row = [task, f"{timed.workload.shape.source:,} tokens", f"{study.dropped(system):.1%}"]
        rows.append([*row, f"{statistics.mean(differences):+.2f}", _alone(timed, "engine")])
        baselines = count(study.baselines, "independent baseline")
        notes.append(f"{task.partition(',')[0]}: {count(len(differences), 'seed')}, {baselines}")
    head = ["text, English-German", "source length", "encodings dropped", "test BLEU, sparse minus dense †"]
    note = (
        f"{NOTE}Mean difference to a dense model with the same extra training, distilled the same way; no confidence "
        f"intervals yet. {'; '.join(notes)}. All Europarl models share one set of translations, and their sparsity and "
        "training length were chosen after earlier test scores."
    )
    return Table([*head, "speed-up"], rows, note)


def length_table() -> Table:
    rows = []
    for timed in map(files.decoding_of_shape, TIMED):
        shape = timed.workload.shape
        assert shape is not None
        row = [f"{shape.source:,} tokens", f"{shape.dropped:.1%}"]
        rows.append([*row, _alone(timed, "engine"), _alone(timed, "engine-int8")])
    head = ["source length", "encodings dropped (set to the paper's value)"]
    return Table([*head, "speed-up, float32", "speed-up, int8"], rows)


def _alone(timed: DecodeBenchmark, engine: str) -> str:
    """The speed-up of dropping alone: one engine on the short and on the dense memory."""
    return f"{ratio(timed, 'end_to_end', f'{engine}-short', f'{engine}-dense')}×"
