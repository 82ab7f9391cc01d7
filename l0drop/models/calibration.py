"""What `model.calibrate` needs beside the last gate: its texts, and the thresholds of gates between layers."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from l0drop.core.gates import Gate
from l0drop.core.penalty import TOLERANCE, Calibration

_LARGEST_STEP = 64.0
"""In practice no finite log α lies further below its threshold."""
_BISECTIONS = 6


def calibration_inputs(batches: Any) -> list[dict[str, Any]]:
    """The batches of a calibration without the decoder's part."""
    if isinstance(batches, Mapping):
        raise TypeError("batches: expected an iterable of batches, got one batch; pass calibrate([batch])")
    if isinstance(batches, Tensor | str) or not isinstance(batches, Iterable):
        raise TypeError(
            f"batches: expected an iterable of batches with input_ids and attention_mask, got {type(batches).__name__}"
        )
    texts = []
    for batch in batches:
        if not isinstance(batch, Mapping):
            raise TypeError(
                "batches: expected mappings with input_ids and attention_mask, such as a tokenizer returns, "
                f"got {type(batch).__name__}"
            )
        texts.append({k: v for k, v in batch.items() if k not in ("labels", "noise_key", "decoder_input_ids")})
    if not texts:
        raise ValueError("batches: none were given; a generator that was used up in training gives none")
    return texts


def open_between_layers(
    inner_gates: Iterable[nn.Module], closed: Calibration, calibrated: Callable[[], tuple[Calibration, float]]
) -> Calibration:
    """Lower the thresholds between layers just enough for the last gate to reach its target.

    calibrated: runs the texts with the current thresholds, and returns where the last gate should close and the share
    of tokens that inner gates remove.

    Every row that is kept changes the input of later layers, so each candidate is run on the text: first steps that
    double until enough rows are open, then bisection between the last two.
    """
    gates = [gate for gate in inner_gates if isinstance(gate, Gate)]
    as_trained = [gate.threshold for gate in gates]

    def lowered(by: float) -> tuple[Calibration, bool]:
        for gate, threshold in zip(gates, as_trained, strict=True):
            gate.close_at(threshold - by)
        found, gone = calibrated()
        return replace(found, inner_moved=-by), gone <= closed.target + TOLERANCE

    too_little, by = 0.0, 1.0
    while not lowered(by)[1]:
        too_little, by = by, 2 * by
        if by > _LARGEST_STEP:
            lowered(0.0)
            return closed
    for _ in range(_BISECTIONS):
        middle = (too_little + by) / 2
        too_little, by = (too_little, middle) if lowered(middle)[1] else (middle, by)
    return lowered(by)[0]
