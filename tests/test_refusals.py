"""Every refusal in `refusals.tsv`, by the app and connections without sockets, and the first ones on the wire.

A row has the protocol, the server's settings, the request, the status or code of the answer, and its text. A request is
the target of a handshake, a method with target, content type and body, or else a message on an open connection.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from model.ctc.beam import BeamDecoder
from server.models.loading import LoadedModel
from tests.support.protocols.protocol_bench import PATHS, refusal_of
from tests.support.servers.app_bench import AppBench, form_of, text_of
from tests.support.servers.fakes import WAIT_S
from tests.support.servers.live_server import LiveServer
from tests.support.servers.recognizers.spelling import CONFIG, SpellingModel, spell
from tests.support.servers.two_models import two_models
from tests.support.servers.uploaded import encoded

SERVERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "lenient": {"lenient_features": True},
    "strict": {"model_aliases": {"whisper-1": "default"}},
    "keys": {"api_keys": ["k3y"]},
    "signed": {"api_keys": ["k3y"], "twilio_auth_token": "t0ken", "twilio_public_url": "wss://calls.example/v1/twilio"},
    "small": {"max_upload_bytes": 20_000, "max_channels": 1},
    "closed": {"admin_local": False},
    "speakers": {"speakers": True},
    "voices": {"speakers": True, "voices": Path(__file__).parent},  # a folder without voices
    "two models": {"model": two_models},
    "beam": {"model": lambda: [LoadedModel.of(SpellingModel(), beam_search())]},
}
REPEATED = re.compile(r"<<(.+?)\*(\d+)>>")  # `<<x*300>>` is an x 300 times
FILE = {"file": ("hi.wav", encoded(spell("hi"), "WAV"))}
OWN_FORMS = {"openai": "openai"}  # of handshakes
PAGE = Path(__file__).parents[1] / "docs" / "errors.md"


def beam_search() -> BeamDecoder:
    """Return a decoder with key terms."""
    return BeamDecoder(CONFIG.vocabulary, CONFIG.frame_s, beams=4)


@dataclass(frozen=True)
class Row:
    """One refusal."""

    protocol: str
    server: str
    request: str
    status: str
    text: str

    @property
    def sent(self) -> str:
        """The request as it is sent."""
        return REPEATED.sub(lambda found: found[1] * int(found[2]), self.request)


LINES = (Path(__file__).parent / "refusals.tsv").read_text(encoding="utf-8").splitlines()
ROWS = [Row(*line.split("\t")) for line in LINES]
HANDSHAKES = [row for row in ROWS if row.request.startswith("/")]
REQUESTS = [row for row in ROWS if row.protocol.startswith("http ")]  # and the interface whose form the answer has
MESSAGES = [row for row in ROWS if row not in HANDSHAKES and row not in REQUESTS]


@cache
def app(server: str) -> AppBench:
    """Return an app with the settings of this name."""
    settings = dict(SERVERS[server])
    return AppBench(settings.pop("model", lambda: None)(), **settings)


def answered(row: Row) -> httpx.Response:
    """Return the answer of the app to a handshake or request."""
    if row in HANDSHAKES:
        return app(row.server).handshake(row.sent)
    method, target, kind, body = [*row.sent.split(" ", 3), "", ""][:4]
    if kind == "form":
        return app(row.server).request(method, target, files=FILE, data=json.loads(body))
    content = body.encode("latin-1").decode("unicode_escape").encode("latin-1")
    return app(row.server).request(method, target, content=content, headers={"Content-Type": kind} if kind else {})


@pytest.mark.parametrize("row", [*HANDSHAKES, *REQUESTS], ids=lambda row: f"{row.server} {row.request[:60]}")
def test_a_request_is_refused_with_its_status_and_text(row: Row) -> None:
    before, answer = app(row.server).refused, answered(row)
    assert (str(answer.status_code), text_of(answer)) == (row.status, row.text)
    form = form_of(answer)
    assert form == (row.protocol.removeprefix("http ") if row in REQUESTS else OWN_FORMS.get(row.protocol, "deepgram"))
    assert app(row.server).refused == before + (form != "plain" or answer.status_code in (404, 405)), "under /admin"
    assert (answer.status_code == 405) == ("allow" in answer.headers)
    assert answer.headers.get("allow", "") in row.text


@pytest.mark.parametrize("row", MESSAGES, ids=lambda row: f"{row.protocol} {row.request[:60]}")
def test_a_message_is_refused_with_its_code_and_text(row: Row) -> None:
    refusal = refusal_of(row.protocol, row.sent, lenient=row.server == "lenient", beam=row.server == "beam")
    assert refusal == (row.status, row.text)


def first_rows() -> list[Row]:
    """Return the first handshake and the first message of each protocol."""
    rows = [row for row in (*HANDSHAKES, *MESSAGES) if row.protocol != "twilio call"]
    return list({(row.protocol, row in HANDSHAKES): row for row in reversed(rows)}.values())


@pytest.mark.parametrize("row", first_rows(), ids=lambda row: f"{row.protocol} {row.request[:30]}")
def test_the_first_refusals_of_a_protocol_are_the_same_on_the_wire(
    row: Row, live_server: Callable[..., LiveServer]
) -> None:
    host = f"ws://{live_server(**SERVERS[row.server]).host}"
    if row in HANDSHAKES:
        with pytest.raises(InvalidStatus) as refused:
            connect(host + row.sent, compression=None, open_timeout=WAIT_S)
        denial = refused.value.response
        answer = httpx.Response(
            denial.status_code, headers=list(denial.headers.raw_items()), content=bytes(denial.body or b"")
        )
        assert (str(answer.status_code), text_of(answer)) == (row.status, row.text)
        return
    with connect(host + PATHS[row.protocol], compression=None, open_timeout=WAIT_S) as socket:
        socket.send(row.sent)
        frames = []
        with contextlib.suppress(ConnectionClosed):
            while json.dumps(row.text, ensure_ascii=False) not in "".join(frames):
                frames.append(str(socket.recv(timeout=WAIT_S)))
        if row.status == "1008":
            assert (socket.close_code, socket.close_reason) == (1008, f"DATA-0000 {row.text}")
        else:
            assert row.status in frames[-1]


def pattern(text: str) -> str:
    """Return a text of the page as a regular expression; its words in capitals are placeholders."""
    parts = re.split(r"(\b(?:NAME|VALUE|FIELD|TYPE|KIND|WHAT|N)\b|…)", text)
    held = {"N": r"[\d,.]+", "…": ".*"}
    return "".join(held.get(part, "[^;]+") if at % 2 else re.escape(part) for at, part in enumerate(parts))


def listed() -> Iterator[tuple[str, str]]:
    """Return each text of the page as an expression, with its status or code."""
    code = ""
    for line in PAGE.read_text(encoding="utf-8").partition("## `tutti serve`")[0].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("|") and len(cells) > 1:
            code = cells[0].strip("`|").strip() or code
            yield from ((code, pattern(text.removeprefix("DATA-0000 "))) for text in re.findall("`([^`]+)`", cells[1]))


def test_every_refusal_is_on_the_page_of_errors() -> None:
    texts = list(listed())
    missing = {
        (row.status, row.text)
        for row in ROWS
        if row.status != "skipped"
        and not any(code.split(" ")[0] == row.status and re.fullmatch(text, row.text) for code, text in texts)
    }
    assert sorted(missing) == []
