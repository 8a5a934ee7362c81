"""Adapter of Deepgram's Flux protocol: audio and control messages in, turn events out.

The connection decodes the audio, as at `/v1/listen`: plain samples, Opus packets or a container.

The score of an end of turn ends turns. The stream is forked in each pause, and the fork's words are those of the early
end and of the end. Without a fork, the score ends the recognizer's segments, too, so a segment's text is final when its
turn ends; a turn may have several segments. While an early end stands, every update repeats its words: LiveKit cancels
an answer begun early when an update has other words.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from msgspec import UNSET

from model.ctc.words import Word, joined, languages_of
from model.prompts import Prompts
from server.errors import BadFrame, BadParameter, CloseReason
from server.models.selection import is_english
from server.protocols.features import control_text
from server.protocols.flux.messages import (
    FluxCode,
    FluxRequest,
    TurnInfo,
    WordOut,
    configured,
    encode,
    hints_of,
    keyterms_of,
    parse_message,
    thresholds_of,
    word_out,
)
from server.recognition.events import (
    Closed,
    Event,
    Final,
    FinalReason,
    Forked,
    Partial,
    Silence,
    SpeechStarted,
    StepTiming,
    StreamBroken,
    TurnAnswered,
)
from server.recognition.messages import ChooseLanguage, Endpoint
from server.recognition.turns import Trigger, TurnEvent, TurnKind, TurnRules, Turns
from server.streaming.adapter import (
    Action,
    Actions,
    AfterAudio,
    Bias,
    Differing,
    Encoded,
    Finish,
    Flush,
    Reject,
    SendFrame,
)
from server.streaming.outbox import FrameKind
from server.text.acknowledgements import only_acknowledges
from server.text.formatting import Sentences
from server.text.redaction_kinds import number_language

_FORMATTED = (TurnKind.EAGER, TurnKind.END)
_ENDS = (FinalReason.FINALIZE, FinalReason.CLOSE)


class FluxAdapter:
    """Adapter of one connection."""

    def __init__(
        self,
        request: FluxRequest,
        request_id: str,
        *,
        delay_s: float,
        languages: tuple[str, ...] = ("en",),
        prompts: Prompts | None = None,
        forks: bool = False,
        audio_warnings: Callable[[], Sequence[str]] = tuple,
        marks: bool = False,
    ) -> None:
        """`languages` are the model's; English is formatted with the English tagger. `delay_s`, `forks`: as in `Turns`.
        `prompts`: languages that the model lets a stream choose.

        `audio_warnings`: those of `LiveDecoder`, read at the end. `marks`: as in `Turns`.
        """
        english = is_english(languages)
        self._languages = UNSET if english and not request.multilingual else list(request.hints[:1] or languages[:1])
        if prompts is not None and len(languages) > 1:
            self._languages = UNSET  # it is that of the words
        self._hinted = list(request.hints) or UNSET
        self._prompts = prompts
        self._audio_warnings = audio_warnings
        self._style = replace(request.style, english=english)
        self._fixed: dict[str, object] = {"numerals": request.style.numerals}
        if prompts is None:
            self._fixed["language_hints"] = list(request.hints)
        numbers = None if request.options.wait_in_numbers is False else number_language(languages)
        self._turns = Turns(request.rules, delay_s=delay_s, numbers=numbers, forks=forks, marks=marks)
        self._rules = request.rules  # of audio that comes now
        self._changes: deque[tuple[float, TurnRules]] = deque()  # each with the audio received before it, seconds
        self._phrases = request.phrases
        self._refused: str | None = None
        self._unparsed = ""  # what is wrong with the message that ends the connection
        self._request_id = request_id
        self._extra = {"extra": request.extra} if request.extra else {}
        self._sequence = 0
        self._eager: list[WordOut] | None = None  # words of the early end that stands
        self._shown: tuple[Word, ...] = ()  # of the last event whose words are as recognized
        self._written: list[WordOut] = []  # the same on the wire: most of them do not change

    def opened(self) -> Actions:
        """Send `Connected`: clients wait for it."""
        return (self._send("Connected", **self._extra),)

    def binary(self, chunk: bytes) -> Actions:
        """Recognize audio, or handle a message that came in a binary frame."""
        if (text := control_text(chunk)) is not None:
            return self.text(text)
        # The code with which Pipecat does not come back: the same audio would be refused again.
        return (Encoded(chunk, lambda why: (self._error(FluxCode.UNPARSABLE, why),)),) if chunk else ()

    def text(self, text: str) -> Actions:
        """Handle a control message; after an unknown one the open turn ends, then `Error`, then the close."""
        try:
            message = parse_message(text)
        except BadFrame as error:
            return self._unparsable(str(error))
        match message["type"]:
            case "Configure":
                try:
                    phrases = keyterms_of(message)
                except BadParameter:
                    phrases = None  # refused in its order
                return (AfterAudio(partial(self._configure, message), phrases or ()),)
            case "ForceEndTurn":
                return (Flush(),)
            case "CloseStream":
                return (Finish(),)
            case "KeepAlive" | "Finalize" as name:
                return self._unparsable(f"{name} is not a message of /v2/listen")
            case _:
                return self._unparsable("unknown type; must be CloseStream, Configure or ForceEndTurn")

    def event(self, event: Event, timing: StepTiming | None) -> Actions:  # noqa: ARG002 - an adapter's
        """Convert a recognition event into turn events."""
        match event:
            case SpeechStarted(time_s=time_s):
                self._change_rules(time_s)
                turns = self._turns.begin(time_s)
            case Silence(end_s=end_s, silence_s=silence_s):
                self._change_rules(end_s)
                turns = self._turns.update_silence(end_s, silence_s)
            case Forked(end_s=end_s, found=found):
                turns = [] if found is None else self._turns.fork(end_s, found)
            case Partial(start_s=start_s, duration_s=duration_s, words=words):
                self._change_rules(start_s + duration_s)
                turns = self._turns.advance(start_s + duration_s, (), words)
            case Final(start_s=start_s, duration_s=duration_s, words=words, reason=reason):
                self._change_rules(start_s + duration_s)
                end = Trigger.MANUAL if reason in _ENDS else None
                turns = self._turns.advance(start_s + duration_s, words, end=end)
            case TurnAnswered(probability=probability):
                self._turns.answer = probability
                return ()
            case StreamBroken():
                return (self._error(FluxCode.INTERNAL, "recognition failed on this stream"),)
            case Closed(reason=reason):
                return self._closed(reason)
            case _:
                return ()
        return self._actions(event, turns)

    def _actions(self, event: Event, turns: list[TurnEvent]) -> Actions:
        actions: list[Action] = [self._turn(turn) for turn in turns]
        if not turns and isinstance(event, Final) and event.reason is FinalReason.FINALIZE:
            why = "ForceEndTurn: no turn is open"
            actions.append(self._send("Warning", code=FluxCode.NO_ACTIVE_TURN, description=why))
        if self._turns.differing:
            actions.append(Differing(self._turns.differing))
            self._turns.differing = 0
        return actions

    def _change_rules(self, until_s: float) -> None:
        """Change the rules of audio up to `until_s` that a `Configure` came before, however late it is recognized."""
        while self._changes and self._changes[0][0] < until_s:
            self._turns.rules = self._changes.popleft()[1]

    def bias_refused(self, why: str) -> Actions:
        """Keep the reason for the answer to the `Configure` that is being applied."""
        self._refused = why
        return ()

    def _configure(self, message: dict[str, Any], received_s: float) -> Iterator[Action]:
        """Apply all of a `Configure` or nothing after `received_s` of audio, and answer it."""
        try:
            hints = None if self._prompts is None else hints_of(message, self._prompts)
            rest = message if hints is None else {key: message[key] for key in message.keys() - {"language_hints"}}
            rules, phrases = configured(self._rules, rest, self._fixed)
        except BadParameter as error:
            yield self._failure(str(error))
            return
        if phrases is not None and phrases != self._phrases:
            self._refused = None
            yield Bias(phrases)
            if self._refused is not None:
                yield self._failure(f"keyterms: {self._refused}")
                return
            self._phrases = phrases
        if rules != self._rules:
            self._rules = rules
            self._changes.append((received_s, rules))
            yield Endpoint(0.0, rules.scored_end, rules.fork_after_s)
        others: dict[str, object] = {"backchannel": "hold"} if rules.holds_backchannel else {}
        if hints is not None:
            self._hinted = list(hints) or UNSET
            self._languages = list(hints) if len(hints) == 1 else UNSET
            yield ChooseLanguage(hints[0] if len(hints) == 1 else None)
            others["language_hints"] = hints
        yield self._send("ConfigureSuccess", thresholds=thresholds_of(rules), keyterms=self._phrases, **others)

    def _turn(self, turn: TurnEvent) -> SendFrame:
        if turn.kind in (TurnKind.START, TurnKind.RESUMED):
            self._eager = None
        words = self._words(turn)
        payload = TurnInfo(
            self._request_id,
            self._next(),
            turn.kind.value,
            turn.index,
            round(turn.start_s, 3),
            round(turn.end_s, 3),
            joined([word.word for word in words]),
            words,
            round(turn.score, 4),
            UNSET if turn.trigger is None else turn.trigger.value,
            languages_of(turn.words) or self._languages or UNSET,
            self._hinted,
            only_acknowledges(turn.words) or UNSET,
        )
        # Every frame has a sequence number, so none may be dropped from the outbox as an obsolete interim is.
        ended = turn.kind is TurnKind.END
        return SendFrame(encode(payload), FrameKind.FINAL if ended else FrameKind.OTHER, ended)

    def _words(self, turn: TurnEvent) -> list[WordOut]:
        """Return the words with capitals and marks at an end, as recognized before; those of an early end stand."""
        if self._eager is not None:
            return self._eager
        if turn.kind in _FORMATTED:
            words = [word_out(one.word, one.text) for one in Sentences(self._style).final(turn.words, ends=True)]
            if turn.kind is TurnKind.EAGER:
                self._eager = words
            return words
        unchanged = min(len(turn.words), len(self._shown))
        while turn.words[:unchanged] != self._shown[:unchanged]:
            unchanged -= 1  # usually only the last word has changed
        self._shown = turn.words
        self._written[unchanged:] = [word_out(word, word.text) for word in turn.words[unchanged:]]
        return self._written

    def _unparsable(self, why: str) -> Actions:
        """End the connection: the words so far, then `Error`, then the close."""
        self._unparsed = why
        return (Reject(why),)

    def _error(self, code: str, description: str) -> SendFrame:
        return self._send("Error", code=code, description=description)

    def _closed(self, reason: CloseReason) -> Iterator[Action]:
        for text in self._audio_warnings():
            yield self._send("Warning", code=FluxCode.AUDIO, description=text)
        if reason is CloseReason.NOT_UNDERSTOOD:
            yield self._error(FluxCode.UNPARSABLE, self._unparsed)

    def _failure(self, why: str) -> SendFrame:
        code = FluxCode.INVALID_CONFIGURE
        return self._send("ConfigureFailure", code=code, error_code=code, description=why)

    def _send(self, kind: str, **fields: Any) -> SendFrame:
        message = {"type": kind, "request_id": self._request_id, "sequence_id": self._next(), **fields}
        return SendFrame(encode(message))

    def _next(self) -> int:
        number, self._sequence = self._sequence, self._sequence + 1
        return number
