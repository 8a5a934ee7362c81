"""Rest of live streams, turns and uploads of a server: what is computed, and what is said."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from websockets.exceptions import InvalidStatus

import server.settings as settings_module
from server.streaming.websocket import StreamWebSocket
from tests.support.protocols.listen_query import RAW
from tests.support.servers.live_server import Frame, LiveServer, transcript
from tests.support.servers.recognizers.spelling import silence, voiced
from tests.support.servers.uploaded import encoded, said

RESTED = 'tutti_rested_steps_total{model="spelling"}'
RESTING = 'tutti_resting_channels{model="spelling"}'
USED = 'tutti_state_pool_slots_used{model="spelling"}'
AUDIO = np.concatenate([voiced("ab"), silence(4.0), voiced("cd"), silence(3.0)])


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with LiveServer(rest_s=0.8, max_openings_per_s="off") as server:
        yield server


@pytest.mark.parametrize(("asked", "rests"), [({}, True), ({"rest": "false"}, False), ({"rewind": "0"}, True)])
def test_a_stream_rests_unless_it_asks_not_to(server: LiveServer, asked: dict[str, str], rests: bool) -> None:
    before = server.metric(RESTED)
    with server.listen(**asked) as client:
        client.send(AUDIO)
        assert transcript(client.finish()) == "ab cd"
    assert (server.metric(RESTED) - before > 40) is rests
    assert server.metric(RESTING) == 0.0


def test_finals_of_channels_that_rest_are_complete_and_in_order_before_a_close_that_waited(server: LiveServer) -> None:
    """The close is read in the events of one channel's step; the other's step was answered in the same batch."""
    with server.listen(channels=2, multichannel="true") as client:
        client.send(np.repeat(np.concatenate([voiced("ab"), silence(12.0)]), 2))
        finals = [frame for frame in client.finish() if frame["type"] == "Results"]
    for channel in range(2):
        spans = [(one["start"], one["duration"]) for one in finals if one["channel_index"][0] == channel]
        assert [start for start, _ in spans[1:]] == pytest.approx([start + length for start, length in spans[:-1]])
        assert spans[0][0] == 0.0


@pytest.mark.parametrize(("rest", "rests"), [("", True), ("&rest=false", False)])
def test_an_upload_rests_unless_it_asks_not_to(server: LiveServer, rest: str, rests: bool) -> None:
    before = server.metric(RESTED)
    with server.http as client:
        answer = client.post(f"/v1/listen?endpointing=true{rest}", content=encoded(AUDIO, "wav"))
    assert said(answer.json()) == "ab cd"
    assert (server.metric(RESTED) - before > 40) is rests


def test_more_streams_than_slots_are_served_while_most_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two may speak, eight may be connected, and the model has four slots: none is cut, and no text changes."""
    monkeypatch.setattr(settings_module, "UPLOADS_A_PLACE", 1)
    monkeypatch.setattr(settings_module, "FORK_SLOTS", 1)
    limits = {"max_streams": 2, "max_uploads": 1, "max_channels": 1, "max_openings_per_s": "off"}
    with LiveServer(rest_s=0.8, **limits) as small:
        talks: list[Talk] = []
        for count in range(2, 10, 2):
            talks += [Talk(small), Talk(small)]
            for talk in talks[-2:]:
                talk.say(voiced("ab"), silence(3.0))
            assert (small.metric(RESTING), small.metric(USED)) == (count, 0)
        refused(small)  # all places are taken
        for talk in talks:
            talk.say(voiced("cd"))
        assert (small.metric(RESTING), small.metric(USED), small.metric("tutti_sessions_max")) == (0, 8, 2)
        talks.pop().client.finish()
        refused(small)  # more speak than may
        for talk in talks:
            talk.say(silence(3.0), voiced("ef"))
        assert [transcript(talk.frames + talk.client.finish()) for talk in talks] == ["ab cd ef"] * 7


def test_a_resting_stream_leaves_a_part_of_a_step_unread_but_no_control_message(
    server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    least, read_at_least = list[int](), StreamWebSocket.read_at_least
    monkeypatch.setattr(
        StreamWebSocket, "read_at_least", lambda self, count: least.append(count) or read_at_least(self, count)
    )
    talk = Talk(server)
    talk.say(voiced("ab"), silence(3.2))
    for _ in range(2):  # the answer to a step is sent before the next read
        talk.say(silence(0.08))
    assert max(least) == len(silence(0.08).tobytes()) - 1
    talk.client.send(silence(0.04))
    talk.client.say("Finalize")
    talk.client.until(lambda frame: frame["from_finalize"])
    assert least[-1] == 1
    talk.say(silence(3.2), voiced("cd"))
    assert least[-1] == 1
    assert transcript(talk.frames + talk.client.finish()) == "ab cd"


class Talk:
    """A stream that waits for the results of what it has said."""

    def __init__(self, server: LiveServer) -> None:
        self.client, self.frames, self.said_s = server.listen(step_results="true"), list[Frame](), 0.0

    def say(self, *audio: np.ndarray) -> None:
        self.client.send(np.concatenate(audio))
        self.said_s += sum(map(len, audio)) / 16_000
        whole_s = self.said_s // 0.08 * 0.08 - 1e-3
        self.frames += self.client.until(lambda frame: frame["start"] + frame["duration"] > whole_s)


def refused(server: LiveServer) -> None:
    with pytest.raises(InvalidStatus) as error:
        server.listen()
    assert error.value.response.status_code == 503


def test_a_server_without_rest_refuses_to_let_a_stream_rest() -> None:
    with LiveServer() as server, server.http as client:
        answer = client.post(f"/v1/listen?{RAW}&rest=true", content=silence(1.0).tobytes())
    assert answer.status_code == 400
    assert answer.json()["err_msg"].startswith("rest: streams do not rest on this server")
