"""The paper's rules: each drops the tokens it should, in any batch, and after saving and loading."""

from collections import Counter
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM

from l0drop import L0DropConfig, sparsify
from l0drop.core.gates import GATES
from l0drop.core.groups import LABELS, group_of
from l0drop.data.hints import Frequencies, TextAnnotator, annotator_for, counted_tokens
from l0drop.data.tokenizer import train_tokenizer
from l0drop.data.toy import translation
from l0drop.models.patterns import FreqGate, GroupGate, InvFreqGate, NormGate, PosGate, RandomGate, sentence_key
from tests.data.pieces import word_pieces
from tests.models import zoo
from tests.snippets import python_block

TEXTS = [pair.source for pair in translation(300, 21)]
TOKENIZER = train_tokenizer(TEXTS, vocab_size=400).source
BATCH = TOKENIZER(TEXTS, padding=True, return_tensors="pt")
MASK = BATCH["attention_mask"].bool()
TOKENS = int(MASK.sum())
ENCODINGS = torch.randn(*MASK.shape, 4, generator=torch.Generator().manual_seed(1))
EOS = BATCH["input_ids"] == TOKENIZER.eos_token_id


def dropped(gate: torch.nn.Module, hints: dict[str, torch.Tensor] | None = None) -> torch.Tensor:
    gates = gate(ENCODINGS, MASK, input_ids=BATCH["input_ids"], hints=hints)
    gates.check(MASK)
    assert gates.values.is_floating_point()
    assert set(gates.values.unique().tolist()) <= {0.0, 1.0}
    return (gates.values == 0) & MASK


@pytest.fixture(scope="module")
def frequencies() -> Frequencies:
    return Frequencies.count(counted_tokens(TOKENIZER, TEXTS, TOKENIZER(TEXTS)))


def test_pos_drops_the_tags_of_the_paper() -> None:
    annotator = TextAnnotator(("label",), TOKENIZER)
    rows = annotator(TEXTS, TOKENIZER(TEXTS))["label"]
    count = Counter(LABELS[number] for row in rows for number in row)
    names = ("CC", "IN", "RP", "TO", "UH", "DT", "WP", "MD", "EX", "BPEO", ".", ",", ":", "``", "''", "HYPH")
    expected = sum(count[name] for name in names)
    assert 0.2 < expected / TOKENS < 0.7
    hints = {"label": torch.tensor(annotator(TEXTS, BATCH)["label"])}
    assert int(dropped(PosGate(), hints).sum()) == expected
    assert not (dropped(PosGate(), hints) & EOS).any()
    for drop, labels in {("content", "EOS"): "content EOS", ("BPEH",): "BPEH", ("NN", "rest"): "NN rest"}.items():
        wanted = sum(n for label, n in count.items() if label in labels.split() or group_of(label) in labels.split())
        assert int(dropped(PosGate(drop), hints).sum()) == wanted


def words_by_frequency() -> list[tuple[str, int]]:
    """Words by decreasing frequency, each with its total number of tokens, as the tokenizer splits words."""
    occurrences: Counter[str] = Counter()
    tokens: Counter[str] = Counter()
    for text in TEXTS:
        encoding = TOKENIZER([text], return_offsets_mapping=True)
        pieces, spans = word_pieces(encoding, 0), encoding["offset_mapping"][0]
        for number in {piece.word for piece in pieces if piece.word is not None}:
            own = [span for span, piece in zip(spans, pieces, strict=True) if piece.word == number]
            word = text[own[0][0] : own[-1][1]].strip()
            occurrences[word] += 1
            tokens[word] += len(own)
    return [(word, tokens[word]) for word in sorted(occurrences, key=lambda w: (-occurrences[w], w))]


@pytest.mark.parametrize("share", [0.463, 0.4, 0.05, 0.9])
@pytest.mark.parametrize(("gate", "hint"), [(FreqGate, "frequent"), (InvFreqGate, "rare")])
def test_frequency_rules_drop_up_to_their_share(gate: type, hint: str, share: float, frequencies: Frequencies) -> None:
    annotator = TextAnnotator((hint,), TOKENIZER, frequencies=frequencies)
    found = dropped(gate(share), {hint: torch.tensor(annotator(TEXTS, BATCH)[hint])})
    ranked = words_by_frequency()
    expected, words = 0, 0
    for _, tokens in ranked if gate is FreqGate else ranked[::-1]:
        if expected + tokens > share * TOKENS:
            break
        expected, words = expected + tokens, words + 1
    assert int(found.sum()) == expected
    assert 0 < words < len(ranked)
    assert expected / TOKENS <= share
    assert not (found & EOS).any()


def test_the_default_shares_are_those_of_the_paper() -> None:
    assert FreqGate().share == 0.463
    assert InvFreqGate().share == 0.4


def test_group_keeps_odd_positions() -> None:
    found = dropped(GroupGate())
    for row, real in zip(found, MASK, strict=True):
        n = int(real.sum())
        assert row[:n].tolist() == [position % 2 == 0 for position in range(1, n + 1)]
    assert int(found.sum()) == sum(n // 2 for n in MASK.sum(1).tolist())


@pytest.mark.parametrize("rate", [0.0, 0.3, 0.5, 0.713, 0.99])
@pytest.mark.parametrize("gate", [RandomGate, NormGate])
def test_random_and_norm_drop_their_rate(gate: type, rate: float) -> None:
    found = dropped(gate(rate))
    for row, real in zip(found, MASK, strict=True):
        n = int(real.sum())
        assert n - int(row.sum()) == max(1, round((1 - rate) * n))


@pytest.mark.parametrize("drop", ["smallest", "largest"])
def test_norm_drops_by_norm(drop: str) -> None:
    found = dropped(NormGate(0.4, drop))
    norm = ENCODINGS.square().sum(-1).sqrt()
    for row in range(20):
        real = MASK[row]
        gone, stays = norm[row][found[row]], norm[row][real & ~found[row]]
        assert gone.max() <= stays.min() if drop == "smallest" else gone.min() >= stays.max()


def test_random_is_the_same_in_any_batch_and_padding() -> None:
    ids, gate = BATCH["input_ids"], RandomGate(0.5)
    together = gate(ENCODINGS, MASK, input_ids=ids).values
    for row in (0, 7, 120):
        n = int(MASK[row].sum())
        expected = together[row, :n]
        for left, right in ((0, 0), (0, 9), (5, 0), (3, 4)):
            one = torch.nn.functional.pad(ids[row : row + 1, :n], (left, right), value=left + 1)
            real = torch.nn.functional.pad(torch.ones(1, n, dtype=torch.bool), (left, right))
            alone = gate(torch.zeros(1, n + left + right, 4), real, input_ids=one).values
            assert torch.equal(alone[0, left : left + n], expected)
    other = gate(ENCODINGS.flip(0), MASK.flip(0), input_ids=ids.flip(0)).values
    assert torch.equal(other.flip(0), together)


def test_random_is_random() -> None:
    one, other = dropped(RandomGate(0.5)), dropped(RandomGate(0.5, seed=1))
    assert 0.4 < (one == other)[MASK].float().mean() < 0.6
    assert 0.4 < (one & EOS).sum() / len(TEXTS) < 0.6
    positions = one[MASK.sum(1) > 12][:, :12].float().mean(0)
    assert positions.min() > 0.35
    assert positions.max() < 0.65
    keys = sentence_key(BATCH["input_ids"], MASK)
    assert len(set(keys.tolist())) == len({tuple(row.tolist()) for row in BATCH["input_ids"]})
    swapped = sentence_key(torch.tensor([[3, 4], [4, 3]]), torch.ones(2, 2, dtype=torch.bool))
    assert swapped[0] != swapped[1]


@pytest.mark.parametrize("name", ["random", "norm"])
def test_the_dial_works_with_rules_that_have_a_score(name: str) -> None:
    batch = zoo.ragged_batch()
    lengths = batch["attention_mask"].sum(1)
    model = sparsify(zoo.build("bart"), L0DropConfig(gate=name, gate_args={"rate": 0.5}))
    at_half = [set(explanation.kept) for explanation in model.explain(**batch)]
    with model.dial(keep=0.25):
        fewer = [set(explanation.kept) for explanation in model.explain(**batch)]
    assert [len(kept) for kept in fewer] == [max(1, round(0.25 * n)) for n in lengths.tolist()]
    assert all(few <= half for few, half in zip(fewer, at_half, strict=True))
    with pytest.raises(ValueError, match="shift"), model.dial(shift=1.0):
        model.explain(**batch)


def test_rules_without_a_score_refuse_the_dial() -> None:
    model = sparsify(zoo.build("bart"), L0DropConfig(gate="group"))
    with pytest.raises(ValueError, match="rule"), model.dial(keep=0.5):
        model.explain(**zoo.ragged_batch())


HINTS = {
    "label": torch.arange(6 * 24).reshape(6, 24) % len(LABELS),
    "frequent": (torch.arange(6 * 24).reshape(6, 24) * 7919 % 1000) * 10**6,
    "rare": (torch.arange(6 * 24).reshape(6, 24) * 104729 % 1000) * 10**6,
}


@pytest.mark.parametrize("gating", ["zero", "mask", "weight", "mean"])
@pytest.mark.parametrize("name", ["pos", "freq", "inv_freq", "group", "random", "norm"])
def test_short_equals_dense_before_and_after_saving(name: str, gating: str, tmp_path: Path) -> None:
    hints = {hint: HINTS[hint] for hint in GATES.class_of(name).needs} or None
    batch = zoo.ragged_batch()
    model = sparsify(zoo.build("marian").double(), L0DropConfig(gate=name, gating=gating))  # type: ignore[arg-type]
    inputs = {**batch, "hints": hints, "decoder_input_ids": torch.tensor([[1, 5, 9]]).expand(6, 3)}
    with torch.no_grad():
        short = model(**inputs)
        with model.dial(dense=True):
            dense = model(**inputs)
        sparsity = float(short.sparsity)
        assert 0.2 < sparsity < 0.8
        torch.testing.assert_close(short.logits, dense.logits, rtol=0, atol=1e-9)
        model.save_pretrained(tmp_path)
        loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, dtype=torch.float64)
        assert torch.equal(loaded(**inputs).gates.values, short.gates.values)
        tokens = model.generate(**batch, hints=hints, max_new_tokens=5, num_beams=2)
        assert torch.equal(loaded.generate(**batch, hints=hints, max_new_tokens=5, num_beams=2), tokens)


def test_a_rule_trains_the_model_around_it() -> None:
    model = sparsify(zoo.build("marian"), L0DropConfig(gate="group")).train()
    batch = zoo.ragged_batch()
    output = model(**batch, labels=batch["input_ids"][:, :5].clone())
    output.loss.backward()
    assert output.loss.item() == output.cross_entropy.item()
    assert output.penalty.item() == 0
    assert output.sparsity.item() == pytest.approx(sum(n // 2 for n in (24, 17, 9, 20, 24, 3)) / 97)
    assert all(p.grad is not None for n, p in model.named_parameters() if "encoder.layers" in n)


@pytest.mark.parametrize(
    ("gate", "arguments", "complaint"),
    [
        ("pos", {"drop": ["nouns"]}, "drop: expected a list of groups"),
        ("pos", {"drop": "MD"}, "drop: expected a list of groups"),
        ("freq", {"share": 46.3}, "share: .* between 0 and 1, got 46.3"),
        ("inv_freq", {"share": 0}, "share: "),
        ("random", {"rate": 1.0}, "rate: "),
        ("norm", {"rate": -0.1}, "rate: "),
        ("norm", {"drop": "middle"}, "drop: expected smallest or largest"),
    ],
)
def test_bad_arguments(gate: str, arguments: dict[str, object], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        sparsify(zoo.build("bart"), L0DropConfig(gate=gate, gate_args=arguments))


def test_missing_hints_are_named() -> None:
    model = sparsify(zoo.build("bart"), L0DropConfig(gate="pos"))
    batch = zoo.ragged_batch()
    with pytest.raises(ValueError, match=r"hints: PosGate needs the hint 'label'.*l0drop.load"):
        model.explain(**batch)
    with pytest.raises(ValueError, match=r"'label' must have shape \(6, 24\), got \(6, 3\)"):
        model.explain(**batch, hints={"label": HINTS["label"][:, :3]})
    model.gate = RandomGate()
    embeddings = torch.zeros(1, 3, zoo.WIDTH)
    with pytest.raises(ValueError, match="input_ids: the gate random"):
        model.gate(embeddings, torch.ones(1, 3, dtype=torch.bool))


def test_the_example_in_the_docs_runs(tmp_path: Path) -> None:
    block = python_block("docs/gates.md", "TextAnnotator(")
    base = zoo.build("marian")
    base.resize_token_embeddings(len(TOKENIZER))
    texts = ["The man hears that your shoe is very new.", "The father was here."]
    namespace: dict[str, object] = {"model": base, "tokenizer": TOKENIZER, "texts": texts, "folder": tmp_path}
    base.generation_config.max_new_tokens = 5
    exec(block, namespace)
    annotator = annotator_for(tmp_path, TOKENIZER)
    assert annotator is not None
    inputs = TOKENIZER(texts, padding=True, return_tensors="pt")
    hints = {"label": torch.tensor(annotator(texts, inputs)["label"])}
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert torch.equal(loaded.generate(**inputs, hints=hints), namespace["tokens"])
    kept = [explanation.kept for explanation in loaded.explain(**inputs, hints=hints)]
    assert kept == [
        [i for i, n in enumerate(row) if n not in PosGate().numbers and i < length]
        for row, length in zip(hints["label"].tolist(), inputs["attention_mask"].sum(1), strict=True)
    ]
