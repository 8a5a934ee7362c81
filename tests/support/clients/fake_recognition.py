"""Fake of a server's recognition and tickets: frames in, frames out, without a socket and a clock.

Each step of 80 ms of a channel is one word, a checksum of its bytes and of the terms in force at its end; some words
end an utterance. Finalize and CloseStream make a word of the rest, and steps begin anew at that sample. So any audio
or message that is lost, doubled or moved by a byte changes the text. As of a real server, answers that need no step
may arrive before an older ticket.
"""

from __future__ import annotations

import base64
import zlib
from dataclasses import asdict, dataclass, field
from typing import Any

import msgspec

Frame = dict[str, Any]
TICKET_STEPS = 5
ENDS = 7  # one word in seven ends an utterance
CONTEXT_S = 30.0


@dataclass(frozen=True, slots=True)
class Shape:
    """Layout of raw audio."""

    rate: int = 1000
    sample_bytes: int = 2
    channels: int = 1
    multichannel: bool = False

    @property
    def frame_bytes(self) -> int:
        return self.sample_bytes * self.channels

    @property
    def step_bytes(self) -> int:
        return round(0.08 * self.rate) * self.frame_bytes

    def seconds(self, size: int) -> float:
        return size / self.frame_bytes / self.rate


@dataclass(slots=True)
class State:
    """Content of a ticket; positions are bytes of the server's own time line."""

    received: int = 0  # up to the last whole step
    grid: int = 0  # where steps begin
    starts: list[int] = field(default_factory=list)  # of each channel's open segment
    words: list[list[tuple[str, int, int]]] = field(default_factory=list)  # its words
    finals: int = 0
    keyterms: list[str] = field(default_factory=list)
    context: list[str] = field(default_factory=list)
    context_until: int = 0


class FakeRecognition:
    """Recognition of one connection. All `keys` open tickets, the first seals them; without keys Resume is unknown."""

    def __init__(
        self, shape: Shape, keys: tuple[str, ...] = (), ticket_steps: int = TICKET_STEPS, *, interims: bool = True
    ) -> None:
        self.shape = shape
        self.closed = False
        self.received_audio = bytearray()  # everything, in the order of arrival
        self._keys = keys
        self._ticket_steps = ticket_steps
        self._interims = interims
        self._late: list[Frame] = []  # a ticket that waits for the model
        self._said: list[list[Frame]] = []  # finals of this connection, by channel
        self._begin(State())
        self._steps = 0
        self._known_finals = 0  # finals that the client has
        self._told_s = -1.0

    def _begin(self, state: State) -> None:
        transcripts = self.shape.channels if self.shape.multichannel else 1
        state.starts = state.starts or [state.received] * transcripts
        state.words = state.words or [[] for _ in range(transcripts)]
        self._said = [[] for _ in range(transcripts)]
        self._state = state
        self._rest = b""  # of a step, and of a sample

    @property
    def tickets(self) -> bool:
        """True if it sends tickets."""
        return bool(self._keys)

    @property
    def _transcripts(self) -> int:
        return len(self._state.starts)

    def hear(self, frame: bytes | str) -> list[Frame]:
        """Return the answers to one frame."""
        if isinstance(frame, bytes):
            assert frame, "an empty frame ends a stream"
            return self._audio(frame)
        return self._text(msgspec.json.decode(frame))

    def _text(self, message: Frame) -> list[Frame]:
        match message["type"]:
            case "Finalize":
                channels = [message["channel"]] if "channel" in message else None
                return [*self._tickets_due(), *self._flush(channels, from_finalize=True)]
            case "CloseStream":
                return self._close()
            case "Rewind":
                return self._corrections(message)
            case "KeepAlive":
                return []
        return [self._answer(message)]

    def _answer(self, message: Frame) -> Frame:
        match message["type"]:
            case "Configure" | "Context":
                return self._change_terms(message)
            case "Resume" if self._keys:
                return self._resume(message)
        return {"type": "Error", "variant": "SchemaError", "description": "unknown message type"}

    # Audio

    def _audio(self, pcm: bytes) -> list[Frame]:
        self.received_audio += pcm
        self._rest += pcm
        frames = self._tickets_due()
        size = self.shape.step_bytes
        while len(self._rest) >= size:
            step, self._rest = self._rest[:size], self._rest[size:]
            frames += self._step(step)
        return frames

    def _step(self, step: bytes) -> list[Frame]:
        state = self._state
        first, state.received = state.received, state.received + len(step)
        self._steps += 1
        frames: list[Frame] = []
        for channel in range(self._transcripts):
            word = self._word(step, channel)
            state.words[channel].append((word, first, state.received))
            if zlib.crc32(word.encode()) % ENDS == 0:
                frames += self._final(channel, speech_final=True)
            elif self._interims:
                frames += self._interim(channel)
        if self._keys and self._steps % self._ticket_steps == 0:
            frames += self._tickets_due()
            self._late.append(self.ticket())
        return frames

    def _tickets_due(self) -> list[Frame]:
        due, self._late = self._late, []
        return due

    @property
    def _terms(self) -> list[str]:
        state = self._state
        return [*state.keyterms, *(state.context if state.received <= state.context_until else ())]

    def _change_terms(self, message: Frame) -> Frame:
        if message["type"] == "Configure":
            self._state.keyterms = message["keyterms"]
            return {"type": "ConfigureSuccess", "keyterms": message["keyterms"]}
        state, size = self._state, round(CONTEXT_S * self.shape.rate) * self.shape.frame_bytes
        terms = message["text"].split()
        here = state.received + len(self._rest)
        earlier = state.context if here <= state.context_until else []
        state.context = [*(term for term in earlier if term not in terms), *terms]
        state.context_until = here + size
        return {"type": "ContextSuccess", "keyterms": list(state.context)}

    def _word(self, pcm: bytes, channel: int) -> str:
        own = pcm
        if self.shape.multichannel:
            width, size = self.shape.sample_bytes, self.shape.frame_bytes
            own = b"".join(pcm[at : at + width] for at in range(channel * width, len(pcm), size))
        return f"w{zlib.crc32(own + '|'.join(self._terms).encode()) % 10000}"

    def _flush(self, channels: list[int] | None, *, from_finalize: bool) -> list[Frame]:
        """Return finals of all audio; the rest of a step, in whole samples, is a word."""
        state, size = self._state, self.shape.frame_bytes
        whole = len(self._rest) // size * size
        rest, self._rest = self._rest[:whole], self._rest[whole:]
        if rest:
            first, state.received = state.received, state.received + whole
            for channel in range(self._transcripts):
                state.words[channel].append((self._word(rest, channel), first, state.received))
        frames: list[Frame] = []
        for channel in range(self._transcripts) if channels is None else channels:
            frames += self._final(channel, speech_final=True, from_finalize=from_finalize)
        return frames

    def _close(self) -> list[Frame]:
        frames = [*self._tickets_due(), *self._flush(None, from_finalize=False)]
        self.closed = True
        duration_s = self.shape.seconds(self._state.received)
        return [*frames, {"type": "Metadata", "request_id": "r", "duration": duration_s, "channels": 1}]

    def drain(self) -> list[Frame]:
        """Return the messages before a close with 1012: a ticket, or without keys the finals."""
        return [*self._tickets_due(), self.ticket()] if self._keys else self._close()

    # Results

    def _final(self, channel: int, **flags: bool) -> list[Frame]:
        state = self._state
        frame = self._results(channel, is_final=True, **flags)
        self._said[channel].append(frame)
        state.starts[channel], state.words[channel] = state.received, []
        state.finals += 1
        return [frame] if state.finals > self._known_finals else []

    def _corrections(self, asked: Frame) -> list[Frame]:
        """Return for each channel the words of its finals of the last seconds, of which this connection knows."""
        since_s = self.shape.seconds(self._state.received + len(self._rest)) - asked["seconds"]
        frames = []
        for channel in [asked["channel"]] if "channel" in asked else range(self._transcripts):
            finals = self._said[channel]
            words = [word for said in finals for word in said["channel"]["alternatives"][0]["words"]]
            words = [word for word in words if word["end"] > since_s]
            end_s = finals[-1]["start"] + finals[-1]["duration"] if finals else 0.0
            start_s = words[0]["start"] if words else end_s
            text = " ".join(word["word"] for word in words)
            frames.append(
                {
                    "type": "Results",
                    "channel_index": [channel, self._transcripts],
                    "start": start_s,
                    "duration": end_s - start_s,
                    "is_final": True,
                    "correction": True,
                    "channel": {"alternatives": [{"transcript": text, "confidence": 0.5, "words": words}]},
                }
            )
        return frames

    def _interim(self, channel: int) -> list[Frame]:
        frame = self._results(channel, is_final=False)
        return [frame] if frame["start"] + frame["duration"] > self._told_s + 1e-6 else []

    def _results(self, channel: int, *, is_final: bool, **flags: bool) -> Frame:
        state, seconds = self._state, self.shape.seconds
        words = [
            {"word": word, "start": seconds(first), "end": seconds(last), "confidence": 0.5}
            for word, first, last in state.words[channel]
        ]
        text = " ".join(word for word, _, _ in state.words[channel])
        start = state.starts[channel]
        return {
            "type": "Results",
            "channel_index": [channel, self._transcripts],
            "start": round(seconds(start), 6),
            "duration": round(seconds(state.received - start), 6),
            "is_final": is_final,
            "speech_final": False,
            "from_finalize": False,
            "channel": {"alternatives": [{"transcript": text, "confidence": 0.5, "words": words}]},
        } | flags

    # Tickets

    def ticket(self) -> Frame:
        """Return a ticket of the stream up to the last whole step."""
        sealed = msgspec.json.encode({"key": self._keys[0], "state": asdict(self._state)})
        return {
            "type": "Ticket",
            "ticket": base64.urlsafe_b64encode(sealed).decode().rstrip("="),
            "audio_s": round(self.shape.seconds(self._state.received), 6),
            "finals": self._state.finals,
        }

    def _resume(self, message: Frame) -> Frame:
        assert not self.received_audio, "Resume comes before all audio"
        if "ticket" not in message:
            received = round(message["from_s"] * self.shape.rate) * self.shape.frame_bytes
            self._begin(State(received=received, finals=message["finals"]))
        else:
            text = message["ticket"]
            opened = msgspec.json.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
            if opened["key"] not in self._keys:
                return {"type": "ResumeRefused", "code": "TICKET_FORGED", "description": "not of this key"}
            self._begin(msgspec.convert(opened["state"], State))
            self._told_s = message["cursor_s"]
        self._known_finals = message["finals"]
        return {"type": "Resumed", "audio_s": round(self.shape.seconds(self._state.received), 6)}


def undisturbed(shape: Shape, script: list[bytes | str]) -> list[Frame]:
    """Return the server's frames for a script over one connection."""
    server = FakeRecognition(shape)
    return [frame for said in script for frame in server.hear(said)]
