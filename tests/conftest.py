"""For all tests: one thread, on which tiny models run fastest, a trained baseline to start from, and GPUs' manners."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import Phase, settings
from torch import Tensor

torch.set_num_threads(1)
if not torch.cuda.is_available():
    # Triton's interpreter runs kernels on the CPU; Triton reads this when it is imported
    os.environ["TRITON_INTERPRET"] = "1"
# for `make mutate`: the same examples in every run, and a failing one is not simplified
settings.register_profile("mutation", derandomize=True, database=None, phases=(Phase.explicit, Phase.generate))


@pytest.fixture(scope="session")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of a tiny baseline."""
    from rich.console import Console

    from l0drop.recipe import parse_recipe
    from l0drop.training.run import train
    from tests.training import tiny

    folder = tmp_path_factory.mktemp("baseline")
    values = tiny.recipe(folder, "base", train={"steps": 60, "save_every": 60, "eval_every": 60, "log_every": 30})
    train(parse_recipe(values, "test"), folder / "runs", Console(quiet=True))
    return folder / "runs" / "base"


@pytest.fixture
def strict_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fused attention that takes a mask of the query's type alone, as it does on a GPU; a CPU takes float32 as well."""
    attention = F.scaled_dot_product_attention

    def strict(query: Tensor, *others: Tensor, attn_mask: Tensor | None = None, **settings: Any) -> Tensor:
        if attn_mask is not None and attn_mask.dtype not in (query.dtype, torch.bool):
            raise RuntimeError(f"a mask of {attn_mask.dtype} for queries of {query.dtype}")
        return attention(query, *others, attn_mask=attn_mask, **settings)

    monkeypatch.setattr(F, "scaled_dot_product_attention", strict)
