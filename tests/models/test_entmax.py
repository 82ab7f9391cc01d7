"""Entmax cross-attention against a slow computation, and as a model: gradients, saving, refusals."""

import copy
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM

from l0drop import sparsify
from l0drop.decoding.engine import Engine
from l0drop.models.entmax import EntmaxModel, entmax_attention, with_entmax
from tests.models import zoo

FAMILIES = [family for family in zoo.FAMILIES if family != "led"]
LABELS = torch.randint(3, zoo.VOCABULARY, (6, 7), generator=torch.Generator().manual_seed(9))


def slow_entmax(scores: torch.Tensor) -> torch.Tensor:
    """1.5-entmax by bisection on its threshold: p_i = max(0, s_i / 2 - τ)² with τ such that they sum to 1."""
    low, high = scores.max() / 2 - 1, scores.max() / 2
    for _ in range(200):
        middle = (low + high) / 2
        total = ((scores / 2 - middle).clamp_min(0) ** 2).sum()
        low, high = (middle, high) if total > 1 else (low, middle)
    return (scores / 2 - low).clamp_min(0) ** 2


@pytest.fixture(scope="module")
def heads() -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(4)
    shapes = ((2, 3, 5, 8), (2, 3, 9, 8), (2, 3, 9, 8))
    return tuple(torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)


@pytest.mark.parametrize("kind", ["none", "bool", "additive"])
def test_weights_are_entmax_of_the_scores(heads, kind) -> None:
    query, key, value = heads
    real = torch.arange(9) < torch.tensor([9, 6])[:, None]
    masks = {
        "none": None,
        "bool": real[:, None, None],
        "additive": torch.zeros(2, 1, 1, 9, dtype=torch.float64).masked_fill(
            ~real[:, None, None], torch.finfo(torch.float64).min
        ),
    }
    output, weights = entmax_attention(torch.nn.Identity().eval(), query, key, value, masks[kind], scaling=0.5)
    for b, h, t in ((0, 0, 0), (1, 2, 4), (1, 0, 3)):
        seen = slice(None) if kind == "none" else real[b].nonzero().flatten()
        expected = slow_entmax((query[b, h, t] @ key[b, h].T * 0.5)[seen])
        torch.testing.assert_close(weights[b, h, t][seen], expected, atol=1e-10, rtol=0)
        torch.testing.assert_close(output[b, t, h], expected @ value[b, h][seen], atol=1e-10, rtol=0)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3, 5, dtype=torch.float64))
    assert 0 < int((weights == 0).sum()) < weights.numel()
    if kind != "none":
        assert not bool(weights[1, :, :, 6:].any())


def test_gradients(heads) -> None:
    query, key, value = (tensor[:1, :1].clone().requires_grad_(True) for tensor in heads)
    module = torch.nn.Identity().eval()

    def attend(*tensors):
        return entmax_attention(module, *tensors, None, scaling=0.5)[0]

    assert torch.autograd.gradcheck(attend, (query, key, value))


def test_learned_alphas_are_those_of_the_heads_with_the_right_gradient(heads) -> None:
    """Between 1.5-entmax (a = 0) and sparsemax (a large), by bisection for every head alone."""
    query, key, value = (tensor[:, :, :2].clone().requires_grad_(True) for tensor in heads)
    module = torch.nn.Identity().eval()
    module.entmax_a = torch.nn.Parameter(torch.tensor([0.0, 30.0, -1.0], dtype=torch.float64))
    _, weights = entmax_attention(module, query, key, value, None, scaling=2.0)
    scores = (query @ key.transpose(2, 3) * 2.0).detach()
    torch.testing.assert_close(weights[0, 0, 1].detach(), slow_entmax(scores[0, 0, 1]), atol=1e-9, rtol=0)
    tau = (scores[1, 1, 0].sum() - 1) / 2 if (scores[1, 1, 0].diff().abs() < 1).all() else scores[1, 1, 0].max() - 1
    torch.testing.assert_close(weights[1, 1, 0].detach(), (scores[1, 1, 0] - tau).clamp_min(0), atol=1e-9, rtol=0)
    alpha = 1 + torch.sigmoid(torch.tensor(-1.0, dtype=torch.float64))
    shifted = (alpha - 1) * scores[0, 2, 0] - weights[0, 2, 0].detach() ** (alpha - 1)
    seen = weights[0, 2, 0] > 0
    torch.testing.assert_close(shifted[seen], shifted[seen][:1].expand(int(seen.sum())), atol=1e-8, rtol=0)

    def attend(a, *tensors):
        attention = SimpleNamespace(entmax_a=a, training=False)
        return entmax_attention(attention, *tensors, None, scaling=0.5)[0]

    a = torch.tensor([0.0, 1.2, -1.0], dtype=torch.float64, requires_grad=True)
    few = [tensor[:1].detach().requires_grad_(True) for tensor in (query, key, value)]
    assert torch.autograd.gradcheck(attend, (a, *few))
    (gradient,) = torch.autograd.grad(attend(a, query, key, value).pow(2).sum(), a)
    assert bool((gradient != 0).all())


@pytest.mark.parametrize("a", [-200.0, 200.0])
def test_extreme_alphas_stay_finite(heads, a) -> None:
    query, key, value = (tensor.float() for tensor in heads)
    module = torch.nn.Identity().eval()
    module.entmax_a = torch.nn.Parameter(torch.full((3,), a))
    mask = torch.zeros(2, 1, 1, 9).masked_fill(torch.arange(9) >= 6, torch.finfo(torch.float32).min)
    output, weights = entmax_attention(module, query, key, value, mask, scaling=0.5)
    output.sum().backward()
    assert bool(output.isfinite().all())
    assert bool(module.entmax_a.grad.isfinite().all())
    assert not bool(weights[..., 6:].any())


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_only_cross_attention_changes(family, attention) -> None:
    base = zoo.build(family, attention)
    model, batch = with_entmax(base), zoo.ragged_batch()
    plain, sparse = (m.get_encoder()(**batch).last_hidden_state for m in (base, model))
    torch.testing.assert_close(sparse, plain, atol=0, rtol=0)
    model.set_attn_implementation("eager")
    output = model(**batch, labels=LABELS, output_attentions=True)
    real = batch["attention_mask"].bool()
    for weights in output.cross_attentions:
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
        assert not bool(weights.masked_fill(real[:, None, None], 0).any())
        assert float((weights == 0).float().mean()) > float((~real).float().mean()), "some real token has weight 0"
    for weights in output.decoder_attentions:
        causal = torch.ones(weights.shape[-2:]).tril().bool()
        assert bool((weights[:, :, causal] > 0).all()), "self-attention stays softmax"
    assert not torch.allclose(output.logits, base(**batch, labels=LABELS).logits, atol=1e-3)


@pytest.mark.parametrize("alpha", [1.5, "learned"])
def test_it_shares_parameters_with_its_base_and_trains(alpha) -> None:
    base = zoo.build("marian")
    model = with_entmax(base, alpha).train()
    torch.testing.assert_close(
        model(**zoo.ragged_batch(), labels=LABELS).logits,
        with_entmax(zoo.build("marian"))(**zoo.ragged_batch(), labels=LABELS).logits,
        atol=1e-4, rtol=1e-4,
    )  # fmt: skip
    before = {name: tensor.clone() for name, tensor in base.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(8):
        loss = model(**zoo.ragged_batch(), labels=LABELS).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.1
    name = "model.decoder.layers.0.encoder_attn.k_proj.weight"
    assert not torch.equal(before[name], dict(base.named_parameters())[name]), "training it trains the base model"
    learned = [parameter for name, parameter in model.named_parameters() if name.endswith("entmax_a")]
    assert len(learned) == (2 if alpha == "learned" else 0), "one for each decoder layer"
    assert all(bool((parameter != 0).all()) for parameter in learned)
    assert {*dict(base.named_parameters())} == {*before}, "the base model stays as it is"


@torch.no_grad()
def spread(model):
    """Give learned alphas different values."""
    for name, parameter in model.named_parameters():
        if name.endswith("entmax_a"):
            parameter.copy_(torch.linspace(-2, 2, len(parameter)))
    return model.eval()


@pytest.mark.parametrize("alpha", [1.5, "learned"])
@pytest.mark.parametrize("family", ["marian", "t5"])
@torch.no_grad()
def test_saved_and_loaded(family, alpha, tmp_path) -> None:
    model, batch = spread(with_entmax(zoo.build(family), alpha)), zoo.ragged_batch()
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert isinstance(loaded, EntmaxModel)
    assert loaded.config.entmax_alpha == alpha
    torch.testing.assert_close(loaded(**batch, labels=LABELS).logits, model(**batch, labels=LABELS).logits)
    for other in (copy.deepcopy(model), AutoModelForSeq2SeqLM.from_pretrained(tmp_path, attn_implementation="eager")):
        torch.testing.assert_close(
            other(**batch, labels=LABELS).logits, model(**batch, labels=LABELS).logits, atol=1e-4, rtol=1e-4
        )


@torch.no_grad()
def test_generate_picks_the_most_likely_tokens_of_forward() -> None:
    model, batch = with_entmax(zoo.build("marian")).eval(), zoo.ragged_batch()
    tokens = model.generate(**batch, max_new_tokens=6, min_new_tokens=6, num_beams=1, do_sample=False)
    logits = model(**batch, decoder_input_ids=tokens[:, :-1]).logits
    logits[..., model.config.eos_token_id] = -torch.inf
    assert torch.equal(logits.argmax(-1)[:, :5], tokens[:, 1:6])


@pytest.mark.parametrize(
    ("family", "alpha"), [*((family, 1.5) for family in FAMILIES), ("marian", "learned"), ("t5", "learned")]
)
@pytest.mark.parametrize("beams", [1, 3])
@torch.no_grad()
def test_the_engine_finds_the_tokens_of_generate(family, alpha, beams) -> None:
    model, batch = spread(with_entmax(zoo.build(family), alpha)), zoo.ragged_batch()
    settings = {"max_new_tokens": 8, "num_beams": beams, "do_sample": False, "early_stopping": beams > 1}
    expected = model.generate(**batch, **settings)
    got = Engine(model).generate(batch["input_ids"], batch["attention_mask"], **settings).sequences
    width = max(expected.shape[1], got.shape[1])
    pad = model.config.pad_token_id
    assert torch.equal(*(torch.nn.functional.pad(t, (0, width - t.shape[1]), value=pad) for t in (expected, got)))


def test_refusals() -> None:
    with pytest.raises(ValueError, match="alpha: expected 1.5 or 'learned', got 1.7"):
        with_entmax(zoo.build("marian"), 1.7)
    with pytest.raises(ValueError, match="model: LED"):
        with_entmax(zoo.build("led"))
    entmax = with_entmax(zoo.build("marian"))
    with pytest.raises(ValueError, match="model: EntmaxMarianMTModel is not a plain model"):
        with_entmax(entmax)
    with pytest.raises(ValueError, match="model: L0DropMarianMTModel is not a plain model"):
        with_entmax(sparsify(zoo.build("marian")))
    with pytest.raises(ValueError, match="model: its cross-attention is entmax.*sparsify the softmax model"):
        sparsify(entmax)
