"""Packed and int8 linear layers compared with plain ones, and the choice between them."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from l0drop import Engine, L0DropConfig, sparsify
from l0drop.decoding import linear as linear_module
from l0drop.decoding.linear import Int8Linear, PackedLinear, chosen_kind, int8_engines, make_linear, stamp_of
from tests.models import zoo

ON_CPU = [family for family in zoo.FAMILIES if family != "led"]
"""All but LED, which decodes through generate with the model's own layers."""


def layer(out=24, into=40, bias=True):
    torch.manual_seed(0)
    return torch.randn(out, into), torch.randn(out) if bias else None


def model_of(family):
    torch.manual_seed(1)
    return zoo.spread_gates(sparsify(zoo.build(family).float(), L0DropConfig()))


# --- one layer ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1, 40), (7, 40), (300, 40), (301, 40), (5, 1, 40), (2, 3, 40), (7, 5, 40), (0, 40)])
def test_packed_layer_equals_plain_layer(shape, bias):
    weight, added = layer(bias=bias)
    x = torch.randn(shape)
    torch.testing.assert_close(PackedLinear(weight, added)(x), F.linear(x, weight, added), atol=1e-5, rtol=1e-5)


def test_few_row_counts_reach_the_packed_product(monkeypatch):
    weight, bias = layer()
    made, counts = PackedLinear(weight, bias), set()
    real = made._product
    monkeypatch.setattr(made, "_product", lambda x, activation: counts.add(len(x)) or real(x, activation))
    for rows in range(1, 1025):
        x = torch.randn(rows, 40)
        assert made(x).shape == (rows, 24)
    assert counts >= set(range(1, 17))
    assert len(counts) == 16 + 8 * 6  # 8 between two powers of two
    torch.testing.assert_close(made(x[:999], "relu"), F.linear(x[:999], weight, bias).relu(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("engine", int8_engines())
def test_few_row_counts_reach_the_int8_product(monkeypatch, engine):
    weight, bias = layer()
    made, counts = Int8Linear(weight, bias, engine), set()
    real = made._product

    def noted(x, packed):
        counts.add(x.numel() // x.shape[-1])
        return real(x, packed)

    monkeypatch.setattr(made, "_product", noted)
    for rows in range(1, 257):
        made(torch.randn(rows, 40))
    assert len(counts) == 16 + 8 * 4
    x = torch.randn(3, 33, 40)
    one_by_one = real(x.flatten(0, 1), made.few)
    torch.testing.assert_close(made(x).flatten(0, 1)[:64], one_by_one[:64], atol=0.1, rtol=0)
    assert torch.equal(made(x[:1]), real(x[:1], made.few)), "padding must not change the scale of inputs"


@pytest.mark.parametrize("rows", [1, 15, 16, 17, 18, 33, 100, 960, 4000, 4097, 65_537])
def test_row_counts_are_rounded_up_by_an_eighth_at_most(rows):
    found = linear_module.rounded_rows(rows)
    assert rows <= found <= rows * 9 / 8
    assert linear_module.rounded_rows(found) == found


@pytest.mark.parametrize("engine", int8_engines())
def test_int8_layer_multiplies_rounded_weights_and_inputs(engine):
    weight, added = layer()
    x = torch.randn(9, 40)
    scale = weight.abs().amax(1, keepdim=True) / 127
    rounded = (weight / scale).round() * scale
    low, high = min(0.0, float(x.min())), max(0.0, float(x.max()))
    step = (high - low) / 255
    exact = F.linear((x / step).round() * step, rounded, added)
    made = Int8Linear(weight, added, engine)
    # rounding the zero point shifts all inputs by up to half a step
    slack = step * rounded.abs().sum(1).max()
    assert float((made(x) - exact).abs().max()) <= slack
    assert float((made(x) - F.linear(x, weight, added)).abs().max()) < 0.1 * float(exact.std())


@pytest.mark.skipif(len(int8_engines()) < 2, reason="this torch has one int8 engine")
def test_large_calls_use_the_other_engine(monkeypatch):
    few, many = int8_engines()[:2]
    weight, added = layer()
    made, alone = Int8Linear(weight, added, few, many), Int8Linear(weight, added, many)
    monkeypatch.setattr(linear_module, "MANY_OUTPUTS", 24 * 5)
    used = []
    monkeypatch.setattr(made, "_product", lambda x, packed: used.append(packed) or x)
    made(torch.randn(4, 40))
    made(torch.randn(1, 5, 40))
    assert used == [made.few, made.many]
    assert made.few is not made.many
    assert alone.few is alone.many


def test_an_output_with_zero_weights_is_finite():
    weight, added = layer()
    weight[3] = 0
    assert torch.isfinite(Int8Linear(weight, added, int8_engines()[0])(torch.randn(4, 40))).all()


# --- the choice --------------------------------------------------------------------------------------------------


def test_the_fastest_kind_is_chosen(monkeypatch):
    model = nn.Sequential(nn.Linear(256, 256), nn.Linear(256, 512), nn.Linear(8, 8))
    for packed_takes, expected in ((1.0, "packed"), (2.1, "packed"), (3.0, "plain")):
        seconds = {"packed": packed_takes, "plain": 2.0}
        monkeypatch.setattr(linear_module, "_measured", lambda kind, *size, known=seconds: known[kind])
        assert chosen_kind("auto", model) == expected
    engines = ["fbgemm", "onednn"]
    monkeypatch.setattr(linear_module, "int8_engines", lambda: engines)
    monkeypatch.setattr(linear_module, "_measured", lambda kind, *_: {"int8-fbgemm": 2.0, "int8-onednn": 1.0}[kind])
    monkeypatch.setattr(linear_module.half_attention, "is_faster", lambda threads: False)
    assert chosen_kind("int8", model) == "int8-onednn-onednn"
    monkeypatch.setattr(
        linear_module,
        "_measured",
        lambda kind, out, into, threads, outputs: 1.0 if (kind == "int8-fbgemm") == (outputs is None) else 2.0,
    )
    assert chosen_kind("int8", model) == "int8-fbgemm-onednn"
    monkeypatch.setattr(linear_module.half_attention, "is_faster", lambda threads: True)
    assert chosen_kind("int8", model) == "int8-fbgemm-onednn-bf16"
    assert chosen_kind("int8-fbgemm-onednn-bf16", model) == "int8-fbgemm-onednn-bf16"
    assert chosen_kind("int8-fbgemm", model) == "int8-fbgemm"


def test_small_and_unpackable_layers_stay_plain():
    assert chosen_kind("auto", nn.Linear(8, 8)) == "plain"
    assert chosen_kind("auto", nn.Linear(512, 512).double()) == "plain"
    assert make_linear("plain", *layer()) is None
    assert make_linear("packed", layer()[0].double(), None) is None


def test_measured_times_are_positive():
    assert linear_module._measured("packed", 256, 256, 1) > 0
    assert linear_module._measured("plain", 256, 256, 1) > 0


def test_errors_name_the_bad_argument(monkeypatch):
    model = zoo.build("marian").float()
    with pytest.raises(ValueError, match=r"^linears: expected auto, plain or packed, got 'fast'"):
        Engine(model, linears="fast")
    with pytest.raises(ValueError, match=r"^dtype: expected int8 or None, got 'int4'"):
        Engine(model, dtype="int4")
    with pytest.raises(ValueError, match=r"^dtype: int8 needs float32"):
        Engine(model.double(), dtype="int8")
    with pytest.raises(ValueError, match=r"^linears: packed needs a float32 model"):
        Engine(model, linears="packed")
    monkeypatch.setattr(linear_module, "int8_engines", list)
    with pytest.raises(ValueError, match=r"^dtype: this torch has no int8"):
        Engine(model.float(), dtype="int8")


# --- a model -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ON_CPU)
def test_packed_engine_gives_the_same_output(family):
    model, batch = model_of(family), zoo.ragged_batch()
    settings = {"num_beams": 4, "max_new_tokens": 12, "num_return_sequences": 2}
    plain = Engine(model, linears="plain").generate(batch["input_ids"], batch["attention_mask"], **settings)
    engine = Engine(model, linears="packed")
    packed = engine.generate(batch["input_ids"], batch["attention_mask"], **settings)
    linears = [m for m in model.modules() if type(m) is nn.Linear and m is not model.get_output_embeddings()]
    sizes = {m.weight.data_ptr(): m.weight.nbytes for m in linears if "gate" not in str(type(m))}
    head = model.get_output_embeddings().weight.nbytes
    assert engine._made_encoder.latest.layers
    assert isinstance(engine._decoder().head, PackedLinear)
    assert engine.copied_bytes >= 0.9 * (sum(sizes.values()) + head), "all layers must be packed"
    assert torch.equal(packed.sequences, plain.sequences)
    torch.testing.assert_close(packed.scores, plain.scores, atol=1e-4, rtol=0)


@pytest.mark.parametrize("family", ON_CPU)
def test_int8_engine_is_close_to_the_plain_one(family):
    model, batch = zoo.build(family).float(), zoo.ragged_batch()
    inputs = (batch["input_ids"], batch["attention_mask"])
    engine = Engine(model, dtype="int8")
    plain = Engine(model, linears="plain").encode(*inputs, dense=True).memory.states
    rounded = engine.encode(*inputs, dense=True).memory.states
    assert 0 < float((rounded - plain).norm() / plain.norm()) < 0.1
    engine.generate(*inputs, num_beams=2, max_new_tokens=4)
    assert isinstance(engine._decoder().head, Int8Linear)
    assert engine._decoder().copied_bytes > engine._decoder().head.copied_bytes


def test_casting_the_model_after_creating_an_int8_engine_is_an_error():
    model, batch = zoo.build("marian").float(), zoo.ragged_batch()
    engine = Engine(model, dtype="int8")
    model.double()
    with pytest.raises(ValueError, match=r"^dtype: int8 needs float32"):
        engine.generate(batch["input_ids"], batch["attention_mask"], num_beams=2, max_new_tokens=4)


@pytest.mark.parametrize("kind", ["packed", "int8"])
def test_changed_weights_are_packed_again(kind):
    model, batch = model_of("marian"), zoo.ragged_batch()
    made = {"dtype": "int8"} if kind == "int8" else {"linears": "packed"}
    engine = Engine(model, **made)
    inputs = (batch["input_ids"], batch["attention_mask"])
    before = engine.generate(*inputs, max_new_tokens=8)
    stamp = stamp_of(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model.train()
    model(**batch, labels=batch["input_ids"]).loss.backward()
    optimizer.step()
    model.eval()
    assert stamp_of(model) != stamp
    after = engine.generate(*inputs, max_new_tokens=8)
    fresh = Engine(model, **made).generate(*inputs, max_new_tokens=8)
    assert torch.equal(after.sequences, fresh.sequences)
    assert torch.equal(after.scores, fresh.scores)
    assert not torch.equal(after.scores, before.scores)


@pytest.mark.parametrize("kind", ["packed", "int8"])
@pytest.mark.parametrize("part", ["encoder", "decoder"])
def test_writes_through_data_are_noticed(kind, part):
    model, batch = model_of("marian"), zoo.ragged_batch()
    made = {"dtype": "int8"} if kind == "int8" else {"linears": "packed"}
    engine = Engine(model, **made)
    inputs = (batch["input_ids"], batch["attention_mask"])
    before = engine.generate(*inputs, max_new_tokens=8)
    weight = getattr(model.model, part).layers[1].fc1.weight
    version = weight._version
    weight.data.mul_(1.5)
    assert weight._version == version, "otherwise the test shows nothing"
    after = engine.generate(*inputs, max_new_tokens=8)
    fresh = Engine(model, **made).generate(*inputs, max_new_tokens=8)
    assert torch.equal(after.sequences, fresh.sequences)
    assert torch.equal(after.scores, fresh.scores)
    assert not torch.equal(after.scores, before.scores)


def test_refresh_makes_the_copies_again():
    model, batch = model_of("marian"), zoo.ragged_batch()
    engine = Engine(model, linears="packed")
    inputs = (batch["input_ids"], batch["attention_mask"])
    before = engine.generate(*inputs, max_new_tokens=8)
    made = [engine._made_encoder.latest, engine._made_decoder.latest]
    for layer in (*model.model.encoder.layers, *model.model.decoder.layers):
        layer.fc1.weight.data[:, 1] += 1.0  # an element that no sample reads
    unnoticed = engine.generate(*inputs, max_new_tokens=8)
    assert torch.equal(unnoticed.scores, before.scores)
    assert [engine._made_encoder.latest, engine._made_decoder.latest] == made, "copies are made once"
    engine.refresh()
    after = engine.generate(*inputs, max_new_tokens=8)
    assert torch.equal(after.scores, Engine(model, linears="packed").generate(*inputs, max_new_tokens=8).scores)
    assert not torch.equal(after.scores, before.scores)


def test_samples_share_the_memory_of_any_layout():
    for tensor in (torch.zeros(()), torch.zeros(3), torch.zeros(40, 50), torch.zeros(6, 8).T, torch.zeros(4, 5, 6).mT):
        sample = linear_module._spread(tensor)
        assert 1 <= len(sample) < 2 * linear_module.SAMPLED
        tensor.add_(1)
        assert bool((sample == 1).all())


def test_a_weight_that_is_nan_counts_as_unchanged():
    layer = nn.Linear(4, 4)
    layer.weight.data.fill_(torch.nan)
    assert not linear_module._Sample(layer).has_changed()
