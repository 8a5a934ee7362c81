"""`Configure` in mid-stream: what the client asked of a session in, the answering frame out. Pure.

Source of the codes: protocols.md 3.6.
"""

from __future__ import annotations

from collections.abc import Sequence

from model.ctc.bias import BiasError
from server.errors import KeytermsTooOften
from server.protocols.deepgram.deepgram import Projector
from server.recognition.session import Session


def configure(session: Session, projector: Projector, phrases: Sequence[str] | None) -> bytes:
    """Change the key terms, where other ones are given; return the answer, which names those that hold now."""
    held = session.keyterms.phrases
    if phrases is None or tuple(phrases) == held:
        return projector.configured(held)
    if phrases and not session.supports_keyterms:
        return projector.not_configured(
            "CONFIGURE_KEYTERMS_NOT_SUPPORTED", "this server decodes greedily, which knows no key terms"
        )
    try:
        session.replace_phrases(phrases)
    except KeytermsTooOften as error:
        return projector.not_configured("CONFIGURE_ALREADY_PENDING", str(error))
    except BiasError as error:
        return projector.not_configured("CONFIGURE_KEYTERM_LIMIT_EXCEEDED", str(error))
    return projector.configured(session.keyterms.phrases)
