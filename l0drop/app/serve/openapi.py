"""The OpenAPI description, from the same classes that check the requests."""

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from l0drop import __version__
from l0drop.app.serve.guard import KEY_IN_BODY, Access
from l0drop.app.serve.huggingface import AudioInputs, Inputs
from l0drop.app.serve.libretranslate import Detect, Translate
from l0drop.app.serve.native import Explain, Generate
from l0drop.app.serve.openai import Transcription
from l0drop.app.serve.requests import FORM, JSON, MULTIPART
from l0drop.app.serve.service import Service
from l0drop.app.serve.speech import Transcribe

UPLOADS: tuple[type[BaseModel], ...] = (Transcribe, Transcription)
"""Forms that have a file besides these fields."""
BODIES: tuple[type[BaseModel], ...] = (Generate, Explain, Inputs, AudioInputs, Translate, Detect, *UPLOADS)
ERRORS = {
    400: "a value, a field or the JSON is wrong; `error` names it",
    403: "a wrong key, or a request from another site",
    404: "there is no such model or path",
    405: "another method is needed",
    408: "the body did not arrive in time",
    413: "the body, a text or the list is too large",
    415: "another Content-Type is needed, or the body is compressed",
    421: "the service is not addressed by one of its names",
    500: "the service failed",
    503: "too much is in progress, or the models are not ready; Retry-After says when to try again",
    504: "the deadline passed",
    507: "the text does not fit into memory",
}
READING = (403, 404, 405, 421, 500, 503)
TOKEN = {
    "type": "object",
    "required": ["text", "start", "end"],
    "properties": {
        "text": {"type": "string"},
        "start": {"type": ["integer", "null"]},
        "end": {"type": ["integer", "null"]},
    },
}
STRINGS = {"type": "array", "items": {"type": "string"}}
ONE_OR_MORE = {"anyOf": [{"type": "string"}, STRINGS]}


def description(service: Service, access: Access) -> dict[str, Any]:
    """The OpenAPI 3.1 document of a service."""
    _, definitions = models_json_schema(
        [(body, "validation") for body in BODIES], ref_template="#/components/schemas/{model}"
    )
    for upload in UPLOADS:
        schema = definitions["$defs"][upload.__name__]
        schema["properties"]["file"] = {"type": "string", "contentMediaType": "application/octet-stream"}
        schema["required"] = [*schema.get("required", ()), "file"]
    names = list(service.models.by_name)
    model = {"name": "name", "in": "path", "required": True, "schema": {"type": "string", "enum": names}}
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "l0drop serve",
            "version": __version__,
            "description": "Encoder-decoders that drop encodings, for clients that exist.",
        },
        "paths": {
            "/v1/generate": {"post": _post("Decode texts", Generate, _GENERATED)},
            "/v1/explain": {"post": _post("One text with gates and attention", Explain, _EXPLAINED)},
            "/v1/transcribe": {"post": _upload("Transcribe a recording", Transcribe, _TRANSCRIBED)},
            "/v1/audio/transcriptions": {"post": _transcription()},
            "/v1/models": {"get": _get("The models, in OpenAI's schema", _MODELS)},
            "/v1/models/{name}": {"get": {**_get("One model", _MODEL), "parameters": [model]}},
            "/models/{name}": {"post": {**_task(), "parameters": [model]}},
            "/translate": {"post": _post("LibreTranslate", Translate, _TRANSLATED, FORM, MULTIPART)},
            "/detect": {"post": _post("LibreTranslate's language detection", Detect, _DETECTED, FORM, MULTIPART)},
            "/languages": {"get": {**_get("LibreTranslate's languages", _LANGUAGES), "parameters": [_API_KEY]}},
            "/frontend/settings": {"get": {**_get("LibreTranslate's settings", {"type": "object"}), "security": []}},
            "/health": {"get": {**_get("LibreTranslate's health check", _STATUS), "security": []}},
            "/healthz": {"get": {**_get("Whether the process answers", _STATUS), "security": []}},
            "/readyz": {"get": {**_get("Whether the models are ready", _STATUS), "security": []}},
            "/metrics": {
                "get": {
                    "summary": "Prometheus metrics",
                    "responses": {
                        "200": {"description": "metrics", "content": {"text/plain": {"schema": {"type": "string"}}}},
                        **_errors(READING),
                    },
                }
            },
        },
        "components": {"schemas": {**definitions["$defs"], "Error": _ERROR}},
    }
    if access.keys:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"key": []}]
        for path, methods in document["paths"].items():
            for operation in methods.values():
                if path in KEY_IN_BODY:  # a key in the header, or `api_key`, which a scheme cannot describe for a body
                    operation["security"] = [{"key": []}, {}]
                    operation["responses"]["403"] = _error("no valid key as `api_key` or in the Authorization header")
                elif operation.get("security") != []:
                    operation["responses"]["401"] = _error("a key is needed")
    return document


def _get(summary: str, answer: dict[str, Any]) -> dict[str, Any]:
    return {"summary": summary, "responses": {"200": _content("the answer", answer), **_errors(READING)}}


def _post(summary: str, body: type[BaseModel], answer: dict[str, Any], *others: str) -> dict[str, Any]:
    schema = {"$ref": f"#/components/schemas/{body.__name__}"}
    content = {JSON: {"schema": schema}, **{kind: {"schema": schema} for kind in others}}
    return {
        "summary": summary,
        "requestBody": {"required": True, "content": content},
        "responses": {"200": _content("the answer", answer), **_errors(tuple(ERRORS))},
    }


def _task() -> dict[str, Any]:
    """Hugging Face's tasks: texts, or audio as base64 or as raw bytes."""
    operation = _post("Hugging Face's translation, summarization and speech recognition", Inputs, _TASK)
    content = operation["requestBody"]["content"]
    either = [{"$ref": f"#/components/schemas/{body.__name__}"} for body in (Inputs, AudioInputs)]
    content[JSON] = {"schema": {"anyOf": either}}
    content["audio/*"] = {"schema": {"type": "string", "contentMediaType": "application/octet-stream"}}
    return operation


def _transcription() -> dict[str, Any]:
    """OpenAI's transcription, answered as JSON or as text."""
    operation = _upload("OpenAI's transcription", Transcription, _object(text=_STRING))
    operation["responses"]["200"]["content"]["text/plain"] = {"schema": _STRING}
    return operation


def _upload(summary: str, fields: type[BaseModel], answer: dict[str, Any]) -> dict[str, Any]:
    """A form with a file and other fields; see UPLOADS."""
    operation = _post(summary, fields, answer)
    content = operation["requestBody"]["content"]
    content[MULTIPART] = content.pop(JSON)
    return operation


def _errors(statuses: tuple[int, ...]) -> dict[str, Any]:
    return {str(status): _error(ERRORS[status]) for status in statuses}


def _error(text: str) -> dict[str, Any]:
    return _content(text, {"$ref": "#/components/schemas/Error"})


def _content(text: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": text, "content": {JSON: {"schema": schema}}}


def _object(**properties: Any) -> dict[str, Any]:
    """An object with these required properties."""
    return {"type": "object", "required": list(properties), "properties": properties}


_NUMBER, _INTEGER, _STRING, _BOOLEAN = ({"type": name} for name in ("number", "integer", "string", "boolean"))
_API_KEY = {"name": "api_key", "in": "query", "schema": _STRING, "description": "A key, unless the header has one."}
_STATUS = _object(status=_STRING)
_ERROR = {"type": "object", "required": ["error"], "properties": {"error": {}}}
_RESULT = _object(
    text=_STRING,
    score={"type": ["number", "null"]},
    kept={"type": "array", "items": TOKEN},
    source_tokens=_INTEGER,
    output_tokens=_INTEGER,
    cut=_INTEGER,
    alternatives={"type": "array", "items": _object(text=_STRING, score=_NUMBER)},
    pieces=_INTEGER,
    seconds={
        **_object(queue=_NUMBER, decode=_NUMBER),
        "description": "queue: of the piece that waited longest. decode: of its batch; of a text in several pieces the "
        "slowest batch, and with `alone` the sum of all pieces.",
    },
    batch=_INTEGER,
)
_GENERATED = _object(model=_STRING, results={"type": "array", "items": _RESULT}, seconds=_NUMBER)
_EXPLAINED = _object(
    model=_STRING,
    gated=_BOOLEAN,
    text=_STRING,
    score=_NUMBER,
    source={"type": "array", "items": TOKEN},
    kept_tokens=_INTEGER,
    cut=_INTEGER,
    output={"type": "array", "items": TOKEN},
    attention={"type": "array", "items": {"type": "array", "items": _NUMBER}},
    dropped_attention={"type": "array", "items": _NUMBER},
    seconds=_NUMBER,
)
_SPANS = {"type": "array", "items": {"type": "array", "items": _NUMBER, "minItems": 2, "maxItems": 2}}
_TRANSCRIBED = _object(
    model=_STRING,
    gated=_BOOLEAN,
    text=_STRING,
    segments={"type": "array", "items": _object(start=_NUMBER, end=_NUMBER, text=_STRING)},
    score={"type": ["number", "null"]},
    kept=_SPANS,
    audio_seconds=_NUMBER,
    windows=_INTEGER,
    rows=_INTEGER,
    rows_kept=_INTEGER,
    covered=_INTEGER,
    dropped=_NUMBER,
    dropped_of_all=_NUMBER,
    seconds=_object(queue=_NUMBER, decode=_NUMBER),
    batch=_INTEGER,
)
_MODEL = _object(id=_STRING, object=_STRING, created=_INTEGER, owned_by=_STRING, l0drop={"type": "object"})
_MODELS = _object(object=_STRING, data={"type": "array", "items": _MODEL})
_OUTPUTS = {"type": "array", "items": {"type": "object"}}
_TASK = {"anyOf": [_OUTPUTS, {"type": "array", "items": _OUTPUTS}, _object(text=_STRING)]}
_TRANSLATED = _object(translatedText=ONE_OR_MORE)
_DETECTED = {"type": "array", "items": _object(language=_STRING, confidence=_NUMBER)}
_LANGUAGES = {"type": "array", "items": _object(code=_STRING, name=_STRING, targets=STRINGS)}
