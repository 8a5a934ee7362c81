"""What a wire protocol is, without its socket: frames of the client and events of recognition in, actions out.

Deepgram's is the native protocol and has its own way (`server.protocols.deepgram.live`); the others are adapters, each
a pure object that `server.protocols.adapter_connection` connects to a socket. An adapter decodes what its client sends
to the model's rate itself, because in these protocols the client may say what it sends after the connection is open.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from server.audio.pcm import PCM, Resampler
from server.audio.raw import PlainCodec, PlainReader
from server.recognition.events import Event, StepTiming
from server.streaming.outbox import FrameKind


class Say(msgspec.Struct, frozen=True, gc=False):
    """Write a text frame. `flushed` marks a final that somebody waits for."""

    payload: bytes
    kind: FrameKind = FrameKind.OTHER
    flushed: bool = False


@dataclass(frozen=True, slots=True)
class Hear:
    """Recognise audio: (S,) int16 at the model's rate, and so many bytes as the client sent it."""

    samples: PCM
    received_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Flush:
    """Complete the text of all audio so far; a final with the reason `finalize` answers, and the stream goes on."""


@dataclass(frozen=True, slots=True)
class Finish:
    """Complete the text and end: a final with the reason `close`, then `Closed`, then a normal close."""


@dataclass(frozen=True, slots=True)
class HangUp:
    """Close behind what was written: the client cannot be understood. The reason is at most 110 characters."""

    why: str


@dataclass(frozen=True, slots=True)
class Bias:
    """Listen for these phrases, and no others, in the audio that follows; `not_biased` tells if that cannot be."""

    phrases: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """End utterances of the audio that follows by so much silence, or by the operator's minimum where that is more."""

    silence_ms: float


Action = Say | Hear | Flush | Finish | HangUp | Bias | Endpoint
Actions = Iterable[Action]


class Adapter(Protocol):
    """One connection in one protocol. It is told everything in its order and keeps no time."""

    def opened(self) -> Actions:
        """The connection is accepted."""

    def text(self, text: str) -> Actions:
        """The client sent a text frame."""

    def binary(self, chunk: bytes) -> Actions:
        """The client sent a binary frame, maybe an empty one."""

    def event(self, event: Event, timing: StepTiming | None) -> Actions:
        """Recognition says something; after `Closed` or `StreamBroken` the connection closes behind the answer."""

    def not_biased(self, why: str) -> Actions:
        """The phrases of a `Bias` are not listened for; those before are."""


class PlainInput:
    """Raw mono samples of one form to the model's rate. Every way of cutting the bytes gives the same samples."""

    def __init__(self, codec: PlainCodec, rate: int, model_rate: int) -> None:
        self._reader = PlainReader(codec, 1)
        self._rate = rate
        self._received = 0
        self._resampler = None if rate == model_rate else Resampler(rate, model_rate)

    def read(self, chunk: bytes) -> Hear:
        """Decode a chunk of any length."""
        samples = self._reader.read(chunk)[:, 0]  # (S,)
        self._received += len(samples)
        resampled = samples if self._resampler is None else self._resampler.resample(samples)
        return Hear(resampled, len(chunk))

    @property
    def received_s(self) -> float:
        """Audio received, whether it came out yet or not."""
        return self._received / self._rate

    def tail(self) -> tuple[Hear, ...]:
        """What the resampler holds back, before a flush; it starts afresh."""
        return () if self._resampler is None else (Hear(self._resampler.flush()),)
