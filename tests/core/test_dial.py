"""The dial against its definition."""

import re
from typing import Any

import pytest
import torch

from l0drop.core import hard_concrete
from l0drop.core.dial import Dial, Dials, Draw, dial_of
from l0drop.core.gates import Gates

LENGTHS = (10, 7, 1, 3)
MASK = torch.arange(10) < torch.tensor(LENGTHS)[:, None]


def at(log_alpha: torch.Tensor) -> torch.Tensor:
    return hard_concrete.test_time_gate(log_alpha, 0.1)


def gates(seed: int = 0) -> Gates:
    log_alpha = 4 * torch.randn(4, 10, generator=torch.Generator().manual_seed(seed))
    log_alpha[0, :4] = 1.0  # ties
    return Gates(hard_concrete.test_time_gate(log_alpha, 0.1) * MASK, None, log_alpha)


def turned(dial: Dial | Dials, source: Gates, always: torch.Tensor | None = None, gating: str = "zero") -> torch.Tensor:
    return dial.turn(source, MASK, gating, at, always).values  # type: ignore[arg-type]


@pytest.mark.parametrize("share", [0.05, 0.25, 0.35, 0.5, 0.9, 1.0])
def test_keep_selects_the_rows_of_largest_log_alpha(share: float) -> None:
    source = gates()
    values = turned(Dial(keep=share), source)
    for row, length in enumerate(LENGTHS):
        wanted = max(1, round(share * length))
        order = sorted(range(length), key=lambda i: (-float(source.log_alpha[row, i]), i))
        chosen = set(order[:wanted])
        for i in range(10):
            own = float(source.values[row, i])
            assert float(values[row, i]) == ((own or 1.0) if i in chosen else 0.0)


def test_keep_may_differ_by_sentence() -> None:
    shares = torch.tensor([0.2, 0.5, 1.0, 0.34])
    together = turned(Dial(keep=shares), gates())
    for row, share in enumerate(shares.tolist()):
        assert torch.equal(together[row], turned(Dial(keep=share), gates())[row])


@pytest.mark.parametrize(("gating", "rows"), [("zero", 3), ("mean", 3), ("mask", 4), ("weight", 4)])
def test_max_memory_counts_the_shared_row_and_opens_no_gate(gating: str, rows: int) -> None:
    source = gates()
    values = turned(Dial(max_memory=4), source, gating=gating)
    for row in range(4):
        own = source.values[row]
        if int((own != 0).sum()) <= rows:
            assert torch.equal(values[row], own)
        else:
            assert int((values[row] != 0).sum()) == rows
            dropped = (values[row] == 0) & (own != 0)
            assert source.log_alpha[row][dropped].max() <= source.log_alpha[row][values[row] != 0].min()
            assert torch.equal(values[row][values[row] != 0], own[values[row] != 0])


def test_shift_is_monotone_and_zero_changes_nothing() -> None:
    source = gates()
    assert torch.equal(turned(Dial(shift=0.0), source), source.values)
    previous = torch.zeros_like(source.values)
    for shift in torch.linspace(-12, 12, 49).tolist():
        values = turned(Dial(shift=shift), source)
        assert (values >= previous).all()
        previous = values
    assert torch.equal(previous, MASK.float())


def test_tokens_of_always_keep_stay_at_any_setting() -> None:
    source = gates()
    always = torch.zeros_like(MASK)
    always[0, 7] = always[1, 6] = True
    for dial in (Dial(keep=0.1), Dial(max_memory=2), Dial(shift=-100)):
        values = turned(dial, source, always)
        assert float(values[0, 7]) == float(values[1, 6]) == 1.0
    assert (turned(Dial(keep=0.1), source, always)[0] != 0).sum() == 1, "they count as kept"


def test_rows_removed_earlier_cannot_be_kept() -> None:
    log_alpha = torch.tensor([[-torch.inf, 1.0, -torch.inf, -9.0]])
    source = Gates(torch.tensor([[0.0, 0.6, 0, 0]]), None, log_alpha)
    mask = torch.ones(1, 4, dtype=torch.bool)
    values = Dial(keep=1.0).turn(source, mask, "mask", at, None).values
    assert values.tolist() == [[0, pytest.approx(0.6), 0, 1]]


def sampled(
    dial: Dial, sentences: torch.Tensor, pull: torch.Tensor, always: torch.Tensor | None = None
) -> tuple[Gates, torch.Tensor]:
    """Gates under `keep` in training, sampled with the noise 0.5, and the gradient of pull · gates in log α."""
    source = gates()
    log_alpha = source.log_alpha.clone().requires_grad_()  # type: ignore[union-attr]

    def gate(shifted: torch.Tensor) -> torch.Tensor:
        return hard_concrete.sample(shifted, torch.full_like(shifted, 0.5), 2 / 3, 0.1)

    found = dial.turn(source._replace(log_alpha=log_alpha), MASK, "zero", at, always, Draw(gate, sentences))
    (found.values * pull).sum().backward()
    assert log_alpha.grad is not None
    return found._replace(values=found.values.detach()), log_alpha.grad


EVERY, NONE = torch.ones(4, dtype=torch.bool), torch.zeros(4, dtype=torch.bool)


def test_keep_in_training_trains_the_order_of_rows() -> None:
    shares = torch.tensor([0.5, 0.4, 1.0, 0.34])
    log_alpha = gates().log_alpha.masked_fill(~MASK, -torch.inf)  # type: ignore[union-attr]
    order = log_alpha.argsort(dim=1, descending=True, stable=True)
    last, first = order[1, 2], order[1, 3]  # 3 of 7 rows are kept: the last kept and the first dropped one
    pull = torch.zeros(4, 10)
    pull[1, last], pull[2, 0] = 1.0, 1.0
    found, gradient = sampled(Dial(keep=shares), EVERY, pull)
    half = 2 * float(found.values[1, last]) - 1  # without noise the sampled gate is odd around the border
    assert half > 0
    assert float(found.values[1, first]) == pytest.approx((1 - half) / 2, abs=1e-6)
    assert float(gradient[1, last]) > 0
    assert float(gradient[1, first]) == pytest.approx(-float(gradient[1, last]), rel=1e-5), (
        "the other row moves the opposite way"
    )
    torch.testing.assert_close(gradient.sum(1), torch.zeros(4), atol=1e-6, rtol=0)
    assert not gradient[2].any(), "if all rows are kept there is nothing to learn"
    assert not found.values[~MASK].any()


def test_sentences_without_sampling_keep_the_same_rows_as_in_decoding() -> None:
    some = torch.tensor([True, False, True, False])
    found, _ = sampled(Dial(keep=0.4), some, torch.ones(4, 10))
    own = turned(Dial(keep=0.4), gates())
    assert torch.equal(found.values[1], own[1])
    assert torch.equal(found.values[3], own[3])
    assert not torch.equal(found.values[0], own[0])
    assert torch.equal(sampled(Dial(keep=0.4), NONE, torch.ones(4, 10))[0].values, own)
    without = Dial(keep=0.4).turn(gates(), MASK, "zero", at, None, Draw(lambda shifted: None, EVERY))
    assert torch.equal(without.values, own), "for a gate that does not sample"


def test_rows_always_kept_or_removed_are_not_part_of_the_order() -> None:
    always = torch.zeros_like(MASK)
    always[0, 7] = always[1, 6] = always[3, 0] = True
    found, gradient = sampled(Dial(keep=0.4), EVERY, torch.randn(4, 10), always)
    assert bool((found.values[always] == 1).all())
    assert not gradient[always].any()
    assert gradient[0].any()
    assert not gradient[3].any(), "one of three is kept, and it is the one that is always kept"
    log_alpha = torch.tensor([[-torch.inf, 1.0, 0.5, -9.0]], requires_grad=True)
    source = Gates(torch.tensor([[0.0, 0.6, 0.5, 0]]), None, log_alpha)
    draw = Draw(lambda shifted: hard_concrete.sample(shifted, torch.full_like(shifted, 0.5), 2 / 3, 0.1), EVERY[:1])
    turned_ = Dial(keep=0.25).turn(source, torch.ones(1, 4, dtype=torch.bool), "mask", at, None, draw)
    (turned_.values * torch.tensor([[3.0, 0, 1, 0]])).sum().backward()
    assert log_alpha.grad is not None
    assert float(turned_.values[0, 0].detach()) == 0
    assert float(log_alpha.grad[0, 0]) == 0
    assert float(log_alpha.grad[0, 2]) == pytest.approx(-float(log_alpha.grad[0, 1]))


def test_bad_settings_are_refused_by_name() -> None:
    for arguments, message in (
        ({"keep": 0.5, "shift": 1.0}, "choose one of `keep`, `max_memory` and `shift`, got `keep` and `shift`"),
        ({"keep": 0.0}, r"`keep`: expected a share in \(0, 1\]"),
        ({"keep": 1.2}, r"`keep`: expected a share in \(0, 1\]"),
        ({"max_memory": 0}, "`max_memory`: expected a whole number"),
        ({"max_memory": 1.5}, "`max_memory`: expected a whole number"),
        ({"shift": float("nan")}, "`shift`: expected a finite number"),
        ({"dense": "maybe"}, "`dense`: expected True or False"),
    ):
        with pytest.raises(ValueError, match=message):
            Dial(**arguments)
    for name in ("keep", "max_memory", "shift"):
        for value in ("0.3", True, [0.3]):
            with pytest.raises(TypeError, match=f"`{name}`: expected a number, got {re.escape(repr(value))}"):
                Dial(**{name: value})
    with pytest.raises(ValueError, match="`max_memory`: with gating zero one row represents the dropped tokens"):
        turned(Dial(max_memory=1), gates())
    with pytest.raises(ValueError, match="dial: this gate has no log α"):
        turned(Dial(keep=0.5), Gates(MASK.float()))
    assert torch.equal(turned(Dial(dense=True), Gates(MASK.float())), MASK.float())
    with pytest.raises(ValueError, match="`keep`: expected one share, or one for each of 4 sentences, got 3"):
        turned(Dial(keep=torch.tensor([0.5, 0.5, 0.5])), gates())


def test_a_list_has_one_setting_per_sentence() -> None:
    always = torch.zeros_like(MASK)
    always[1, 6] = True
    settings: list[dict[str, Any]] = [{"keep": 0.3}, {"max_memory": 3}, {}, {"shift": -2.0}]
    columns = {name: [setting.get(name) for setting in settings] for name in ("keep", "max_memory", "shift")}
    together = turned(dial_of(**columns), gates(), always)
    for row, setting in enumerate(settings):
        assert torch.equal(together[row], turned(Dial(**setting), gates(), always)[row])
    assert not torch.equal(together, gates().values)


def test_bad_lists_are_refused_by_name() -> None:
    for arguments, message in (
        (
            {"keep": [0.5, 0.3], "shift": [None, 1.0]},
            "choose one of `keep`, `max_memory` and `shift`, got `keep` and `shift`",
        ),
        ({"keep": [0.5, 2.0]}, r"`keep`: expected a share in \(0, 1\]"),
        ({"keep": [0.5, 0.3], "shift": [1.0]}, "lists of the same length"),
        ({"keep": []}, "lists of the same length"),
        ({"keep": torch.tensor([0.5, 0.3]), "shift": [None, 1.0]}, "`keep`: a tensor cannot be combined"),
        ({"dense": [True, False]}, "`dense`: the sentences of one encoder call must agree"),
    ):
        with pytest.raises(ValueError, match=message):
            dial_of(**arguments)
    with pytest.raises(ValueError, match="expected one setting for each of 4 sentences, got 2"):
        turned(dial_of(keep=[0.5, 0.5]), gates())


def test_a_setting_is_printed_as_the_arguments_that_give_it() -> None:
    assert str(Dial(keep=0.3, dense=True)) == "keep=0.3, dense=True"
    assert str(Dial(max_memory=7)) == "max_memory=7"
    assert str(Dial(shift=0.0)) == "shift=0.0"
    assert str(Dial()) == ""


def test_ties_are_broken_by_position_in_long_sentences() -> None:
    # torch sorts short rows stably whatever is asked for; long ones need stable=True
    log_alpha = (torch.arange(600) % 2).float()[None]
    mask = torch.ones(1, 600, dtype=torch.bool)
    source = Gates(at(log_alpha), None, log_alpha)
    values = Dial(keep=0.25).turn(source, mask, "mask", at, None).values
    assert values[0].nonzero().flatten().tolist() == list(range(1, 300, 2))
    values = Dial(max_memory=100).turn(source, mask, "mask", at, None).values
    assert values[0].nonzero().flatten().tolist() == list(range(1, 200, 2))


def test_a_share_is_rounded_in_double_precision() -> None:
    mask = torch.ones(1, 30, dtype=torch.bool)
    log_alpha = torch.linspace(5, -5, 30)[None]
    source = Gates(at(log_alpha), None, log_alpha)
    share = torch.tensor(0.35, dtype=torch.float64)  # 10.5 rows, to the even number; float32 has 10.4999996
    assert int((Dial(keep=float(share)).turn(source, mask, "mask", at, None).values != 0).sum()) == 10
    assert int((Dial(keep=0.05).turn(source, mask, "mask", at, None).values != 0).sum()) == 2


def test_rows_always_kept_count_in_max_memory() -> None:
    source = gates()
    always = torch.zeros_like(MASK)
    closest = int(source.log_alpha[0].argmin())  # type: ignore[union-attr]
    always[0, closest] = True
    opened = source._replace(values=source.values.masked_fill(always, 1.0))
    values = turned(Dial(max_memory=3), opened, always, gating="mask")
    assert int((values[0] != 0).sum()) == 3
    assert float(values[0, closest]) == 1


def test_one_row_of_two_can_be_at_the_border() -> None:
    log_alpha = torch.tensor([[2.0, -2.0, 0.5]], requires_grad=True)
    mask, always = torch.ones(1, 3, dtype=torch.bool), torch.tensor([[False, False, True]])
    source = Gates(at(log_alpha.detach()), None, log_alpha)
    draw = Draw(lambda shifted: shifted, EVERY[:1])
    kept = Dial(keep=2 / 3).turn(source, mask, "mask", at, always, draw).values
    # one row beside the one always kept: the border is halfway between the two others
    assert kept.tolist() == [[2.0, -2.0, 1.0]]
    alone = Dial(keep=1 / 3).turn(source, mask, "mask", at, None, draw).values
    assert alone.tolist() == [[0.75, -3.25, -0.75]]


def test_settings_without_lists_are_one_dial() -> None:
    for arguments in ({"keep": 0.3}, {"max_memory": 5}, {"shift": 1.5}, {"dense": True}, {}):
        found = dial_of(**arguments)  # type: ignore[arg-type]
        assert isinstance(found, Dial)
        assert vars(found) == vars(Dial(**arguments))  # type: ignore[arg-type]
    together = dial_of(keep=[0.3, None], dense=True)
    assert isinstance(together, Dials)
    assert [(dial.keep, dial.dense) for dial in together.each] == [(0.3, True), (None, True)]


def test_rows_always_kept_are_counted_per_sentence() -> None:
    log_alpha = torch.tensor([[2.0, -2.0, 0.5, 0.0], [2.0, -2.0, 0.5, 0.0]])
    mask = torch.ones(2, 4, dtype=torch.bool)
    always = torch.tensor([[False, False, True, False], [False, False, False, False]])
    source = Gates(at(log_alpha), None, log_alpha)
    draw = Draw(lambda shifted: shifted, EVERY[:2])
    kept = Dial(keep=0.5).turn(source, mask, "mask", at, always, draw).values
    assert kept.tolist() == [[1.0, -3.0, 1.0, -1.0], [1.75, -2.25, 0.25, -0.25]]


@pytest.mark.parametrize("shift", [-(10**30), 10**30, -1e308, 1e308])
def test_any_finite_shift_closes_or_opens_all_gates(shift: float) -> None:
    assert torch.equal(turned(Dial(shift=shift), gates()), (MASK & (shift > 0)).float())
