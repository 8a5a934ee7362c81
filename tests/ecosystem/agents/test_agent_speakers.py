"""Diarization by the options of LiveKit's and Pipecat's clients, unmodified."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from tests.ecosystem.agents.test_livekit import FINAL, finish, said
from tests.ecosystem.driving import Driver
from tests.ecosystem.recordings import Spoken, plain, text
from tests.ecosystem.relay import Connection, Relay
from tests.ecosystem.serving import KEY, ServerProcess

Before = Callable[[ServerProcess], Relay]
SAID = ("order", "porch_fan")
AUDIO = ("order", 1.6, "porch_fan", 1.6)


@pytest.fixture(scope="module")
def speaking() -> Iterator[ServerProcess]:
    with ServerProcess(speakers="true") as server:
        yield server


def speakers_on_the_wire(stream: Connection) -> list[list[int]]:
    """Return the speakers of the words of each final that has words."""
    finals = [frame["channel"]["alternatives"][0]["words"] for frame in stream.results if frame["is_final"]]
    return [[word["speaker"] for word in words] for words in finals if words]


def test_livekits_option_names_the_speaker_of_each_final(
    speaking: ServerProcess, relay: Before, livekit: Driver, spoken: Spoken
) -> None:
    before = relay(speaking)
    steps = [("push", spoken(*AUDIO))]
    livekit.begin("stream", host=before.host, key=KEY, steps=steps, options={"enable_diarization": True})
    events = finish(livekit, before, ends=len(SAID))
    finals = [event for event in events if event["event"] == FINAL]
    assert said(events) == text(*SAID)
    expected = [Counter(speakers).most_common(1)[0][0] for speakers in speakers_on_the_wire(before.only())]
    assert [event["speaker"] for event in finals] == [f"S{speaker}" for speaker in expected]
    assert finals[0]["speaker"] == "S0"


def test_pipecats_setting_gives_speakers_in_the_result_of_a_frame(
    speaking: ServerProcess, relay: Before, pipecat: Driver, spoken: Spoken
) -> None:
    before = relay(speaking)
    steps = [("connected",), ("push", spoken(*AUDIO)), ("wait", "final", 2)]
    options = {"settings": {"diarize": True}}
    events = pipecat.run("stream", host=before.host, key=KEY, steps=steps, options=options)
    finals = [event for event in events if event["event"] == "final"]
    assert plain(" ".join(event["text"] for event in finals)) == text(*SAID)
    assert [event["speakers"] for event in finals] == speakers_on_the_wire(before.only())
    assert finals[0]["speakers"][0] == 0
