"""Silence the progress bars and notices of transformers."""

from transformers.utils import logging


def quiet_libraries() -> None:
    """Keep Hugging Face's progress bars and warnings from breaking ours; errors are still shown."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
