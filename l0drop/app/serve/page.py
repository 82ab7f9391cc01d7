"""The page that shows what was dropped: one file without external resources."""

import base64
import hashlib
import re
from functools import cache
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response


async def show(request: Request) -> Response:
    """`GET /`"""
    html, policy = _page()
    return HTMLResponse(html, headers={"Content-Security-Policy": policy, "Cache-Control": "no-cache"})


@cache
def _page() -> tuple[str, str]:
    """The page, and a policy that allows its own script and style, and requests to this service, and nothing else."""
    html = (files("l0drop.app.serve") / "page.html").read_text(encoding="utf-8")
    allowed = {tag: " ".join(_hash(part) for part in _inline(html, tag)) for tag in ("script", "style")}
    policy = "; ".join(
        [
            "default-src 'none'",
            f"script-src {allowed['script']}",
            f"style-src {allowed['style']}",
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        ]
    )
    return html, policy


def _inline(html: str, tag: str) -> list[str]:
    return re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
