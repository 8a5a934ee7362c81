"""One upload: feeds its recording to a session at the rate of the results, and collects the words."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import msgspec

from model.ctc.words import Word
from server.audio.formats import AudioForm
from server.audio.recordings.remote_recording import RemoteRecording
from server.errors import BadAudio, CloseReason, RecognitionFailed, Refused, ServerDraining
from server.recognition.active_session import ActiveSession
from server.recognition.events import Closed, Event, Final, FinalReason, StepTiming, StreamBroken
from server.recognition.messages import EndOfAudio, Samples
from server.recognition.segments.segmenter import Segmenter
from server.recognition.segments.speaker_rules import others_in
from server.recognition.session import Session
from server.recognition.session_options import IN_FLIGHT_S
from server.text.formatting import FormattedWord, Sentences, Style
from server.text.numbers.number_words import is_row

NUMBER_PAUSE_S = 2.0  # of a pause within a number that is read aloud
ROW_WORDS = 3  # digits at the end of a segment that may go on in the next one

T = TypeVar("T")
OnSegment = Callable[[Sequence[FormattedWord]], None]


def _with_speakers(channel: Segmenter, words: Sequence[FormattedWord]) -> list[FormattedWord]:
    """Return the words of a whole recording with their speakers; four hours of it take seconds."""
    assert channel.speakers is not None
    speakers = channel.speakers.whole([formatted.word for formatted in words])
    return [
        FormattedWord(msgspec.structs.replace(formatted.word, speaker=speaker), formatted.text)
        for formatted, speaker in zip(words, speakers, strict=True)
    ]


class Upload:
    """Feeds a recording to its session at the rate of the results, and collects the words."""

    def __init__(self, recording: RemoteRecording, style: Style, on_segment: OnSegment | None = None) -> None:
        self._recording = recording
        self._session: Session | None = None  # until the recording is open
        self.style = style
        self._on_segment = on_segment
        self._joins_numbers = style.numerals and style.english and on_segment is None
        self._sentences: list[Sentences] = []
        self._pending: list[list[Word]] = []  # end in digits that may go on
        self._words: list[list[FormattedWord]] = []
        self._waiter: asyncio.Future[None] | None = None
        self._error: Refused | None = None
        self._ended = False

    @property
    def backlog_s(self) -> float:
        """Seconds of audio without a result."""
        return 0.0 if self._session is None else self._session.backlog_s

    async def open(self, body: bytes, form: AudioForm, *, rate: int, max_s: float) -> None:
        """Open the recording. Raises: Refused."""
        await self._decoded(self._recording.open(body, form, rate=rate, max_s=max_s))

    def look(self) -> float:
        """Return the backlog: the client has sent all."""
        return self.backlog_s

    def drain(self) -> None:
        """Fail with `ServerDraining`; the client has to send the recording again, to another replica."""
        self._fail(ServerDraining("the server is restarting; send the recording again"))

    def on_events(self, events: Sequence[Event], timing: StepTiming | None) -> None:  # noqa: ARG002 - a sink's
        """Collect the words of a step's events."""
        for event in events:
            if isinstance(event, Final):
                self._add(event)
            elif isinstance(event, Closed):
                for channel in range(len(self._words)):
                    self._add_pending(channel)
                self._ended = True
            elif isinstance(event, StreamBroken):
                self._fail(RecognitionFailed("recognition failed on this recording"))
        if self._ended or self.backlog_s <= IN_FLIGHT_S / 2:
            self._wake()

    def _add(self, final: Final) -> None:
        """Format a segment, or keep its words: the next one may have more digits of a number read with pauses."""
        pending, words = self._pending[final.channel], list(final.words)
        ends = final.reason is not FinalReason.MAX_LEN
        texts = [word.text for word in words]
        if pending and not words:
            return
        if pending and is_row(texts) and words[0].start_s - pending[-1].end_s < NUMBER_PAUSE_S:
            pending += words
            return
        self._add_pending(final.channel)
        if self._joins_numbers and ends and words and (is_row(texts) or is_row(texts[-ROW_WORDS:])):
            self._pending[final.channel] = words
            return
        formatted = self._sentences[final.channel].final(final.words, ends=ends)
        self._words[final.channel] += formatted
        if self._on_segment is not None:
            self._on_segment(formatted)

    def _add_pending(self, channel: int) -> None:
        words, self._pending[channel] = self._pending[channel], []
        if words:
            self._words[channel] += self._sentences[channel].final(words, ends=True, pause_s=NUMBER_PAUSE_S)

    def begin(self, session: Session) -> None:
        """Collect the words of a session from now on."""
        self._session = session
        for _ in session.channels:
            self._sentences.append(Sentences(self.style))
            self._pending.append([])
            self._words.append([])

    async def run(
        self, session: Session, recognition: ActiveSession, clock: Callable[[], float]
    ) -> list[list[FormattedWord]]:
        """Recognize the whole recording; return each channel's words. Raises: Refused."""
        self.begin(session)
        while (block := await self._decoded(self._recording.next_block())) is not None:
            recognition.push(session.take(Samples(block, clock())))
            while session.backlog_s > IN_FLIGHT_S:
                await self._next_result()
        recognition.take(EndOfAudio(CloseReason.CLOSE_STREAM, clock()))
        while not self._ended:
            await self._next_result()
        if (rules := session.options.speakers) is not None and rules.at_end:
            for channel in session.channels:
                spoken = await asyncio.to_thread(_with_speakers, channel, self._words[channel.index])
                others = others_in([formatted.word for formatted in spoken])
                assert channel.speakers is not None
                channel.speakers.other_words += others
                alone = rules.alone and others
                self._words[channel.index] = [one for one in spoken if not (alone and others_in([one.word]))]
        return self._words

    async def _decoded(self, result: Awaitable[T]) -> T:
        """Wait for the decoder. Raises: Refused, also if the upload has failed and its decoder was therefore ended."""
        try:
            decoded = await result
        except BadAudio:
            self._raise_failure()
            raise
        self._raise_failure()
        return decoded

    def _raise_failure(self) -> None:
        if self._error is not None:
            raise self._error

    async def _next_result(self) -> None:
        if self._error is None:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        self._raise_failure()

    def _fail(self, error: Refused) -> None:
        self._error = error
        self._recording.kill()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
