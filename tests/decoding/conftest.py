"""For the tests of decoding: a tiny model folder with a gate."""

from pathlib import Path

import pytest

from tests.decoding import folders


@pytest.fixture(scope="session")
def sparse_folder(baseline: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder, without a run around it."""
    return folders.sparse(baseline, tmp_path_factory.mktemp("sparse") / "model")
