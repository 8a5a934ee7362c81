"""One stream through model and decoder on this thread, saved and restored where it stands: for measuring."""

from __future__ import annotations

import numpy as np
import torch

from batching.stepper import Stepper
from model.ctc.words import Decoder
from server.audio.pcm import PCM
from server.recognition.saved_state import SavedStream
from server.recognition.session import Limits, Session, SessionOptions
from server.recognition.steps import StepTag
from server.wiring import ServedModel


class SavedRun:
    """A session and its place in a state pool of one."""

    def __init__(self, model: ServedModel, decoder: Decoder) -> None:
        self._model, self._decoder = model, decoder
        self._stepper = Stepper(model, capacity=1, max_batch=1, tile_rows=None)
        self._handle = self._stepper.pool.take()
        self._session = self._new_session()

    def _new_session(self) -> Session:
        options = SessionOptions(sample_rate=self._model.config.sample_rate, resumable=True)
        return Session(options, self._model.config, self._decoder, Limits(max_backlog_s=1e9))

    @torch.inference_mode()
    def hear(self, samples: PCM, until_s: float) -> None:
        """Recognise (S,) int16 up to this stream time."""
        session, channel = self._session, self._session.channels[0]
        for piece in session.samples(samples[: round(until_s * self._model.config.sample_rate), np.newaxis], 0.0):
            assert isinstance(piece.tag, StepTag)
            outputs = self._stepper.run([self._handle], [piece.pcm])
            self._decoder.advance([channel.state], outputs)
            session.decoded(channel, piece.tag)

    def saved(self) -> SavedStream:
        """Return the state behind the last whole step."""
        self._session.mark()
        self._session.exported(self._session.channels[0], self._stepper.pool.export(self._handle))
        saved = self._session.delivery.take_saved()
        assert saved is not None, "nothing is on its way"
        return saved

    def restore(self, saved: SavedStream) -> None:
        """Go on from it, in another session."""
        self._session = self._new_session()
        self._session.restoring(saved)()
        self._stepper.pool.restore(self._handle, saved.states[0])
