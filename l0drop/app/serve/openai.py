"""The dialect of OpenAI: transcriptions and the list of models."""

from typing import Annotated, Any, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from l0drop.app.serve.guard import client_of, while_connected
from l0drop.app.serve.models import Served, ServedSpeech
from l0drop.app.serve.native import Dialled
from l0drop.app.serve.requests import Problem, checked, json_response, read_upload
from l0drop.app.serve.service import Service
from l0drop.decoding.recordings import subtitles
from l0drop.decoding.speech import Transcript


class Transcription(Dialled):
    """The fields of a transcription, apart from the file."""

    model: str
    language: str | None = None
    prompt: str | None = None
    response_format: Literal["json", "text", "srt", "verbose_json", "vtt"] = "json"
    temperature: Annotated[float, Field(ge=0, le=1)] = 0.0
    num_beams: Annotated[int | None, Field(ge=1)] = None
    kept: Annotated[bool, Field(description="Add the times of the frames that were kept.")] = False


async def transcribe(request: Request) -> Response:
    """`POST /v1/audio/transcriptions`"""
    service: Service = request.app.state.service
    content, values = await read_upload(request, service.limits)
    body = checked(Transcription, values)
    served = service.models.for_audio(body.model)
    if body.prompt:
        raise Problem(400, "prompt: is not supported; omit it")
    if body.temperature:
        raise Problem(400, "temperature: only 0 is supported, because answers are reproducible")
    generation: dict[str, Any] = dict(served.language(body.language))
    if body.num_beams is not None:
        generation["num_beams"] = body.num_beams
    if body.response_format in ("srt", "vtt", "verbose_json"):
        generation["return_timestamps"] = True
    found = await while_connected(
        request, service.transcribe(served, content, client_of(request), generation, body.dial())
    )
    return _answer(body, found.transcript)


def _answer(body: Transcription, transcript: Transcript) -> Response:
    if body.response_format == "text":
        return PlainTextResponse(transcript.text + "\n")
    if body.response_format in ("srt", "vtt"):
        return PlainTextResponse(subtitles(transcript, body.response_format))
    values: dict[str, Any] = {"text": transcript.text}
    if body.response_format == "verbose_json":
        values |= {
            "task": "transcribe",
            "language": body.language or "",
            "duration": transcript.seconds,
            "segments": [
                {"id": number, "start": part.start, "end": part.end, "text": part.text}
                for number, part in enumerate(transcript.segments)
            ],
            "score": transcript.score,
        }
    if body.kept:
        values |= {"kept": [list(frame) for frame in transcript.kept], "dropped": transcript.sparsity}
    return json_response(values)


async def list_models(request: Request) -> Response:
    """`GET /v1/models`"""
    state = request.app.state
    return json_response({"object": "list", "data": [_model(served, state.began) for served in state.service.models]})


async def get_model(request: Request) -> Response:
    """`GET /v1/models/NAME`"""
    state = request.app.state
    return json_response(_model(state.service.models.named(request.path_params["name"]), state.began))


def _model(served: Served | ServedSpeech, created: int) -> dict[str, Any]:
    return {
        "id": served.name,
        "object": "model",
        "created": created,
        "owned_by": "l0drop",
        "l0drop": served.facts(),
    }
