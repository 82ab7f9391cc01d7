"""Fixtures: a service with a sparse model, the baseline without gates, and a summarizer, in float64."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from l0drop import L0DropConfig, load, sparsify
from l0drop.app.serve.models import Served
from l0drop.decoding.speech import SpeechModel
from l0drop.decoding.text import TextModel
from tests.app.serve.running import Running, running
from tests.decoding import folders
from tests.models import whispers


@pytest.fixture(scope="session")
def sparse_folder(baseline: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folders.sparse(baseline, tmp_path_factory.mktemp("served") / "model")


@pytest.fixture(scope="session")
def sparse(sparse_folder: Path) -> TextModel:
    return load(sparse_folder, "cpu", "float64")


@pytest.fixture(scope="session")
def plain(baseline: Path) -> TextModel:
    return load(baseline, "cpu", "float64")


@pytest.fixture(scope="session")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> SpeechModel:
    """Reads windows of 0.48 seconds and drops about half of their rows."""
    made = whispers.spread_gates(sparsify(whispers.build(multilingual=False), L0DropConfig(gating="zero")))
    return load(whispers.save(made, tmp_path_factory.mktemp("whisper")), dtype="float64")


@pytest.fixture(scope="session")
def service(sparse: TextModel, plain: TextModel) -> Iterator[Running]:
    """Shared by tests that leave it as it is."""
    models = [
        Served("sparse", sparse, pair=("en", "xx")),
        Served("plain", plain, pair=("en", "yy")),
        Served("short", sparse, "summarization"),
    ]
    with running(models) as found:
        yield found
