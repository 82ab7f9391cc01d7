"""The mean of several checkpoints' weights."""

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from l0drop.training.checkpoints import WEIGHTS


def averaged(checkpoints: Sequence[Path]) -> dict[str, Tensor]:
    """The mean weights of checkpoints with equal names and shapes, summed in float64."""
    if not checkpoints:
        raise ValueError("average: no checkpoint to average")
    means: dict[str, Tensor] = {}
    dtypes: dict[str, torch.dtype] = {}
    for checkpoint in checkpoints:
        with safe_open(checkpoint / WEIGHTS, framework="pt") as file:
            names = set(file.keys())
            if means and names != set(means):
                different = sorted(names ^ set(means))
                raise ValueError(f"average: {checkpoint} differs from {checkpoints[0]} in {', '.join(different[:3])}")
            for name in file.keys():  # noqa: SIM118
                tensor = file.get_tensor(name)
                dtypes.setdefault(name, tensor.dtype)
                share = tensor.double() / len(checkpoints)
                means[name] = share if name not in means else means[name] + share
    return {name: mean.to(dtypes[name]) for name, mean in means.items()}
