"""Interface of a protocol adapter: client frames and recognition events in, actions out, without a socket.

Deepgram's protocol carries the load and is a connection of its own (`server.protocols.deepgram.live`); the others are
adapters, pure objects that `server.protocols.adapter_connection` runs. An adapter decodes audio to the model's rate
itself, because in these protocols the client may name its form after the connection is open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from server.audio.pcm import PCM, ChannelResampler
from server.audio.raw import PlainCodec, PlainReader
from server.recognition.events import Event, StepTiming
from server.streaming.outbox import FrameKind


class Say(msgspec.Struct, frozen=True, gc=False):
    """Write a text frame. `kind` and `flushed` are those of `OutFrame`."""

    payload: bytes
    kind: FrameKind = FrameKind.OTHER
    flushed: bool = False


@dataclass(frozen=True, slots=True)
class Hear:
    """Recognise audio: (S,) int16 at the model's rate, and its size as the client sent it."""

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
    """Close behind the frames written so far: the client cannot be understood. At most 110 characters."""

    why: str


@dataclass(frozen=True, slots=True)
class Skip:
    """Count a message that is not understood and changes nothing of the audio's meaning."""

    why: str


@dataclass(frozen=True, slots=True)
class Bias:
    """Bias the audio that follows towards these phrases, and no others; a failure goes to `Adapter.not_biased`."""

    phrases: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """End utterances of the audio that follows by this silence, or by the operator's minimum where that is more."""

    silence_ms: float


@dataclass(frozen=True, slots=True)
class Switch:
    """Before any audio: recognise by another model; what the client sends meanwhile waits.

    `done` is called with the model's sample rate once a stream of it is open, without the phrases and the silence that
    were set before; `refused`, with the reason, where it cannot be had: the model is the one before then.
    """

    model: str
    language: str | None
    done: Callable[[int], Actions]
    refused: Callable[[str], Actions]


Action = Say | Hear | Flush | Finish | HangUp | Skip | Bias | Endpoint | Switch
Actions = Iterable[Action]


class Adapter(Protocol):
    """One connection in one protocol. It is called in the order of events and keeps no time."""

    def opened(self) -> Actions:
        """The connection is accepted."""

    def text(self, text: str) -> Actions:
        """The client sent a text frame."""

    def binary(self, chunk: bytes) -> Actions:
        """The client sent a binary frame, maybe an empty one."""

    def event(self, event: Event, timing: StepTiming | None) -> Actions:
        """Project a recognition event; after `Closed` or `StreamBroken` the connection closes behind these actions."""

    def not_biased(self, why: str) -> Actions:
        """The phrases of a `Bias` were refused; the ones before stay."""


class PlainInput:
    """Decodes raw mono samples to the model's rate. Every way of cutting the bytes gives the same samples."""

    def __init__(self, codec: PlainCodec, rate: int, model_rate: int) -> None:
        self._reader = PlainReader(codec, rate)
        self._resampler = ChannelResampler(rate, model_rate, 1)
        self._received = 0

    def read(self, chunk: bytes) -> Hear:
        """Decode a chunk of any length."""
        samples = self._reader.read(chunk)  # (S, 1)
        self._received += len(samples)
        return Hear(self._resampler.resample(samples)[:, 0], len(chunk))

    @property
    def received_s(self) -> float:
        """Audio received, including what the resampler holds back."""
        return self._received / self._reader.rate

    def tail(self) -> tuple[Hear, ...]:
        """Return what the resampler holds back, before a flush; it starts afresh."""
        rest = self._resampler.flush()[:, 0]
        return (Hear(rest),) if len(rest) else ()
