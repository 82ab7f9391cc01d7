"""Text from data made safe for a page: it stays text, whatever it contains."""

import re
from html import escape

CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
"""Characters that a page cannot hold."""


def printable(value: object) -> str:
    """The text with a replacement character for each character that a page cannot hold."""
    return CONTROL.sub("\ufffd", str(value))


def html(value: object) -> str:
    """Escaped for HTML, quotes included."""
    return escape(printable(value))


def code(value: object) -> str:
    """One line of code in Markdown; it has more backticks around it than any run of them inside."""
    shown = printable(" ".join(str(value).split()))
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", shown)), default=0))
    space = " " if shown.startswith("`") or shown.endswith("`") else ""
    return f"{fence}{space}{shown}{space}{fence}"


def markdown(value: object) -> str:
    """One line, escaped for Markdown: no markup, no mentions, no links."""
    shown = escape(printable(" ".join(str(value).split())), quote=False)
    shown = re.sub(r"([\\`*_{}\[\]#|~])", r"\\\1", shown)
    return shown.replace("@", "@\u200b").replace("://", ":\u200b//")
