"""The chunked output layer and loss against full logits."""

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from l0drop.training.fused_loss import TokenDistillation, distilled_cross_entropy_sum, linear_cross_entropy_sum
from l0drop.training.objective import distillation_sum

ROWS, WIDTH, VOCABULARY = 13, 8, 11


def problem(dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    shapes = (ROWS, WIDTH), (VOCABULARY, WIDTH), (VOCABULARY,)
    tensors = [torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]
    return [t.requires_grad_() for t in tensors], torch.randint(VOCABULARY, (ROWS,), generator=generator)


def plain(hidden, weight, bias, labels, smoothing):
    logits = hidden @ weight.T if bias is None else hidden @ weight.T + bias
    return F.cross_entropy(logits, labels, label_smoothing=smoothing, reduction="sum")


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("chunk", [None, 1, 4, 13])
@pytest.mark.parametrize("biased", [True, False])
def test_loss_and_gradients_are_those_of_full_logits(smoothing, chunk, biased):
    (hidden, weight, bias), labels = problem()
    inputs = [hidden, weight, bias] if biased else [hidden, weight]
    bias = bias if biased else None
    ours = linear_cross_entropy_sum(hidden, weight, labels, bias_V=bias, smoothing=smoothing, chunk=chunk)
    theirs = plain(hidden, weight, bias, labels, smoothing)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=0)
    # scaled, as in training
    for a, b in zip(torch.autograd.grad(ours * 0.3, inputs), torch.autograd.grad(theirs * 0.3, inputs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_gradcheck():
    inputs, labels = problem()
    assert torch.autograd.gradcheck(
        lambda h, w, b: linear_cross_entropy_sum(h, w, labels, bias_V=b, smoothing=0.1, chunk=5), inputs
    )


def test_frozen_weights_get_no_gradient():
    (hidden, weight, bias), labels = problem()
    loss = linear_cross_entropy_sum(hidden, weight.detach(), labels, bias_V=bias.detach(), smoothing=0.1)
    (gradient,) = torch.autograd.grad(loss, [hidden])
    expected = torch.autograd.grad(plain(hidden, weight, bias, labels, 0.1), [hidden])[0]
    torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=1e-12)
    with torch.no_grad():
        assert not linear_cross_entropy_sum(hidden, weight, labels).requires_grad


def test_mixed_precision_stays_near_full_precision():
    (hidden, weight, _), labels = problem(torch.float32)
    ours = linear_cross_entropy_sum(hidden, weight, labels, smoothing=0.1, dtype=torch.bfloat16, chunk=4)
    theirs = plain(hidden, weight, None, labels, 0.1)
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, theirs, rtol=5e-3, atol=0)
    gradients = torch.autograd.grad(ours, [hidden, weight]), torch.autograd.grad(theirs, [hidden, weight])
    for a, b in zip(*gradients, strict=True):
        assert a.dtype == torch.float32
        assert (a - b).norm() < 1e-2 * b.norm()


@pytest.mark.parametrize("chunk", [None, 4])
@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_the_divergence_from_a_teacher_is_that_of_full_logits(chunk, temperature):
    (hidden, weight, bias), labels = problem()
    (other, other_weight, other_bias), _ = problem()
    with torch.no_grad():
        other, other_weight, other_bias = (t.roll(1, 0) for t in (other, other_weight, other_bias))
    distillation = TokenDistillation(other, other_weight, other_bias, 0.7, temperature)
    settings = {"bias_V": bias, "smoothing": 0.1, "chunk": chunk}
    loss, cross_entropy, divergence = distilled_cross_entropy_sum(hidden, weight, labels, distillation, **settings)
    theirs = plain(hidden, weight, bias, labels, 0.1)
    teacher_logits = (other @ other_weight.T + other_bias)[None]
    logits = (hidden @ weight.T + bias)[None]
    kl = distillation_sum(logits.double(), teacher_logits, labels[None], temperature)
    assert float(cross_entropy.detach()) == pytest.approx(float(theirs.detach()), rel=1e-12)
    assert float(divergence.detach()) == pytest.approx(float(kl.detach()), rel=1e-5)  # theirs is in float32
    assert float(loss.detach()) == pytest.approx(float((theirs + 0.7 * kl).detach()) / 1.7, rel=1e-5)
    assert torch.autograd.gradcheck(
        lambda h, w, b: distilled_cross_entropy_sum(h, w, labels, distillation, **{**settings, "bias_V": b})[0],
        [hidden, weight, bias],
    )


def test_padding_is_ignored():
    (hidden, weight, bias), labels = problem()
    real = torch.ones(ROWS, dtype=torch.bool)
    real[[0, 5, ROWS - 1]] = False
    settings = {"bias_V": bias, "smoothing": 0.1, "chunk": 4}
    ours = linear_cross_entropy_sum(hidden, weight, labels.masked_fill(~real, -100), **settings)
    theirs = linear_cross_entropy_sum(hidden[real], weight, labels[real], **settings)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=0)
    inputs = [hidden, weight, bias]
    for a, b in zip(torch.autograd.grad(ours, inputs), torch.autograd.grad(theirs, inputs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


class Largest(TorchDispatchMode):
    """Records the size of the largest tensor that any operation makes."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple) else (result,):
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return result


def test_all_logits_never_exist_at_once():
    hidden = torch.randn(64, 4, requires_grad=True)
    weight = torch.randn(50, 4, requires_grad=True)
    labels = torch.randint(50, (64,))
    with Largest() as largest:
        linear_cross_entropy_sum(hidden, weight, labels, smoothing=0.1, chunk=8).backward()
    assert 8 * 50 <= largest.elements < 64 * 50
    with Largest() as largest:
        plain(hidden, weight, None, labels, 0.1).backward()
    assert largest.elements == 64 * 50
