"""Table of the query parameters of `/v1/listen`: names, kinds and values for the parser, schemas and texts for the
documents.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from server.audio.formats import Encoding
from server.protocols.features import FEATURES, OTHER_VERSION
from server.recognition.session import DEFAULT_ENDPOINTING_MS, FINALS

Schema = dict[str, Any]

SAMPLE_RATES = range(8_000, 48_001)
DOWNMIX_CHANNELS = range(1, 9)
MAX_MS = 3_600_000
BUDGETS_MS = range(20, 10_001)  # less than that of others is a place before them; more than an upload's is none at all


def _whole(allowed: range) -> Schema:
    return {"type": "integer", "minimum": allowed[0], "maximum": allowed[-1]}


BOOLEAN: Schema = {"type": "boolean"}
TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "number", "minimum": 0}
TEXTS: Schema = {"type": "array", "items": TEXT}
MILLISECONDS = _whole(range(MAX_MS + 1))
ENCODINGS: Schema = {"enum": [encoding.value for encoding in Encoding if encoding is not Encoding.CONTAINER]}


class Kind(Enum):
    """What a parameter is to this server."""

    HONORED = "honored"
    HARMLESS = "harmless"  # accepted without effect: the transcript means the same without it
    UNMET = "unmet"  # the same, and named among the ignored: clients send it and do not need it
    LACKING = "lacking"  # a feature that this server lacks: refused
    OTHER_VERSION = "other version"  # of /v2/listen: refused


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter. It takes one value, unless its schema is that of a list.

    `detail` is Markdown for the description's table; without it the row of the parameter before covers this one too.
    An upload checks parameters that are `live_only`, and names them among the ignored where they ask for something.
    Deepgram lacks those that are `ours`.
    """

    name: str
    schema: Schema
    default: str
    summary: str
    detail: str | None = None
    live_only: bool = False
    ours: bool = False
    kind: Kind = Kind.HONORED

    @property
    def repeatable(self) -> bool:
        """Whether it may be given more than once."""
        return self.schema.get("type") == "array"

    def openapi(self) -> Schema:
        """Return it as an OpenAPI parameter of the upload."""
        told = f"Ours: {self.summary}" if self.ours else self.summary
        if self.live_only:
            told += " Of live streams alone; here it is named in `x-ignored-params`."
        return {"name": self.name, "in": "query", "required": False, "schema": self.schema, "description": told}


# fmt: off
PARAMETERS = (
    Parameter("encoding", ENCODINGS, "–", "What the body is; without it a container that says so itself.",
        "`linear16`, `linear32` (float), `mulaw`, `alaw`, `opus` (one packet a message) with `sample_rate`, 8 to 48 "
        "kHz; `ogg-opus`, `flac`; without it the first bytes tell WAV, Ogg (Opus, Vorbis, FLAC), WebM, FLAC, MP3, AAC "
        "(ADTS) or fragmented MP4"),
    Parameter("sample_rate", _whole(SAMPLE_RATES), "–", "Hz; needed with an encoding that does not tell it."),
    Parameter("channels", _whole(DOWNMIX_CHANNELS), "1", "Interleaved channels of raw audio; they are mixed.",
        "interleaved channels, mixed down unless `multichannel`; of a live container `channels` says how many it has"),
    Parameter("multichannel", BOOLEAN, "`false`", "A transcript of each channel; the server bounds how many."),
    Parameter("model", TEXT, "the server's", "A model by its name; any other is the default, unless names are strict.",
        "a model of `GET /v1/models`; any other name is the default, unless the operator is strict"),
    Parameter("language", TEXT, "the model's", "A tag; it chooses a model that is not named.",
        "a tag such as `es-419`; it chooses the model where none is named, and is refused if no model has it"),
    Parameter("keyterm", TEXTS, "–", "A word or phrase to listen for; repeatable. Greedy decoding ignores it.",
        "a word or phrase to listen for; repeatable. Greedy decoding ignores it, as the next"),
    Parameter("keywords", TEXTS, "–", "The older form: `word` or `word:boost`; repeatable.",
        "the older form: `word` or `word:boost`, a boost below 0 for words not to hear; repeatable"),
    Parameter("grammar", TEXT, "–", "the one kind of phrase that is said.",
        "the one kind of phrase that is said: `digits`; another is refused with the list of what the model has",
        ours=True),
    Parameter("finals", {"enum": [*FINALS]}, "the server's", "how finals are made.",
        "`accurate`: a segment ends at a longer pause and is read again by another model, so finals come later and are "
        "better, and partials are the same. Not with `grammar`, `resumable` or `stable_words`; refused where no other "
        "model hears the same sounds", ours=True),
    Parameter("punctuate", BOOLEAN, "`false`", "Capitals, commas, periods and question marks.",
        "capitals, commas, periods and question marks in English finals, a guess from the words; interim results have "
        "the capital of the first word, other languages a mark at the end too"),
    Parameter("numerals", BOOLEAN, "`false`", "Numbers with digits.",
        'in final results, numbers with digits: the words "twenty one" become one, 21; a number below 4 that stands '
        "alone stays a word, and digits told one by one stay apart"),
    Parameter("smart_format", BOOLEAN, "`false`", "`punctuate` and `numerals`.", "`punctuate` and `numerals`"),
    Parameter("endpointing", {"anyOf": [MILLISECONDS, BOOLEAN]}, f"{DEFAULT_ENDPOINTING_MS:g} ms",
        "Silence that ends an utterance, in ms; an upload has no endpoints unless it asks.",
        "silence that ends an utterance, at least the server's minimum; `false`: none"),
    Parameter("interim_results", BOOLEAN, "`false`", "Partials.",
        "partials, each time the words changed", live_only=True),
    Parameter("interim_interval_ms", MILLISECONDS, "0", "at most one partial of a segment in so much audio.",
        "at most one partial of a segment in so much audio", live_only=True, ours=True),
    Parameter("utterance_end_ms", {"anyOf": [_whole(range(1, MAX_MS + 1)), {"const": False}]}, "off",
        "`UtteranceEnd` after so much silence.", "sends `UtteranceEnd` after so much silence", live_only=True),
    Parameter("vad_events", BOOLEAN, "`false`", "`SpeechStarted`.", "sends `SpeechStarted`", live_only=True),
    Parameter("step_results", BOOLEAN, "`false`", "an answer to each step.",
        "answers every step, and adds where the time of the step went", live_only=True, ours=True),
    Parameter("stable_words", BOOLEAN, "`false`", "how many words can no longer change.",
        "adds `tutti.stable_words`: so many words, from the first, can no longer change", live_only=True, ours=True),
    Parameter("latency", BOOLEAN, "`false`", "where the time of a result went.",
        "adds `tutti.latency` to each result that answers audio: where its time went", live_only=True, ours=True),
    Parameter("latency_budget_ms", _whole(BUDGETS_MS), "the server's", "when a step should be answered.",
        f"time in which a live step should be answered, {BUDGETS_MS[0]:,} to {BUDGETS_MS[-1]:,} ms",
        live_only=True, ours=True),
    Parameter("resumable", BOOLEAN, "`false`", "tickets, with which a lost stream goes on.",
        "tickets with which a stream goes on after a lost connection, on any replica; only with `linear16`, "
        "`linear32`, `mulaw`, `alaw`", live_only=True, ours=True),
    Parameter("filler_words", BOOLEAN, "`false`", "Accepted, and named in `x-ignored-params` where it is true.",
        'accepted, and named in `x-ignored-params`: words such as "uh" are neither added nor removed', kind=Kind.UNMET),
    Parameter("no_delay", BOOLEAN, "–", "Accepted.", "accepted", kind=Kind.HARMLESS),
    Parameter("mip_opt_out", BOOLEAN, "–", "Accepted.", kind=Kind.HARMLESS),
    Parameter("version", TEXT, "–", "Accepted.", kind=Kind.HARMLESS),
    Parameter("utt_split", NUMBER, "–", "Accepted.", kind=Kind.HARMLESS),
    Parameter("extra", TEXTS, "–", "Accepted; repeatable.", kind=Kind.HARMLESS),
    Parameter("tag", TEXTS, "–", "Names for the stream in the operator's logs; repeatable.", live_only=True),
)
# fmt: on
LISTS = {
    "custom_intent",
    "custom_topic",
    "detect_language",
    "language_hint",
    "language_hints",
    "redact",
    "replace",
    "search",
}  # fmt: skip


def _refused(name: str, kind: Kind) -> Parameter:
    return Parameter(name, TEXTS if name in LISTS else TEXT, "–", "Refused.", kind=kind)


REFUSED = (
    *(_refused(name, Kind.LACKING) for name in sorted(FEATURES)),
    *(_refused(name, Kind.OTHER_VERSION) for name in sorted(OTHER_VERSION)),
)
TABLE = {parameter.name: parameter for parameter in (*PARAMETERS, *REFUSED)}


def parameter_table() -> str:
    """Return the parameters as a table in Markdown."""
    rows: list[list[Parameter]] = []
    for parameter in PARAMETERS:
        if parameter.detail is not None:
            rows.append([])
        rows[-1].append(parameter)
    lines = ["| parameter | default | meaning |", "|---|---|---|"]
    for row in rows:
        names = ", ".join(f"`{parameter.name}`" + " (ours)" * parameter.ours for parameter in row)
        defaults = ", ".join(dict.fromkeys(parameter.default for parameter in row))
        lines.append(f"| {names} | {defaults} | {row[0].detail} |")
    return "\n".join(lines)
