"""Columns in, columns out: a model as the function of an engine for bulk work, such as Ray Data's `map_batches`.

    dataset.map_batches(DecodeColumns, fn_constructor_args=["runs/sparse"], concurrency=2, batch_size=256)

The engine schedules machines, retries and order; a worker only decodes its rows.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from l0drop.decoding.loading import load
from l0drop.decoding.results import Result
from l0drop.decoding.speech import SpeechModel, Transcript


class DecodeColumns:
    """Decodes one column and adds columns: `output`, `score` (NaN for a blank text or silence) and `kept_share`.

    model, device, dtype: as in `load`. column: texts, or for a Whisper the paths of audio files. threads: CPU threads
    of this worker. generation: settings of `TextModel.generate` or `SpeechModel.transcribe`. The kept share of a
    recording is that of the rows that audio covers. The model is loaded once per worker.
    """

    def __init__(
        self,
        model: str,
        column: str = "text",
        *,
        device: str | None = None,
        dtype: str | None = None,
        threads: int | None = None,
        **generation: Any,
    ) -> None:
        if threads is not None:
            torch.set_num_threads(threads)
        self.model, self.column, self.generation = load(model, device, dtype), column, generation

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """The columns of a batch of rows, with the added ones."""
        if self.column not in batch:
            raise ValueError(f"`column`: the rows have no column {self.column!r}, but {', '.join(sorted(batch))}")
        decode = self.model.transcribe if isinstance(self.model, SpeechModel) else self.model.generate
        results = decode([str(value) for value in batch[self.column]], **self.generation)
        return {
            **batch,
            "output": np.array([result.text for result in results], dtype=object),
            "score": np.array([np.nan if result.score is None else result.score for result in results]),
            "kept_share": np.array([_kept_share(result) for result in results]),
        }


def _kept_share(result: Result | Transcript) -> float:
    return len(result.kept) / max(1, result.covered if isinstance(result, Transcript) else result.source_tokens)
