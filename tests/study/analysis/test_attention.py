"""Attention mass, entropy and maps, compared with loops over single sentences on the short memory."""

import math

import numpy as np
import pytest
import torch

from l0drop import L0DropConfig, sparsify
from l0drop.core.memory import GATINGS, has_shared_row
from l0drop.runs.json_file import as_json
from l0drop.study.analysis.attention import (
    ZERO_ROW,
    Attention,
    EntropyStudy,
    MassMeter,
    MassStudy,
    attend,
    attention_map,
    cells_per_sentence,
    entropy,
    mass,
    observable,
    renormalised,
    with_zero_row,
)
from tests.models import zoo

TARGETS = (5, 7, 1, 6, 3, 7)


def labels() -> torch.Tensor:
    ids = torch.randint(3, zoo.VOCABULARY, (6, 7), generator=torch.Generator().manual_seed(9))
    return torch.where(torch.arange(7) < torch.tensor(TARGETS)[:, None], ids, -100)


def sparse(family: str, gating: str):
    return zoo.spread_gates(sparsify(zoo.build(family), L0DropConfig(gating=gating)))


def one_sentence(model, batch, row: int) -> tuple[dict[int, float], float, list[float]]:
    """One sentence alone, without padding, on the short memory: mass by source position, mass of the zero row, and the
    entropies of the last self-attention."""
    length, steps = int(batch["attention_mask"][row].sum()), TARGETS[row]
    ids = batch["input_ids"][row : row + 1, :length]
    memory = model.get_encoder()(input_ids=ids, output_attentions=True)
    output = model(
        encoder_outputs=memory, labels=labels()[row : row + 1, :steps], output_attentions=True, input_ids=ids
    )
    by_position, zero = dict.fromkeys(range(length), 0.0), 0.0
    layers, heads = len(output.cross_attentions), output.cross_attentions[0].shape[1]
    index = memory.memory_index[0].tolist()
    for layer in output.cross_attentions:
        for head in layer[0].tolist():
            for step in head:
                for position, weight in zip(index, step, strict=True):
                    if position >= 0:
                        by_position[position] += weight / layers / heads
                    else:
                        zero += weight / layers / heads
    entropies = []
    for query in memory.attentions[-1][0].mean(0).tolist():
        entropies.append(-sum(p * math.log(p) for p in query if p > 0))
    return by_position, zero, entropies


@pytest.mark.parametrize("gating", GATINGS)
@pytest.mark.parametrize("family", ["marian", "t5"])
@torch.no_grad()
def test_mass_and_entropy_equal_those_of_single_sentences(family, gating) -> None:
    model, batch = observable(sparse(family, gating)), zoo.ragged_batch()
    got = attend(model, batch, labels())
    masses, entropies = mass(got.cross), entropy(got.encoder)
    assert 0 < int(got.kept.sum()) < int(got.mask.sum())
    for row, steps in enumerate(TARGETS):
        expected, zero, expected_entropies = one_sentence(model, batch, row)
        kept = got.kept[row].nonzero().flatten().tolist()
        for position in kept:
            assert masses[row, position] == pytest.approx(expected[position], abs=1e-4)
        dropped = float(masses[row][got.mask[row] & ~got.kept[row]].sum())
        assert dropped == pytest.approx(zero, abs=1e-4)
        assert (dropped > 0) == (has_shared_row(gating) and len(kept) < int(got.mask[row].sum()))
        assert float(masses[row].sum()) == pytest.approx(steps, abs=1e-4), "the masses add up to the target length"
        assert not bool(masses[row][~got.mask[row]].any())
        length = len(expected_entropies)
        np.testing.assert_allclose(entropies[row, :length], expected_entropies, atol=1e-4)
        assert all(-1e-9 <= value <= math.log(length) + 1e-6 for value in entropies[row, :length].tolist())


@torch.no_grad()
def test_a_zero_row_takes_its_share_from_the_kept_rows_of_a_masked_model() -> None:
    """In the first layer, where both have the same queries, the weights on kept rows differ by a factor alone."""
    model, batch = sparse("marian", "mask"), zoo.ragged_batch()
    other = with_zero_row(model)
    assert (model.config.l0drop.gating, other.config.l0drop.gating) == ("mask", "zero")
    assert next(other.parameters()) is next(model.parameters()), "nothing is copied"
    given = {**batch, "labels": labels().clamp_min(0), "output_attentions": True}
    masked, zeroed = observable(model), observable(other)
    with masked.dial(dense=True), zeroed.dial(dense=True):
        plain, with_row = (one(**given).cross_attentions[0] for one in (masked, zeroed))
    got = attend(zeroed, batch, labels())
    some = got.kept.any(1)
    on_kept = with_row * got.kept[:, None, None]
    torch.testing.assert_close((on_kept / on_kept.sum(-1, keepdim=True))[some], plain[some])
    assert float(on_kept.sum(-1)[some & (got.kept != got.mask).any(1)].max()) < 1
    study = MassStudy()
    study.add({"sparse": attend(masked, batch, labels()), ZERO_ROW: got})
    found = study.result("mask")
    assert found.share_on_dropped["sparse"] == 0 < found.share_on_dropped[ZERO_ROW] < 1
    assert found.systems[ZERO_ROW].words == int(got.kept.sum())
    assert "trained without a zero row" in found.systems[ZERO_ROW].of


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"gating": "zero"}, "`zero_row`: is for a model of gating mask, and this one has gating zero"),
        ({"gating": "mask", "layerwise": True}, "`zero_row`: with gates between layers"),
    ],
)
def test_a_zero_row_is_for_masked_models_with_one_gate(config, message) -> None:
    with pytest.raises(ValueError, match=message):
        with_zero_row(sparsify(zoo.build("marian"), L0DropConfig(**config)))


@torch.no_grad()
def test_observing_does_not_change_the_model() -> None:
    model, batch = sparse("marian", "zero"), zoo.ragged_batch()
    before = model(**batch, labels=labels().clamp_min(0)).logits
    watched = observable(model)
    attend(watched, batch, labels())
    assert model.config._attn_implementation == "sdpa"
    torch.testing.assert_close(model(**batch, labels=labels().clamp_min(0)).logits, before, atol=0, rtol=0)
    assert watched.gate is not model.gate


@torch.no_grad()
def test_a_model_without_gates_keeps_everything() -> None:
    got = attend(observable(zoo.build("marian")), {**zoo.ragged_batch(), "hints": None}, labels())
    assert got.gates is None
    assert torch.equal(got.kept, got.mask)
    torch.testing.assert_close(mass(got.cross).sum(1), torch.tensor(TARGETS, dtype=torch.float64), atol=1e-5, rtol=0)


def test_the_encoder_of_led_has_no_square_attention() -> None:
    batch = zoo.ragged_batch()
    got = attend(observable(zoo.build("led")), batch, labels())
    assert got.encoder is None
    torch.testing.assert_close(mass(got.cross).sum(1), torch.tensor(TARGETS, dtype=torch.float64), atol=1e-5, rtol=0)


def test_renormalised_against_loops() -> None:
    generator = torch.Generator().manual_seed(2)
    cross = torch.rand(2, 3, 4, generator=generator).softmax(-1)
    kept = torch.tensor([[True, False, True, False], [False] * 4])
    got = renormalised(cross, kept)
    for step in range(3):
        total = float(cross[0, step, 0] + cross[0, step, 2])
        expected = [float(cross[0, step, 0]) / total, 0, float(cross[0, step, 2]) / total, 0]
        assert got[0, step].tolist() == pytest.approx(expected, abs=1e-6)
    assert not bool(got[1].any()), "no kept position, no weight"


def test_entropy_of_known_distributions() -> None:
    weights = torch.tensor([[1.0, 0, 0, 0], [0.25, 0.25, 0.25, 0.25], [0.5, 0.5, 0, 0]])
    assert entropy(weights).tolist() == pytest.approx([0, math.log(4), math.log(2)])


def test_meter_against_numpy() -> None:
    values = np.random.default_rng(0).gamma(2.0, 0.6, 5000)
    values[:7], values[7] = 0, 33.0  # some without attention, one beyond the last bin
    meter = MassMeter()
    for part in np.array_split(values, 9):
        meter.add(torch.from_numpy(part))
    got = as_json(meter.result("words"))
    assert got["words"] == 5000
    assert got["mean"] == pytest.approx(values.mean())
    assert got["share_under_0.6"] == (values < 0.6).mean()
    assert got["share_under_0.6_of_mean"] == pytest.approx((values < 0.6 * values.mean()).mean(), abs=1e-3)
    assert got["share_untouched"] == 7 / 5000
    counts, _ = np.histogram(values, bins=np.arange(61) / 10)
    assert np.abs(np.array(got["histogram"]["counts"]) - counts).max() <= 1
    assert sum(got["histogram"]["counts"]) + got["histogram"]["above"] == 5000
    assert meter.share_under(50.0) == pytest.approx(1, abs=1e-3)


def attention_of(cross: torch.Tensor, mask: torch.Tensor, kept: torch.Tensor | None) -> Attention:
    from l0drop import Gates

    gates = None if kept is None else Gates(kept.float())
    return Attention(cross, None, mask, gates, None)


def test_study_of_masses_against_loops() -> None:
    generator = torch.Generator().manual_seed(5)
    mask = torch.arange(6) < torch.tensor([6, 4])[:, None]
    steps = (3, 2)
    real = (torch.arange(3) < torch.tensor(steps)[:, None])[..., None]

    def weights() -> torch.Tensor:
        scores = torch.randn(2, 3, 6, generator=generator).masked_fill(~mask[:, None], -torch.inf)
        return scores.softmax(-1) * real

    kept = torch.tensor([[1, 0, 0, 1, 1, 0], [0, 1, 1, 0, 0, 0]]).bool()
    ours, base = weights(), weights()
    study = MassStudy()
    study.add({"sparse": attention_of(ours, mask, kept), "baseline": attention_of(base, mask, None)})
    got = as_json(study.result("zero"))
    assert got["target_tokens"] == 5
    on_kept = [float(ours[b, :, n].sum()) for b in range(2) for n in range(6) if kept[b, n]]
    assert got["systems"]["sparse"]["words"] == 5
    assert got["systems"]["sparse"]["mean"] == pytest.approx(sum(on_kept) / 5)
    assert got["share_on_dropped"]["sparse"] == pytest.approx(1 - sum(on_kept) / 5)
    assert got["systems"]["baseline"]["mean"] == pytest.approx(5 / 10), "target length / source length"
    base_kept = sum(float(base[b, :, n].sum()) for b in range(2) for n in range(6) if kept[b, n])
    assert got["systems"]["baseline_kept"]["mean"] == pytest.approx(base_kept / 5)
    assert got["systems"]["baseline_dropped"]["mean"] == pytest.approx((5 - base_kept) / 5)
    assert got["share_on_dropped"]["baseline"] == pytest.approx(1 - base_kept / 5)
    assert got["systems"]["baseline_renormalised"]["mean"] == pytest.approx(5 / 5), "all attention is on kept words"


def test_study_of_entropies_against_loops() -> None:
    generator = torch.Generator().manual_seed(5)
    mask = torch.arange(4) < torch.tensor([4, 3])[:, None]
    kept = torch.tensor([[1, 0, 1, 0], [0, 1, 0, 0]]).bool()
    scores = torch.randn(2, 4, 4, generator=generator).masked_fill(~mask[:, None], -torch.inf)
    attention = Attention(torch.zeros(2, 1, 4), scores.softmax(-1), mask, None, None)
    study = EntropyStudy()
    study.add({"sparse": attention}, kept)
    study.add({"sparse": attention}, kept)
    sums = {"kept": [], "dropped": []}
    for b, n in mask.nonzero().tolist():
        weights = scores[b, n].softmax(-1).tolist()
        sums["kept" if kept[b, n] else "dropped"].append(-sum(w * math.log(w) for w in weights if w))
    got = as_json(study.result())
    assert got["positions"] == {"kept": 6, "dropped": 8}
    for kind, values in sums.items():
        assert got["sparse"][kind] == pytest.approx(sum(values) / len(values), abs=1e-6)
    assert got["uniform"]["kept"] == pytest.approx((2 * math.log(4) + math.log(3)) / 3)


@torch.no_grad()
def test_maps_show_kept_words_and_the_weight_on_dropped_ones() -> None:
    model, batch = observable(sparse("marian", "zero")), zoo.ragged_batch()
    got = attend(model, batch, labels())
    drawn = as_json(attention_map(got, 3, 20, TARGETS[3], got.kept))
    assert len(drawn["weights"]) == TARGETS[3]
    for line, rest in zip(drawn["weights"], drawn["on_dropped"], strict=True):
        assert sum(line) + rest == pytest.approx(1, abs=2e-3)
        assert all(w == 0 for w, kept in zip(line, got.kept[3, :20].tolist(), strict=True) if not kept)
    assert max(drawn["on_dropped"]) > 0


@torch.no_grad()
@pytest.mark.parametrize("family", ["marian", "t5"])
def test_cells_are_the_attention_weights_of_all_layers(family) -> None:
    model = observable(zoo.build(family))
    ids = torch.randint(3, 90, (1, 11))
    output = model(input_ids=ids, labels=ids[:, :5], output_attentions=True)
    found = (*output.encoder_attentions, *output.decoder_attentions, *output.cross_attentions)
    assert cells_per_sentence(model, 11, 5) == sum(weights.numel() for weights in found)
