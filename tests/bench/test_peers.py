"""Systems that decode the same weights must find the same tokens; CTranslate2 is compared with generate."""

import copy
import sys

import numpy as np
import pytest
import torch
import transformers as hf

from l0drop import L0DropConfig, sparsify
from l0drop.bench import peers
from l0drop.bench.peers import Batch, build_peer, convert, cut, plain_generation, rescore, ungated
from tests.models import zoo

NATURAL = {"num_beams": 4, "max_new_tokens": 12, "length_penalty": 0.6, "early_stopping": True}
FORCED = {**NATURAL, "min_new_tokens": 12}
GREEDY = {"num_beams": 1, "max_new_tokens": 12}
SEARCHES = {"beam": NATURAL, "forced length": FORCED, "greedy": GREEDY}
CONVERTED = ("marian", "bart", "mbart", "pegasus", "t5")


def batch_of(seed=3):
    return Batch(**zoo.ragged_batch(seed=seed))


def generated(base, batch, generation):
    """The tokens of a plain model's generate."""
    return cut(base.generate(**batch.encoder_inputs, do_sample=False, **generation), base)


@pytest.fixture(scope="module")
def gated():
    model = zoo.spread_gates(sparsify(zoo.build("marian"), L0DropConfig(gating="zero")))
    plain_generation(model)
    return model


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("family", CONVERTED)
def test_ctranslate2_finds_the_tokens_of_generate(family, search):
    base = zoo.build(family)
    system = build_peer("ct2-float32", sparsify(base), **SEARCHES[search])
    for seed in range(3):
        assert system.generate(batch_of(seed)) == generated(base, batch_of(seed), SEARCHES[search])


@pytest.mark.parametrize("family", CONVERTED)
def test_the_encoder_of_ctranslate2_gives_the_same_encodings(family):
    base, batch = zoo.build(family), batch_of()
    system = build_peer("ct2-float32", sparsify(base), **GREEDY)
    real = batch.attention_mask.bool()
    ours = base.get_encoder()(**batch.encoder_inputs).last_hidden_state
    theirs = torch.from_numpy(np.array(system.encode(batch)))
    assert torch.allclose(ours[real], theirs[real], atol=1e-5)


def test_ctranslate2_takes_vocabularies_of_different_sizes():
    config = zoo.build("marian").config
    config.update({"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 61, "tie_word_embeddings": False})
    torch.manual_seed(0)
    base = hf.MarianMTModel(config).eval()
    for parameter in base.parameters():
        if parameter.dim() == 2 and parameter.requires_grad:
            parameter.data.normal_(0, 0.4)
    system = build_peer("ct2-float32", sparsify(base), **NATURAL)
    assert system.generate(batch_of()) == generated(base, batch_of(), NATURAL)


def test_every_system_avoids_bad_words():
    base, batch = zoo.build("marian"), batch_of()
    before = generated(base, batch, NATURAL)
    banned = before[0][0]
    base.generation_config.bad_words_ids = [[banned]]
    plain_generation(base)
    model = sparsify(base)
    expected = generated(base, batch, NATURAL)
    assert expected != before
    for name in ("engine-dense", "hf-dense", "ct2-float32"):
        tokens = build_peer(name, model, **NATURAL).generate(batch)
        assert tokens == expected, name


@pytest.mark.parametrize("search", SEARCHES)
def test_all_systems_agree(gated, search):
    batch, generation = batch_of(), SEARCHES[search]
    tokens = {
        name: build_peer(name, gated, **generation).generate(batch) for name in peers.SYSTEMS if "int8" not in name
    }
    for name in ("engine-short", "engine-dense", "hf-short"):
        assert tokens[name] == tokens["hf-dense"], name
    without_gates = build_peer("engine-dense", ungated(gated), **generation).generate(batch)
    assert tokens["ct2-float32"] == without_gates
    assert tokens["hf-dense"] != without_gates, "half of the gates are closed, so the outputs must differ"


def test_ungated_is_the_base_model(gated):
    base = zoo.build("marian")
    for name in ("engine-short", "hf-short"):
        assert build_peer(name, ungated(gated), **NATURAL).generate(batch_of()) == generated(base, batch_of(), NATURAL)


def test_outputs_do_not_depend_on_the_batch(gated):
    batch = batch_of()
    for name in ("engine-short", "hf-short", "ct2-float32"):
        system = build_peer(name, gated, **NATURAL)
        together = system.generate(batch)
        assert [system.generate(batch[row])[0] for row in range(len(batch))] == together


def test_int8_weights_are_smaller(gated):
    sizes = {name: build_peer(name, gated, **NATURAL).weight_bytes() for name in peers.SYSTEMS}
    shared = sum(p.nbytes for p in gated.parameters())
    assert sizes["engine-short"] == shared, "tied weights are one parameter, counted once"
    assert sizes["ct2-int8"] < 0.5 * sizes["ct2-float32"]
    rounded = build_peer("engine-int8-short", gated, **NATURAL)
    rounded.generate(batch_of())
    assert shared < rounded.weight_bytes() < 1.8 * shared, "8-bit copies, at most for two engines"


def test_the_cross_attention_cache_is_as_small_as_the_memory(gated):
    """By the allocated caches: generate holds beams × N rows, the engine the rows of the longest memory."""
    batch = batch_of()
    sentences, source = batch.input_ids.shape
    sizes = {
        name: build_peer(name, gated, **NATURAL).cross_bytes(batch)
        for name in ("engine-short", "engine-dense", "hf-short", "hf-dense")
    }
    row = 2 * gated.config.decoder_layers * gated.config.d_model * 4  # keys and values of one position, float32
    assert sizes["hf-dense"] == sentences * 4 * source * row
    longest = gated.get_encoder()(**batch.encoder_inputs).last_hidden_state.shape[1]
    assert longest < 0.8 * source
    assert sizes["hf-short"] == sentences * 4 * longest * row
    assert 0 < sizes["engine-short"] <= 1.05 * longest / (4 * source) * sizes["hf-dense"]
    assert 0 < sizes["engine-dense"] <= 1.05 / 4 * sizes["hf-dense"]
    assert sizes["engine-short"] < sizes["engine-dense"]


def test_rescoring_gives_the_score_of_the_search(gated):
    model, batch = copy.deepcopy(gated).double(), batch_of()
    start = model.generation_config.decoder_start_token_id
    with model.dial(dense=True):
        output = model.generate(
            **batch.encoder_inputs, **NATURAL, do_sample=False, return_dict_in_generate=True, output_scores=True
        )
    for row, tokens in enumerate(cut(output.sequences, model)):
        # the search sums in float32
        expected = pytest.approx(float(output.sequences_scores[row]), abs=1e-5)
        assert rescore(model, batch[row].encoder_inputs, tokens, 0.6, [start]) == expected


def test_converting_does_not_change_the_model(tmp_path):
    base = zoo.build("marian")
    before = base.config.to_dict(), base.generation_config.to_dict()
    convert(base, tmp_path)
    assert (base.config.to_dict(), base.generation_config.to_dict()) == before


def test_the_error_without_ctranslate2_says_how_to_install_it(gated, monkeypatch):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(ValueError, match=r"ctranslate2: not installed; pip install 'l0drop\[bench\]'"):
        build_peer("ct2-float32", gated, **NATURAL)


def test_unsupported_settings_of_ctranslate2_raise(gated):
    with pytest.raises(ValueError, match=r"ct2: supports marian, .*, not m2m_100"):
        build_peer("ct2-float32", sparsify(zoo.build("m2m100")), **NATURAL)
    with pytest.raises(ValueError, match=r"`early_stopping`: .*set it to True"):
        build_peer("ct2-float32", gated, **{**NATURAL, "early_stopping": False})
    with pytest.raises(ValueError, match=r"`length_penalty`: "):
        build_peer("ct2-float32", gated, **{**NATURAL, "length_penalty": 0.0})
    with pytest.raises(ValueError, match=r"`no_repeat_ngram_size`: CTranslate2 has no such setting"):
        build_peer("ct2-float32", gated, **NATURAL, no_repeat_ngram_size=2)
    model = copy.deepcopy(gated)
    model.generation_config.forced_bos_token_id = 7
    with pytest.raises(ValueError, match=r"forced_bos_token_id"):
        build_peer("ct2-float32", model, **NATURAL)
    with pytest.raises(ValueError, match=r"`systems`: expected some of engine-short, .*got 'gpu'"):
        build_peer("gpu", gated, **NATURAL)
