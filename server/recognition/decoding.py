"""From a batch's answers to events: rows are decoded together, then each connection is told what its own row changed.

Where a voice-activity model listens too, an answer waits until that model has heard the same audio, so that what is
said depends on the audio and never on which engine was faster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import structlog

from batching.events import BatchDone
from model.ctc.words import Decoder
from server.operations.metrics import Metrics
from server.recognition.events import StepTiming
from server.recognition.recognition import BatchTiming, Outputs, Route, Row
from server.recognition.steps import StepTag, WindowTag

_log: structlog.stdlib.BoundLogger = structlog.get_logger("tutti.decoding")

Routes = Mapping[int, Route]


class Decoding:
    """Owns the decoder; the states belong to the channels."""

    def __init__(self, decoder: Decoder, metrics: Metrics, clock: Callable[[], float]) -> None:
        self._decoder = decoder
        self._metrics = metrics
        self._clock = clock

    def take_steps(self, batch: BatchDone, routes: Routes) -> None:
        """Decode the rows of streams that are still open."""
        due: list[tuple[Route, Row]] = []
        indices: list[int] = []
        voiced: list[Route] = []
        timing = BatchTiming(batch.step_s, batch.started_s + batch.step_s, len(batch.streams))
        for i, (stream, tag, waited_s) in enumerate(zip(batch.streams, batch.tags, batch.queue_wait_s, strict=True)):
            route = routes.get(stream)
            if route is None or not isinstance(tag, StepTag):
                continue
            row = Row(tag, batch.outputs[i], waited_s, timing)
            if route.channel.speech is None:
                indices.append(i)
                due.append((route, row))
            else:
                route.held.append(row)
                voiced.append(route)
        if due:
            all_rows = len(indices) == len(batch.streams)
            self._decode(due, batch.outputs if all_rows else batch.outputs[indices])
        self._release(voiced)

    def take_voice(self, batch: BatchDone, routes: Routes) -> None:
        """Take the probabilities of speech, (B, 1), and whatever waited for them."""
        voiced: list[Route] = []
        for stream, tag, probability in zip(batch.streams, batch.tags, batch.outputs.reshape(-1), strict=True):
            route = routes.get(stream)
            if route is not None and route.channel.speech is not None and isinstance(tag, WindowTag):
                route.channel.speech.heard(tag.end_sample, float(probability))
                voiced.append(route)
        self._release(voiced)

    def _release(self, routes: Sequence[Route]) -> None:
        """Decode the held answers that are due, one step of a channel at a time."""
        while due := [(route, route.held.popleft()) for route in routes if route.due]:
            self._decode(due, np.stack([row.outputs for _, row in due]))  # (B, T, V)

    def _decode(self, due: Sequence[tuple[Route, Row]], outputs: Outputs) -> None:
        """Advance each channel by one step, outputs (B, T, V), and tell each connection.

        All rows are read before any is told, so that one pair of clock readings covers all that the decoder does.
        """
        began_s = self._clock()
        try:
            self._decoder.advance([route.channel.state for route, _ in due], outputs)
            said = [route.recognition.session.decoded(route.channel, row.tag) for route, row in due]
        except Exception as error:  # noqa: BLE001 - as a failed model step: these streams end, and no others
            self._metrics.errors.labels("decode").inc()
            _log.error("decoding failed", rows=len(due), error=repr(error))
            for route, _ in due:
                route.recognition.fail(error)
            return
        decoded_s = self._clock()
        decode_s = decoded_s - began_s
        self._metrics.decode.observe(decode_s)
        self._metrics.handover.observe(began_s - due[0][1].batch.done_s)
        for (route, row), events in zip(due, said, strict=True):
            if route.recognition.open:  # what was told of an earlier row may have ended it
                batch = row.batch
                handover_s = began_s - batch.done_s
                timing = StepTiming(
                    row.tag.arrived_s, row.queue_wait_s, batch.step_s, handover_s, decode_s, decoded_s, batch.rows
                )
                route.recognition.sink.on_events(events, timing)
