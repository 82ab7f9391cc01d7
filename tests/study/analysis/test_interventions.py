"""Gates closed manually: how many, which ones, and that nothing else changes."""

import pytest
import torch

from l0drop import L0DropConfig, sparsify
from l0drop.core.groups import LABELS, group_of
from l0drop.models.patterns import LABEL
from l0drop.runs.json_file import as_json
from l0drop.study.analysis.interventions import KINDS, Closing, arms, interventions, of_groups
from l0drop.study.analysis.subject import Reading, opened
from tests.models import zoo


@pytest.fixture
def batch():
    found = zoo.ragged_batch()
    mask = found["attention_mask"].bool()
    label = torch.randint(0, len(LABELS), mask.shape, generator=torch.Generator().manual_seed(3))
    return found["input_ids"], mask, torch.where(mask, label, -1)


def closed_by(gate, batch) -> torch.Tensor:
    ids, mask, label = batch
    values = gate(torch.zeros(*ids.shape, zoo.WIDTH), mask, input_ids=ids, hints={LABEL: label}).values
    assert not bool(values[~mask].any())
    return (values == 0) & mask


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_every_sentence_loses_the_same_number_of_each_kind(batch, share) -> None:
    counts = {}
    for kind in KINDS:
        closed = closed_by(Closing([kind], KINDS, share), batch)
        assert {group_of(LABELS[n]) for n in batch[2][closed].tolist()} == {kind}
        counts[kind] = closed.sum(1).tolist()
    both = closed_by(Closing(KINDS, KINDS, share), batch)
    assert {group_of(LABELS[n]) for n in batch[2][both].tolist()} == set(KINDS)
    assert counts["content"] == counts["function"] == both.sum(1).tolist()
    for row, (_, mask, label) in enumerate(zip(*batch, strict=True)):
        groups = [group_of(LABELS[n]) for n in label[mask].tolist()]
        assert counts["content"][row] == round(share * min(groups.count(kind) for kind in KINDS))
    assert sum(counts["content"]) > 3


def test_the_draw_depends_on_the_sentence_alone(batch) -> None:
    gate = Closing(["content"], KINDS, 0.5)
    together = closed_by(gate, batch)
    for row in range(6):
        length = int(batch[1][row].sum())
        alone = closed_by(gate, tuple(tensor[row : row + 1, :length] for tensor in batch))
        assert torch.equal(alone[0], together[row, :length])
    assert torch.equal(closed_by(gate, batch), together)


def test_other_words_keep_their_gates_and_closed_ones_open(batch) -> None:
    ids, mask, label = batch
    model = zoo.spread_gates(sparsify(zoo.build("marian"), L0DropConfig()))
    encodings = torch.randn(*ids.shape, zoo.WIDTH, generator=torch.Generator().manual_seed(2))
    own = model.gate(encodings, mask).values
    gate = Closing(["function"], KINDS, 1.0, model.gate)
    got = gate(encodings, mask, input_ids=ids, hints={LABEL: label}).values
    closed = closed_by(Closing(["function"], KINDS, 1.0), batch)
    expected = torch.where(own == 0, 1.0, own).masked_fill(closed, 0) * mask
    assert torch.equal(got, expected)
    assert bool(((own == 0) & mask & (got == 1)).any())


def test_labels_are_needed(batch) -> None:
    with pytest.raises(ValueError, match="hints: Closing needs the hint 'label'"):
        Closing(KINDS, KINDS)(torch.zeros(6, 24, 4), batch[1], input_ids=batch[0])


def test_groups_of_labels() -> None:
    label = torch.tensor([[LABELS.index(name) for name in ("NN", "DT", "VBD", "BPEH", ".", "IN", "EOS")] + [-1]])
    assert of_groups(["content"], label).tolist() == [[True, False, True, *[False] * 5]]
    assert of_groups(KINDS, label).tolist() == [[True, True, True, False, False, True, False, False]]


def test_interventions_on_runs(runs) -> None:
    with opened(str(runs / "sparse"), Reading(sentences=8)) as subject:
        before = {name: tensor.clone() for name, tensor in subject.models["sparse"].state_dict().items()}
        gate = subject.models["sparse"].gate
        done = []
        got = interventions(subject.models, subject.material, done.append)
        assert sum(done) == 15
        assert subject.models["sparse"].gate is gate
        assert all(torch.equal(before[name], t) for name, t in subject.models["sparse"].state_dict().items())
        dense, _ = subject.material.decode(subject.models["baseline"])
        baseline_score = subject.material.score(dense).value
    systems = as_json(got)["systems"]
    assert [len(rows) for rows in systems.values()] == [8, 7]
    assert systems["sparse"][0]["closed"] == "the model's choice"
    assert 0.2 < systems["sparse"][0]["sparsity"] < 0.8
    opened_fully = systems["baseline"][0]
    assert (opened_fully["closed"], opened_fully["sparsity"]) == ("none", 0)
    assert opened_fully["score"]["value"] == pytest.approx(baseline_score), "with every gate open it is the baseline"
    for rows in systems.values():
        for share in (0.5, 1.0):
            rates = {row["closed"]: row["sparsity"] for row in rows if row["share"] == share}
            assert set(rates) == {"content words", "function words", "words of both kinds"}
            assert len(set(rates.values())) == 1, "equal rates"
            assert min(rates.values()) > 0
    entropies = {row["cross_entropy"] for rows in systems.values() for row in rows}
    assert len(entropies) == 15, "each row is a different model"


def test_arms_without_an_own_gate() -> None:
    assert [arm for arm, _, _ in arms(None)][:2] == ["none", "content words"]
