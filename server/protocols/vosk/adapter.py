"""Adapter of vosk-server's protocol, in which clients send a frame and wait for its answer.

A missing answer would hang the client, an extra one would shift all later answers. So every audio frame is answered at
once with the latest text, however old; a final is sent with the next frame's answer. Only `reset` and `eof` are
answered when the text is complete; frames after a `reset` are answered after it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from model.ctc.words import Word, joined
from server.audio.raw import PlainCodec
from server.errors import BadFrame, CloseReason
from server.protocols.vosk.messages import (
    DEFAULT_RATE,
    UNKNOWN,
    Config,
    final_frame,
    key_terms,
    parse_frame,
    partial_frame,
)
from server.recognition.events import Closed, Event, Final, FinalReason, Partial, StepTiming
from server.streaming.adapter import Action, Actions, Bias, Finish, Flush, PlainInput, Reject, SendFrame, Skip
from server.streaming.outbox import FrameKind


class VoskAdapter:
    """Adapter of one connection."""

    def __init__(self, model_rate: int, *, rate: int = DEFAULT_RATE, lenient: bool = False) -> None:
        """`rate` in Hz applies until the client sets another; `lenient`: ignore unsupported settings."""
        self._lenient = lenient
        self._model_rate = model_rate
        self._rate = rate
        self._input = PlainInput(PlainCodec.S16, rate, model_rate)
        self._received = False  # whether audio was received
        self._words, self._alternatives = True, False
        self._partial = ""
        self._closed: list[Word] = []  # words of finals that were not sent yet
        self._resets: deque[int] = deque()  # per unanswered reset: audio frames received after it

    def opened(self) -> Actions:
        """Send nothing: the client sends first."""
        return ()

    def text(self, text: str) -> Actions:
        """Handle `config`, `reset` or `eof`."""
        try:
            frame, ignored = parse_frame(text, lenient=self._lenient)
        except BadFrame as error:
            return (*self._input.tail(), Reject(str(error)))  # the protocol has no error message
        if frame.config is not None:
            return (*(Skip(f"{name} ignored") for name in ignored), *self._configure(frame.config))
        if frame.eof:
            return (*self._input.tail(), Finish())
        self._resets.append(0)
        return (*self._input.tail(), Flush())

    def binary(self, chunk: bytes) -> Actions:
        """Process audio (16-bit samples, split anywhere) and answer the frame."""
        self._received = True
        audio = self._input.read(chunk)
        if self._resets:
            self._resets[-1] += 1
            return (audio,)
        return (audio, self._answer())

    def event(self, event: Event, timing: StepTiming | None) -> Actions:  # noqa: ARG002 - an adapter's
        """Keep text for the next answer; answer `reset` and `eof`."""
        match event:
            case Partial(words=words):
                self._partial = joined([word.text for word in words])
            case Final(words=words, reason=reason):
                self._partial = ""
                self._closed += words
                if reason is FinalReason.FINALIZE:
                    return self._answer_reset()
            case Closed(reason=reason):
                # `eof` is always answered; another end only if there is unsent text.
                if reason is CloseReason.CLOSE_STREAM or self._closed:
                    return (self._final(flushed=True),)
            case _:
                pass
        return ()

    def bias_refused(self, why: str) -> Actions:
        """End the connection, as for any unsupported setting: the protocol has no error message."""
        problem = f"phrase_list: {why}"
        return (Skip(f"{problem} (ignored)"),) if self._lenient else (Reject(f"{problem}; leave it out"),)

    def _configure(self, config: Config) -> Iterator[Action]:
        if config.words is not None:
            self._words = config.words
        if config.max_alternatives is not None:
            self._alternatives = config.max_alternatives > 0
        if config.sample_rate is not None and int(config.sample_rate) != self._rate:
            if self._received:  # ignored, as by the reference server
                yield Skip(f"sample_rate: {config.sample_rate:g} after audio at {self._rate} Hz")
            else:
                self._rate = int(config.sample_rate)
                self._input = PlainInput(PlainCodec.S16, self._rate, self._model_rate)
        if config.phrase_list is not None:
            yield from self._bias(config.phrase_list)

    def _bias(self, phrases: Sequence[str]) -> Iterator[Action]:
        """Use phrases as key terms; those that cannot be used are only counted: the protocol has no error message."""
        kept = key_terms(phrases)
        yield Bias(kept, hints=True)
        if left_out := sum(1 for phrase in phrases if phrase.replace(UNKNOWN, "").strip()) - len(kept):
            yield Skip(f"phrase_list: {left_out} of {len(phrases)} phrases cannot be spelled or exceed the limits")

    def _answer(self) -> SendFrame:
        return self._final() if self._closed else SendFrame(partial_frame(self._partial))

    def _final(self, *, flushed: bool = False) -> SendFrame:
        words, self._closed = self._closed, []
        payload = final_frame(words, with_words=self._words, alternatives=self._alternatives)
        return SendFrame(payload, FrameKind.FINAL, flushed)

    def _answer_reset(self) -> Actions:
        frames = self._resets.popleft()
        return (self._final(flushed=True), *(self._answer() for _ in range(frames)))
