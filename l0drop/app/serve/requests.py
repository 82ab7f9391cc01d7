"""Bodies within limits, strict JSON, and errors as answers."""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from l0drop.app.command import ARGUMENT
from l0drop.app.serve.limits import Limits

JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"
GRANULARITIES = "timestamp_granularities[]"
"""OpenAI's list in a form: the field may occur several times."""
MOST_FIELDS = 30
"""Fields of a form with a file."""
MOST_NAMES = 1000
"""Keys of a JSON object: each unknown one costs an error."""
MOST_CONTAINERS = 10_000
"""Lists and objects in JSON: reading two million bytes of empty lists would take most of a second."""
MOST_DIGITS = 40
"""Characters of a number in a form."""
SLOT = "l0drop.slot"
"""Name in the scope of a request: its Slot among those in progress."""
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)


class Problem(Exception):  # noqa: N818
    """A request that gets an error as its answer."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, dict(headers or {})


def refused(error: Exception, path: str = "", name: str = "") -> Problem:
    """An error of the library as an answer: its arguments are fields of the request, whose names are not quoted.

    path, name: where the model is stored, and what clients call it.
    """
    message = ARGUMENT.sub(lambda found: found[0].strip("`"), str(error))
    return Problem(400, message.replace(path, name) if path else message)


class Strict(BaseModel):
    """A request body: unknown fields and other types are errors."""

    model_config = ConfigDict(extra="forbid", strict=True)


Texts = Annotated[list[str], Field(fail_fast=True)]
"""A list whose first fault ends its check, because a body has room for a million faults."""
Body = TypeVar("Body", bound=BaseModel)


def shown(value: str) -> str:
    """A client's value as an error quotes it."""
    return repr(value if len(value) <= MOST_DIGITS else value[:MOST_DIGITS] + "…")


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    # a client's own invalid characters may be quoted in an error
    content = _written(value).encode("utf-8", "backslashreplace")
    return Response(content, status, dict(headers or {}), media_type=JSON)


def _written(value: Any) -> str:
    """JSON, item by item down to the second level: other threads wait while an item is written."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_ENCODER.encode(name)}: {_list(part)}' for name, part in value.items())}}}"
    return _list(value)


def _list(value: Any) -> str:
    return f"[{', '.join(map(_ENCODER.encode, value))}]" if isinstance(value, list) else _ENCODER.encode(value)


def media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def read_body(request: Request, limits: Limits, most: int | None = None) -> bytes:
    """The body, refused as early as possible if it is too large, compressed, or too slow."""
    most = limits.body if most is None else most
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise Problem(415, "Content-Encoding: compressed bodies are not accepted")
    length = request.headers.get("content-length", "0")
    if not length.isdecimal():
        raise Problem(400, "Content-Length: expected a number")
    too_large = Problem(413, f"the body is larger than {most:,} bytes", {"Connection": "close"})
    if int(length) > most:
        raise too_large
    chunks, size = [], 0
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for chunk in request.stream():
                size += len(chunk)
                if size > most:
                    raise too_large
                request.scope[SLOT].hold(len(chunk))
                chunks.append(chunk)
    except TimeoutError:
        raise Problem(
            408, f"the body did not arrive within {limits.body_seconds:g} s", {"Connection": "close"}
        ) from None
    except ClientDisconnect:
        raise Problem(400, "the client closed the connection") from None
    return b"".join(chunks)


def parse_json(body: bytes) -> Any:
    """JSON without duplicate keys, NaN and infinity, which parsers read differently."""
    if _count(body, b"[{") > MOST_CONTAINERS and _count(_STRING.sub(b"", body), b"[{") > MOST_CONTAINERS:
        raise Problem(400, f"JSON: has more than {MOST_CONTAINERS:,} lists and objects")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(pairs) > MOST_NAMES:
            raise Problem(400, f"JSON: an object has {len(pairs):,} keys; at most {MOST_NAMES:,} are read")
        found: dict[str, Any] = {}
        for name, value in pairs:
            if name in found:
                raise Problem(400, f"JSON: the key {name!r} occurs twice")
            found[name] = value
        return found

    def no_constant(name: str) -> Any:
        raise Problem(400, f"JSON: {name} is not a JSON value")

    try:
        return json.loads(body.decode("utf-8"), object_pairs_hook=unique, parse_constant=no_constant)
    except UnicodeDecodeError as error:
        raise Problem(400, f"JSON: byte {error.start} is not valid UTF-8") from None
    except ValueError as error:
        raise Problem(400, f"JSON: {error}") from None
    except RecursionError:
        raise Problem(400, "JSON: nested too deeply") from None


def _count(body: bytes, characters: bytes) -> int:
    return sum(body.count(character) for character in characters)


async def read_json(request: Request, limits: Limits, most: int | None = None) -> Any:
    if media_type(request) != JSON:
        raise Problem(415, f"Content-Type: expected {JSON}")
    return parse_json(await read_body(request, limits, most))


def checked(kind: type[Body], value: Any) -> Body:
    """The body as an object; a Problem that names the field at fault."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"] if not str(part).startswith(("list[", "constrained-")))
        message = first["msg"][0].lower() + first["msg"][1:]
        raise Problem(400, f"{where}: {message}" if where else message) from None
    except RecursionError:
        raise Problem(400, "JSON: nested too deeply") from None


def _number(value: str, name: str) -> float:
    if value.isascii() and len(value) <= MOST_DIGITS:
        with suppress(ValueError):
            return float(value)
    raise Problem(400, f"{name}: expected a number, got {shown(value)}")


def _whole(value: str, name: str) -> int:
    if not (value.isascii() and value.isdecimal() and len(value) <= MOST_DIGITS):
        raise Problem(400, f"{name}: expected a whole number, got {shown(value)}")
    return int(value)


def _truth(value: str, name: str) -> bool:
    if value not in ("true", "false"):
        raise Problem(400, f"{name}: expected true or false, got {shown(value)}")
    return value == "true"


_FORM_TYPES: dict[str, Callable[[str, str], Any]] = {
    **dict.fromkeys(("alternatives", "max_memory", "max_new_tokens", "num_beams", "seed"), _whole),
    **dict.fromkeys(("keep", "length_penalty", "shift", "temperature", "timeout"), _number),
    **dict.fromkeys(("alone", "dense", "kept", "spectrogram", "stream", "timestamps"), _truth),
}


def form_value(name: str, value: str) -> Any:
    """A field of a form with the type that its name stands for."""
    return _FORM_TYPES[name](value, name) if name in _FORM_TYPES else value


async def parse_multipart(request: Request, body: bytes, most_bytes: int, most_fields: int) -> FormData:
    """A form with at most one file; of another field, at most `most_bytes` are read. Everything stays in memory."""

    async def stream() -> AsyncGenerator[bytes, None]:
        yield body

    parser = MultiPartParser(request.headers, stream(), max_files=1, max_fields=most_fields, max_part_size=most_bytes)
    parser.spool_max_size = len(body) + 1
    try:
        return await parser.parse()
    except (MultiPartException, KeyError, ValueError) as error:
        raise Problem(400, f"form: {getattr(error, 'message', error)}") from None


async def read_upload(request: Request, limits: Limits) -> tuple[bytes, dict[str, Any]]:
    """The content of a form's `file`, and the other fields. The file's name is not used."""
    if media_type(request) != MULTIPART:
        raise Problem(415, f"Content-Type: expected {MULTIPART}")
    body = await read_body(request, limits, limits.audio_body)
    form = await parse_multipart(request, body, limits.body, MOST_FIELDS)
    file = form.get("file")
    if not isinstance(file, UploadFile):
        raise Problem(400, "file: expected a sound file")
    values: dict[str, Any] = {}
    for name, value in form.multi_items():
        if name == "file":
            continue
        if name == GRANULARITIES and isinstance(value, str):
            values.setdefault(name, []).append(value)
            continue
        if name in values or not isinstance(value, str):
            raise Problem(400, f"form: the field {name!r} occurs twice or is a file")
        values[name] = form_value(name, value)
    return await file.read(), values
