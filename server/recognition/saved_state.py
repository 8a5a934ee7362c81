"""A stream's state inside a ticket: positions in its audio, its open text, the bytes of model and decoder.

Values only; each class of the session creates and reads its part. Fields are encoded by position, so a change of these
classes needs another `tickets.VERSION`.
"""

from __future__ import annotations

import msgspec


class SavedWindows(msgspec.Struct, array_like=True, frozen=True):
    """Position of one channel in the windows of an auxiliary model."""

    end: int  # model-rate samples in whole windows
    rest: bytes  # samples after them, int16


class SavedCutter(msgspec.Struct, array_like=True, frozen=True):
    """Position in one channel's audio that its state has reached; the client sends again what came after it."""

    flushed: int  # samples at the client's rate, before the last flush
    base_sample: int  # model-rate samples before the last flush
    pushed: int  # model-rate samples in whole steps since then
    reset: bool  # the next step resets the model
    windows: tuple[SavedWindows, ...]  # of the stream's auxiliary models
    kept: int = 0  # steps before the position that are cut again


class SavedPartials(msgspec.Struct, array_like=True, frozen=True):
    """State of `PartialFilter`: the last partial of the open segment."""

    checked: tuple[int, int] | None
    texts: tuple[str, ...]
    stable: int
    sent_s: float | None
    last_end_s: float


class SavedSettled(msgspec.Struct, array_like=True, frozen=True):
    """State of `SettledWords`."""

    texts: tuple[str, ...]
    since_s: tuple[float, ...]
    before_s: float
    shown: int


class SavedGate(msgspec.Struct, array_like=True, frozen=True):
    """State of `SpeechGate`."""

    first: int  # number of the oldest level kept
    levels: bytes
    confident: bool


class SavedAudio(msgspec.Struct, array_like=True, frozen=True):
    """State of `SegmentAudio`, whose samples the client sends again: steps before the oldest one kept, and decoded."""

    first: int
    answered: int


class SavedVoice(msgspec.Struct, array_like=True, frozen=True):
    """State of `VoiceActivity`."""

    speaking: bool
    silent_windows: int


class SavedChannel(msgspec.Struct, array_like=True, frozen=True):
    """The output side of one channel."""

    decoder: bytes
    bias: tuple[tuple[str, float], ...] | None  # None: the query's
    partials: SavedPartials
    base_s: float
    start_s: float
    since_s: float
    cursor_s: float
    speaking: bool
    last_word_end_s: float | None
    gate: SavedGate
    started_s: float | None  # start of the voice of the open utterance
    voice: SavedVoice | None  # None: no voice-activity model
    settled: SavedSettled | None  # None: all words are shown
    speakers: bytes | None = None  # None: speakers are not distinguished
    audio: SavedAudio | None = None  # None: no second pass reads it


class SavedLevels(msgspec.Struct, array_like=True, frozen=True):
    """State of `LevelMeter`."""

    lowest: tuple[tuple[int, int], ...]
    loudest: float
    number: int
    loud: int
    silent: int


class SavedDigest(msgspec.Struct, array_like=True, frozen=True):
    """State of `AudioDigest` before its open block: samples at the client's rate, and the digest of what precedes."""

    begin: int
    end: int
    chain: bytes


class SavedReceipts(msgspec.Struct, array_like=True, frozen=True):
    """Position in a chain of receipts: the stream's id and start, receipts so far, and the digest of the last one."""

    stream: str
    created: str
    count: int
    previous: str


class SavedInput(msgspec.Struct, array_like=True, frozen=True):
    """The input side of a stream: all channels at one moment."""

    cutters: tuple[SavedCutter, ...]
    phrases: tuple[str, ...] | None  # None: the query's
    allowance: tuple[float, float]  # of `ChangeAllowance`: characters left, and the stream time of that
    context: tuple[str, ...]  # key terms from what other speakers said
    context_steps: tuple[int, ...]  # for which they hold, by channel
    levels: tuple[SavedLevels, ...]  # by channel
    digest: SavedDigest | None = None  # of a stream with receipts
    resting: tuple[bool, ...] = ()  # by channel; empty for a stream that never rests


class SavedStream(msgspec.Struct, array_like=True, frozen=True):
    """The state of a stream after one of its steps."""

    audio: SavedInput
    channels: tuple[SavedChannel, ...]
    states: tuple[bytes, ...]  # of the model, by channel
    auxiliary: tuple[tuple[bytes, ...], ...]  # by channel, of the stream's auxiliary models
    finals: int  # before this point, over all channels
    ends_s: tuple[float | None, ...]  # by channel, of the last word in a final before this point
