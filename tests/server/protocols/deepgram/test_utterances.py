"""`utterances`: one transcript of all channels of an upload; the order of a live stream's finals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from server.protocols.deepgram.transcript import utterances
from server.text.formatting import FormattedWord
from tests.server.recognition.results.test_spoken_order import LONG, TALK
from tests.support.servers.adapters import words
from tests.support.servers.live_server import LiveServer
from tests.support.servers.uploaded import encoded

Start = Callable[..., LiveServer]


def formatted(text: str, start_s: float) -> list[FormattedWord]:
    return [FormattedWord(word, word.text.title()) for word in words(text, start_s)]


def test_utterances_are_split_at_pauses_sorted_and_marked() -> None:
    left = [*formatted("one two three", 0.0), *formatted("four", 5.0)]
    right = [*formatted("five", 0.15), *formatted("six", 3.0), *formatted("seven", 3.5)]
    found = utterances([left, right], 0.8, punctuated=True, request_id="r")
    assert [(one.channel, one.speaker, one.transcript, one.overlap) for one in found] == [
        (0, 0, "One Two Three", True),
        (1, 1, "Five", True),
        (1, 1, "Six Seven", False),
        (0, 0, "Four", False),
    ]
    assert [(one.start, one.end) for one in found][:2] == [(0.0, 0.3), (0.15, 0.25)]
    assert [(word.word, word.punctuated_word, word.speaker) for word in found[2].words] == [
        ("six", "Six", 1),
        ("seven", "Seven", 1),
    ]
    assert len({one.id for one in found}) == 4
    assert len(utterances([left, right], 0.3, punctuated=True, request_id="r")) == 5
    assert utterances([[], []], 0.8, punctuated=True, request_id="r") == []


def test_a_recording_of_two_people_is_one_conversation(live_server: Start) -> None:
    server, body = live_server(), encoded(TALK, "WAV")
    query: dict[str, Any] = {"multichannel": "true", "utterances": "true", "utt_split": "0.5"}
    with server.http as http:
        answer = http.post("/v1/listen", params=query, content=body).json()
        mixed = http.post(
            "/v1/listen", params=query | {"multichannel": "false"}, content=encoded(TALK[:, 0], "WAV")
        ).json()
        without = http.post("/v1/listen", params={"multichannel": "true"}, content=body).json()
    found = answer["results"]["utterances"]
    assert [(one["speaker"], one["transcript"], one["overlap"]) for one in found] == [
        (0, LONG, True),
        (1, "yes", True),
        (1, "and then", False),
        (0, "nothing", False),
    ]
    assert set(found[0]) == {
        "start", "end", "confidence", "channel", "transcript", "words", "id", "speaker", "overlap",
    }  # fmt: skip
    assert [one["transcript"] for one in mixed["results"]["utterances"]] == [LONG, "nothing"]
    assert not {"speaker", "overlap"} & set(mixed["results"]["utterances"][0])
    assert without["results"]["utterances"] == []
