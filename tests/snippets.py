"""The code, commands and links in our documents, so that tests check what readers copy and follow."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def documents() -> list[str]:
    """Every Markdown page that users read, as paths from the root."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [str(page.relative_to(ROOT)) for page in pages]


def text_of(document: str) -> str:
    return (ROOT / document).read_text(encoding="utf-8")


def blocks(document: str, *languages: str) -> list[str]:
    """The fenced blocks of a document in these languages, in order; "" is a fence without one."""
    return [body for language, body in FENCE.findall(text_of(document)) if language in languages]


def python_blocks(document: str) -> list[str]:
    """The Python blocks of a document, in order."""
    return blocks(document, "python")


def python_block(document: str, containing: str) -> str:
    """The one Python block of a document that contains a string."""
    (block,) = [block for block in python_blocks(document) if containing in block]
    return block
