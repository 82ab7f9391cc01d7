"""`l0drop serve`: options, loading, uvicorn."""

import importlib
import ipaddress
import logging
import os
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from l0drop.app.options import Device, Dtype, DtypeOption, Threads, use_threads
from l0drop.app.terminal import say, warn

if TYPE_CHECKING:
    from l0drop.app.serve.models import Models, Served, ServedSpeech

KEYS = "L0DROP_KEYS"
"""Keys in the environment, separated by white space."""


def serve(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="[NAME=]MODEL...",
            help="Run folders, model folders or names on the hub, each with a name for clients. "
            "Default name: the last part of the path.",
        ),
    ],
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(metavar="N", help="The port to listen on; 0 takes a free one.", min=0, max=65535)
    ] = 8000,
    languages: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=EN:DE", help="The language pair of a model, for LibreTranslate's clients."),
    ] = None,
    summarizes: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A model that summarizes; the others translate.")
    ] = None,
    keys: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help=f"Keys that clients must send, one per line. Also: {KEYS}."),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A host name that clients use. Default: local names, if ADDRESS is local."),
    ] = None,
    cors: Annotated[
        list[str] | None, typer.Option(metavar="ORIGIN", help="A web origin whose pages may call the service.")
    ] = None,
    detector: Annotated[
        str | None, typer.Option(metavar="MODULE:NAME", help="A function that detects languages, for source=auto.")
    ] = None,
    shadow: Annotated[
        float, typer.Option(metavar="SHARE", help="The share of texts and recordings to decode a second time.")
    ] = 0.0,
    shadow_model: Annotated[
        str | None, typer.Option(metavar="NAME", help="The model for the second decoding. Default: the same, dense.")
    ] = None,
    max_text: Annotated[int, typer.Option(metavar="N", help="Maximum characters of one text.", min=1)] = 50_000,
    max_texts: Annotated[int, typer.Option(metavar="N", help="Maximum texts of one request.", min=1)] = 256,
    queue: Annotated[int, typer.Option(metavar="N", help="Texts that may wait; more are refused.", min=1)] = 2048,
    timeout: Annotated[float, typer.Option(metavar="S", help="Seconds from a request to its answer.", min=0.1)] = 60.0,
    log_texts: Annotated[bool, typer.Option("--log-texts", help="Write texts and outputs to the log.")] = False,
    device: Device = None,
    dtype: DtypeOption = None,
    threads: Threads = None,
) -> None:
    """Answer clients of LibreTranslate, Hugging Face and OpenAI over HTTP, and show a page with the dropped tokens."""
    import uvicorn

    from l0drop.app.serve.guard import LOCAL, Access
    from l0drop.app.serve.limits import Limits
    from l0drop.app.serve.server import application, uvicorn_config
    from l0drop.app.serve.service import Service
    from l0drop.models.quiet import quiet_libraries

    quiet_libraries()
    use_threads(threads)
    limits = Limits(text=max_text, texts=max_texts, queue=queue, seconds=timeout)
    secrets = _keys(keys)
    if host not in LOCAL and not secrets:
        warn(f"anyone who can reach {host} can use the service; --keys FILE asks for a key")
    found = load_models(models, languages or [], summarizes or [], device, dtype)
    reference = shadow_reference(found, shadow, shadow_model)
    hosts = [_host(name) for name in allow_host or ()]
    access = Access(secrets, hosts or (LOCAL if host in LOCAL else ()), [_origin(given) for given in cors or ()])
    service = Service(found, limits, shadow, reference, log_texts)
    app = application(service, access, _detector(detector))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    for served in found:
        gates = "" if served.model.is_gated else ", no gates"
        say(f"{served.name}: {served.task}{gates}")
    server = uvicorn.Server(uvicorn_config(app, host=host, port=port))
    service.on_failure = partial(setattr, server, "should_exit", True)
    server.run()
    if service.failure is not None:
        raise ValueError(f"the service stopped, because a model cannot decode: {service.failure}")


def load_models(
    names: list[str], languages: list[str], summarizes: list[str], device: str | None, dtype: Dtype | None
) -> "Models":
    """The models to serve, from the command line's arguments."""
    from l0drop.app.serve.models import Models

    paths = dict(_named(given) for given in names)
    if len(paths) < len(names):
        raise ValueError("MODEL: two models have the same name; give them names: NAME=MODEL")
    pairs = dict(_pair(given) for given in languages)
    for option, given in (("--languages", pairs), ("--summarizes", summarizes)):
        unknown = [name for name in given if name not in paths]
        if unknown:
            raise ValueError(f"{option}: {unknown[0]} is not one of the models ({', '.join(paths)})")
    return Models(
        [_served(name, path, pairs.get(name), name in summarizes, device, dtype) for name, path in paths.items()]
    )


def shadow_reference(models: "Models", share: float, name: str | None) -> "Served | None":
    """The model of the second decoding; None for the same model, dense."""
    from l0drop.app.serve.models import Served

    texts = [served for served in models if isinstance(served, Served)]
    if name is None:
        if share and not any(served.model.is_gated for served in models):
            raise ValueError("--shadow: no model has gates, so the second decoding would be the same")
        if share and (without := [served.name for served in texts if served.model.engine.shortener is not None]):
            raise ValueError(
                f"--shadow: {without[0]} has a shortener instead of gates, so it has no dense decoding; "
                "name a dense model with --shadow-model"
            )
        return None
    if not share:
        raise ValueError("--shadow-model: without --shadow SHARE, nothing is decoded a second time")
    reference = next((served for served in texts if served.name == name), None)
    if reference is None:
        raise ValueError(f"--shadow-model: {name} is not one of the text models that are served")
    if not any(served.model.is_gated for served in texts if served is not reference):
        raise ValueError(f"--shadow-model: no text model other than {name} has gates; there is nothing to compare")
    return reference


def _served(
    name: str, path: str, pair: tuple[str, str] | None, summarizes: bool, device: str | None, dtype: Dtype | None
) -> "Served | ServedSpeech":
    from l0drop.app.serve.models import Served, ServedSpeech, own_pair
    from l0drop.decoding.loading import load
    from l0drop.decoding.speech import SpeechModel

    model = load(path, device, dtype)
    if isinstance(model, SpeechModel):
        return ServedSpeech(name, model)
    return Served(name, model, "summarization" if summarizes else "translation", pair or own_pair(model))


def _named(given: str) -> tuple[str, str]:
    """The name and the path of a model argument."""
    name, equals, path = given.partition("=")
    if equals and name and "/" not in name and not Path(given).exists():
        return name, path
    return (given if not Path(given).is_dir() else Path(given).resolve().name), given


def _pair(given: str) -> tuple[str, tuple[str, str]]:
    name, _, pair = given.rpartition("=")
    source, _, target = pair.partition(":")
    if not (name and source and target):
        raise ValueError(f"--languages: expected NAME=SOURCE:TARGET, such as sparse=en:de, got {given!r}")
    return name, (source, target)


def _keys(file: Path | None) -> list[str]:
    """The keys of the file and the environment."""
    found = {KEYS: os.environ.get(KEYS, "").split()}
    if file is not None:
        found["--keys"] = file.read_text(encoding="utf-8").split()
        if not found["--keys"]:
            raise ValueError(f"--keys: {file} has no key")
    for name, keys in found.items():
        for number, key in enumerate(keys, 1):
            if not (key.isascii() and key.isprintable()):
                raise ValueError(
                    f"{name}: key {number} has characters that a header cannot carry; use letters and digits"
                )
            if len(key) < 8:
                raise ValueError(f"{name}: key {number} has fewer than 8 characters and could be guessed")
    return [key for keys in found.values() for key in keys]


def _host(name: str) -> str:
    """A host name as browsers send it; an IP address counts as one."""
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        if not re.fullmatch(r"[A-Za-z0-9._-]+", name):
            raise ValueError(f"--allow-host: expected a host name without a port, got {name!r}") from None
    return name.lower()


def _origin(given: str) -> str:
    """A web origin as browsers send it."""
    if not re.fullmatch(r"\*|https?://[^/?#\s]+", given, re.IGNORECASE):
        raise ValueError(f"--cors: expected an origin, such as https://example.org, or *, got {given!r}")
    return given.lower()


def _detector(name: str | None) -> Any:
    if name is None:
        return None
    module, _, function = name.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), function)):
        raise ValueError(f"--detector: expected MODULE:NAME of a function, got {name!r}")
    try:
        found = getattr(importlib.import_module(module), function, None)
    except ImportError as error:
        raise ValueError(f"--detector: {module} cannot be imported: {error}") from error
    if not callable(found):
        raise ValueError(f"--detector: {module} has no function {function}")
    return found
