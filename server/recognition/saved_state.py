"""What a ticket knows of a stream: positions in its audio, what is open of its text, its model's and decoder's bytes.

Values alone; each class of the session writes and reads its own. Fields are told by their place, so that a change of
any of these classes needs another `tickets.VERSION`.
"""

from __future__ import annotations

import msgspec


class SavedCutter(msgspec.Struct, array_like=True, frozen=True):
    """How much of one channel's audio its state has consumed; what was received beyond that is to be sent again."""

    flushed: int  # samples at the client's rate, before the last flush
    base_sample: int  # model-rate samples before the last flush
    pushed: int  # model-rate samples in whole steps since then
    reset: bool  # the next step starts the model afresh


class SavedInterims(msgspec.Struct, array_like=True, frozen=True):
    """What was said last of an open segment."""

    seen: tuple[int, int] | None
    texts: tuple[str, ...]
    stable: int
    told_s: float | None
    said_s: float


class SavedChannel(msgspec.Struct, array_like=True, frozen=True):
    """The output side of one channel."""

    decoder: bytes
    bias: tuple[tuple[str, float], ...] | None  # None: what the query asks for
    interims: SavedInterims
    base_s: float
    start_s: float
    cursor_s: float
    speaking: bool
    last_word_end_s: float | None


class SavedInput(msgspec.Struct, array_like=True, frozen=True):
    """The input side of a stream, all channels at one moment of it."""

    cutters: tuple[SavedCutter, ...]
    phrases: tuple[str, ...] | None  # None: those of the query
    allowance: tuple[float, float]  # of changes of key terms: characters left, and when


class SavedStream(msgspec.Struct, array_like=True, frozen=True):
    """A stream behind one of its steps."""

    audio: SavedInput
    channels: tuple[SavedChannel, ...]
    states: tuple[bytes, ...]  # of the model, by channel
    finals: int  # that came before, over all channels
