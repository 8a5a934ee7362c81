"""The key terms of a session, their changes, and the resulting bias of its channels. No clock, no I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from model.ctc.bias import Bias, BiasError
from model.ctc.interface import ChecksTerms, Decoder
from model.text.spelled import spoken
from server.recognition.keyterms.keyterms import (
    CONTEXT_S,
    READ_CHARACTERS,
    READING_SHARE,
    ChangeAllowance,
    Keyterms,
    check_speakable,
    checked_size,
    rare_terms,
    unspeakable,
)
from server.recognition.segments.segmenter import Segmenter
from server.recognition.steps import AudioInput

REWOUND_CHARACTERS = 150.0  # cost of decoding a second of audio again: 0.4 ms on the event loop


class SessionKeyterms:
    """The key terms for audio from now on, on all channels; audio received before keeps the old ones."""

    def __init__(
        self,
        initial: Keyterms,
        channels: Sequence[Segmenter],
        audio: AudioInput,
        decoder: Decoder,
        step_s: float,
    ) -> None:
        """`initial`: the key terms of the query, with which the channels start."""
        self.initial = self.current = initial
        self._changes = ChangeAllowance()
        self._channels, self._audio = channels, audio
        self.decoder = decoder
        self._step_s = step_s

    @property
    def supported(self) -> bool:
        """Whether the decoder takes key terms."""
        return self.decoder.supports_bias

    @property
    def _replaying(self) -> bool:
        """Whether the restored state already contains a change made now, or a later one."""
        return any(cutter.replaying for cutter in self._audio.cutters)

    def asked_for(
        self, phrases: Sequence[str] | None = None, *, more: Sequence[str] = (), said: str = ""
    ) -> tuple[Bias, ...]:
        """Return the biases that a change to other phrases, with more phrases, or after a speaker's text, would set.

        The second is that after the speaker's text has expired. None if there is nothing to build for them, or if the
        change would be refused.
        """
        own = self.current.phrases if phrases is None else phrases
        added = [phrase for phrase in dict.fromkeys(more) if phrase not in own]
        if self._replaying or not isinstance(self.decoder, ChecksTerms):
            return ()
        try:
            context = self.current.context_with(self.rare_terms(said)) if said else self.current.context
            changed = Keyterms.of((*own, *added), self.current.keywords, context)
        except BiasError:
            return ()
        return (changed.bias, changed.without_context.bias) if changed.context else (changed.bias,)

    def replace_phrases(self, phrases: Sequence[str], *, hints: bool = False) -> int:
        """Bias the audio from now on towards other phrases and the same keywords; return how many were left out.

        Only `hints` are left out if they cannot be recognized. Raises: KeytermsTooOften; BiasError for too many
        phrases, or one that cannot be recognized. The old phrases stay in force then.
        """
        if self._replaying:
            return 0
        self._spend(phrases, self.current.context)
        speakable = self._speakable(phrases) if hints else phrases
        replaced = self.current.replaced(speakable)
        check_speakable(replaced, self.decoder)
        self.set(replaced)
        return len(phrases) - len(speakable)

    def _speakable(self, phrases: Sequence[str]) -> Sequence[str]:
        lost = set(unspeakable(Keyterms.of(phrases).bias, self.decoder))
        return [phrase for phrase in phrases if " ".join(spoken(phrase).split()) not in lost] if lost else phrases

    def set(self, keyterms: Keyterms) -> None:
        """Bias the audio from now on towards these terms, without charging the allowance; context expires as before."""
        self.current = keyterms
        self._set_bias()

    def add_context(self, text: str) -> tuple[str, ...]:
        """Also bias the next `CONTEXT_S` of audio towards the rare words of another speaker's text.

        Returns all such words in force. Those of earlier texts now expire with the new ones; the oldest are dropped if
        there is no room. Reading a text costs some of the allowance, too. Raises: KeytermsTooOften; no terms have
        changed then.
        """
        if not self._replaying:
            self._changes.spend(round(min(len(text), READ_CHARACTERS) * READING_SHARE), self._audio.received_s)
            context = self.current.context_with(self.rare_terms(text))
            if set(context) != set(self.current.context):
                self._spend(self.current.phrases, context)
                self.current = self.current.in_context(context)
            self._set_bias(round(CONTEXT_S / self._step_s) if self.current.context else 0)
        return self.current.context

    def rare_terms(self, text: str) -> tuple[str, ...]:
        """Return the words of a text that are rare for its decoder."""
        return rare_terms(text, self.decoder)

    def bias_for_rewind(self, phrases: Sequence[str], seconds: float) -> Bias:
        """Return the bias of these terms and further phrases, to decode seconds of audio again.

        Raises: KeytermsTooOften; BiasError for too many phrases, or one that cannot be recognized.
        """
        own = self.current
        added = [phrase for phrase in dict.fromkeys(phrases) if phrase not in own.phrases]
        characters = checked_size((*own.phrases, *added), own.keywords)
        self._changes.spend(characters + round(seconds * REWOUND_CHARACTERS), self._audio.received_s)
        wider = own.replaced((*own.phrases, *added))
        check_speakable(wider, self.decoder)
        return wider.bias

    def sent(self) -> None:
        """Record that steps were sent: drop the terms of other speakers after their number of steps."""
        if self.current.context and not any(channel.settings.bias_steps for channel in self._channels):
            own = self.current.without_context
            self.current = self.initial if own == self.initial else own

    def _spend(self, phrases: Sequence[str], context: Sequence[str]) -> None:
        characters = checked_size(phrases, self.current.keywords)
        self._changes.spend(characters + sum(map(len, context)), self._audio.received_s)

    def _set_bias(self, context_steps: int | None = None) -> None:
        """Bias the audio from now on. Context holds for this many steps; None: its expiry is unchanged."""
        after = self.current.without_context.bias
        for channel in self._channels:
            steps = channel.settings.bias_steps if context_steps is None else context_steps
            channel.set_bias(self.current.bias if steps else after, steps, after)

    # Resumable streams

    def saved(self) -> tuple[tuple[str, ...] | None, tuple[float, float]]:
        """Return the phrases, None if they are the initial ones, and the allowance for changes."""
        return None if self.current is self.initial else self.current.phrases, self._changes.saved()

    def restoring(
        self, phrases: tuple[str, ...] | None, allowance: tuple[float, float], context: tuple[str, ...]
    ) -> Callable[[], None]:
        """Return a function that continues from a snapshot. Raises: BiasError; nothing has changed then."""
        keyterms = self.current if phrases is None else self.current.replaced(phrases)
        keyterms = keyterms.in_context(context) if context else keyterms

        def restore() -> None:
            self.current = keyterms
            self._changes.restore(allowance)

        return restore
