"""Whether the task needs the encoder at all: scores with another sentence's source, and with an empty one.

If a model scores nearly as well without its source, its gates say little about which encodings are needed.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from l0drop.data.batches import collate
from l0drop.data.corpus import Example
from l0drop.data.metrics import scorer_of
from l0drop.data.score import Score
from l0drop.decoding.engine import Engine
from l0drop.runs.analysis import SourceScore, SourceUse
from l0drop.study.analysis.material import Material, forced_cross_entropy
from l0drop.study.evaluate import control_scores
from l0drop.study.systems import Advance


def source_use(
    model: Any, material: Material, texts: Sequence[str], score: Score | None, progress: Advance | None = None
) -> SourceUse:
    """Score and forced cross-entropy with each sentence's own source, with another's, and with an empty one.

    texts: the model's outputs; score: their score, or None if they are the targets themselves.
    """
    empty = np.asarray(material.tokenizers.source("")["input_ids"], dtype=np.int64)
    corpus, count = material.corpus, len(material)

    def of_the_next(example: Example) -> Example:
        other = corpus[(example.index + 1) % count]
        return replace(example, source=other.source, hints=other.hints)

    def of_nothing(example: Example) -> Example:
        # added tokens are at the end, and so are their hints
        return replace(example, source=empty, hints={k: v[-len(empty) :] for k, v in example.hints.items()})

    without = output_for(model, material, of_nothing(corpus[0]))
    metric = scorer_of(material.evaluate)
    controls = control_scores(texts, material.references, without, metric)
    changes = {"own_source": None, "shuffled_source": of_the_next, "no_source": of_nothing}
    entropies = {name: forced_cross_entropy(model, material, change, progress) for name, change in changes.items()}
    scores: dict[str, Score | None] = {"own_source": score, **controls}
    return SourceUse(
        what="scores with each sentence's own source, with another sentence's, and with an empty one, against "
        f"{material.described_target}; cross-entropy in nats per target token",
        output_without_source=without,
        **{name: SourceScore(found, entropies[name]) for name, found in scores.items()},
    )


def output_for(model: Any, material: Material, example: Example) -> str:
    """The model's output for one source."""
    batch = collate([example], material.pad_id)
    result = Engine(model).generate(
        batch["input_ids"], batch["attention_mask"], hints=batch["hints"] or None, **material.generation
    )
    return material.tokenizers.target.batch_decode(result.sequences, skip_special_tokens=True)[0]
