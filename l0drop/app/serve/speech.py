"""Our own dialect for audio: every setting in, everything that is known out."""

from dataclasses import asdict
from functools import partial
from typing import Annotated, Any

import torch
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from l0drop.app.serve.guard import client_of, deadline_of, while_connected
from l0drop.app.serve.models import ServedSpeech
from l0drop.app.serve.native import Dialled
from l0drop.app.serve.requests import Problem, checked, json_response, read_upload, refused
from l0drop.app.serve.service import AudioAnswer, Service
from l0drop.data.audio import Audio, log_mel

MOST_COLUMNS = 1500
"""Columns of a spectrogram: the encoder rows of 30 seconds."""
MOST_PROMPT = 10_000
"""Characters of a prompt."""
LEAST_TEMPERATURE = 0.01
"""Scores divided by less could exceed what a model's type of numbers can hold."""
DIGITS = 5
"""Decimals of times in an answer."""


class Recorded(Dialled):
    """The settings that both dialects with uploads have."""

    language: Annotated[str | None, Field(description="The language of the speech. Default: detected.")] = None
    prompt: Annotated[
        str | None, Field(max_length=MOST_PROMPT, description="Words before the audio; of many, the last ones count.")
    ] = None
    temperature: Annotated[
        float, Field(ge=0, le=1, description=f"0 searches; from {LEAST_TEMPERATURE} on, the output is sampled.")
    ] = 0.0
    seed: Annotated[int, Field(ge=0, lt=2**63, description="Of a sampled output; the same seed repeats it.")] = 0
    num_beams: Annotated[int | None, Field(ge=1)] = None

    def settings(self, served: ServedSpeech) -> dict[str, Any]:
        """The settings of the search; a Problem for those that contradict each other."""
        found: dict[str, Any] = dict(served.language(self.language))
        try:
            found |= served.prompt(self.prompt)
        except ValueError as error:
            raise refused(error) from None
        if self.num_beams is not None:
            found["num_beams"] = self.num_beams
        if self.temperature:
            if self.temperature < LEAST_TEMPERATURE:
                raise Problem(400, f"temperature: expected 0, or {LEAST_TEMPERATURE} to 1, got {self.temperature:g}")
            if self.num_beams not in (None, 1):
                raise Problem(400, "num_beams: a temperature above 0 samples, which has no beams; omit one of the two")
            found |= {"temperature": self.temperature, "num_beams": 1}
        return found

    @property
    def sampling_seed(self) -> int | None:
        return self.seed if self.temperature else None


class Transcribe(Recorded):
    """The fields of a transcription, apart from the file."""

    model: Annotated[str | None, Field(description="A name of /v1/models. Default: the first that reads audio.")] = None
    timestamps: Annotated[bool, Field(description="Divide the transcript into segments.")] = True
    max_new_tokens: Annotated[int | None, Field(ge=1)] = None
    length_penalty: Annotated[float | None, Field(ge=-10, le=10)] = None
    spectrogram: Annotated[bool, Field(description="Add the log-mel features of the audio.")] = False
    alone: Annotated[bool, Field(description="Decode in a batch of its own, to measure the time.")] = False
    timeout: Annotated[float | None, Field(gt=0, description="Seconds; at most the service's limit.")] = None

    def generation(self, served: ServedSpeech) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in ("max_new_tokens", "length_penalty")}
        given = {name: value for name, value in values.items() if value is not None}
        return {**self.settings(served), **given, "return_timestamps": self.timestamps}


async def transcribe(request: Request) -> Response:
    """`POST /v1/transcribe`"""
    service: Service = request.app.state.service
    content, values = await read_upload(request, service.limits)
    body = checked(Transcribe, values)
    served = service.models.for_audio(body.model)
    found = await while_connected(
        request,
        service.transcribe(
            served,
            content,
            client_of(request),
            body.generation(served),
            body.dial(),
            seed=body.sampling_seed,
            alone=body.alone,
            deadline=deadline_of(request, body.timeout),
        ),
    )
    write = partial(_answer, served, found, body.spectrogram)
    size = None if body.spectrogram else len(found.transcript.kept)
    return await service.in_turn(client_of(request), size, write)


def _answer(served: ServedSpeech, found: AudioAnswer, with_spectrogram: bool) -> Response:
    more = {"spectrogram": spectrogram(served, found.clip)} if with_spectrogram else {}
    return json_response({"model": served.name, "gated": served.model.is_gated, **_transcribed(found), **more})


def _transcribed(found: AudioAnswer) -> dict[str, Any]:
    transcript = found.transcript
    return {
        "text": transcript.text,
        "segments": [asdict(part) for part in transcript.segments],
        "score": transcript.score,
        "kept": [[round(time, DIGITS) for time in frame] for frame in transcript.kept],
        "audio_seconds": transcript.seconds,
        "windows": transcript.windows,
        "rows": transcript.rows,
        "rows_kept": transcript.rows_kept,
        "covered": transcript.covered,
        "dropped": transcript.sparsity,
        "dropped_of_all": transcript.sparsity_of_all,
        "seconds": {"queue": round(found.queue_seconds, 6), "decode": round(found.decode_seconds, 6)},
        "batch": found.batch,
    }


def spectrogram(served: ServedSpeech, clip: Audio) -> dict[str, Any]:
    """The features that the encoder reads, [columns, mels] from low to high, means of as many frames as needed."""
    extractor = served.model.extractor
    frames = len(clip.samples) // extractor.hop_length
    if not frames:
        return {"column_seconds": 0.0, "columns": []}
    levels = log_mel(clip.samples, extractor, padded=len(clip.samples) < extractor.n_samples)[:, :frames]
    width = -(-frames // MOST_COLUMNS)
    columns = torch.nn.functional.avg_pool1d(levels[None], width, ceil_mode=True)[0].T
    seconds = width * extractor.hop_length / extractor.sampling_rate
    rounded = [[round(level, 2) for level in column] for column in columns.tolist()]
    return {"column_seconds": seconds, "columns": rounded}
