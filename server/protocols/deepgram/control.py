"""Control messages that change what a live stream favors, or decode it again: Configure, Context, Rewind.

Each is applied to the session here and answered; the connection sends the answer in its order with the audio.
"""

from __future__ import annotations

from collections.abc import Sequence

from model.ctc.bias import BiasError
from server.errors import KeytermsTooOften
from server.protocols.deepgram.messages import Configure, ConfigureCode, Rewind
from server.protocols.deepgram.projector import MAX_ECHO, Projector
from server.recognition.events import Event
from server.recognition.messages import RewindFinals
from server.recognition.session import Session


def configure(session: Session, projector: Projector, asked: Configure, *, unbuilt: str | None = None) -> bytes:
    """Apply a Configure message (only key terms can change); return the answer, which lists the key terms in force.

    `unbuilt`: why its terms could not be built, here and below.
    """
    problem, phrases = _problem(session, projector, asked), asked.keyterms
    if problem is not None:
        return projector.not_configured(*problem)
    if phrases is None or tuple(phrases) == session.keyterms.current.phrases:
        return projector.configured(session.keyterms.current.phrases)
    if unbuilt is not None:
        return projector.not_configured(ConfigureCode.ALREADY_PENDING, unbuilt)
    try:
        session.keyterms.replace_phrases(phrases)
    except KeytermsTooOften as error:
        return projector.not_configured(ConfigureCode.ALREADY_PENDING, str(error))
    except BiasError as error:
        return projector.not_configured(ConfigureCode.KEYTERM_LIMIT_EXCEEDED, str(error))
    return projector.configured(session.keyterms.current.phrases)


def _problem(session: Session, projector: Projector, asked: Configure) -> tuple[ConfigureCode, str] | None:
    """Return why a change is not possible in this stream, None if it may be."""
    unsupported = asked.unsupported(projector.request.switches)
    if unsupported:
        names = ", ".join(unsupported)[:MAX_ECHO]
        return ConfigureCode.NOT_SUPPORTED, f"{names}: cannot be changed during a stream; only keyterms can"
    if asked.keyterms is None or tuple(asked.keyterms) == session.keyterms.current.phrases:
        return None
    if projector.receipts is not None:
        return ConfigureCode.NOT_SUPPORTED, "keyterms: cannot be changed in a stream with receipts"
    if asked.keyterms and not session.keyterms.supported:
        code = ConfigureCode.KEYTERMS_NOT_SUPPORTED
        return code, "keyterms: not supported with greedy decoding; leave them out"
    return None


def in_context(session: Session, projector: Projector, said: str, *, unbuilt: str | None = None) -> bytes:
    """Favor the rare words of what another speaker said; return the answer, which lists those in force."""
    if projector.receipts is not None:
        return projector.no_context(ConfigureCode.NOT_SUPPORTED, "text: not possible in a stream with receipts")
    if not session.keyterms.supported:
        why = "text: key terms are not supported with this model or decoder; leave it out"
        return projector.no_context(ConfigureCode.KEYTERMS_NOT_SUPPORTED, why)
    if unbuilt is not None:
        return projector.no_context(ConfigureCode.ALREADY_PENDING, unbuilt)
    try:
        return projector.context(session.keyterms.add_context(said))
    except KeytermsTooOften as error:
        return projector.no_context(ConfigureCode.ALREADY_PENDING, str(error))


def rewind(
    session: Session, projector: Projector, asked: Rewind, *, unbuilt: str | None = None
) -> Sequence[Event] | bytes:
    """Decode the last seconds again with more key terms; return the events, or the answer that refuses it."""
    most_s = session.options.rewind_s
    if not most_s:
        why = "rewind: this stream keeps nothing to decode again; set rewind=10 in the query"
        return projector.not_rewound(ConfigureCode.NOT_SUPPORTED, why)
    if not 0 < asked.seconds <= most_s:
        why = f"seconds: {asked.seconds:g} is not valid; must be above 0 and at most {most_s:g} (rewind)"
        return projector.not_rewound(ConfigureCode.NOT_SUPPORTED, why)
    if unbuilt is not None:
        return projector.not_rewound(ConfigureCode.ALREADY_PENDING, unbuilt)
    try:
        return session.take(RewindFinals(asked.seconds, asked.keyterms, asked.channel))
    except KeytermsTooOften as error:
        return projector.not_rewound(ConfigureCode.ALREADY_PENDING, str(error))
    except BiasError as error:
        return projector.not_rewound(ConfigureCode.KEYTERM_LIMIT_EXCEEDED, f"keyterms: {error}")
