"""The dialect of LibreTranslate: Weblate, Subtitle Edit, Open WebUI and others speak it."""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any
from urllib.parse import parse_qsl

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from l0drop.app.serve.guard import client_of, deadline_of, require_key, while_connected
from l0drop.app.serve.models import Served
from l0drop.app.serve.native import Dialled
from l0drop.app.serve.requests import (
    FORM,
    JSON,
    MULTIPART,
    Problem,
    Texts,
    checked,
    form_value,
    json_response,
    media_type,
    parse_json,
    parse_multipart,
    read_body,
    shown,
)
from l0drop.app.serve.service import Answer, Query, Service

Detector = Callable[[str], list[dict[str, Any]]]
"""Takes a text; returns dictionaries with `language` and `confidence`, best first."""

MOST_KEY = 10_000
"""Bytes of the body of a GET, which holds nothing but a key."""
MOST_PAIRS = 10_000
"""Fields of a form; `q` may occur several times."""

NAMES = dict(
    pair.split(maxsplit=1)
    for pair in [
        "af Afrikaans",
        "ar Arabic",
        "bg Bulgarian",
        "bn Bengali",
        "ca Catalan",
        "cs Czech",
        "da Danish",
        "de German",
        "el Greek",
        "en English",
        "eo Esperanto",
        "es Spanish",
        "et Estonian",
        "eu Basque",
        "fa Persian",
        "fi Finnish",
        "fr French",
        "ga Irish",
        "gl Galician",
        "he Hebrew",
        "hi Hindi",
        "hr Croatian",
        "hu Hungarian",
        "id Indonesian",
        "is Icelandic",
        "it Italian",
        "ja Japanese",
        "ko Korean",
        "lt Lithuanian",
        "lv Latvian",
        "ms Malay",
        "nb Norwegian",
        "nl Dutch",
        "pl Polish",
        "pt Portuguese",
        "ro Romanian",
        "ru Russian",
        "sk Slovak",
        "sl Slovenian",
        "sq Albanian",
        "sr Serbian",
        "sv Swedish",
        "sw Swahili",
        "ta Tamil",
        "th Thai",
        "tl Tagalog",
        "tr Turkish",
        "uk Ukrainian",
        "ur Urdu",
        "vi Vietnamese",
        "zh Chinese",
    ]
)


class Translate(Dialled):
    """A request to translate. Unknown fields are ignored, as LibreTranslate ignores them."""

    model_config = ConfigDict(extra="ignore", strict=True)

    q: str | Texts
    source: str
    target: str
    format: str | None = "text"
    alternatives: Annotated[int, Field(ge=0)] | Annotated[str, Field(pattern=r"^[0-9]{1,9}$")] | None = None
    api_key: Annotated[str | None, Field(description="A key, unless the Authorization header has one.")] = None
    kept: Annotated[bool | None, Field(description="Add the source tokens that were kept.")] = None


class Detect(BaseModel):
    """A request to detect a language."""

    model_config = ConfigDict(extra="ignore", strict=True)

    q: str
    api_key: Annotated[str | None, Field(description="A key, unless the Authorization header has one.")] = None


async def translate(request: Request) -> Response:
    """`POST /translate`"""
    service: Service = request.app.state.service
    values = await _values(request)
    body = checked(Translate, values)
    if not body.q:
        raise Problem(400, "Invalid request: missing q parameter")
    if body.format not in (None, "text"):
        raise Problem(400, f"format: {body.format!r} is not supported; send format=text")
    texts = [body.q] if isinstance(body.q, str) else body.q
    source, detected = body.source, None
    if source == "auto":
        detected = (await _detect(request, texts))[0]
        source = detected["language"]
    served = service.models.for_pair(source, body.target)
    pair = served.languages(source, body.target)
    alternatives = int(body.alternatives or 0)
    generation: dict[str, Any] = {}
    if alternatives:
        generation = {
            "num_return_sequences": alternatives + 1,
            "num_beams": max(alternatives + 1, served.beams),
        }
    query = Query(served, texts, client_of(request), generation, body.dial(), pair, deadline=deadline_of(request))
    answers = await while_connected(request, service.generate(query))
    size = sum(len(answer.result.kept) for answer in answers) if body.kept else 0
    return await service.in_turn(query.client, size, partial(_answer, body, answers, detected))


def _answer(body: Translate, answers: list[Answer], detected: dict[str, Any] | None) -> Response:
    """One text gives strings, a list gives lists."""

    def one_or_all(values: list[Any]) -> Any:
        return values[0] if isinstance(body.q, str) else values

    answer = {"translatedText": one_or_all([answer.result.text for answer in answers])}
    if int(body.alternatives or 0):
        others = [[other.text for other in answer.result.alternatives] for answer in answers]
        answer["alternatives"] = one_or_all(others)
    if detected is not None:
        answer["detectedLanguage"] = one_or_all([detected for _ in answers])
    if body.kept:
        kept = [[{"start": t.start, "end": t.end} for t in a.result.kept if t.start is not None] for a in answers]
        answer["kept"] = one_or_all(kept)
    return json_response(answer)


async def detect(request: Request) -> Response:
    """`POST /detect`"""
    values = await _values(request)
    body = checked(Detect, values)
    if not body.q:
        raise Problem(400, "Invalid request: missing q parameter")
    return json_response(await _detect(request, [body.q]))


async def languages(request: Request) -> Response:
    """`GET /languages`"""
    service: Service = request.app.state.service
    key = request.query_params.get("api_key")
    if key is None:  # some clients send the key in the body of a GET
        body = await read_body(request, service.limits, MOST_KEY)
        key = dict(parse_qsl(body.decode("utf-8", "replace"))).get("api_key")
    require_key(request, key)
    targets: dict[str, list[str]] = {}
    for served in service.models:
        if isinstance(served, Served) and served.task == "translation":
            for source, target in served.pairs:
                if target not in targets.setdefault(source, []):
                    targets[source].append(target)
    codes = [*targets, *sorted({target for found in targets.values() for target in found} - targets.keys())]
    return json_response([{"code": code, "name": name_of(code), "targets": targets.get(code, [])} for code in codes])


async def settings(request: Request) -> Response:
    """`GET /frontend/settings`"""
    service: Service = request.app.state.service
    pair = next((pair for served in service.models for pair in served.pairs), None)
    source, target = pair or ("auto", "auto")
    return json_response(
        {
            "apiKeys": bool(request.app.state.access.keys),
            "keyRequired": bool(request.app.state.access.keys),
            "charLimit": service.limits.text,
            "filesTranslation": False,
            "supportedFilesFormat": [],
            "suggestions": False,
            "frontendTimeout": 500,
            "language": {
                "source": {"code": source, "name": name_of(source)},
                "target": {"code": target, "name": name_of(target)},
            },
        }
    )


async def health(request: Request) -> Response:
    """`GET /health`"""
    return json_response({"status": "ok"})


def name_of(code: str) -> str:
    """The English name of a language; its code if the name is unknown."""
    return NAMES.get(code.replace("-", "_").split("_")[0], code)


async def _detect(request: Request, texts: list[str]) -> list[dict[str, Any]]:
    """The languages of the first text."""
    detector: Detector | None = request.app.state.detector
    if detector is None:
        raise Problem(400, "no language detector is configured; name the source language")
    service: Service = request.app.state.service
    service.check_texts(texts)
    found = await service.detect(partial(detector, texts[0]), client_of(request), deadline_of(request))
    if not found:
        raise Problem(400, "the language of the text could not be detected; name the source language")
    return found


async def _values(request: Request) -> dict[str, Any]:
    """The fields of a request with a valid key. Without one, nothing is said about other faults of the body."""
    try:
        values = await _fields(request)
    except Problem:
        require_key(request, None)
        raise
    require_key(request, values.get("api_key"))
    return values


async def _fields(request: Request) -> dict[str, Any]:
    """The fields of a JSON object, or of a form."""
    limits = request.app.state.service.limits
    kind = media_type(request)
    if kind not in (JSON, FORM, MULTIPART):
        raise Problem(415, f"Content-Type: expected {JSON}, {FORM} or {MULTIPART}")
    body = await read_body(request, limits)
    if kind == JSON:
        values = parse_json(body)
        if not isinstance(values, dict):
            raise Problem(400, "JSON: expected an object")
        return values
    if kind == MULTIPART:
        return _form_values(await _multipart(request, body))
    service: Service = request.app.state.service  # a form of percent signs takes most of a second
    return _form_values(await service.in_turn(client_of(request), len(body), partial(_form, body)))


def _form(body: bytes) -> list[tuple[str, str]]:
    try:
        return parse_qsl(body.decode("utf-8"), keep_blank_values=True, errors="strict", max_num_fields=MOST_PAIRS)
    except ValueError as error:
        raise Problem(400, f"form: {error}") from None


async def _multipart(request: Request, body: bytes) -> list[tuple[str, str]]:
    form = await parse_multipart(request, body, len(body), MOST_PAIRS)
    pairs = [(name, value) for name, value in form.multi_items() if isinstance(value, str)]
    if len(pairs) < len(form.multi_items()):
        raise Problem(400, "form: files are not translated")
    return pairs


def _form_values(pairs: list[tuple[str, str]]) -> dict[str, Any]:
    """The fields of a form; `q` may occur several times."""
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name != "q" and name in values:
            raise Problem(400, f"form: the field {shown(name)} occurs twice")
        values[name] = [*values.get(name, ()), value] if name == "q" else form_value(name, value)
    if len(values.get("q", ())) == 1:
        (values["q"],) = values["q"]
    return values
