"""The dialect of OpenAI: transcriptions and the list of models."""

from typing import Annotated, Any, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from l0drop.app.serve.guard import client_of, deadline_of, while_connected
from l0drop.app.serve.models import Served, ServedSpeech
from l0drop.app.serve.requests import GRANULARITIES, Problem, checked, json_response, read_upload
from l0drop.app.serve.service import Service
from l0drop.app.serve.speech import Recorded
from l0drop.decoding.recordings import subtitles
from l0drop.decoding.speech import Transcript


class Transcription(Recorded):
    """The fields of a transcription, apart from the file."""

    model: str
    response_format: Literal["json", "text", "srt", "verbose_json", "vtt"] = "json"
    granularities: Annotated[
        list[Literal["segment", "word"]],
        Field(
            default_factory=list,
            alias=GRANULARITIES,
            description="With verbose_json: segment. The times of words are not known.",
        ),
    ]
    chunking_strategy: Annotated[
        Literal["auto"] | None, Field(description="Accepted without effect: long recordings are decoded in windows.")
    ] = None
    stream: Annotated[bool, Field(description="Only false: the answer comes as a whole.")] = False
    kept: Annotated[bool, Field(description="Add the times of the frames that were kept.")] = False


async def transcribe(request: Request) -> Response:
    """`POST /v1/audio/transcriptions`"""
    service: Service = request.app.state.service
    content, values = await read_upload(request, service.limits)
    body = checked(Transcription, values)
    served = service.models.for_audio(body.model)
    if body.stream:
        raise Problem(400, "stream: is not supported; omit it, and the answer comes as a whole")
    if "word" in body.granularities:
        raise Problem(400, f"{GRANULARITIES}: the times of words are not known; ask for segment")
    if body.granularities and body.response_format != "verbose_json":
        raise Problem(400, f"{GRANULARITIES}: needs response_format=verbose_json")
    generation = body.settings(served)
    if body.response_format in ("srt", "vtt", "verbose_json"):
        generation["return_timestamps"] = True
    client, seed, deadline = client_of(request), body.sampling_seed, deadline_of(request)
    work = service.transcribe(served, content, client, generation, body.dial(), seed=seed, deadline=deadline)
    found = await while_connected(request, work)
    return _answer(body, found.transcript, served.language_name(body.language))


def _answer(body: Transcription, transcript: Transcript, language: str) -> Response:
    if body.response_format == "text":
        return PlainTextResponse(transcript.text + "\n")
    if body.response_format in ("srt", "vtt"):
        return PlainTextResponse(subtitles(transcript, body.response_format))
    values: dict[str, Any] = {"text": transcript.text}
    if body.response_format == "verbose_json":
        values |= {
            "task": "transcribe",
            "language": language,
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
