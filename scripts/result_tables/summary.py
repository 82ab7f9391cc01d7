"""The table at the top of README.md: quality and speed in one look."""

import statistics

from result_tables.files import markdown, read
from result_tables.labels import SAME_WAY
from result_tables.speed import ratio
from result_tables.studies import Study, count

TRAINED = {
    "Multi30k, captions": ("multi30k-translated", "zero-0.47", "decode-multi30k"),
    "Europarl, sentences": ("europarl", "zero-0.46", "decode-europarl"),
}
"""A task: its study, the sparse system, and the timing at its source length and sparsity."""
TIMED = {
    "length of an article, random weights": ("decode-cnndm", "engine-short", "engine-dense"),
    "length of a long document, random weights": ("decode-wikisum", "engine-short", "engine-dense"),
    "the same, int8": ("decode-wikisum", "engine-int8-short", "engine-int8-dense"),
}
NOTE = "† "
"""How the note under a table begins; it belongs to the generated block."""


def summary_table() -> str:
    rows, notes = [], []
    for task, (name, system, timing) in TRAINED.items():
        study, timed = Study.read(name), read(timing)
        differences = study.differences(system, SAME_WAY)
        row = [task, f"{timed['shape']['source']:,} tokens", f"{study.dropped(system):.1%}"]
        row.append(f"{statistics.mean(differences):+.2f} BLEU †")
        rows.append([*row, ratio(timed, "end_to_end", "engine-short", "engine-dense")])
        baselines = count(study.baselines, "independent baseline")
        notes.append(f"{task.partition(',')[0]}: {count(len(differences), 'seed')}, {baselines}")
    for task, (timing, system, reference) in TIMED.items():
        timed = read(timing)
        row = [task, f"{timed['shape']['source']:,} tokens", f"{timed['shape']['dropped']:.1%} (the paper's)"]
        rows.append([*row, "not measured", ratio(timed, "end_to_end", system, reference)])
    head = ["task", "source length", "encodings dropped", "quality: sparse less dense distilled the same way"]
    note = (
        f"{NOTE}Mean difference in test BLEU to a dense model with the same extra training, distilled the same way, "
        f"English-German; no bounds yet. {'; '.join(notes)}. Speed-up: our engine on the short memory over our engine "
        "on the dense memory, Transformer base with random weights, beam 4. The last rows use the paper's sparsity, "
        "which no model of ours reaches on text of that length."
    )
    return f"{markdown([*head, 'speed-up end to end, one CPU core'], rows)}\n\n{note}"
