"""Batches, forced cross-entropy and controls without the right source, compared with one sentence at a time."""

import numpy as np
import pytest
import torch

from l0drop.runs.json_file import as_json
from l0drop.study.analysis.material import forced_cross_entropy, longer
from l0drop.study.analysis.source_use import output_for, source_use
from l0drop.study.analysis.subject import Reading, opened


@pytest.fixture(scope="module")
def subject(runs):
    with opened(str(runs / "sparse"), Reading(sentences=9)) as found:
        yield found


def test_batches_hold_every_sentence_once_within_the_budget(subject) -> None:
    material = subject.material
    seen = []
    for batch in material.batches(lambda source, target: source * target, 500):
        rows = [material.corpus[i] for i in batch["index"].tolist()]
        seen += batch["index"].tolist()
        largest = max(len(row.source) * len(row.target) for row in rows)
        assert len(rows) == 1 or len(rows) * largest <= 500
    assert sorted(seen) == list(range(9)) == list(range(len(material)))
    assert any(len(batch["index"]) > 1 for batch in material.batches(longer, 200))


def slow_cross_entropy(model, pairs) -> float:
    total = tokens = 0
    for source, target in pairs:
        labels = torch.tensor(target, device=model.device)[None]
        with torch.no_grad():
            loss = model(input_ids=torch.tensor(source, device=model.device)[None], labels=labels).loss
        total += float(loss) * len(target)
        tokens += len(target)
    return total / tokens


@pytest.mark.parametrize("name", ["sparse", "baseline"])
def test_cross_entropy_and_controls(subject, name) -> None:
    model, material = subject.models[name], subject.material
    pairs = [(material.corpus[i].source, material.corpus[i].target) for i in range(9)]
    texts, _ = material.decode(model)
    score = material.score(texts)
    got = as_json(source_use(model, material, texts, score))
    expected = {
        "own_source": pairs,
        "shuffled_source": [(pairs[(i + 1) % 9][0], pairs[i][1]) for i in range(9)],
        "no_source": [(np.array([material.tokenizers.source.eos_token_id]), pairs[i][1]) for i in range(9)],
    }
    for kind, changed in expected.items():
        assert got[kind]["cross_entropy"] == pytest.approx(slow_cross_entropy(model, changed), rel=1e-4)
    assert got["own_source"]["score"]["value"] == score.value
    assert got["own_source"]["cross_entropy"] < got["shuffled_source"]["cross_entropy"]
    assert got["no_source"]["score"]["value"] == material.score([got["output_without_source"]] * 9).value
    assert forced_cross_entropy(model, material) == got["own_source"]["cross_entropy"]


def test_the_output_for_one_source_equals_that_of_the_corpus(subject) -> None:
    model, material = subject.models["sparse"], subject.material
    texts, _ = material.decode(model)
    assert [output_for(model, material, material.corpus[i]) for i in range(3)] == texts[:3]
