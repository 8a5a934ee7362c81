"""What a stream or upload uses, for its usage records: whose it is, its audio and its features."""

from __future__ import annotations

from starlette.requests import HTTPConnection

from server.access.guard import caller_of
from server.models.service import ModelService
from server.recognition.session import Session
from server.text.formatting import Style
from server.usage.meters import Reading, Subject


def subject_of(
    connection: HTTPConnection, model: ModelService, *, kind: str, protocol: str, request_id: str
) -> Subject:
    """Return whose an admitted stream or upload is; a port or a signature without a key has no key's name."""
    caller = caller_of(connection)
    name, key_id = ("", "") if caller is None else (caller.key.name, caller.key.id)
    return Subject(request_id, name, key_id, kind, protocol, model.name, language_of(model))


def language_of(model: ModelService) -> str:
    """Return the languages of a model, with commas."""
    return ",".join(model.languages)


def read_session(session: Session, style: Style) -> Reading:
    """Return the audio that a session has received, and the features asked of it by the names of our parameters."""
    options = session.options
    features = {
        "multichannel": options.multichannel,
        "interim_results": options.partials,
        "keyterm": any(terms.phrases or terms.keywords for terms in (session.keyterms.current, options.keyterms)),
        "grammar": bool(options.grammar),
        "accurate": options.finals == "accurate",
        "redact": bool(options.redact),
        "resumable": options.resumable,
        "punctuate": style.punctuate,
        "numerals": style.numerals,
    }
    return Reading(session.audio.by_channel_s, tuple(name for name, used in features.items() if used))
