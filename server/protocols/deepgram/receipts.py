"""Receipts of one live stream: what they state of its model, query and settings, and their signatures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from importlib.metadata import version

from model.ctc.beam import BeamDecoder
from model.ctc.greedy import GreedyDecoder
from model.ctc.interface import Decoder
from model.ctc.two_pass import TwoPassDecoder
from model.transducer.beam import TransducerBeamDecoder
from server.models.service import ModelService
from server.protocols.deepgram.parameters import TABLE, Kind
from server.protocols.deepgram.query import BIASING, ListenRequest
from server.protocols.features import in_plain_names
from server.receipts.keys import ReceiptKeys
from server.receipts.receipt import Digests, ModelInfo, ReceiptChain, Setup, ShownWord, json_digest
from server.recognition.audio_digest import AudioMark
from server.recognition.events import Final
from server.recognition.session_options import Finals, Limits

WITHOUT_EFFECT = frozenset({"model", "language", "tag", "extra", "latency", "latency_budget_ms"})
"""Parameters that a receipt leaves out: no word depends on them, or only by the model, which has a digest.

The language is kept for a model that lets a stream choose it."""

WRITTEN_FORMS = "written_forms"
"""Setting of a receipt: the digest of the operator's own written forms, where the stream has them."""

Pairs = Iterable[tuple[str, str]]


class StreamReceipts:
    """Signs the receipts of one stream."""

    def __init__(self, chain: ReceiptChain, keys: ReceiptKeys) -> None:
        self.chain = chain
        self._keys = keys

    def final(self, event: Final, message: bytes, words: Sequence[ShownWord]) -> str:
        """Return the receipt of a final, of its message as JSON and the words in that."""
        return self._keys.sign(self.chain.final(event, message, words))

    def end(self, mark: AudioMark, message: bytes, reason: str) -> str:
        """Return the receipt of the stream's end, of its message as JSON."""
        return self._keys.sign(self.chain.end(mark, message, reason))


def setup_of(model: ModelService, request: ListenRequest, pairs: Pairs, limits: Limits, vad: str) -> Setup:
    """Return what a replay of this stream needs. `pairs` are the query as sent."""
    query = [pair for pair in in_plain_names(pairs, TABLE) if pair[0] in TABLE and TABLE[pair[0]].kind is Kind.HONORED]
    without = WITHOUT_EFFECT - {"language"} if model.facts.prompts is not None else WITHOUT_EFFECT
    listed = [pair for pair in query if pair[0] not in without and pair[0] != "redact"]
    listed += [("redact", kind) for kind in sorted(request.options.redact)]
    kind, beams = _search(model.decoder)
    info = ModelInfo(model.name, model.card.version, model.facts.precision, kind, beams)
    settings = _settings(model.finals_of(request), limits, vad)
    if request.style.own.digest:
        settings |= {WRITTEN_FORMS: request.style.own.digest}
    return Setup(_software(), info, tuple(listed), settings)


@cache
def _software() -> str:
    """Return the version of this program; the look-up reads files."""
    return version("tutti-asr")


def _settings(finals: Finals, limits: Limits, vad: str) -> dict[str, float | str | None]:
    return {
        "accurate_endpoint_ms": limits.accurate_endpoint_ms,
        "finals": finals,
        "max_utterance_s": limits.max_utterance_s,
        "min_endpoint_ms": limits.min_endpoint_ms,
        "silence_endpoint_ms": limits.silence_endpoint_ms,
        "vad": vad,
    } | ({} if limits.rest_s is None else {"rest_s": limits.rest_s})


def digests_of(model: ModelService, request: ListenRequest, setup: Setup) -> Digests:
    """Return the digests of what the texts of a stream depend on."""
    decoder = model.decoder_for(request)
    terms = [pair for pair in setup.query if pair[0] in BIASING]
    others = [pair for pair in setup.query if pair[0] not in BIASING]
    return Digests(
        model=model.facts.digest,
        decoder=decoder.digest,
        language_model=_language_model(decoder),
        keyterms=json_digest(terms),
        settings=json_digest([setup.model.precision, others, setup.settings]),
    )


def _search(decoder: Decoder) -> tuple[str, int]:
    """Return the kind of a decoder, as `--decoder` names it, and its hypotheses."""
    if isinstance(decoder, BeamDecoder | TransducerBeamDecoder):
        return "beam", decoder.beams
    return "greedy" if isinstance(decoder, GreedyDecoder) else "", 1


def _language_model(decoder: Decoder) -> str:
    """Return the digest of the language models, empty without any."""
    return decoder.lm_digest if isinstance(decoder, BeamDecoder | TransducerBeamDecoder | TwoPassDecoder) else ""
