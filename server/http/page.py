"""The web page at `/`: a fixed set of files, read once, each with its own route; other files cannot be requested.

The page is a client of the live endpoint.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from importlib.resources import files

from fastapi import APIRouter, Request, Response

PAGE = "index.html"
SAMPLE = "demo.flac"  # one of the shipped recordings
MEDIA_TYPES = {
    "css": "text/css; charset=utf-8",
    "flac": "audio/flac",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
SCRIPTS = (
    "app.js", "continuity.js", "meters.js", "pcm.js", "sources.js", "subtitles.js", "transcript.js", "turns.js",
    "tutti.js", "unacknowledged.js", "upload.js", "worklet.js",
)  # fmt: skip
ASSETS = (*SCRIPTS, "style.css", "icon.svg")
# The page loads nothing from other sites, and no site may embed it. 'self' includes WebSockets to the same host.
# blob: is a file that the user has chosen, while it plays.
POLICY = "default-src 'self'; media-src 'self' blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
HEADERS = {
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "microphone=(self), camera=(), geolocation=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",  # cached but revalidated each time, so that files of two versions never mix
}

Answer = Callable[[Request], Awaitable[Response]]


def page_router() -> APIRouter:
    """Return the routes of the page, `/`, and of its scripts, style and sample, `/web/…`."""
    router = APIRouter(include_in_schema=False)
    web = files("server") / "web"
    router.add_api_route("/", file_answer(PAGE, (web / PAGE).read_bytes()), methods=["GET", "HEAD"])
    contents = {name: (web / name).read_bytes() for name in ASSETS}
    contents["sample.flac"] = (files("model") / "samples" / SAMPLE).read_bytes()
    for name, content in contents.items():
        router.add_api_route(f"/web/{name}", file_answer(name, content), methods=["GET", "HEAD"])
    return router


def file_answer(name: str, content: bytes, policy: str = POLICY) -> Answer:
    """Return the endpoint of one file, which answers 304 if the client has the file."""
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {**HEADERS, "Content-Security-Policy": policy, "ETag": tag}
    media_type = MEDIA_TYPES[name.rpartition(".")[2]]

    async def answer(request: Request) -> Response:
        known = request.headers.get("if-none-match", "")
        if tag in known or known.strip() == "*":
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers, media_type=media_type)

    return answer
