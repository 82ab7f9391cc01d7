"""Our own dialect: every setting in, everything that is known out."""

import time
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from l0drop.app.serve.guard import ARRIVED, client_of, deadline_of, while_connected
from l0drop.app.serve.models import Served
from l0drop.app.serve.requests import Problem, Strict, Texts, checked, json_response, read_json
from l0drop.app.serve.service import Answer, Query, Service
from l0drop.decoding.results import Explained

DIAL = ("keep", "max_memory", "shift", "dense")
DIGITS = 5
"""Decimals of attention weights in an answer."""
MOST_WEIGHTS = 1_000_000
"""Attention weights in an answer."""


class Dialled(Strict):
    """The dial, as optional fields of every dialect."""

    keep: Annotated[float | None, Field(gt=0, le=1, description="The share of source tokens to keep.")] = None
    max_memory: Annotated[int | None, Field(ge=1, le=1_000_000, description="The maximum number of memory rows.")] = (
        None
    )
    shift: Annotated[float | None, Field(ge=-1000, le=1000, description="Added to log α; above 0 keeps more.")] = None
    dense: Annotated[bool | None, Field(description="Decode on the full gated memory.")] = None

    def dial(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in DIAL}
        return {name: value for name, value in values.items() if value is not None and value is not False}


class SearchFields(Strict):
    """Generation settings; unset ones come from the model."""

    num_beams: Annotated[int | None, Field(ge=1)] = None
    max_new_tokens: Annotated[int | None, Field(ge=1)] = None
    min_new_tokens: Annotated[int | None, Field(ge=0)] = None
    num_return_sequences: Annotated[int | None, Field(ge=1)] = None
    length_penalty: Annotated[float | None, Field(ge=-10, le=10)] = None
    repetition_penalty: Annotated[float | None, Field(ge=0.01, le=100)] = None
    no_repeat_ngram_size: Annotated[int | None, Field(ge=0)] = None
    early_stopping: bool | Literal["never"] | None = None

    def generation(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in SearchFields.model_fields}
        return {name: value for name, value in values.items() if value is not None}


class Explain(Dialled, SearchFields):
    """One text to explain."""

    text: str
    model: Annotated[str | None, Field(description="A name of /v1/models. Default: the first.")] = None
    source_lang: str | None = None
    target_lang: str | None = None
    prefix: Annotated[str | None, Field(description="Text put before every source. Default: the model's.")] = None
    timeout: Annotated[float | None, Field(gt=0, description="Seconds; at most the service's limit.")] = None

    def query(self, service: Service, texts: list[str], request: Request, **others: Any) -> Query:
        pair = {"source_lang": self.source_lang, "target_lang": self.target_lang}
        return Query(
            served=service.models.for_text(self.model),
            texts=texts,
            client=client_of(request),
            generation=self.generation(),
            dial=self.dial(),
            languages={name: value for name, value in pair.items() if value is not None},
            prefix=self.prefix,
            deadline=deadline_of(request, self.timeout),
            **others,
        )


class Generate(Explain):
    """Texts to decode."""

    text: str | Texts  # type: ignore[assignment]
    long: Annotated[
        Literal["split", "cut"], Field(description="What to do with a text that exceeds the model's positions.")
    ] = "split"
    alone: Annotated[bool, Field(description="Decode each text in a batch of its own, to measure its time.")] = False


async def generate(request: Request) -> Response:
    """`POST /v1/generate`"""
    service: Service = request.app.state.service
    body = checked(Generate, await read_json(request, service.limits))
    texts = [body.text] if isinstance(body.text, str) else body.text
    query = body.query(service, texts, request, long=body.long, alone=body.alone)
    answers = await while_connected(request, service.generate(query))
    write = partial(_generated, query, answers, request.scope[ARRIVED])
    return await service.in_turn(query.client, sum(len(answer.result.kept) for answer in answers), write)


async def explain(request: Request) -> Response:
    """`POST /v1/explain`"""
    service: Service = request.app.state.service
    body = checked(Explain, await read_json(request, service.limits))
    query = body.query(service, [body.text], request)
    explained, done = await while_connected(request, service.explain(query))
    write = partial(_explanation, explained, query.served, done.decode_seconds)
    return await service.in_turn(query.client, None, write)


def _generated(query: Query, answers: list[Answer], arrived: float) -> Response:
    results = [_result(answer) for answer in answers]
    seconds = round(time.monotonic() - arrived, 6)
    return json_response({"model": query.served.name, "results": results, "seconds": seconds})


def _result(answer: Answer) -> dict[str, Any]:
    result = answer.result
    return {
        **vars(result),
        "kept": [vars(token) for token in result.kept],
        "alternatives": [vars(other) for other in result.alternatives],
        "pieces": answer.pieces,
        "seconds": {"queue": round(answer.queue_seconds, 6), "decode": round(answer.decode_seconds, 6)},
        "batch": answer.batch,
    }


def _explanation(explained: Explained, served: Served, seconds: float) -> Response:
    """Source tokens with gates, output tokens with their characters, attention [T, N] as a mean of layers and heads."""
    weights = len(explained.output) * len(explained.source)
    if weights > MOST_WEIGHTS:
        raise Problem(
            413,
            f"text: the attention from {len(explained.output)} output tokens to {len(explained.source)} source tokens "
            f"is too large for an answer; at most {MOST_WEIGHTS:,} weights are sent",
        )
    kept = set(explained.kept)
    gates = [None] * len(explained.source) if explained.gates is None else explained.gates.tolist()
    answer = {
        "model": served.name,
        "gated": served.model.is_gated,
        "text": explained.text,
        "score": explained.score,
        "source": [
            {**asdict(token), "kept": i in kept, "gate": gate}
            for i, (token, gate) in enumerate(zip(explained.source, gates, strict=True))
        ],
        "kept_tokens": len(kept),
        "cut": explained.cut,
        "output": [
            {"text": token, "start": start, "end": end}
            for token, (start, end) in zip(explained.output, served.model.output_spans(explained), strict=True)
        ],
        "attention": [[round(weight, DIGITS) for weight in row] for row in explained.attention.tolist()],
        "dropped_attention": [round(weight, DIGITS) for weight in explained.zero_row.mean((0, 1)).tolist()],
        "seconds": round(seconds, 6),
    }
    return json_response(answer)
