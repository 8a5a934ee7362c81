"""Checks the rules that hold for every stream, on the frames that the server sent."""

from __future__ import annotations

import itertools
import json

import pytest

from tests.ecosystem.recordings import plain
from tests.ecosystem.relay import Connection, Frame
from tests.ecosystem.serving import KEY, OTHER_KEY, THIRD_KEY
from tests.support.clients.flux_wire_rules import check_flux

RESULT_KEYS = {
    "type", "channel_index", "start", "duration", "is_final", "speech_final", "from_finalize", "channel", "metadata",
}  # fmt: skip
"""Fields that are always present, because clients index them."""


ERR_CODES = {
    400: "INVALID_QUERY_PARAMETER",
    401: "INVALID_AUTH",
    403: "INSUFFICIENT_PERMISSIONS",
    429: "TOO_MANY_REQUESTS",
    503: "SERVICE_UNAVAILABLE",
}


REFUSED = [
    ("unknown key", {}, 401, []),
    (KEY, {"encoding": "g729"}, 400, []),
    (KEY, {}, 429, [KEY]),
    (THIRD_KEY, {}, 503, [KEY, OTHER_KEY]),
]
"""Key and options of a stream that `strict_server` refuses, the status, and the keys of streams that are open."""


def check_refusal(refused: Connection, status: int) -> None:
    """Check status, headers and body of a refused handshake; a temporary refusal has a Retry-After."""
    assert refused.status == status
    body = json.loads(refused.body)
    assert body["err_code"] == ERR_CODES[status]
    assert body["request_id"] == refused.headers["dg-request-id"]
    assert body["err_msg"] == refused.headers["dg-error"]
    assert ("retry-after" in refused.headers) == (status in (429, 503))


def check_stream(
    stream: Connection, said: str, *, seconds: float | None = None, code: int = 1000, hung_up: bool = False
) -> None:
    """Check order, tiling, exactly one Metadata, the close code, the words, and the covered audio if it is known.

    A client that hangs up by itself may be gone before the Metadata.
    """
    assert stream.status == 101
    assert "sec-websocket-extensions" not in stream.headers
    frames, results = stream.frames, stream.results
    metadata = [frame for frame in frames if frame["type"] == "Metadata"]
    if not hung_up:
        assert len(metadata) == 1
    assert metadata in ([], frames[-1:])
    assert stream.close_code == code
    assert all(set(frame) >= RESULT_KEYS for frame in results)
    cursor_s = _check_tiling(stream)
    if seconds is not None:
        assert cursor_s == pytest.approx(seconds, abs=1e-3)
        assert all(frame["duration"] == pytest.approx(seconds, abs=1e-3) for frame in metadata)
    ids = {frame["metadata"]["request_id"] for frame in results} | {frame["request_id"] for frame in metadata}
    assert ids == {stream.headers["dg-request-id"]}
    assert plain(stream.text) == said


def check_turns(
    stream: Connection, said: str, *, code: int = 1000, hung_up: bool = False, open_turn: bool = False
) -> list[Frame]:
    """Check a conversation of the Flux protocol, and the words of its ends of turns; return its turn events.

    A client that hangs up by itself may be gone before the close. `open_turn`: it was gone inside a turn.
    """
    assert stream.status == 101
    assert "sec-websocket-extensions" not in stream.headers
    turns = check_flux(stream.frames, open_turn=open_turn)
    assert stream.frames[0]["request_id"] == stream.headers["dg-request-id"]
    assert stream.close_code in ((code, None) if hung_up else (code,))
    assert plain(" ".join(turn["transcript"] for turn in turns if turn["event"] == "EndOfTurn")) == said
    return turns


def _check_tiling(stream: Connection) -> float:
    """Check that finals tile the time and interims grow within their final; return the end of the last final."""
    cursor_s, shown_s = 0.0, 0.0
    for result in stream.results:
        assert result["start"] == pytest.approx(cursor_s, abs=1e-3)
        end_s = result["start"] + result["duration"]
        assert end_s >= shown_s - 1e-3, "an older interim after a newer one"
        shown_s = end_s
        cursor_s = end_s if result["is_final"] else cursor_s
        if not result["is_final"]:
            assert (result["speech_final"], result["from_finalize"]) == (False, False)
    finals = [result for result in stream.results if result["is_final"]]
    words = [word for final in finals for word in final["channel"]["alternatives"][0]["words"]]
    assert all(word["start"] <= word["end"] for word in words)
    assert all(a["start"] <= b["start"] for a, b in itertools.pairwise(words))
    return cursor_s
