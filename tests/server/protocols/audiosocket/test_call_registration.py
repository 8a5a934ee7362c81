"""Options of one call of AudioSocket, registered by HTTP before it comes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import UUID

import httpx
import numpy as np
import pytest
from structlog.testing import capture_logs

from server.coordination import expected_calls
from tests.server.protocols.audiosocket.test_audiosocket_port import HANGUP, Call, audio_frames, frame, said, texts
from tests.support.servers.destination import destination, received_frames
from tests.support.servers.live_server import LiveServer
from tests.support.servers.recognizers.spelling import silence, spell

Start = Callable[..., LiveServer]
END = 0x00
ALICE, BOB = ({"Authorization": f"Token {key}"} for key in ("alice", "bob"))


@pytest.fixture
def receiver() -> Iterator[Any]:
    with destination() as found:
        yield found


def setting(receiver: Any, more: str = "") -> str:
    return f"0?forward_url={quote(receiver[0])}{more}"


def register(
    server: LiveServer, call: UUID, query: str = "", headers: dict[str, str] | None = None, body: bytes = b""
) -> httpx.Response:
    return server.http.post(f"/v1/audiosocket/{call}?{query}", headers=headers, content=body)


def talk(server: LiveServer, call: Call, text: str) -> bytes:
    call.identify()
    call.send(audio_frames(said(text)) + frame(END))
    return call.rest()


def test_a_call_has_its_options_once_and_the_ports_defaults_besides(live_server: Start, receiver: Any) -> None:
    server = live_server(audiosocket_port=setting(receiver, "&interim_results=true&redact=ssn"))
    with Call(server.audiosocket_port) as call:
        answer = register(server, call.uuid, "interim_results=false&redact=pci&tag=vip&ttl_seconds=90")
        assert (answer.status_code, answer.json()) == (200, {"uuid": str(call.uuid), "expires_in": 90})
        card = "four five three nine one four eight eight zero three four three six four six seven"
        assert talk(server, call, f"my card is {card} thanks") == b""
    frames = received_frames(receiver[1])
    assert texts(frames) == ["my card is [CREDIT_CARD_1] thanks"]
    assert all(one["result"]["is_final"] for one in frames if "is_final" in one.get("result", {}))
    with Call(server.audiosocket_port) as again:
        again.uuid = call.uuid
        talk(server, again, "hello")
    results = [one["result"] for one in received_frames(receiver[1]) if one["event"] == "transcript"]
    assert any(not one["is_final"] for one in results if "is_final" in one), "the options of the port"


def test_a_call_counts_for_the_key_that_registered_it_and_has_its_policy(
    live_server: Start, receiver: Any, tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"{hashlib.sha256(b'alice').hexdigest()} alice streams=1 redact=numbers\n")
    server = live_server(audiosocket_port=setting(receiver), api_keys_file=keys)
    with Call(server.audiosocket_port) as first, Call(server.audiosocket_port) as second, capture_logs() as log:
        for call in (first, second):
            assert register(server, call.uuid, headers=ALICE).status_code == 200
        first.identify()
        first.send(audio_frames(said("one two three")))
        server.wait_until(lambda: len(server.replica.sessions) == 1)
        second.identify()
        assert second.rest() == HANGUP
        first.send(frame(END))
        first.rest()
        assert [line["error"] for line in log if line.get("path") == "/audiosocket" and "error" in line] == [
            "TooManyStreams"
        ]
    assert texts(received_frames(receiver[1])) == ["[NUMBER_1]"]
    server.wait_idle()
    with Call(server.audiosocket_port) as third:
        register(server, third.uuid, headers=ALICE)
        assert talk(server, third, "hello") == b"", "the place of the first call was given back"


def test_only_registered_calls_come_in_where_the_operator_says_so(live_server: Start, receiver: Any) -> None:
    server = live_server(audiosocket_port=setting(receiver, "&only_registered=true"), api_keys=["alice", "bob"])
    with Call(server.audiosocket_port) as unknown, capture_logs() as log:
        unknown.identify()
        assert unknown.rest() == HANGUP
        assert [line["error"] for line in log if line.get("path") == "/audiosocket"] == ["NotAuthorized"]
    with Call(server.audiosocket_port) as call:
        assert register(server, call.uuid).status_code == 401
        assert register(server, call.uuid, headers=ALICE).status_code == 200
        assert register(server, call.uuid, "tag=again", ALICE).status_code == 200
        of_other = register(server, call.uuid, headers=BOB)
        assert (of_other.status_code, of_other.json()["err_msg"]) == (403, "this UUID was registered with another key")
        path = f"/v1/audiosocket/{str(call.uuid).upper()}"
        assert server.http.delete(path, headers=BOB).status_code == 404
        assert server.http.delete(path, headers=ALICE).status_code == 204
        gone = server.http.delete(path, headers=ALICE)
        assert (gone.status_code, gone.json()["err_msg"]) == (404, "no call with this UUID is expected for this key")
        call.identify()
        assert call.rest() == HANGUP


REFUSED = [
    ("encoding=mulaw", "encoding: not a parameter of /v1/listen for calls; leave it out"),
    ("forward_url=ws://elsewhere", "forward_url: not a parameter of /v1/listen for calls; leave it out"),
    ("resumable=true", "resumable: not a parameter of /v1/listen for calls; leave it out"),
    ("diarize=true", "diarize: not supported by this server"),
    ("redact=all", "redact: 'all' is not supported by this server"),
    ("ttl_seconds=0", "ttl_seconds: '0' is not valid; must be a whole number from 1 to 3600"),
    ("ttl_seconds=1&ttl_seconds=2", "ttl_seconds: given 2 times"),
    (f"tag={'x' * 4_100}", "query: has 4103 characters; the options of a call have at most 4096"),
]


@pytest.mark.parametrize(("query", "why"), REFUSED, ids=[why[:30] for _, why in REFUSED])
def test_what_a_call_cannot_have_is_refused_by_name(live_server: Start, receiver: Any, query: str, why: str) -> None:
    server = live_server(audiosocket_port=setting(receiver))
    refused = register(server, UUID(int=1), query)
    assert refused.status_code == 400
    assert refused.json()["err_msg"].startswith(why)
    assert len(server.replica.guard.coordinator.calls) == 0


def test_other_requests_are_refused(live_server: Start, receiver: Any) -> None:
    server = live_server(audiosocket_port=setting(receiver))
    refused = server.http.post("/v1/audiosocket/17")
    assert refused.json()["err_msg"].startswith("uuid: '17' is not valid; must be one such as 40325ec2-")
    assert register(server, UUID(int=1), body=b'{"tag":1}').json()["err_msg"].startswith("body: leave it empty")
    assert server.http.get(f"/v1/audiosocket/{UUID(int=1)}").status_code == 405
    assert live_server().http.post(f"/v1/audiosocket/{UUID(int=1)}").status_code == 404, "without the port"
    server.replica.sessions.draining = True
    assert register(server, UUID(int=1)).status_code == 503


def test_the_table_is_bounded_for_each_key_and_for_all(
    live_server: Start, receiver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expected_calls, "MAX_EXPECTED_OF_KEY", 2)
    monkeypatch.setattr(expected_calls, "MAX_EXPECTED", 3)
    server = live_server(audiosocket_port=setting(receiver), api_keys=["alice", "bob"])
    asked = [(1, ALICE), (2, ALICE), (3, ALICE), (4, BOB), (5, BOB)]
    answers = [register(server, UUID(int=number), headers=key) for number, key in asked]
    assert [answer.status_code for answer in answers] == [200, 200, 429, 200, 503]
    assert answers[2].json()["err_msg"] == "2 calls of this key are expected; delete one or retry later"
    assert answers[4].json()["err_msg"] == "3 calls are expected; retry later"
    assert register(server, UUID(int=1), "tag=x", ALICE).status_code == 200, "it replaces its options"


def test_silence_of_a_registered_call_is_no_reason_to_end_it_early(live_server: Start, receiver: Any) -> None:
    server = live_server(audiosocket_port=setting(receiver))
    with Call(server.audiosocket_port) as call:
        register(server, call.uuid, "endpointing=false")
        call.identify()
        call.send(audio_frames(np.concatenate([spell("hello", 8_000), silence(1.0, 8_000), spell(" you", 8_000)])))
        call.send(frame(END))
        call.rest()
    assert texts(received_frames(receiver[1])) == ["hello you"]
