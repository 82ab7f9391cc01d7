"""Counts of dropped tokens, compared with counting token by token."""

from collections import Counter, defaultdict

import pytest
import torch

from l0drop import Gates, L0DropConfig, sparsify
from l0drop.core.groups import GROUPS, LABELS, group_of
from l0drop.models.patterns import LABEL
from l0drop.runs.json_file import as_json
from l0drop.study.analysis.annotate import marks
from l0drop.study.analysis.attention import Attention, attend, observable
from l0drop.study.analysis.dropped import BANDS, LENGTHS, SEEN_AT_LEAST, DroppedStudy
from tests.models import zoo

LENGTHS_OF_SENTENCES = (9, 1, 30, 11, 21, 45, 3, 12)


@pytest.fixture(scope="module")
def counted():
    """A study of random gates in two batches, and its tokens: (id, label, dropped, position, length, gate)."""
    generator = torch.Generator().manual_seed(1)
    study, tokens = DroppedStudy(50), []
    for lengths in (LENGTHS_OF_SENTENCES[:4], LENGTHS_OF_SENTENCES[4:]):
        size = (4, max(lengths))
        mask = torch.arange(size[1]) < torch.tensor(lengths)[:, None]
        ids = torch.randint(3, 50, size, generator=generator)
        label = torch.randint(1, len(LABELS), size, generator=generator)
        for row, length in enumerate(lengths):
            label[row, length - 1] = LABELS.index("EOS")
        values = (torch.rand(size, generator=generator) - 0.4).clamp(0, 0.3) / 0.3 * mask
        attention = Attention(torch.zeros(4, 1, size[1]), None, mask, Gates(values, values, values), None)
        study.add(attention, ids, marks({LABEL: torch.where(mask, label, -1)}, tagged=True))
        for row, length in enumerate(lengths):
            for n in range(length):
                dropped = float(values[row, n]) == 0
                tokens.append((int(ids[row, n]), LABELS[label[row, n]], dropped, n + 1, length, float(values[row, n])))
    return study, tokens


def rate(tokens) -> tuple[int, float | None]:
    return len(tokens), sum(t[2] for t in tokens) / len(tokens) if tokens else None


def test_groups(counted) -> None:
    study, tokens = counted
    groups = as_json(study.by_group())["groups"]
    assert tuple(groups) == GROUPS
    for name, got in groups.items():
        expected = rate([t for t in tokens if group_of(t[1]) == name])
        assert (got["tokens"], got["sparsity"]) == expected
    weighted = sum(got["tokens"] * got["sparsity"] for got in groups.values() if got["tokens"])
    assert weighted / sum(got["tokens"] for got in groups.values()) == pytest.approx(study.sparsity)


def test_gates(counted) -> None:
    study, tokens = counted
    got = as_json(study.gate_values())
    values = [t[5] for t in tokens]
    assert got["tokens"] == len(values) == sum(LENGTHS_OF_SENTENCES)
    assert got["exactly_zero"] == got["sparsity"] == sum(v == 0 for v in values) / len(values)
    assert got["exactly_one"] == sum(v == 1 for v in values) / len(values)
    assert got["exactly_zero"] + got["exactly_one"] + got["between"] == pytest.approx(1)
    assert 0 < got["between"] < 1
    assert got["expected_open_rate"] == pytest.approx(sum(values) / len(values))
    assert "layers" not in got


def test_lengths_and_positions(counted) -> None:
    study, tokens = counted
    found = as_json(study.by_place())
    for name, value, chosen in (
        ("by_length", 4, tokens),
        ("by_position", 3, [t for t in tokens if t[1] != "EOS"]),
    ):
        bins = found[name]["bins"]
        for entry in bins:
            expected = rate([t for t in chosen if entry["from"] <= t[value] <= (entry["to"] or 10**9)])
            assert (entry["tokens"], entry["sparsity"]) == expected
        assert sum(entry["tokens"] for entry in bins) == len(chosen)
    assert [entry["to"] for entry in found["by_length"]["bins"]] == [10, 20, 30, 60]
    tenths = found["by_relative_position"]["bins"]
    by_tenth = defaultdict(list)
    for t in tokens:
        if t[1] != "EOS":
            by_tenth[(t[3] - 1) * 10 // (t[4] - 1)].append(t)
    for number, entry in enumerate(tenths):
        assert (entry["tokens"], entry["sparsity"]) == rate(by_tenth[number])


def test_words_by_frequency(counted) -> None:
    study, tokens = counted
    whole = [t for t in tokens if t[1] not in ("EOS", "BPEH", "BPEO")]
    seen = Counter(t[0] for t in whole)
    got = as_json(study.by_word(lambda token: f"word{token}"))
    assert (got["tokens"], got["sparsity"]) == rate(whole)
    ranked = sorted(seen, key=lambda word: (-seen[word], word))
    assert [band["ranks"] for band in got["bands"]] == [[1, BANDS[0]], [BANDS[0] + 1, len(ranked)]]
    for band in got["bands"]:
        words = ranked[band["ranks"][0] - 1 : band["ranks"][1]]
        assert (band["tokens"], band["sparsity"]) == rate([t for t in whole if t[0] in words])
        often = {f"word{w}": rate([t for t in whole if t[0] == w]) for w in words if seen[w] >= SEEN_AT_LEAST}
        listed = band["most_dropped"] + band["least_dropped"]
        assert {entry["word"] for entry in listed} <= set(often)
        assert len({entry["word"] for entry in listed}) == len(listed), "no word is in both lists"
        for entry in listed:
            assert (entry["tokens"], entry["sparsity"]) == often[entry["word"]]
        rates = [entry["sparsity"] for entry in band["most_dropped"]]
        assert rates == sorted(rates, reverse=True)
        if rates:
            assert rates[0] == max(found for _, found in often.values())
        rates = [entry["sparsity"] for entry in band["least_dropped"]]
        assert rates == sorted(rates)


def test_untagged_tokens_have_words_but_no_groups() -> None:
    label = torch.tensor([[LABELS.index(name) for name in ("XX", "BPEH", "BPEO", "XX", "EOS")] + [-1]])
    got = marks({LABEL: label}, tagged=False)
    assert got.groups is None
    assert got.whole.tolist() == [[True, False, False, True, False, False]]
    assert got.special.tolist() == [[False, False, False, False, True, True]]


@pytest.mark.parametrize("gating", ["zero", "mask"])
@torch.no_grad()
def test_layers_of_the_layer_wise_variant(gating) -> None:
    model = zoo.spread_gates(sparsify(zoo.build("marian"), L0DropConfig(gating=gating, layerwise=True)), 0.3)
    batch = zoo.ragged_batch()
    study = DroppedStudy(zoo.VOCABULARY)
    labels = torch.full((6, 4), 5)
    label = torch.where(batch["attention_mask"].bool(), LABELS.index("NN"), -1)
    study.add(attend(observable(model), batch, labels), batch["input_ids"], marks({LABEL: label}, tagged=True))
    closed, real = [0, 0], 0
    for row, length in enumerate(batch["attention_mask"].sum(1).tolist()):  # each alone, on the short memory
        gates = model.get_encoder()(input_ids=batch["input_ids"][row : row + 1, :length]).layer_gates
        real += length
        for layer, found in enumerate(gates):
            closed[layer] += int((found.values == 0).sum())
    got = as_json(study.gate_values())["layers"]
    assert [layer["sparsity"] for layer in got] == [n / real for n in closed]
    assert got[-1]["sparsity"] == study.sparsity
    assert got[0]["sparsity"] > 0


def test_bins_reach_beyond_the_last_edge() -> None:
    study = DroppedStudy(4)
    length = LENGTHS[-1] + 5
    mask = torch.ones(1, length, dtype=torch.bool)
    values = torch.zeros(1, length)
    label = torch.full((1, length), LABELS.index("NN"))
    study.add(
        Attention(torch.zeros(1, 1, length), None, mask, Gates(values), None),
        torch.ones(1, length, dtype=torch.long),
        marks({LABEL: label}, tagged=True),
    )
    assert as_json(study.by_place())["by_length"]["bins"] == [
        {"from": LENGTHS[-1] + 1, "to": None, "tokens": length, "sparsity": 1.0}
    ]
    assert as_json(study.by_place())["by_position"]["bins"][-1]["tokens"] == 5
