"""One recording on one connection: messages that are due, steps that were answered, and the outcome.

Owns the timing rules of the load test. Pure: time is an argument.

* Latency of a step: from the *scheduled* send time of its last sample to the first `Results` whose
  `start + duration` covers it. A late sender or a slow handshake counts as latency.
* Final latency: from the scheduled end of the audio, when `CloseStream` is sent, to the last final.
* A step that is never answered is not forgotten: it enters with the age that it had in the end.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple

from loadtest.generator.answers import Answer, LatencySplit, ServerError, decode_answer
from loadtest.generator.recordings import Recording
from loadtest.generator.settings import STEP_S
from tutti_asr_client.errors import NORMAL_CLOSE, BadMessage, Refused
from tutti_asr_client.joining import joined
from tutti_asr_client.messages import StepTimings

CURSOR_TOLERANCE_S = STEP_S / 80
"""The server may round its times to milliseconds."""


class Ending(enum.Enum):
    """Kinds of end of a playback."""

    COMPLETE = "complete"
    CUT = "cut"  # the level was over; all that was sent was answered
    REFUSED = "refused"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Outcome:
    """A playback that has ended."""

    recording: Recording
    ending: Ending
    problem: str = ""
    text: str = ""
    retry_after_s: float | None = None  # from a refusal


class SentStep(NamedTuple):
    """When a step was due, when the connection stood, and when the step left."""

    scheduled_s: float
    opened_s: float
    sent_s: float


class Recorder:
    """Takes the measurements of playbacks; this base class keeps none. Times are the clock's."""

    def sent(self, scheduled_s: float, sent_s: float) -> None:
        """A message left."""

    def step_answered(self, scheduled_s: float, answered_s: float) -> None:
        """A whole step was covered by a `Results`."""

    def step_unanswered(self, scheduled_s: float, given_up_s: float) -> None:
        """A whole step was sent, and no `Results` will cover it."""

    def step_timings(self, answered_s: float, timings: StepTimings) -> None:
        """The server's own account of one answer."""

    def split(self, sent: SentStep, answered_s: float, parts: LatencySplit) -> None:
        """The server's account of all parts of one answer, where it was asked for, and the last step that it covers."""

    def final(self, scheduled_s: float, answered_s: float) -> None:
        """A recording that was sent whole got its last final."""

    def refused(self, dialled_s: float, answered_s: float, refusal: Refused) -> None:
        """A handshake was answered with an HTTP error."""


class Playback:
    """A recording that begins at `start_s`, `speed` times as fast as it was spoken.

    Gives the frames that are due, and takes the messages that come back.
    """

    __slots__ = (
        "_answered",
        "_closing_s",
        "_dialled_s",
        "_due_s",
        "_final_s",
        "_long_steps",
        "_opened_s",
        "_problem",
        "_recorder",
        "_sent",
        "_sent_s",
        "_texts",
        "cut",
        "end_s",
        "next_s",
        "recording",
        "start_s",
    )

    def __init__(
        self,
        recording: Recording,
        start_s: float,
        recorder: Recorder,
        speed: float = 1.0,
        *,
        long_steps: bool = False,
    ) -> None:
        """With `long_steps`, of the messages that an answer covers only that is measured which completed its step."""
        self.recording = recording
        self.start_s = start_s
        self.cut = False
        self._due_s = tuple(start_s + end_s / speed for end_s in recording.ends_s)  # clock times
        self.end_s = self._due_s[-1]  # when the audio has been spoken, if it is not cut
        self.next_s: float | None = self._due_s[0]  # when the next message is due; None when nothing is left to send
        self._dialled_s = start_s
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

    def dialled(self, now: float) -> None:
        """The connection is being opened."""
        self._dialled_s = now

    def opened(self, now: float) -> None:
        """The connection stands."""
        self._opened_s = now

    def take(self, now: float) -> bytes:
        """The frame that is due, which is sent at `now`."""
        scheduled_s = self.next_s
        assert scheduled_s is not None
        assert self._opened_s is not None
        frame = self.recording.frames[self._sent]
        self._sent += 1
        self._sent_s.append(now)
        self.next_s = self._due_s[self._sent] if self._sent < len(self._due_s) else None
        if self._opened_s <= scheduled_s:  # otherwise it waited for the handshake, not for us
            self._recorder.sent(scheduled_s, now)
        return frame

    def close(self, scheduled_s: float) -> None:
        """`CloseStream` is sent: at the end of the audio, or before it when the level is over."""
        self.cut = self._sent < len(self._due_s)
        self._closing_s, self.next_s = scheduled_s, None

    def message(self, frame: bytes, now: float) -> None:
        """A text message has come."""
        try:
            answer = decode_answer(frame)
        except BadMessage as error:
            self._problem = self._problem or f"unreadable message: {error}"
            return
        if isinstance(answer, Answer):
            covered = self._cover(answer.start + answer.duration, now)
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
            self._problem = self._problem or f"the server complained: {answer.description}"

    def refused(self, refusal: Refused, now: float) -> Outcome:
        """The handshake was refused."""
        self._recorder.refused(self._dialled_s, now, refusal)
        return Outcome(self.recording, Ending.REFUSED, str(refusal), retry_after_s=refusal.retry_after_s)

    def closed(self, code: int, reason: str, now: float) -> Outcome:
        """The connection has ended, and with it the playback."""
        problem = self._fault(code, reason)
        if self._give_up(now) and not problem:
            problem = "steps were never answered"
        if problem:
            return Outcome(self.recording, Ending.FAILED, problem)
        if self.cut:
            return Outcome(self.recording, Ending.CUT)
        assert self._closing_s is not None
        assert self._final_s is not None
        self._recorder.final(self._closing_s, self._final_s)
        return Outcome(self.recording, Ending.COMPLETE, text=joined(self._texts))

    def failed(self, problem: str, now: float) -> Outcome:
        """The connection is given up; `problem` is the reason."""
        self._give_up(now)
        return Outcome(self.recording, Ending.FAILED, problem)

    def _fault(self, code: int, reason: str) -> str:
        """The fault of its end; empty for none."""
        ended = f"closed with {code}" + (f" {reason}" if reason else "")
        if code != NORMAL_CLOSE:
            return ended
        if self._closing_s is None:
            return f"{ended} before the end of the audio"
        if self._final_s is None:
            return "no final after CloseStream"
        return self._problem

    def _cover(self, cursor_s: float, now: float) -> bool:
        """Account for the steps that end at or before the cursor; True for any. Only whole steps are measured."""
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
        """Account for the message in which the cursor lies; those before it had to wait for it, whatever the load.

        What comes after `CloseStream` answers that, not a message.
        """
        before = self._answered
        while self._answered < sent and self.recording.ends_s[self._answered] < cursor_s:
            self._answered += 1
        if self._answered < sent and (self._answered == 0 or self.recording.ends_s[self._answered - 1] < cursor_s):
            if self._closing_s is None:
                self._recorder.step_answered(self._due_s[self._answered], now)
            self._answered += 1
        return self._answered > before

    def _last_answered(self) -> SentStep:
        assert self._opened_s is not None
        step = self._answered - 1
        return SentStep(self._due_s[step], self._opened_s, self._sent_s[step])

    def _give_up(self, now: float) -> int:
        """Record the steps that were sent and not answered; returns how many."""
        missing = range(self._answered, min(self._sent, self.recording.steps))
        for step in missing:
            self._recorder.step_unanswered(self._due_s[step], now)
        self._answered += len(missing)
        return len(missing)
