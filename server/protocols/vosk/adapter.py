"""Adapter of vosk-server's protocol, in which clients send a frame and wait for its answer.

A missing answer would hang the client, an extra one would shift all later answers. So every audio frame is answered at
once with the latest text, however old; a final is sent with the next frame's answer. Only `reset` and `eof` are
answered when the text is complete; frames after a `reset` are answered after it.

Source: vosk-server's websocket/asr_server.py at c2e82f0.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

import msgspec

from model.ctc.words import Word, joined
from server.audio.raw import PlainCodec
from server.errors import BadFrame, CloseReason
from server.protocols.features import NEVER_IGNORED, NOTHING, REDACT, control_text, problem_of
from server.recognition.events import Closed, Event, Final, FinalReason, Partial, StepTiming, VoiceVector
from server.recognition.keyterms.keyterms import READ_HINTS, usable_hints
from server.streaming.adapter import Action, Actions, Bias, Finish, Flush, PlainInput, Reject, SendFrame, Skip
from server.streaming.outbox import FrameKind

RATES = range(8_000, 48_001)
DEFAULT_RATE = 8_000  # as the reference server
MAX_FRAME_CHARACTERS = 262_144  # a grammar may list thousands of phrases
MAX_ALTERNATIVES = 100
MAX_NAME = 32  # longest excerpt of a setting's name in a close reason
SPK_FRAME_S = 0.01  # of `spk_frames`
UNKNOWN = "[unk]"  # the word in vosk grammars for any other word


class Config(msgspec.Struct, frozen=True):
    """Settings; omitted ones stay unchanged. Numbers may be given as text, and booleans as numbers."""

    sample_rate: float | None = None
    words: bool | None = None
    max_alternatives: int | None = None
    phrase_list: list[str] | None = None


class ClientFrame(msgspec.Struct, frozen=True):
    """A text frame with one of three fields."""

    config: Config | None = None
    eof: bool | None = None
    reset: bool | None = None


COMMANDS = frozenset(ClientFrame.__struct_fields__)
SETTINGS = frozenset(Config.__struct_fields__)
IN_URL = {"model": "model=", REDACT: f"{REDACT}=", "spk_model": "spk=true"}


def parse_frame(text: str, *, lenient: bool = False) -> tuple[ClientFrame, tuple[str, ...]]:
    """Parse a text frame; return it with the unsupported settings that a `lenient` server ignores. Raises: BadFrame."""
    if len(text) > MAX_FRAME_CHARACTERS:
        raise BadFrame(f"the message has {len(text)} characters; at most {MAX_FRAME_CHARACTERS}")
    try:
        raw = msgspec.json.decode(text)
        frame = msgspec.convert(raw, ClientFrame, strict=False)
    except msgspec.ValidationError as error:
        raise BadFrame(problem_of(error, ClientFrame)) from error
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadFrame("a text frame must be a JSON object with config, eof or reset") from error
    if (frame.config is not None) + bool(frame.eof) + bool(frame.reset) != 1:
        raise BadFrame("a text frame must have one of config, eof, reset")
    ignored = list(_unsupported(raw, COMMANDS, "", lenient=lenient))
    if frame.config is not None:
        ignored += _unsupported(raw["config"], SETTINGS, "config.", lenient=lenient)
        _check(frame.config)
    return frame, tuple(ignored)


def _unsupported(fields: dict[str, object], known: frozenset[str], path: str, *, lenient: bool) -> Iterator[str]:
    """Yield the names of unsupported settings if lenient, refuse them otherwise. Raises: BadFrame.

    So are `model` and `redact` in `config`: they are set in the URL.
    """
    for name, value in fields.items():
        if name in known or value in NOTHING:
            continue
        title = f"{path}{name[:MAX_NAME]}".encode("ascii", "replace").decode()
        if lenient and not name.casefold().startswith(NEVER_IGNORED):
            yield title
        else:
            instead = f"set ?{IN_URL[name]} in the URL" if name in IN_URL else "leave it out"
            raise BadFrame(f"{title}: not supported by this server; {instead}")


def _check(config: Config) -> None:
    rate = config.sample_rate
    if rate is not None and rate not in RATES:
        raise BadFrame(f"sample_rate: {rate:g} is not valid; must be a whole number from {RATES[0]} to {RATES[-1]}")
    if config.max_alternatives is not None and not 0 <= config.max_alternatives <= MAX_ALTERNATIVES:
        raise BadFrame(f"max_alternatives: must be from 0 to {MAX_ALTERNATIVES}")


def key_terms(phrases: Sequence[str]) -> tuple[str, ...]:
    """Convert phrases of a grammar to key terms, as far as they can be spelled and fit: a grammar is a hint."""
    split = ([word for word in phrase.split() if word != UNKNOWN] for phrase in phrases[:READ_HINTS])
    return usable_hints([joined(words) for words in split])


def final_frame(
    words: Sequence[Word], *, with_words: bool, alternatives: bool, voice: VoiceVector | None = None
) -> bytes:
    """Encode a final of these words, possibly none; `text` is always there because clients index it."""
    final: dict[str, object] = {"text": joined(word.text for word in words)}
    if with_words and words:
        final["result"] = [
            {"conf": round(w.confidence, 4), "end": round(w.end_s, 3), "start": round(w.start_s, 3), "word": w.text}
            for w in words
        ]
    if voice is not None:
        final |= {"spk": voice.numbers, "spk_frames": round(voice.seconds / SPK_FRAME_S)}
    if alternatives:
        confidence = sum(word.confidence for word in words) / len(words) if words else 0.0
        final = {"alternatives": [{"confidence": round(confidence, 4), **final}]}
    return msgspec.json.encode(final)


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
        self._voice: VoiceVector | None = None  # of the last of them
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
        """Process audio (16-bit samples, split anywhere) and answer the frame, or handle a message in a binary one."""
        if (text := control_text(chunk)) is not None:
            return self.text(text)
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
            case Final(words=words, reason=reason, voice=voice):
                self._partial = ""
                self._closed += words
                self._voice = voice or self._voice
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
        terms = key_terms(phrases)
        yield Bias(terms, hints=True)
        if left_out := sum(1 for phrase in phrases if phrase.replace(UNKNOWN, "").strip()) - len(terms):
            yield Skip(f"phrase_list: {left_out} of {len(phrases)} phrases cannot be spelled or exceed the limits")

    def _answer(self) -> SendFrame:
        return self._final() if self._closed else SendFrame(msgspec.json.encode({"partial": self._partial}))

    def _final(self, *, flushed: bool = False) -> SendFrame:
        words, self._closed = self._closed, []
        voice, self._voice = self._voice, None
        payload = final_frame(words, with_words=self._words, alternatives=self._alternatives, voice=voice)
        return SendFrame(payload, FrameKind.FINAL, flushed)

    def _answer_reset(self) -> Actions:
        frames = self._resets.popleft()
        return (self._final(flushed=True), *(self._answer() for _ in range(frames)))
