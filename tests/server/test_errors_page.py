"""docs/errors.md lists every refusal, close code and error code of the server, and the text of each close."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from server.errors import CLOSES, REFUSALS, Close, CloseReason, Refusal, TicketCode
from server.protocols.deepgram.messages import ConfigureCode, ErrorVariant
from server.protocols.flux.messages import FluxCode
from server.protocols.forwarding import UNDELIVERED
from server.protocols.openai.messages import STATUS_CODES, ErrorType
from server.protocols.openai.settings import ErrorCode

PAGE = Path(__file__).parents[2] / "docs" / "errors.md"
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")] for line in PAGE.read_text().splitlines() if "|" in line
]
CODES = {row[0] for row in ROWS}
MESSAGE_CODES = [*ErrorVariant, *ConfigureCode, *TicketCode, *ErrorCode, *FluxCode]
NAMED = re.compile(r"`([A-Za-z]\w*_\w+|\w+Error|DATA-0000)`")
LIBRARY_CLOSES = {1002, 1007, 1009, 1011}  # sent by the WebSocket library


@pytest.mark.parametrize(
    "refusal", list(dict.fromkeys(REFUSALS.values())), ids=lambda refusal: f"{refusal.status}-{refusal.reason}"
)
def test_every_refusal_has_a_row(refusal: Refusal) -> None:
    assert f"{refusal.status} `{refusal.err_code}`" in CODES


@pytest.mark.parametrize(("reason", "close"), [*CLOSES.items(), ("undelivered", UNDELIVERED)])
def test_every_close_has_a_row_with_its_text(reason: CloseReason | str, close: Close) -> None:
    text = f"`{close.reason}`" if close.reason else "–"
    assert [f"{close.code}", text] in [row[:2] for row in ROWS], reason


@pytest.mark.parametrize("code", MESSAGE_CODES)
def test_every_code_of_a_message_has_a_row(code: str) -> None:
    assert f"`{code}`" in CODES


@pytest.mark.parametrize("status", sorted({refusal.status for refusal in REFUSALS.values()}))
def test_every_status_has_its_type_and_code_on_openai_paths(status: int) -> None:
    auth = ErrorType.AUTHENTICATION if status in (401, 403) else ErrorType.INVALID_REQUEST
    kind = ErrorType.SERVER if status >= 500 else auth
    code = f"`{STATUS_CODES[status]}`" if status in STATUS_CODES else "null"
    (row,) = [row for row in ROWS if len(row) == 3 and str(status) in re.split(r"\D+", row[0])]
    assert row[1:] == [f"`{kind}`", code]


def test_no_row_is_of_a_code_that_the_server_does_not_have() -> None:
    known = {*MESSAGE_CODES, *(refusal.err_code for refusal in REFUSALS.values())}
    assert {code for cell in CODES for code in NAMED.findall(cell)} == known
    closed = {int(code) for row in ROWS for code in re.findall(r"\b1\d{3}\b", row[0])}
    assert closed == {close.code for close in CLOSES.values()} | LIBRARY_CLOSES


def test_the_page_is_linked_from_the_page_of_faults() -> None:
    assert "(errors.md)" in (PAGE.parent / "faults.md").read_text()
