"""Optional packages: the extra that installs each of them, and the error for a missing one."""

from collections.abc import Iterator
from contextlib import contextmanager

EXTRAS = {
    "accelerate": "train",
    "ctranslate2": "bench",
    "datasets": "hub",
    "entmax": "entmax",
    "filelock": "train",
    "jiwer": "audio",
    "matplotlib": "study",
    "pydantic": "train",
    "python_multipart": "serve",
    "rouge_score": "train",
    "prometheus_client": "serve",
    "sacrebleu": "train",
    "soundfile": "audio",
    "soxr": "audio",
    "starlette": "serve",
    "tensorboard": "logging",
    "uvicorn": "serve",
    "yaml": "train",
}
"""From the module's name to the extra's; `study` includes `train`."""


class MissingPackageError(ImportError):
    """An optional package is not installed; the message says how to install it."""


@contextmanager
def needed_for(purpose: str, *, study: bool = False) -> Iterator[None]:
    """Turn a failed import of an optional package into an error that names its extra.

    study: the caller needs all of `study`, so name that extra even if a package of `train` is found missing first.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        extra = "study" if study and EXTRAS[package] == "train" else EXTRAS[package]
        raise MissingPackageError(
            f"{purpose} needs packages that are not installed ({package}): pip install 'l0drop[{extra}]'", name=package
        ) from error
