"""A job of `bench decode` chooses its benchmark, and refuses what that one does not measure."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from l0drop.bench import decoding, gpu_decoding, gpu_speech, gpu_text
from l0drop.bench.decode_job import DecodeJob


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """The benchmarks that ran, each with what it was to decode."""
    found: list[tuple[str, Any]] = []
    result = SimpleNamespace(made_by=None)
    for module, name in (
        (decoding, "decode_benchmark"),
        (gpu_decoding, "gpu_decode_benchmark"),
        (gpu_speech, "gpu_speech_benchmark"),
        (gpu_text, "gpu_text_benchmark"),
    ):

        def stand_in(decoded: Any, *_: Any, name: str = name, **__: Any) -> Any:
            found.append((name, decoded))
            return result

        monkeypatch.setattr(module, name, stand_in)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    return found


def test_device_and_arguments_choose_the_benchmark(called: list[tuple[str, Any]], tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("a line\n")
    shown: list[str] = []
    DecodeJob(shapes=("mt", "cnndm"), batch=2).run(show=lambda name, result: shown.append(name))
    assert shown == ["mt", "cnndm"]
    assert [(name, workload.shape.batch) for name, workload in called] == [("decode_benchmark", 2)] * 2
    called.clear()
    DecodeJob(device="cuda", shapes=("b1-n400",), source=12).run()
    DecodeJob(device="cuda", shapes=("whisper-tiny",), beams=1, batch=2).run()
    DecodeJob(device="cuda", model="folder", input=tmp_path / "text.txt", sentences=3, alone=0).run()
    (shapes, whispers, text) = called
    assert shapes[0] == "gpu_decode_benchmark"
    assert {name: shape.source for name, shape in shapes[1].items()} == {"b1-n400": 12}
    assert (whispers[0], list(whispers[1])) == ("gpu_speech_benchmark", ["tiny-b2-k1"])
    assert (text[0], text[1].sentences) == ("gpu_text_benchmark", 3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alone": 0}, "`alone`: is for a GPU"),
        ({"device": "tpu"}, "device: expected cpu or cuda, got 'tpu'"),
        ({"device": "cuda", "rival": "x"}, "`rival`: not measured on a GPU"),
        ({"device": "cuda", "baseline": "x"}, "`baseline`: needs a model folder"),
        ({"device": "cuda", "model": "x", "shapes": ("b1-n400",)}, "`shape`: is for random weights"),
    ],
)
def test_what_a_benchmark_does_not_measure_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        DecodeJob(**settings)
