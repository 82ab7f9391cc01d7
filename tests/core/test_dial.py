"""The dial, as the design defines it."""

import pytest
import torch

from l0drop.core import hard_concrete
from l0drop.core.dial import Dial
from l0drop.core.gates import Gates

LENGTHS = (10, 7, 1, 3)
MASK = torch.arange(10) < torch.tensor(LENGTHS)[:, None]


def at(log_alpha: torch.Tensor) -> torch.Tensor:
    return hard_concrete.test_time_gate(log_alpha, 0.1)


def gates(seed: int = 0) -> Gates:
    log_alpha = 4 * torch.randn(4, 10, generator=torch.Generator().manual_seed(seed))
    log_alpha[0, :4] = 1.0  # ties
    return Gates(hard_concrete.test_time_gate(log_alpha, 0.1) * MASK, None, log_alpha)


def turned(dial: Dial, source: Gates, always: torch.Tensor | None = None, gating: str = "zero") -> torch.Tensor:
    return dial.turn(source, MASK, gating, at, always).values  # type: ignore[arg-type]


@pytest.mark.parametrize("share", [0.05, 0.25, 0.35, 0.5, 0.9, 1.0])
def test_keep_takes_the_rows_of_largest_log_alpha(share: float) -> None:
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


@pytest.mark.parametrize(("gating", "rows"), [("zero", 3), ("mask", 4), ("weight", 4)])
def test_max_memory_counts_the_zero_row_and_never_opens_anything(gating: str, rows: int) -> None:
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


def test_tokens_always_kept_stay_at_any_setting() -> None:
    source = gates()
    always = torch.zeros_like(MASK)
    always[0, 7] = always[1, 6] = True
    for dial in (Dial(keep=0.1), Dial(max_memory=2), Dial(shift=-100)):
        values = turned(dial, source, always)
        assert float(values[0, 7]) == float(values[1, 6]) == 1.0
    assert (turned(Dial(keep=0.1), source, always)[0] != 0).sum() == 1, "they count towards the share"


def test_rows_removed_earlier_cannot_be_kept() -> None:
    log_alpha = torch.tensor([[-torch.inf, 1.0, -torch.inf, -9.0]])
    source = Gates(torch.tensor([[0.0, 0.6, 0, 0]]), None, log_alpha)
    mask = torch.ones(1, 4, dtype=torch.bool)
    values = Dial(keep=1.0).turn(source, mask, "mask", at, None).values
    assert values.tolist() == [[0, pytest.approx(0.6), 0, 1]]


def test_bad_settings_are_refused_by_name() -> None:
    for arguments, message in (
        ({"keep": 0.5, "shift": 1.0}, "choose one of keep, max_memory and shift, got keep and shift"),
        ({"keep": 0.0}, r"keep: expected a share in \(0, 1\]"),
        ({"keep": 1.2}, r"keep: expected a share in \(0, 1\]"),
        ({"max_memory": 0}, "max_memory: expected a whole number"),
        ({"max_memory": 1.5}, "max_memory: expected a whole number"),
        ({"shift": float("nan")}, "shift: expected a finite number"),
        ({"dense": "maybe"}, "dense: expected True or False"),
    ):
        with pytest.raises(ValueError, match=message):
            Dial(**arguments)
    with pytest.raises(ValueError, match="max_memory: gating zero needs"):
        turned(Dial(max_memory=1), gates())
    with pytest.raises(ValueError, match="dial: this gate has no log α"):
        turned(Dial(keep=0.5), Gates(MASK.float()))
    assert torch.equal(turned(Dial(dense=True), Gates(MASK.float())), MASK.float())
    with pytest.raises(ValueError, match="keep: expected one share, or one for each of 4 sentences, got 3"):
        turned(Dial(keep=torch.tensor([0.5, 0.5, 0.5])), gates())
