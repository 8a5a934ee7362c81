"""Playback of one recording on one connection: due messages, results, and the outcome.

Owns the timing rules of the load test. Pure: time is an argument.

* Latency of a step: from the *scheduled* send time of its last sample to the first `Results` whose
  `start + duration` covers it. A late send or a slow handshake counts as latency.
* Final latency: from the scheduled end of the audio, when `CloseStream` is sent, to the last final.
* A step without a result is included with its age at the end.
"""

from __future__ import annotations

from loadtest.generator.answers import Answer, ServerError, decode_answer
from loadtest.generator.measures import Ending, LevelMeasures, Outcome, SentStep
from loadtest.generator.recordings import Recording
from loadtest.generator.settings import STEP_S
from tutti_asr_client.errors import NORMAL_CLOSE, BadMessage, Refused
from tutti_asr_client.messages import joined

CURSOR_TOLERANCE_S = STEP_S / 80
"""The server may round its times to milliseconds."""


class Playback:
    """A recording played from `start_s` in real time: returns the frames that are due, handles received messages."""

    __slots__ = (
        "_answered", "_closing_s", "_dialed_s", "_due_s", "_final_s", "_long_steps", "_opened_s", "_problem",
        "_recorder", "_sent", "_sent_s", "_texts", "cut", "end_s", "next_s", "recording", "start_s",
    )  # fmt: skip

    def __init__(
        self, recording: Recording, start_s: float, recorder: LevelMeasures, *, long_steps: bool = False
    ) -> None:
        """With `long_steps`, only the message that completes a model step is measured."""
        self.recording = recording
        self.start_s = start_s
        self.cut = False
        self._due_s = tuple(start_s + end_s for end_s in recording.ends_s)  # clock times
        self.end_s = self._due_s[-1]  # end of the audio, if it is not cut
        self.next_s: float | None = self._due_s[0]  # when the next message is due; None if nothing is left to send
        self._dialed_s = start_s
        self._recorder = recorder
        self._long_steps = long_steps
        self._sent = 0
        self._sent_s: list[float] = []
        self._answered = 0
        self._opened_s: float | None = None
        self._closing_s: float | None = None
        self._final_s: float | None = None
        self._texts: list[str] = []
        self._problem = ""

    def dialed(self, now: float) -> None:
        """The connection is being opened."""
        self._dialed_s = now

    def opened(self, now: float) -> None:
        """The connection is open."""
        self._opened_s = now

    def take(self, now: float) -> bytes:
        """Return the due frame, sent at `now`."""
        scheduled_s = self.next_s
        assert scheduled_s is not None
        assert self._opened_s is not None
        frame = self.recording.frames[self._sent]
        self._sent += 1
        self._sent_s.append(now)
        self.next_s = self._due_s[self._sent] if self._sent < len(self._due_s) else None
        if self._opened_s <= scheduled_s:  # otherwise it waited for the handshake
            self._recorder.sent(scheduled_s, now)
        return frame

    def close(self, scheduled_s: float) -> None:
        """`CloseStream` is sent, at the end of the audio or of the level."""
        self.cut = self._sent < len(self._due_s)
        self._closing_s, self.next_s = scheduled_s, None

    def message(self, frame: bytes, now: float) -> None:
        """Handle a received text message."""
        try:
            answer = decode_answer(frame)
        except BadMessage as error:
            self._problem = self._problem or f"unreadable message: {error}"
            return
        if isinstance(answer, Answer):
            before = self._answered
            covered = self._cover(answer.start + answer.duration, now)
            self._recorder.covered((self._answered - before) * STEP_S, now)
            if answer.tutti is not None:
                self._recorder.step_timings(now, answer.tutti)
                if covered and answer.tutti.latency is not None:
                    self._recorder.split(self._last_answered(), now, answer.tutti.latency)
            if answer.is_final:
                if answer.text:
                    self._texts.append(answer.text)
                if self._closing_s is not None:
                    self._final_s = now
        elif isinstance(answer, ServerError):
            self._problem = self._problem or f"error from the server: {answer.description}"

    def refused(self, refusal: Refused, now: float) -> Outcome:
        """The handshake was refused; returns the outcome."""
        self._recorder.refused(self._dialed_s, now, refusal)
        return Outcome(self.recording, Ending.REFUSED, str(refusal), retry_after_s=refusal.retry_after_s)

    def closed(self, code: int, reason: str, now: float) -> Outcome:
        """The connection has ended; returns the outcome."""
        problem = self._fault(code, reason)
        if self._give_up(now) and not problem:
            problem = "steps without a result"
        if problem:
            return Outcome(self.recording, Ending.FAILED, problem)
        if self.cut or not self.recording.whole:
            return Outcome(self.recording, Ending.CUT)
        assert self._closing_s is not None
        assert self._final_s is not None
        self._recorder.final(self._closing_s, self._final_s)
        return Outcome(self.recording, Ending.COMPLETE, text=joined(self._texts))

    def failed(self, problem: str, now: float) -> Outcome:
        """The connection was given up for the reason `problem`; returns the outcome."""
        self._give_up(now)
        return Outcome(self.recording, Ending.FAILED, problem)

    def _fault(self, code: int, reason: str) -> str:
        """Return what is wrong with the end of the connection; empty if nothing."""
        ended = f"closed with {code}" + (f" {reason}" if reason else "")
        if code != NORMAL_CLOSE:
            return ended
        if self._closing_s is None:
            return f"{ended} before the end of the audio"
        if self._final_s is None:
            return "no final after CloseStream"
        return self._problem

    def _cover(self, cursor_s: float, now: float) -> bool:
        """Record the whole steps that end at or before the cursor; returns whether any was recorded."""
        before = self._answered
        sent = min(self._sent, self.recording.steps)
        ends_s = self.recording.ends_s
        reached_s = cursor_s + CURSOR_TOLERANCE_S
        if self._long_steps:
            return self._cover_long(cursor_s - CURSOR_TOLERANCE_S, sent, now)
        while self._answered < sent and ends_s[self._answered] <= reached_s:
            self._recorder.step_answered(self._due_s[self._answered], now)
            self._answered += 1
        return self._answered > before

    def _cover_long(self, cursor_s: float, sent: int, now: float) -> bool:
        """Record the message that contains the cursor; earlier ones had to wait for it regardless of load.

        Results after `CloseStream` belong to it, not to a message.
        """
        recorded = False
        while self._answered < sent and self.recording.ends_s[self._answered] < cursor_s:
            self._answered += 1
        if self._answered < sent and (self._answered == 0 or self.recording.ends_s[self._answered - 1] < cursor_s):
            recorded = self._closing_s is None
            if recorded:
                self._recorder.step_answered(self._due_s[self._answered], now)
            self._answered += 1
        return recorded

    def _last_answered(self) -> SentStep:
        assert self._opened_s is not None
        step = self._answered - 1
        return SentStep(self._due_s[step], self._opened_s, self._sent_s[step])

    def _give_up(self, now: float) -> int:
        """Record the sent steps without a result; returns their number."""
        missing = range(self._answered, min(self._sent, self.recording.steps))
        for step in missing:
            self._recorder.step_unanswered(self._due_s[step], now)
        self._answered += len(missing)
        return len(missing)
