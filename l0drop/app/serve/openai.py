"""The dialect of OpenAI: the list of models."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from l0drop.app.serve.models import Served
from l0drop.app.serve.requests import json_response


async def list_models(request: Request) -> Response:
    """`GET /v1/models`"""
    state = request.app.state
    return json_response({"object": "list", "data": [_model(served, state.began) for served in state.service.models]})


async def get_model(request: Request) -> Response:
    """`GET /v1/models/NAME`"""
    state = request.app.state
    return json_response(_model(state.service.models.named(request.path_params["name"]), state.began))


def _model(served: Served, created: int) -> dict[str, Any]:
    return {
        "id": served.name,
        "object": "model",
        "created": created,
        "owned_by": "l0drop",
        "l0drop": served.facts(),
    }
