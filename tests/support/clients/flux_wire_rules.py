"""Rules of Deepgram's Flux protocol, checked on all messages that a server sent on one connection.

Source: `listen.v2` of deepgram-sdk 7.17.0 and @deepgram/sdk 5.13.0, and what LiveKit's and Pipecat's clients read.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Message = dict[str, Any]

UPDATE_S = 0.25
UPDATED_WORDS_PER_S = 400
STEP_S = 0.24  # of the default model
ROUNDING_S = 0.0011  # times have three digits

TURN_INFO = {
    "type", "request_id", "sequence_id", "event", "turn_index", "audio_window_start", "audio_window_end", "transcript",
    "words", "end_of_turn_confidence",
}  # fmt: skip
"""Fields of every event: clients index them."""
OPTIONAL = {"trigger", "languages", "languages_hinted", "backchannel"}
WORD = {"word", "confidence", "start", "end"}
FIELDS = {
    "Connected": {"type", "request_id", "sequence_id"},
    "ConfigureSuccess": {"type", "request_id", "sequence_id", "thresholds", "keyterms"},
    "ConfigureFailure": {"type", "request_id", "sequence_id", "code", "error_code", "description"},
    "Warning": {"type", "request_id", "sequence_id", "code", "description"},
    "Error": {"type", "request_id", "sequence_id", "code", "description"},
}
THRESHOLDS = {"eot_threshold", "eot_timeout_ms"}  # in every ConfigureSuccess
TRIGGERS = {"model", "manual", "timeout"}
BEFORE = {
    "StartOfTurn": {"none"},
    "Update": {"speaking", "awaiting"},
    "EagerEndOfTurn": {"speaking"},
    "TurnResumed": {"awaiting"},
    "EndOfTurn": {"speaking", "awaiting"},
}
AFTER = {"StartOfTurn": "speaking", "EagerEndOfTurn": "awaiting", "TurnResumed": "speaking", "EndOfTurn": "none"}


def check_flux(messages: Sequence[Message], *, step_s: float = STEP_S, open_turn: bool = False) -> list[Message]:
    """Check a whole conversation; return its turn events. `open_turn`: it was cut, so its last turn may be open."""
    assert messages, "nothing was sent"
    assert messages[0]["type"] == "Connected"
    assert [message["type"] for message in messages].count("Connected") == 1
    assert [message["sequence_id"] for message in messages] == list(range(len(messages)))
    assert len({uuid.UUID(message["request_id"]) for message in messages}) == 1
    for place, message in enumerate(messages):
        if message["type"] != "TurnInfo":
            assert set(message) - {"backchannel", "extra", "language_hints", "numerals"} == FIELDS[message["type"]], (
                message
            )
        if message["type"] == "ConfigureSuccess":
            assert set(message["thresholds"]) - {"eager_eot_threshold"} == THRESHOLDS
        if message["type"] == "ConfigureFailure":
            assert message["code"] == message["error_code"]
        assert message["type"] != "Error" or place == len(messages) - 1, "a message after Error"
    turns = [message for message in messages if message["type"] == "TurnInfo"]
    states = _Turns(step_s)
    for turn in turns:
        _check_fields(turn)
        states.take(turn)
    assert open_turn or states.state == "none", "the last turn was not ended"
    return turns


@dataclass
class _Turns:
    """The state machine as a client follows it."""

    step_s: float
    state: str = "none"
    index: int = 0
    eager: str = ""  # text of the early end that stands
    start_s: float = 0.0
    last_s: float = 0.0  # end of the audio of the last event

    def take(self, turn: Message) -> None:
        """Check one event after those before it."""
        event, end_s = turn["event"], turn["audio_window_end"]
        assert self.state in BEFORE[event], (self.state, turn)
        assert turn["turn_index"] == self.index, turn
        if event == "EagerEndOfTurn":
            assert turn["words"], "an early end without words"
        if self.state == "awaiting" and event in ("Update", "EndOfTurn"):
            assert turn["transcript"] == self.eager, turn
        self._check_times(turn)
        self.eager = turn["transcript"] if event == "EagerEndOfTurn" else self.eager
        self.state = AFTER.get(event, self.state)
        self.index += event == "EndOfTurn"
        self.last_s = end_s

    def _check_times(self, turn: Message) -> None:
        """An event at least every 0.25 s of audio in a turn, within one step; an update no sooner. In a long turn
        updates are rarer. A turn begins with its voice, or with its first word if that began before.
        """
        start_s, end_s, words = turn["audio_window_start"], turn["audio_window_end"], turn["words"]
        assert 0 <= start_s <= end_s, turn
        assert not words or start_s <= words[0]["start"], turn
        assert end_s >= self.last_s - ROUNDING_S, turn
        if self.state == "none":
            self.start_s = start_s
            return
        assert start_s == self.start_s or (start_s < self.start_s and start_s == words[0]["start"]), turn
        self.start_s = start_s
        since_s = end_s - self.last_s
        most_s = max(UPDATE_S, len(words) / UPDATED_WORDS_PER_S)
        assert since_s <= most_s + self.step_s + ROUNDING_S, f"{since_s:g} s without an event before {turn}"
        if turn["event"] == "Update":
            assert since_s >= UPDATE_S - self.step_s - ROUNDING_S, f"an update after {since_s:g} s: {turn}"


def _check_fields(turn: Message) -> None:
    assert set(turn) - OPTIONAL == TURN_INFO, turn
    assert ("trigger" in turn) == (turn["event"] == "EndOfTurn"), turn
    assert turn.get("trigger", "model") in TRIGGERS
    assert 0 <= turn["end_of_turn_confidence"] <= 1
    words = turn["words"]
    assert turn["transcript"] == " ".join(word["word"] for word in words), turn
    for word in words:
        assert set(word) == WORD, word
        assert 0 <= word["confidence"] <= 1
        assert word["start"] <= word["end"]
    starts = [word["start"] for word in words]
    assert starts == sorted(starts), turn
