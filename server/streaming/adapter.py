"""Interface of a protocol adapter: client frames and recognition events in, actions out, without a socket.

Deepgram's protocol has most of the traffic and its own connection class (`server.protocols.deepgram.live`); the others
are adapters: pure objects run by `server.protocols.adapter_connection`. Where the client may set the audio format after
the connection is open, an adapter decodes audio to the model's rate itself (`PushAudio`); else the connection does, and
takes all encodings and containers (`Encoded`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import msgspec
import numpy as np

from server.audio.pcm import PCM, ChannelResampler
from server.audio.raw import PlainCodec, PlainReader
from server.recognition.events import Event, StepTiming
from server.recognition.messages import ChooseLanguage, Endpoint
from server.streaming.outbox import FrameKind


class SendFrame(msgspec.Struct, frozen=True, gc=False):
    """Write a text frame. `kind` and `flushed` are those of `OutFrame`."""

    payload: bytes
    kind: FrameKind = FrameKind.OTHER
    flushed: bool = False


@dataclass(frozen=True, slots=True)
class PushAudio:
    """Recognize audio, (S,) int16 at the model's rate; `received_bytes` is its size as sent by the client.

    `channel` is the channel of the audio, None in a session of one channel.
    """

    samples: PCM
    received_bytes: int = 0
    channel: int | None = None


class Encoded(msgspec.Struct, frozen=True):
    """Decode and recognize a message's audio. `refused` is called with the reason if that is not possible, at once or
    later; the connection closes after its actions.
    """

    chunk: bytes
    refused: Callable[[str], Actions]


@dataclass(frozen=True, slots=True)
class AfterAudio:
    """Continue once all audio so far is decoded: `actions` is called with its length in seconds.

    `phrases` are key terms that they set.
    """

    actions: Callable[[float], Actions]
    phrases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Flush:
    """Finish the text of all audio so far: a final with the reason `finalize` follows; the stream continues."""


@dataclass(frozen=True, slots=True)
class Finish:
    """Finish the text and end: a final with the reason `close`, then `Closed`, then a normal close."""


@dataclass(frozen=True, slots=True)
class Reject:
    """Finish the text, then close because of an invalid message; `why` has at most 110 characters."""

    why: str


@dataclass(frozen=True, slots=True)
class Skip:
    """Count an unrecognized message that does not affect how the audio is interpreted."""

    why: str


@dataclass(frozen=True, slots=True)
class Bias:
    """Replace the key terms for the audio that follows; a failure is passed to `Adapter.bias_refused`.

    The rare words of the text `prompt` are added as far as they fit. `hints` that the model cannot recognize are
    counted and left out.
    """

    phrases: tuple[str, ...]
    prompt: str = ""
    hints: bool = False


@dataclass(frozen=True, slots=True)
class Differing:
    """Count words of an ended turn that the stream itself later recognized differently."""

    words: int


@dataclass(frozen=True, slots=True)
class Switch:
    """Switch to another model, before any audio; client messages wait until it is done.

    `done` is called with the model's sample rate once its stream is open; key terms and endpointing then have their
    defaults. `refused` is called with the reason if the switch fails; the previous model stays in use.
    """

    model: str
    language: str | None
    done: Callable[[int], Actions]
    refused: Callable[[str], Actions]


Audio = PushAudio | Encoded
Setting = Bias | Endpoint | ChooseLanguage | Switch
Action = SendFrame | Audio | AfterAudio | Flush | Finish | Reject | Skip | Differing | Setting
Actions = Iterable[Action]


class Adapter(Protocol):
    """One connection in one protocol. Its methods are called in the order of events; it has no clock."""

    def opened(self) -> Actions:
        """Called when the connection is accepted."""

    def text(self, text: str) -> Actions:
        """Handle a text frame of the client."""

    def binary(self, chunk: bytes) -> Actions:
        """Handle a binary frame of the client, possibly empty."""

    def event(self, event: Event, timing: StepTiming | None) -> Actions:
        """Handle a recognition event; after `Closed` or `StreamBroken` the connection closes after these actions."""

    def bias_refused(self, why: str) -> Actions:
        """Called if the phrases of a `Bias` were refused; the previous ones stay in force."""


class PlainInput:
    """Decoder of raw mono samples to the model's rate; the result does not depend on how the bytes are split."""

    def __init__(self, codec: PlainCodec, rate: int, model_rate: int, channel: int | None = None) -> None:
        self._channel = channel
        self._reader = PlainReader(codec, rate)
        self._resampler = ChannelResampler(rate, model_rate, 1)
        self._received = 0

    def read(self, chunk: bytes) -> PushAudio:
        """Decode a chunk of any length."""
        samples = self._reader.read(chunk)  # (S, 1)
        return self._push(samples, len(chunk))

    def silence(self, seconds: float) -> PushAudio:
        """Return silence, for audio that was not sent."""
        return self._push(np.zeros((round(seconds * self._reader.rate), 1), np.int16), 0)

    def _push(self, samples: PCM, received_bytes: int) -> PushAudio:
        self._received += len(samples)
        return PushAudio(self._resampler.resample(samples)[:, 0], received_bytes, self._channel)

    @property
    def received_s(self) -> float:
        """Seconds of audio received, including samples buffered in the resampler."""
        return self._received / self._reader.rate

    def tail(self) -> tuple[PushAudio, ...]:
        """Return the samples buffered in the resampler, before a flush, and reset it."""
        rest = self._resampler.flush()[:, 0]
        return (PushAudio(rest, 0, self._channel),) if len(rest) else ()
