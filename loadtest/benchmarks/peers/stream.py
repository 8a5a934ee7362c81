"""A stream in a peer's server: cuts audio into steps, and decodes symbols to frames. Pure.

Implements the frames of `/v1/listen` that the load generator reads, and greedy CTC decoding. Every peer answers each
step with the text so far, and the end of the stream with a final.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

BLANK = 0
SAMPLE_BYTES = 2
BYTES_PER_S = 16_000 * SAMPLE_BYTES


@dataclass(frozen=True, slots=True)
class Card:
    """Facts of the model needed to cut audio into steps and to decode symbols."""

    step_bytes: int
    frames_per_step: int  # output frames
    delay_frames: int  # output frames of a new stream that precede the audio
    flush_steps: int  # steps of silence to flush the last letters
    vocabulary: tuple[str, ...]


class Stream:
    """Steps and text of one stream."""

    def __init__(self, card: Card) -> None:
        self._card = card
        self._waiting = bytearray()
        self._received = 0  # bytes
        self._answered = 0  # steps
        self._skip = card.delay_frames
        self._previous = BLANK
        self._letters: list[str] = []

    @property
    def text(self) -> str:
        """Text so far."""
        return " ".join("".join(self._letters).split())

    def audio(self, data: bytes) -> list[bytes]:
        """Add audio of any length and return the complete steps."""
        self._received += len(data)
        self._waiting += data
        size = self._card.step_bytes
        whole = len(self._waiting) // size * size
        steps = [bytes(self._waiting[at : at + size]) for at in range(0, whole, size)]
        del self._waiting[:whole]
        return steps

    def rest(self) -> list[bytes]:
        """Return the last steps: remaining audio, and silence."""
        size = self._card.step_bytes
        rest = [bytes(self._waiting).ljust(size, b"\0")] if self._waiting else []
        self._waiting.clear()
        return rest + [bytes(size)] * self._card.flush_steps

    def add_symbols(self, symbols: Sequence[int]) -> None:
        """Decode one step, from the best symbol of each frame."""
        self._answered += 1
        for symbol in symbols:
            if self._skip:
                self._skip -= 1
                continue
            if symbol not in (BLANK, self._previous):
                self._letters.append(self._card.vocabulary[symbol])
            self._previous = symbol

    def partial(self) -> str:
        """Return the interim result after the last step."""
        return results(self._answered * self._card.step_bytes / BYTES_PER_S, self.text, is_final=False)

    def final(self) -> str:
        """Return the final result of the stream."""
        return results(self._received / BYTES_PER_S, self.text, is_final=True)


def is_close(text: str | None) -> bool:
    """Whether a text frame ends the audio."""
    return text is not None and "CloseStream" in text


def results(cursor_s: float, text: str, *, is_final: bool) -> str:
    """Return a `Results` frame for all audio up to the cursor."""
    frame = {
        "type": "Results",
        "start": 0.0,
        "duration": round(cursor_s, 6),
        "is_final": is_final,
        "channel": {"alternatives": [{"transcript": text}]},
    }
    return msgspec.json.encode(frame).decode()


METADATA = '{"type":"Metadata"}'
"""Last frame of a stream, followed by a normal close."""
