"""The dialect of Hugging Face's inference tasks: `{"inputs", "parameters"}` to `/models/NAME`."""

from typing import Annotated, Any, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from l0drop.app.serve.guard import client_of, while_connected
from l0drop.app.serve.native import Dialled, Search
from l0drop.app.serve.requests import Problem, Strict, checked, json_response, read_json
from l0drop.app.serve.service import Query, Service

OUTPUT = {"translation": "translation_text", "summarization": "summary_text"}
"""The field that holds the output of each task."""
TRUNCATION = {"do_not_truncate": "split", "longest_first": "cut", "only_first": "cut", "only_second": "cut"}


class Parameters(Search, Dialled):
    """The parameters of the tasks, generation settings, and the dial."""

    src_lang: str | None = None
    tgt_lang: str | None = None
    truncation: Literal["do_not_truncate", "longest_first", "only_first", "only_second"] = "do_not_truncate"
    clean_up_tokenization_spaces: Annotated[
        bool | None, Field(description="Accepted without effect: the tokenizer decides.")
    ] = None
    generate_parameters: Search | None = None
    kept: Annotated[bool, Field(description="Add the source tokens that were kept.")] = False


class Inputs(Strict):
    """A request of a text task."""

    inputs: str | list[str]
    parameters: Parameters = Parameters()
    options: Annotated[dict[str, Any] | None, Field(description="Accepted without effect.")] = None


async def run_task(request: Request) -> Response:
    """`POST /models/NAME`"""
    service: Service = request.app.state.service
    served = service.models.named(request.path_params["name"])
    body = checked(Inputs, await read_json(request, service.limits))
    parameters = body.parameters
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
    )
    answers = await while_connected(request, service.generate(query))
    return json_response(
        [
            {
                OUTPUT[served.task]: answer.result.text,
                **({"score": answer.result.score, "kept": _spans(answer.result.kept)} if parameters.kept else {}),
            }
            for answer in answers
        ]
    )


def _spans(kept: Any) -> list[dict[str, int]]:
    return [{"start": token.start, "end": token.end} for token in kept if token.start is not None]
