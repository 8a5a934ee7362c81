"""A session with a model but without engine, sockets or threads: the test triggers each answer."""

from __future__ import annotations

import math
from collections import deque
from typing import Any, Literal

import numpy as np

from model.config import ModelConfig
from model.ctc.interface import Decoder
from server.audio.pcm import PCM
from server.audio.raw import PlainCodec, PlainReader
from server.errors import CloseReason
from server.recognition.events import Event, Final, Partial, separated
from server.recognition.keyterms.keyterms import Keyterms
from server.recognition.messages import EndOfAudio, Endpoint, Flushing, FlushText, Samples, StepDecoded, Waited
from server.recognition.results.pending_finals import PendingFinal
from server.recognition.segments.endpointing import VoiceRules
from server.recognition.session import Session
from server.recognition.session_options import Limits, SessionOptions
from server.recognition.steps import StepTag, WindowTag, Work
from tests.support.servers.recognizers.array_slots import State, fresh_state
from tests.support.servers.recognizers.spelling import CONFIG, SpellingModel, spelling_decoder

WINDOW = 512  # samples of a voice-activity window


class SessionBench:
    """One session; its work waits in one queue per channel until `answer`."""

    def __init__(
        self,
        *,
        limits: Limits | None = None,
        voice: bool | Literal["auto"] = False,
        decoder: Decoder | None = None,
        config: ModelConfig | None = None,
        **options: Any,
    ) -> None:
        self.model = SpellingModel()
        self.decoder = decoder or spelling_decoder()
        asked = SessionOptions(**({"sample_rate": CONFIG.sample_rate, "partials": True} | options))
        rules = VoiceRules(WINDOW, ends_speech=voice is True) if voice else None
        self.session = Session(asked, config or self.model.config, self.decoder, limits or Limits(), rules)
        self._reader = PlainReader(PlainCodec.S16, asked.sample_rate, asked.channels)
        self.events: list[Event] = []
        self.opened: list[PendingFinal] = []
        self.sent: list[Work] = []  # steps
        self.late = False  # whether second passes wait for `resolve`
        self._work: list[deque[Work]] = [deque() for _ in self.session.channels]
        self._states = [self._fresh() for _ in self.session.channels]

    @property
    def computed(self) -> int:
        """Number of steps that were sent to the engine."""
        return len(self.sent)

    def send(self, audio: PCM | bytes) -> None:
        """Receive audio from the client."""
        self._queue(
            self.session.take(Samples(self._reader.read(audio if isinstance(audio, bytes) else audio.tobytes()), 0.0))
        )

    def finalize(self, channel: int | None = None) -> None:
        """Receive `Finalize` from the client."""
        self._take(FlushText(channel, 0.0))

    def configure(self, *phrases: str) -> None:
        """Receive `Configure` from the client."""
        self.session.keyterms.set(Keyterms.of(phrases))

    def endpoint(self, silence_ms: float) -> None:
        """Receive a new utterance-end silence from the client."""
        self.session.take(Endpoint(silence_ms))

    def close(self, reason: CloseReason = CloseReason.CLOSE_STREAM) -> None:
        """The end."""
        self._take(EndOfAudio(reason, 0.0))

    def _take(self, message: Flushing) -> None:
        work, events = separated(self.session.take(message))
        self._queue(work)
        self.events += events

    def answer(self, steps: int | None = None, channel: int | None = None) -> None:
        """Answer this many steps of one channel, or all waiting work."""
        for index in range(len(self._work)) if channel is None else (channel,):
            waiting, left = self._work[index], math.inf if steps is None else steps
            while waiting and left > 0:
                left -= 1
                self._answer(index, waiting.popleft())

    def resolve(self, place: int = 0) -> None:
        """Finish one of the requested second passes, the oldest first."""
        final = self.opened.pop(place)
        assert self.session.pending is not None
        for events, _ in self.session.pending.resolve(final, final.decode()):
            self.events += self.session.take(Waited(events))

    def finals(self, channel: int = 0) -> list[Final]:
        """Return the finals so far."""
        return [e for e in self.events if isinstance(e, Final) and e.channel == channel]

    def partials(self) -> list[Partial]:
        """Return the partials so far."""
        return [e for e in self.events if isinstance(e, Partial)]

    def text(self, channel: int = 0) -> str:
        """Return the words of all finals."""
        return " ".join(word.text for final in self.finals(channel) for word in final.words)

    def _queue(self, work: list[Work]) -> None:
        if (rests := self.session.rests) is not None:
            work, rests.unsent_work = [*rests.unsent_work, *work], []
            self.events += rests.unsent_events
            rests.unsent_events = []
        for piece in work:
            if isinstance(piece.tag, WindowTag):
                self._hear(piece)  # ahead of the steps, as it may be
            else:
                self.sent.append(piece)
                self._work[piece.channel].append(piece)

    def _hear(self, piece: Work) -> None:
        speech = self.session.channels[piece.channel].utterance.speech
        assert speech is not None
        assert isinstance(piece.tag, WindowTag)
        spoken = piece.pcm[:-1].reshape(-1, WINDOW).any(axis=1)  # (W,)
        speech.take(piece.tag, np.where(spoken, np.float32(0.9), np.float32(0.1)))

    def _answer(self, index: int, piece: Work) -> None:
        channel = self.session.channels[index]
        assert isinstance(piece.tag, StepTag)
        if piece.reset:
            self._states[index] = self._fresh()
        outputs, self._states[index] = self.model.step(piece.pcm[None], self._states[index])
        self.decoder.advance([channel.segment.state], outputs)
        self.events += self.session.take(StepDecoded(index, piece.tag))
        self._queue([])
        if self.session.pending is not None:
            self.opened += self.session.pending.take_new()
        while self.opened and not self.late:
            self.resolve()

    def _fresh(self) -> State:
        return fresh_state(self.model, 1)
