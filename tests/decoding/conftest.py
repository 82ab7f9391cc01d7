"""Fixture: a tiny model folder with gates."""

from pathlib import Path

import pytest

from tests.decoding import folders


@pytest.fixture(scope="session")
def sparse_folder(baseline: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder outside a run folder."""
    return folders.sparse(baseline, tmp_path_factory.mktemp("sparse") / "model")
