"""The dialect of Hugging Face's inference tasks: `{"inputs", "parameters"}` to `/models/NAME`."""

import base64
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from l0drop.app.serve.guard import client_of, deadline_of, while_connected
from l0drop.app.serve.models import ServedSpeech
from l0drop.app.serve.native import Dialled, SearchFields
from l0drop.app.serve.requests import (
    JSON,
    Problem,
    Strict,
    Texts,
    checked,
    json_response,
    media_type,
    parse_json,
    read_body,
    read_json,
)
from l0drop.app.serve.service import Query, Service
from l0drop.decoding.results import Result

OUTPUT = {"translation": "translation_text", "summarization": "summary_text"}
"""The field that holds the output of each task."""
MOST_SIGNS = 1000
"""Commas and brackets of a JSON body with audio."""
TRUNCATION = {"do_not_truncate": "split", "longest_first": "cut", "only_first": "cut", "only_second": "cut"}


class TaskSearch(SearchFields):
    """Generation settings, and those that only these tasks have."""

    max_length: Annotated[int | None, Field(ge=1, description="As max_new_tokens, with the start token.")] = None
    min_length: Annotated[int | None, Field(ge=0, description="As min_new_tokens, with the start token.")] = None
    do_sample: Annotated[bool | None, Field(description="Only false: texts are decoded by beam search.")] = None

    def generation(self) -> dict[str, Any]:
        if self.do_sample:
            raise Problem(400, "do_sample: texts are not sampled; omit it, and use num_return_sequences for variants")
        lengths = {"max_length": self.max_length, "min_length": self.min_length}
        return super().generation() | {name: value for name, value in lengths.items() if value is not None}


class Parameters(TaskSearch, Dialled):
    """The parameters of the tasks, generation settings, and the dial."""

    src_lang: str | None = None
    tgt_lang: str | None = None
    truncation: Literal["do_not_truncate", "longest_first", "only_first", "only_second"] = "do_not_truncate"
    clean_up_tokenization_spaces: Annotated[
        bool | None, Field(description="Accepted without effect: the tokenizer decides.")
    ] = None
    generate_parameters: TaskSearch | None = None
    kept: Annotated[bool, Field(description="Add the source tokens that were kept.")] = False


class Inputs(Strict):
    """A request of a text task."""

    inputs: str | Texts
    parameters: Parameters | None = None
    options: Annotated[dict[str, Any] | None, Field(description="Accepted without effect.")] = None


class Recognition(Dialled):
    """The parameters of speech recognition."""

    return_timestamps: bool = False
    generation_parameters: SearchFields | None = None
    kept: Annotated[bool, Field(description="Add the times of the frames that were kept, and the score.")] = False


class AudioInputs(Strict):
    """A request of speech recognition with parameters."""

    inputs: Annotated[str, Field(description="A sound file as base64.")]
    parameters: Recognition | None = None


async def run_task(request: Request) -> Response:
    """`POST /models/NAME`"""
    service: Service = request.app.state.service
    name = request.path_params["name"]
    if isinstance(service.models.named(name), ServedSpeech):
        return await _recognize(request, service.models.for_audio(name))
    served = service.models.for_text(name)
    body = checked(Inputs, await read_json(request, service.limits))
    parameters = body.parameters or Parameters()
    inner = parameters.generate_parameters.generation() if parameters.generate_parameters is not None else {}
    languages = {"source_lang": parameters.src_lang, "target_lang": parameters.tgt_lang}
    given = {name: value for name, value in languages.items() if value is not None}
    if given and not served.codes:
        if served.pair is None or (parameters.src_lang, parameters.tgt_lang) != served.pair:
            raise Problem(400, f"src_lang, tgt_lang: {served.name} is not a model for this pair")
        given = {}
    query = Query(
        served,
        [body.inputs] if isinstance(body.inputs, str) else body.inputs,
        client_of(request),
        {**parameters.generation(), **inner},
        parameters.dial(),
        given,
        long=TRUNCATION[parameters.truncation],  # type: ignore[arg-type]
        deadline=deadline_of(request),
    )
    answers = await while_connected(request, service.generate(query))
    is_flat = isinstance(body.inputs, str) or query.generation.get("num_return_sequences", 1) == 1
    write = partial(_answer, [answer.result for answer in answers], OUTPUT[served.task], parameters.kept, is_flat)
    size = sum(len(answer.result.kept) for answer in answers) if parameters.kept else 0
    return await service.in_turn(query.client, size, write)


def _answer(results: list[Result], field: str, kept: bool, is_flat: bool) -> Response:
    """is_flat: one list of outputs instead of a list per text."""
    outputs = [_outputs(result, field, kept) for result in results]
    return json_response([output for one in outputs for output in one] if is_flat else outputs)


def _outputs(result: Result, field: str, kept: bool) -> list[dict[str, Any]]:
    """The outputs for one text, best first: as many as `num_return_sequences`."""
    spans = {"kept": _spans(result.kept)} if kept else {}
    scored = [(result.text, result.score), *((other.text, other.score) for other in result.alternatives)]
    return [{field: text, **({"score": score, **spans} if kept else {})} for text, score in scored]


async def _recognize(request: Request, served: ServedSpeech) -> Response:
    """Speech recognition: raw bytes, or JSON with the audio as base64."""
    service: Service = request.app.state.service
    parameters = Recognition()
    if media_type(request) == JSON:
        given = await read_body(request, service.limits, service.limits.audio_body)
        if sum(given.count(sign) for sign in b"[{,") > MOST_SIGNS:  # base64 has none, and reading them would take long
            raise Problem(400, "inputs: expected audio as base64")
        body = checked(AudioInputs, parse_json(given))
        parameters = body.parameters or Recognition()
        try:
            content = base64.b64decode(body.inputs, validate=True)
        except ValueError:
            raise Problem(400, "inputs: expected audio as base64") from None
    else:
        content = await read_body(request, service.limits, service.limits.audio_body)
    search = parameters.generation_parameters.generation() if parameters.generation_parameters is not None else {}
    times = {"return_timestamps": True} if parameters.return_timestamps else {}
    found = await while_connected(
        request,
        service.transcribe(
            served,
            content,
            client_of(request),
            {**search, **times},
            parameters.dial(),
            deadline=deadline_of(request),
        ),
    )
    transcript = found.transcript
    answer: dict[str, Any] = {"text": transcript.text}
    if parameters.return_timestamps:
        answer["chunks"] = [{"text": part.text, "timestamp": [part.start, part.end]} for part in transcript.segments]
    if parameters.kept:
        answer.update(score=transcript.score, kept=[list(frame) for frame in transcript.kept])
    return json_response(answer)


def _spans(kept: Any) -> list[dict[str, int]]:
    return [{"start": token.start, "end": token.end} for token in kept if token.start is not None]
