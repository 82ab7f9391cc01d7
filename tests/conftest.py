"""For all tests: one thread, on which tiny models run fastest, and a trained baseline to start from."""

from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)


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
