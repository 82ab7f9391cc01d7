"""The engine compared with Hugging Face's generate: the same tokens and scores, with less memory."""

import copy

import pytest
import torch
from transformers import BartForConditionalGeneration

from l0drop import Engine, Gates, L0DropConfig, sparsify
from l0drop.decoding import attention as attention_module
from l0drop.decoding import caches as caches_module
from l0drop.decoding import encode as encode_module
from l0drop.decoding import loop as loop_module
from l0drop.decoding.loop import group_by_rows
from l0drop.decoding.stack import Stack
from l0drop.models.entmax import with_entmax
from tests.models import zoo

GATINGS = ("zero", "mask", "weight", "mean")
MANY_EOS = [2, *range(20, 32)]
"""An eighth of the vocabulary ends a sentence, so that random models stop early and at different lengths."""

SETTINGS = {
    "greedy": {"num_beams": 1},
    "greedy, early": {"num_beams": 1, "eos_token_id": MANY_EOS},
    "beam 4": {"num_beams": 4},
    "beam 4, early": {"num_beams": 4, "eos_token_id": MANY_EOS, "length_penalty": 0.6, "num_return_sequences": 4},
    "beam 4, full length": {"num_beams": 4, "min_new_tokens": 18, "num_return_sequences": 2},
    "beam 8, early": {"num_beams": 8, "eos_token_id": MANY_EOS, "num_return_sequences": 3, "early_stopping": True},
    "beam 8, never": {"num_beams": 8, "eos_token_id": MANY_EOS, "early_stopping": "never", "num_return_sequences": 8},
    "forced": {"num_beams": 4, "forced_bos_token_id": 7, "forced_eos_token_id": 2, "num_return_sequences": 4},
}


def gated(family, gating="zero", dtype=torch.float64, **config):
    model = sparsify(zoo.build(family).to(dtype), L0DropConfig(gating=gating, **config))
    return zoo.spread_gates(model)


def both(model, batch, given=None, **generation):
    """The results of generate and of the engine for the same settings."""
    generation = {"max_new_tokens": 18, "do_sample": False, **generation}
    theirs = model.generate(**batch, **(given or {}), **generation, return_dict_in_generate=True, output_scores=True)
    ours = Engine(model).generate(batch["input_ids"], batch["attention_mask"], **(given or {}), **generation)
    return theirs, ours


def assert_same(theirs, ours, tie):
    """Tokens are equal, and scores if generate returns them; tokens may differ only if scores tie."""
    assert theirs.sequences.shape == ours.sequences.shape
    scores = theirs.get("sequences_scores")
    differ = (theirs.sequences != ours.sequences).any(1)
    if scores is None:
        assert not differ.any()
        return
    torch.testing.assert_close(ours.scores, scores.float(), atol=max(tie, 1e-6), rtol=0)
    torch.testing.assert_close(ours.scores[differ], scores[differ].float(), atol=tie, rtol=0)
    assert int(differ.sum()) <= len(differ) // 10


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("family", zoo.FAMILIES)
def test_same_tokens_and_scores_in_float64(family, name):
    for gating in GATINGS:
        theirs, ours = both(gated(family, gating), zoo.ragged_batch(), **SETTINGS[name])
        assert_same(theirs, ours, tie=1e-9)
        assert bool((ours.kept & ~zoo.ragged_batch()["attention_mask"].bool()).sum() == 0)
        assert 0 < int(ours.kept.sum()) < int(zoo.ragged_batch()["attention_mask"].sum())


@pytest.mark.parametrize("name", ["greedy, early", "beam 4, early", "beam 8, early"])
@pytest.mark.parametrize("family", zoo.FAMILIES)
def test_same_tokens_in_float32(family, name):
    theirs, ours = both(gated(family, dtype=torch.float32), zoo.ragged_batch(), **SETTINGS[name])
    assert_same(theirs, ours, tie=1e-4)


@pytest.mark.parametrize(
    "changes",
    [
        {"repetition_penalty": 1.4},
        {"no_repeat_ngram_size": 2},
        {"min_new_tokens": 5, "eos_token_id": MANY_EOS},
        {"min_length": 7, "eos_token_id": MANY_EOS},
        {"bad_words_ids": [[5], [11]], "renormalize_logits": True},
        {"suppress_tokens": [4, 9], "begin_suppress_tokens": [2, 30]},
        {"begin_suppress_tokens": [8], "forced_bos_token_id": 7},
        {"pad_token_id": 3, "eos_token_id": MANY_EOS},
        {"max_length": 9, "max_new_tokens": None},
    ],
    ids=lambda changes: " ".join(changes),
)
@pytest.mark.parametrize("beams", [1, 4])
def test_other_settings_act_as_in_generate(changes, beams):
    theirs, ours = both(gated("marian"), zoo.ragged_batch(), num_beams=beams, **changes)
    assert_same(theirs, ours, tie=1e-9)


def test_custom_attention_is_used():
    """A model with sparse attention is not decoded with softmax."""
    pytest.importorskip("entmax")
    model = with_entmax(zoo.build("bart").double()).eval()
    theirs, ours = both(model, zoo.ragged_batch(), **SETTINGS["beam 4, early"])
    assert_same(theirs, ours, tie=1e-9)
    other = Engine(zoo.build("bart").double()).generate(**_inputs(), max_new_tokens=18, **SETTINGS["beam 4, early"])
    assert not torch.equal(other.sequences, ours.sequences)


@pytest.mark.parametrize("longest", [1, 3, 100])
@pytest.mark.parametrize("family", ["marian", "bart", "mbart", "m2m100", "pegasus"])
def test_transposed_values_change_nothing(family, longest, monkeypatch):
    """For several block sizes, while finished sentences leave and the memory gets shorter."""
    monkeypatch.setattr(attention_module, "TRANSPOSE_FROM", 1)
    monkeypatch.setattr(attention_module, "LONGEST_BLOCK", longest)
    monkeypatch.setattr(loop_module, "SHRINK_AT", 1.0)
    batch = zoo.ragged_batch(lengths=(24, 17, 9, 20, 24, 3, 5, 11), seed=8)
    kept = []
    keep = caches_module.MemoryLayer.keep

    def noted(layer, sentences, rows):
        assert layer.values.dim() == 5
        keep(layer, sentences, rows)
        kept.append(rows)

    monkeypatch.setattr(caches_module.MemoryLayer, "keep", noted)
    for gating in GATINGS:
        theirs, ours = both(gated(family, gating), batch, **SETTINGS["beam 4, early"])
        assert_same(theirs, ours, tie=1e-9)
    assert len(set(kept)) > 1


@pytest.mark.parametrize("family", zoo.FAMILIES)
def test_supported_layers_are_stacked(family):
    decoder = Engine(gated(family))._decoder()
    stacked = any(isinstance(module, Stack) for module in decoder.modules.modules())
    assert stacked == (family not in ("t5", "mt5", "led"))


def test_unset_settings_come_from_the_model():
    model = gated("bart")
    model.generation_config.num_beams = 3
    model.generation_config.max_length = 12
    model.generation_config.no_repeat_ngram_size = 3
    batch = zoo.ragged_batch()
    theirs = model.generate(**batch, return_dict_in_generate=True, output_scores=True)
    ours = Engine(model).generate(batch["input_ids"], batch["attention_mask"])
    assert_same(theirs, ours, tie=1e-9)


def test_default_length_is_that_of_generate():
    model = gated("bart")
    batch = zoo.ragged_batch()
    assert torch.equal(model.generate(**batch), Engine(model).generate(**_inputs()).sequences)


@pytest.mark.parametrize("family", ["marian", "t5", "led"])
def test_plain_models_decode_densely(family):
    model = zoo.build(family).double()
    theirs, ours = both(model, zoo.ragged_batch(), num_beams=4, eos_token_id=MANY_EOS)
    assert_same(theirs, ours, tie=1e-9)
    assert ours.gates is None
    assert torch.equal(ours.kept, zoo.ragged_batch()["attention_mask"].bool())


def test_disabled_gates_decode_as_the_base_model():
    model = gated("marian", enabled=False)
    base = zoo.build("marian").double()
    theirs, _ = both(base, zoo.ragged_batch(), num_beams=4)
    ours = Engine(model).generate(**_inputs(), num_beams=4, max_new_tokens=18)
    assert torch.equal(theirs.sequences, ours.sequences)


@pytest.mark.parametrize("gating", GATINGS)
@pytest.mark.parametrize("dial", [{"keep": 0.3}, {"max_memory": 6}, {"shift": 1.0}, {"dense": True}], ids=str)
def test_the_dial(gating, dial):
    model = gated("marian", gating)
    with model.dial(**dial):
        theirs = model.generate(**zoo.ragged_batch(), num_beams=4, max_new_tokens=18)
        inside = Engine(model).generate(**_inputs(), num_beams=4, max_new_tokens=18)
    ours = Engine(model).generate(**_inputs(), num_beams=4, max_new_tokens=18, **dial)
    assert torch.equal(theirs, ours.sequences)
    assert torch.equal(theirs, inside.sequences)


@pytest.mark.parametrize("family", ["marian", "bart"])
def test_layerwise(family):
    theirs, ours = both(gated(family, "mask", layerwise=True), zoo.ragged_batch(), num_beams=4, eos_token_id=MANY_EOS)
    assert_same(theirs, ours, tie=1e-9)


@pytest.mark.parametrize("gating", GATINGS)
def test_given_gates_replace_those_of_the_model(gating):
    model = gated("marian", gating)
    own = Engine(model).generate(**_inputs(), num_beams=4, max_new_tokens=18)
    given = Engine(model).generate(**_inputs(), gates=own.gates, num_beams=4, max_new_tokens=18)
    assert torch.equal(own.sequences, given.sequences)
    values = (torch.arange(24) % 2).double() * zoo.ragged_batch()["attention_mask"]
    other = Engine(model).generate(**_inputs(), gates=values, num_beams=4, max_new_tokens=18)
    assert torch.equal(other.kept[:5], values[:5] != 0)
    again = Engine(model).generate(**_inputs(), gates=Gates(values), dense=True, num_beams=4, max_new_tokens=18)
    assert torch.equal(other.sequences, again.sequences)


def test_hints_reach_the_gate():
    from l0drop import Gate

    class Hinted(Gate):
        def forward(self, encodings, mask, input_ids=None, hints=None):
            return Gates((hints["tag"] == 1) * mask)

    model = gated("marian")
    model.gate = Hinted()
    tags = torch.arange(24).expand(6, 24) % 3
    ours = Engine(model).generate(**_inputs(), hints={"tag": tags}, max_new_tokens=4)
    assert torch.equal(ours.kept, (tags == 1) & zoo.ragged_batch()["attention_mask"].bool())


# --- memory and grouping -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("gating", GATINGS)
def test_memory_of_the_cross_attention(gating):
    """At most K / (beams · N) of the cache of generate, where K is the longest memory of the batch."""
    model, beams = gated("marian", gating), 4
    batch = zoo.ragged_batch()
    with model.dial(dense=True):
        theirs = model.generate(**batch, num_beams=beams, max_new_tokens=6, return_dict_in_generate=True)
    cross = theirs.past_key_values.cross_attention_cache
    held = sum(t.numel() * t.element_size() for layer in cross.layers for t in (layer.keys, layer.values))
    engine = Engine(model)
    encoded = engine.encode(batch["input_ids"], batch["attention_mask"])
    engine.decode(encoded, num_beams=beams, max_new_tokens=6)
    longest = int(encoded.rows.max())
    assert longest < batch["input_ids"].shape[1]
    assert engine.memory_bytes <= 1.05 * longest / (beams * batch["input_ids"].shape[1]) * held


def test_memory_is_never_repeated_for_beams(monkeypatch):
    seen = []
    original = loop_module.DecoderCache.descend

    def watched(self, parents):
        seen.append({layer.keys.shape[0] for layer in [*self.memory, *self.prefix]})
        original(self, parents)

    monkeypatch.setattr(loop_module.DecoderCache, "descend", watched)
    monkeypatch.setattr(loop_module, "GROUP_COST", 1e9)
    Engine(gated("marian")).generate(**_inputs(), num_beams=4, max_new_tokens=6, min_new_tokens=6)
    assert len(seen) == 6
    assert all(rows == {6} for rows in seen)


@pytest.mark.parametrize("shrink_at", [0.0, 0.5, 1.0])
def test_removing_finished_sentences_changes_nothing(monkeypatch, shrink_at):
    monkeypatch.setattr(loop_module, "SHRINK_AT", shrink_at)
    model = gated("marian")
    batch = zoo.ragged_batch(lengths=(24, 17, 9, 20, 24, 3, 5, 11), seed=8)
    theirs, ours = both(model, batch, num_beams=4, eos_token_id=MANY_EOS, num_return_sequences=2)
    assert_same(theirs, ours, tie=1e-9)


@pytest.mark.parametrize("cost", [0.0, 1e9])
def test_groups_change_nothing(monkeypatch, cost):
    monkeypatch.setattr(loop_module, "GROUP_COST", cost)
    theirs, ours = both(gated("t5"), zoo.ragged_batch(), num_beams=4, eos_token_id=MANY_EOS)
    assert_same(theirs, ours, tie=1e-9)


def test_one_long_memory_is_decoded_separately():
    assert group_by_rows([30] * 20 + [5_000] + [28] * 20) == [[20], [*range(20), *range(21, 41)]]
    assert group_by_rows([30, 29, 31]) == [[2, 0, 1]]
    assert sorted(i for group in group_by_rows([7, 900, 33, 4_000, 2]) for i in group) == [0, 1, 2, 3, 4]


def test_groups_have_the_lowest_cost():
    """Compared with all ways to split a short sorted list."""
    rows = [1_500, 1_200, 400, 380, 90, 10]

    def cost(groups):
        costs = ((len(g), max(rows[i] for i in g)) for g in groups)
        return sum(loop_module.GROUP_COST + n * (1 + loop_module.ROW_COST * k) for n, k in costs)

    def cuts(items):
        yield [items]
        for first in range(1, len(items)):
            for rest in cuts(items[first:]):
                yield [items[:first], *rest]

    best = min(cost(groups) for groups in cuts(list(range(6))))
    assert cost(group_by_rows(rows)) == pytest.approx(best)


@pytest.mark.parametrize("family", [*zoo.FAMILIES, "layerwise"])
@pytest.mark.parametrize(("dense", "most", "groups"), [(False, 2048, 4), (True, 2048, 4), (False, 30, 5), (True, 3, 6)])
def test_encoding_in_groups_changes_nothing(monkeypatch, family, dense, most, groups):
    model = gated("marian", "mask", layerwise=True) if family == "layerwise" else gated(family)
    batch = zoo.ragged_batch(lengths=(24, 5, 9, 24, 5, 17), seed=3)
    together = Engine(model).encode(**_inputs(batch), dense=dense)
    monkeypatch.setattr(encode_module, "ENCODE_COST", 0.0)
    monkeypatch.setattr(encode_module, "ENCODE_TOKENS", most)
    engine = Engine(model)
    assert len(engine._groups_to_encode(batch["attention_mask"].bool())) == (1 if family == "led" else groups)
    apart = engine.encode(**_inputs(batch), dense=dense)
    real = batch["attention_mask"].bool()
    assert torch.equal(apart.kept, together.kept)
    torch.testing.assert_close(apart.gates.values, together.gates.values)
    torch.testing.assert_close(apart.gates.log_alpha[real], together.gates.log_alpha[real])
    for name in ("states", "bias", "index", "count"):
        ours, theirs = getattr(apart.memory, name), getattr(together.memory, name)
        if name == "states":
            seen = together.memory.bias[:, 0, 0] > -torch.inf
            ours, theirs = ours[seen], theirs[seen]
        torch.testing.assert_close(ours, theirs)


def test_arguments_per_sentence_follow_their_sentence(monkeypatch):
    model = gated("marian")
    batch = zoo.ragged_batch(lengths=(24, 5, 9, 17), seed=3)
    keep = torch.tensor([0.25, 1.0, 0.5, 0.75])
    values = (torch.rand(4, 24, generator=torch.Generator().manual_seed(1)) > 0.5).double() * batch["attention_mask"]
    plain = zoo.build("marian").double()
    ways = [(model, {"keep": keep}), (model, {"gates": values}), (model, {"max_memory": 4}), (plain, {})]
    together = [Engine(m).generate(**_inputs(batch), **given, num_beams=3, max_new_tokens=9) for m, given in ways]
    with model.dial(keep=keep):
        outside = Engine(model).generate(**_inputs(batch), num_beams=3, max_new_tokens=9)
    monkeypatch.setattr(encode_module, "ENCODE_COST", 0.0)
    apart = [Engine(m).generate(**_inputs(batch), **given, num_beams=3, max_new_tokens=9) for m, given in ways]
    with model.dial(keep=keep):
        apart.append(Engine(model).generate(**_inputs(batch), num_beams=3, max_new_tokens=9))
    for ours, theirs in zip(apart, [*together, outside], strict=True):
        assert torch.equal(ours.sequences, theirs.sequences)
        assert torch.equal(ours.kept, theirs.kept)


DIALS = ({"keep": 0.3}, {"max_memory": 4}, {"shift": 1.5}, {"dense": True}, {}, {"keep": 0.6, "dense": True})


@pytest.mark.parametrize(
    ("family", "config"),
    [
        ("marian", {}),
        ("t5", {"gating": "weight"}),
        ("led", {}),
        ("bart", {"gating": "mask", "layerwise": True}),
        ("bart", {"layerwise": True}),
    ],
    ids=str,
)
@pytest.mark.parametrize("cost", [0.0, encode_module.ENCODE_COST])
def test_each_sentence_has_its_own_dial(monkeypatch, family, config, cost):
    """The result of a sentence is that of decoding it alone, whatever dials its neighbours have."""
    monkeypatch.setattr(encode_module, "ENCODE_COST", cost)
    engine = Engine(gated(family, **config))
    batch = zoo.ragged_batch()
    settings = {"num_beams": 3, "max_new_tokens": 9, "num_return_sequences": 2}
    columns = {name: [dial.get(name) for dial in DIALS] for name in ("keep", "max_memory", "shift")}
    together = engine.generate(**_inputs(batch), **columns, dense=["dense" in dial for dial in DIALS], **settings)
    for row, dial in enumerate(DIALS):
        length = int(batch["attention_mask"][row].sum())
        alone = engine.generate(batch["input_ids"][row : row + 1, :length], **dial, **settings)
        ours = together.sequences[2 * row : 2 * row + 2]
        assert torch.equal(ours[:, : alone.sequences.shape[1]], alone.sequences)
        torch.testing.assert_close(together.scores[2 * row : 2 * row + 2], alone.scores, atol=1e-6, rtol=0)
        assert torch.equal(together.kept[row, :length], alone.kept[0])
    assert len({int(kept.sum()) for kept in together.kept}) > 2


def test_lists_of_dials_are_checked():
    model = gated("marian")
    with pytest.raises(ValueError, match="keep: expected one setting for each of 6 sentences, got 2"):
        Engine(model).generate(**_inputs(), keep=[0.5, None])
    with pytest.raises(ValueError, match="dense: expected one setting for each of 6 sentences, got 1"):
        Engine(model).generate(**_inputs(), dense=[True])
    plain = Engine(zoo.build("marian"))
    with pytest.raises(ValueError, match="keep: this model has no gates"):
        plain.generate(**_inputs(), keep=[0.5, None, None, None, None, None])
    unset = plain.generate(**_inputs(), keep=[None] * 6, dense=[True] * 3 + [False] * 3, max_new_tokens=4)
    assert torch.equal(unset.sequences, plain.generate(**_inputs(), max_new_tokens=4).sequences)
    with pytest.raises(ValueError, match="in decoding only"):
        model.train().dial(keep=[0.5, 0.5])


@pytest.mark.parametrize(("every", "at"), [(1, 1.0), (3, 0.9), (10_000, 0.0)])
@pytest.mark.parametrize("family", ["marian", "t5"])
def test_removing_slots_without_descendants_changes_nothing(monkeypatch, family, every, at):
    monkeypatch.setattr(caches_module, "PACK_EVERY", every)
    monkeypatch.setattr(caches_module, "PACK_AT", at)
    for name in ("beam 4, full length", "beam 8, never"):
        theirs, ours = both(gated(family), zoo.ragged_batch(), **SETTINGS[name])
        assert_same(theirs, ours, tie=1e-9)


# --- the model and its settings ----------------------------------------------------------------------------------


def test_the_model_is_not_modified():
    model = gated("bart")
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    attention = model.get_decoder().config._attn_implementation
    model.train()
    ours = Engine(model).generate(**_inputs(), num_beams=4, max_new_tokens=6)
    assert model.training
    assert model.gate.training
    assert model.get_decoder().config._attn_implementation == attention
    assert all(torch.equal(parameter, before[name]) for name, parameter in model.named_parameters())
    assert torch.equal(ours.sequences, model.eval().generate(**zoo.ragged_batch(), num_beams=4, max_new_tokens=6))


def test_later_changes_of_the_model_take_effect():
    model = gated("marian")
    engine = Engine(model)
    engine.generate(**_inputs(), max_new_tokens=3)
    with torch.no_grad():
        for parameter in model.get_decoder().parameters():
            parameter.mul_(1.3)
    model.float()
    ours = engine.generate(**_inputs(), num_beams=2, max_new_tokens=8)
    assert torch.equal(ours.sequences, model.generate(**zoo.ragged_batch(), num_beams=2, max_new_tokens=8))


def test_sampling_follows_the_seed_and_the_settings():
    model = gated("marian")
    settings = {"do_sample": True, "num_return_sequences": 3, "max_new_tokens": 12, "top_k": 5}

    def draw(seed):
        torch.manual_seed(seed)
        return Engine(model).generate(**_inputs(), **settings)

    first, again, other = draw(0), draw(0), draw(1)
    assert torch.equal(first.sequences, again.sequences)
    assert not torch.equal(first.sequences, other.sequences)
    assert first.sequences.shape[0] == 18
    rows = first.sequences.view(6, 3, -1)
    assert any(not torch.equal(rows[b, 0], rows[b, 1]) for b in range(6))
    with torch.no_grad():
        logits = model(
            **{name: t.repeat_interleave(3, 0) for name, t in zoo.ragged_batch().items()},
            decoder_input_ids=first.sequences,
        ).logits
    allowed = logits[:, :-1].topk(5).indices
    chosen = first.sequences[:, 1:, None]
    before_end = (first.sequences[:, 1:] == 2).cumsum(1).cumsum(1) <= 1
    assert ((allowed == chosen).any(-1) | ~before_end).all()


def test_gnmt_scores_differ_only_by_the_divisor():
    """At a fixed length both styles find the same hypotheses."""
    model = gated("marian")
    settings = {"num_beams": 4, "min_new_tokens": 10, "max_new_tokens": 10, "length_penalty": 0.6}
    hf = Engine(model).generate(**_inputs(), **settings)
    gnmt = Engine(model).generate(**_inputs(), **settings, length_penalty_style="gnmt")
    assert torch.equal(hf.sequences, gnmt.sequences)
    torch.testing.assert_close(hf.scores * 10**0.6, gnmt.scores * (15 / 6) ** 0.6)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"nmu_beams": 3}, "^`nmu_beams`: not a generation setting; did you mean `num_beams`\\?$"),
        ({"num_beam": 4}, "^`num_beam`: not a generation setting; did you mean `num_beams`\\?$"),
        ({"max_memry": 4}, "^`max_memry`: .* did you mean `max_memory`\\?$"),
        ({"xyzzy": 4}, "^`xyzzy`: not a generation setting$"),
        ({"diversity_penalty": 0.5, "num_beam_groups": 2}, "num_beam_groups|diversity_penalty"),
        ({"num_beams": 4, "do_sample": True}, "do_sample"),
        ({"num_beams": 2, "num_return_sequences": 3}, "num_return_sequences"),
        ({"num_beams": 0}, "num_beams"),
        ({"encoder_no_repeat_ngram_size": 2}, "encoder_no_repeat_ngram_size"),
        ({"bad_words_ids": [[3, 4]]}, "bad_words_ids"),
        ({"early_stopping": "sometimes"}, "early_stopping"),
        ({"do_sample": True, "temperature": 0.0}, "temperature"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"max_new_tokens": 200}, "`max_new_tokens`: 200 is more than the 64 positions"),
        ({"length_penalty_style": "other"}, "length_penalty_style"),
        ({"gates": torch.ones(6, 24), "keep": 0.5}, "keep"),
        ({"keep": 1.5}, "keep"),
        ({"num_beams": "abc"}, "`num_beams`: expected a whole number, at least 0, got 'abc'"),
        ({"num_beams": True}, "`num_beams`: expected a whole number"),
        ({"no_repeat_ngram_size": -1}, "`no_repeat_ngram_size`: expected a whole number"),
        ({"max_new_tokens": float("inf")}, "`max_new_tokens`: expected a whole number"),
        ({"length_penalty": float("nan")}, "`length_penalty`: expected a finite number"),
        ({"do_sample": "yes"}, "`do_sample`: expected True or False"),
        ({"bad_words_ids": 5}, "`bad_words_ids`: expected a list of lists"),
        ({"bad_words_ids": [[]]}, "`bad_words_ids`: expected a list of lists"),
        ({"suppress_tokens": "a"}, "`suppress_tokens`: expected token ids"),
        ({"eos_token_id": [[2]]}, "`eos_token_id`: expected token ids"),
        ({"forced_bos_token_id": 100_000}, "`forced_bos_token_id`: no token has the id 100000"),
        (
            {"forced_eos_token_id": [2, 9], "suppress_tokens": [9, 5, 2]},
            "^`forced_eos_token_id`: .* also in `suppress_tokens`",
        ),
        ({"eos_token_id": [2, -1]}, "`eos_token_id`: no token has the id -1"),
    ],
)
def test_errors_name_the_setting(changes, named):
    with pytest.raises(ValueError, match=named):
        Engine(gated("marian")).generate(**_inputs(), **{"max_new_tokens": 5, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_beams": 2.5}, "num_beams: expected a whole number, at least 0, got 2.5"),
        ({"num_beams": 0}, "num_beams: expected a number from 1 to 10000, got 0"),
        ({"num_beams": "4"}, "num_beams: expected a whole number"),
        ({"length_penalty": float("nan")}, "length_penalty: expected a finite number, got nan"),
        ({"length_penalty": 1e6}, "length_penalty: 1000000.0 is out of range for outputs of up to 5 tokens"),
        ({"temperature": [1]}, "temperature: expected a finite number"),
        ({"eos_token_id": 500}, "eos_token_id: no token has the id 500"),
        ({"decoder_start_token_id": [1]}, "decoder_start_token_id: expected one token id, got \\[1\\]"),
        ({"do_sample": "yes"}, "do_sample: expected True or False"),
        ({"repetition_penalty": 0}, "repetition_penalty: must be above 0"),
        ({"bad_words_ids": [3]}, "bad_words_ids: expected a list of lists"),
        ({"early_stopping": "maybe"}, "early_stopping: expected True"),
        ({"num_beam_groups": 3}, "num_beam_groups: the engine does not support 3"),
    ],
    ids=str,
)
def test_settings_of_the_model_are_checked_like_arguments(changes, message):
    model = gated("marian")
    for name, value in changes.items():
        setattr(model.generation_config, name, value)
    with pytest.raises(ValueError, match=f"^generation_config.json: {message}"):
        Engine(model).generate(**_inputs(), max_new_tokens=5)
    # an argument replaces the broken value
    assert Engine(model).generate(**_inputs(), max_new_tokens=5, **{name: _GOOD[name] for name in changes})


_GOOD = {
    "num_beams": 2, "length_penalty": 1.0, "temperature": 1.0, "eos_token_id": 2, "decoder_start_token_id": 1,
    "do_sample": False, "repetition_penalty": 1.2, "bad_words_ids": [[3]], "early_stopping": True, "num_beam_groups": 1,
}  # fmt: skip


def test_whole_floats_count_as_whole_numbers():
    model = gated("marian")
    whole = Engine(model).generate(**_inputs(), num_beams=2, max_new_tokens=5, no_repeat_ngram_size=2)
    floats = Engine(model).generate(**_inputs(), num_beams=2.0, max_new_tokens=5.0, no_repeat_ngram_size=2.0)
    assert torch.equal(whole.sequences, floats.sequences)


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        *(("marian", settings) for settings in ({"num_beams": 1}, {"num_beams": 3}, {"do_sample": True})),
        *((family, {"num_beams": beams}) for family in ("t5", "led") for beams in (1, 3)),
    ],
    ids=str,
)
def test_scores_that_are_not_finite_stop_the_search(family, settings):
    for value in (torch.nan, torch.inf):
        model = gated(family, dtype=torch.float32)
        norms = [weight for name, weight in model.get_decoder().named_parameters() if "final_layer_norm" in name]
        with torch.no_grad():
            norms[-1].fill_(value)
        message = "^scores: the decoder gives NaN or infinite scores for output token 1, in float32; .* try float32"
        with pytest.raises(ValueError, match=message):
            Engine(model).generate(**_inputs(), max_new_tokens=5, **settings)


@pytest.mark.parametrize("family", ["marian", "led"])
def test_encodings_that_are_not_finite_are_refused(family):
    model = gated(family, "mask")
    with torch.no_grad():
        model.get_input_embeddings().weight[zoo.ragged_batch()["input_ids"][0, 0]] = torch.nan
    with pytest.raises(ValueError, match="^encodings: the encoder gives NaN or infinite values in float64 for .* of 6"):
        Engine(model).generate(**_inputs(), gates=zoo.ragged_batch()["attention_mask"].double(), max_new_tokens=5)


@pytest.mark.parametrize("settings", [{"num_beams": 1}, {"do_sample": True}], ids=str)
def test_settings_that_allow_no_token_are_named(settings):
    everything = {"suppress_tokens": list(range(zoo.VOCABULARY))}
    with pytest.raises(ValueError, match="^`suppress_tokens`: allow no output token 1, or make"):
        Engine(gated("marian")).generate(**_inputs(), max_new_tokens=5, **settings, **everything)


@pytest.mark.parametrize("family", ["led", "m2m100"])
def test_an_output_longer_than_the_decoder_has_positions_is_refused(family):
    with pytest.raises(ValueError, match="`max_new_tokens`: 200 is more than the 64 positions"):
        Engine(gated(family)).generate(**_inputs(), max_new_tokens=200)


@pytest.mark.parametrize("texts", ["hello", ["hello"], ("hello", "you")])
def test_texts_instead_of_token_ids(texts):
    with pytest.raises(TypeError, match=r"^inputs: expected token ids, got text; tokenize .* l0drop\.load\(folder\)"):
        Engine(gated("marian")).generate(texts)


def test_inputs_of_other_types_and_shapes():
    engine = Engine(gated("marian"))
    with pytest.raises(TypeError, match=r"^inputs: expected a tensor of token ids \[B, N\], got list"):
        engine.generate([[5, 6, 2]])
    with pytest.raises(
        ValueError, match=r"^inputs: expected token ids \[B, N\] of type int64, got torch.int64 of shape \(3,\)"
    ):
        engine.generate(torch.tensor([5, 6, 2]))
    with pytest.raises(
        ValueError, match=r"^inputs: expected token ids \[B, N\] of type int64, got torch.float32 of shape"
    ):
        engine.generate(torch.rand(2, 3))


def test_a_misspelled_setting_fails_before_encoding(monkeypatch):
    engine = Engine(gated("marian"))
    monkeypatch.setattr(engine, "encode", lambda *_, **__: pytest.fail("the batch was encoded"))
    with pytest.raises(ValueError, match="did you mean `num_beams`"):
        engine.generate(**_inputs(), num_beam=4)


def test_dial_and_gates_need_a_gated_model():
    plain = zoo.build("marian")
    with pytest.raises(ValueError, match="keep: this model has no gates"):
        Engine(plain).generate(**_inputs(), keep=0.5)
    with pytest.raises(ValueError, match="gates: a plain model"):
        Engine(plain).generate(**_inputs(), gates=torch.ones(6, 24))


def test_led_decodes_through_generate():
    engine = Engine(gated("led"))
    assert engine.through_generate
    with pytest.raises(ValueError, match="length_penalty_style"):
        engine.generate(**_inputs(), num_beams=2, max_new_tokens=3, length_penalty_style="gnmt")
    assert not Engine(gated("marian")).through_generate


def test_led_global_attention_reaches_the_encoder():
    model = gated("led")
    attention = torch.zeros(6, 24, dtype=torch.long)
    attention[:, :3] = 1
    theirs, ours = both(model, zoo.ragged_batch(), {"global_attention_mask": attention}, num_beams=2)
    assert_same(theirs, ours, tie=1e-9)


def test_subclasses_of_a_family_are_decoded():
    class Mine(BartForConditionalGeneration):
        pass

    base = zoo.build("bart").double()
    mine = Mine(copy.deepcopy(base.config)).double().eval()
    mine.load_state_dict(base.state_dict())
    theirs, _ = both(base, zoo.ragged_batch(), num_beams=4)
    ours = Engine(mine).generate(**_inputs(), num_beams=4, max_new_tokens=18)
    assert torch.equal(theirs.sequences, ours.sequences)


def _inputs(batch=None):
    batch = zoo.ragged_batch() if batch is None else batch
    return {"inputs": batch["input_ids"], "attention_mask": batch["attention_mask"]}
