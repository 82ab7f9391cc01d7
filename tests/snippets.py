"""The code in our documents, so that tests run what readers do."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def python_blocks(document: str) -> list[str]:
    """The fenced Python blocks of a document, in order."""
    return re.findall(r"^```python\n(.*?)^```", (ROOT / document).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
