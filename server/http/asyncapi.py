"""`/asyncapi.yaml`: the description of the sockets, as it was written. OpenAPI cannot describe them."""

from __future__ import annotations

from importlib.resources import files

from fastapi import FastAPI, Response

FILE = "asyncapi.yaml"
MEDIA_TYPE = "application/yaml"  # RFC 9512


def describe_sockets(app: FastAPI) -> None:
    """Serve the file, read once."""
    content = (files("server") / FILE).read_bytes()

    async def asyncapi() -> Response:
        return Response(content, media_type=MEDIA_TYPE)

    app.add_api_route(f"/{FILE}", asyncapi, methods=["GET"], include_in_schema=False)
