"""The query of `/v1/listen` as OpenAPI parameters: each that is honoured, and no other."""

from __future__ import annotations

from typing import Any

from server.audio.formats import Encoding
from server.protocols.deepgram.query import BUDGETS_MS, DOWNMIX_CHANNELS, MAX_MS, SAMPLE_RATES

Schema = dict[str, Any]

LIVE_ONLY = "Of live streams alone; here it is read and changes nothing."


def _whole(allowed: range) -> Schema:
    return {"type": "integer", "minimum": allowed[0], "maximum": allowed[-1]}


BOOLEAN: Schema = {"type": "boolean"}
TEXT: Schema = {"type": "string"}
TEXTS: Schema = {"type": "array", "items": TEXT}
MILLISECONDS = _whole(range(MAX_MS + 1))
ENCODINGS: Schema = {"enum": [encoding.value for encoding in Encoding if encoding is not Encoding.CONTAINER]}

PARAMETERS: dict[str, tuple[Schema, str]] = {
    "encoding": (ENCODINGS, "What the body is; without it a container that says so itself."),
    "sample_rate": (_whole(SAMPLE_RATES), "Hz; needed with an encoding that does not tell it."),
    "channels": (_whole(DOWNMIX_CHANNELS), "Interleaved channels of raw audio; they are mixed."),
    "multichannel": (BOOLEAN, "A transcript of each channel; the server bounds how many."),
    "model": (TEXT, "Any name, unless the operator is strict."),
    "version": (TEXT, "Accepted."),
    "keyterm": (TEXTS, "A word or phrase to listen for; repeatable. Greedy decoding ignores it."),
    "keywords": (TEXTS, "The older form: `word` or `word:boost`; repeatable."),
    "punctuate": (BOOLEAN, "Capitals, and a mark at the end of each utterance."),
    "numerals": (BOOLEAN, "Numbers with digits."),
    "smart_format": (BOOLEAN, "`punctuate` and `numerals`."),
    "endpointing": (
        {"anyOf": [MILLISECONDS, BOOLEAN]},
        "Silence that ends an utterance, in ms; an upload has no endpoints unless it asks.",
    ),
    "interim_results": (BOOLEAN, f"Partials. {LIVE_ONLY}"),
    "interim_interval_ms": (MILLISECONDS, f"Ours: at most one partial of a segment in so much audio. {LIVE_ONLY}"),
    "utterance_end_ms": (
        {"anyOf": [_whole(range(1, MAX_MS + 1)), {"const": False}]},
        f"`UtteranceEnd` after so much silence. {LIVE_ONLY}",
    ),
    "vad_events": (BOOLEAN, f"`SpeechStarted`. {LIVE_ONLY}"),
    "step_results": (BOOLEAN, f"Ours: an answer to each step. {LIVE_ONLY}"),
    "stable_words": (BOOLEAN, f"Ours: how many words can no longer change. {LIVE_ONLY}"),
    "latency": (BOOLEAN, f"Ours: where the time of a result went. {LIVE_ONLY}"),
    "latency_budget_ms": (_whole(BUDGETS_MS), f"Ours: when a step should be answered. {LIVE_ONLY}"),
    "resumable": (BOOLEAN, f"Ours: tickets, with which a lost stream goes on. {LIVE_ONLY}"),
    "no_delay": (TEXT, "Accepted."),
    "mip_opt_out": (TEXT, "Accepted."),
    "extra": (TEXT, "Accepted."),
    "tag": (TEXTS, "Names for the stream in the operator's logs; repeatable."),
}


def listen_parameters() -> list[Schema]:
    """Return them in the form of OpenAPI."""
    return [
        {"name": name, "in": "query", "required": False, "schema": schema, "description": description}
        for name, (schema, description) in PARAMETERS.items()
    ]
