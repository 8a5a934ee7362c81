"""Table of the query parameters of `/v1/listen`, for the parser and for the generated documentation."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from server.audio.formats import Encoding
from server.protocols.features import FEATURES, OTHER_VERSION, SAMPLE_RATES
from server.recognition.request import EXCLUSIONS
from server.recognition.segments.speaker_rules import MOST
from server.recognition.session_options import DEFAULT_ENDPOINTING_MS, FINALS, INTERIM_STABILITIES

Schema = dict[str, Any]

DOWNMIX_CHANNELS = range(1, 9)
MAX_MS = 3_600_000
SMART = "smart"  # value of `endpointing`
BUDGETS_MS = range(20, 10_001)  # below other streams' budgets: priority over them; above an upload's: no effect
DIARIZERS = ("latest", "v1", "v2")
SPEAKER_COUNTS = range(1, MOST + 1)
REWINDS_S = range(31)  # the search keeps 30 s


def _whole(allowed: range) -> Schema:
    return {"type": "integer", "minimum": allowed[0], "maximum": allowed[-1]}


BOOLEAN: Schema = {"type": "boolean"}
TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "number", "minimum": 0}
TEXTS: Schema = {"type": "array", "items": TEXT}
MILLISECONDS = _whole(range(MAX_MS + 1))
ENCODINGS: Schema = {"enum": [encoding.value for encoding in Encoding if encoding is not Encoding.CONTAINER]}


class Kind(Enum):
    """How this server treats a parameter."""

    HONORED = "honored"  # has its documented effect
    HARMLESS = "harmless"  # accepted without effect; the transcript means the same without it
    IGNORED = "ignored"  # as HARMLESS, and listed in `x-ignored-params`
    UNSUPPORTED = "unsupported"  # a feature that this server does not have: refused
    OTHER_VERSION = "other version"  # a parameter of /v2/listen: refused


@dataclass(frozen=True, slots=True)
class Parameter:
    """A query parameter; it may be repeated only if its schema is an array.

    `detail` is its Markdown cell in the description's table; without it the previous parameter's row covers this one.
    Uploads check `live_only` parameters and list them as ignored if they request something. `ours` marks those that
    Deepgram does not have.
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
        """Return whether it may be given more than once."""
        return self.schema.get("type") == "array"

    def openapi(self) -> Schema:
        """Return the OpenAPI form of this parameter for uploads."""
        text = f"Ours: {self.summary}" if self.ours else self.summary
        if self.live_only:
            text += " For live streams only; for uploads it is listed in `x-ignored-params`."
        return {"name": self.name, "in": "query", "required": False, "schema": self.schema, "description": text}


# fmt: off
PARAMETERS = (
    Parameter("encoding", ENCODINGS, "–", "Encoding of the body; by default detected from its container.",
        "`linear16`, `linear32` (float), `mulaw`, `alaw`, `opus` (one packet a message) with `sample_rate`, 8 to 48 "
        "kHz; `ogg-opus`, `flac`; by default detected from the first bytes: WAV, Ogg (Opus, Vorbis, FLAC), WebM, FLAC, "
        "MP3, AAC (ADTS) or fragmented MP4"),
    Parameter("sample_rate", _whole(SAMPLE_RATES), "–", "Hz; required for an encoding without a header."),
    Parameter("channels", _whole(DOWNMIX_CHANNELS), "1", "Interleaved channels of raw audio; mixed down.",
        "interleaved channels, mixed down unless `multichannel`; for a live container, its number of channels"),
    Parameter("multichannel", BOOLEAN, "`false`", "A transcript for each channel, up to the server's limit."),
    Parameter("model", TEXT, "the server's", "Name of a model; others select the default, unless names are strict.",
        "a model of `GET /v1/models`; an unknown name selects the default, unless the operator has made names strict"),
    Parameter("language", TEXT, "the model's", "A language tag; selects the model if none is named.",
        "a tag such as `es-419`; it selects the model if none is named, and is refused if no model has it; `auto` or "
        "`multi`: a model of [many languages](models.md#a-language-by-stream) detects it"),
    Parameter("keyterm", TEXTS, "–", "A word or phrase to favor; repeatable. Ignored with greedy decoding.",
        "a word or phrase to favor; repeatable. Like `keywords`, ignored with greedy decoding"),
    Parameter("keywords", TEXTS, "–", "The older form: `word` or `word:boost`; repeatable.",
        "the older form: `word` or `word:boost`, a boost below 0 for words to avoid; repeatable"),
    Parameter("grammar", TEXT, "–", "restricts recognition to one grammar.",
        "restricts recognition to one grammar: `digits`, or `alphanumeric` for codes, which `numerals` writes as B42; "
        "an unknown name is refused, with the list of valid ones",
        ours=True),
    Parameter("finals", {"enum": [*FINALS]}, "the server's", "`context` and `accurate` add a second pass to finals.",
        "`fast`: the words of the stream; `context`: the network computes each finished segment once more, as a whole; "
        "`accurate`: a larger network reads it, too, and segments end at a longer pause; partials are the same. By "
        "default `accurate` for recordings, `context` for streams; `fast` with what excludes these, with `resumable`, "
        "and for published models; refused where a model cannot have it",
        ours=True),
    Parameter("punctuate", BOOLEAN, "`false`", "Capitals, commas, periods and question marks.",
        "capitals, commas, periods and question marks in English finals, predicted from the words; interim results "
        "only have the first word's capital; other languages get a capital and a mark at the end"),
    Parameter("numerals", BOOLEAN, "`false`", "Numbers, money, dates, times and addresses as people write them.",
        'in final results, numbers as digits: the words "twenty one" become one, 21; a number below 4 that stands '
        "alone stays a word; digits spoken one by one are one number, and a pause separates two. Money, percentages, "
        "times, dates, telephone numbers, street, e-mail and web addresses are written as people write them: $25.50, "
        "3:30 pm, 415-555-2671. English and Mandarin"),
    Parameter("smart_format", BOOLEAN, "`false`", "`punctuate` and `numerals`.", "`punctuate` and `numerals`"),
    Parameter("redact", TEXTS, "–", "Masks numbers: `pci`, `ssn`, `phone_number`, `numbers` and so on; repeatable.",
        "masks numbers in all results: `pci` (card numbers, with expiry dates and codes), `ssn` (social security "
        "numbers; in Mandarin resident identity numbers too), `phone_number`, `numbers` (3 digits and more), "
        "`aggressive_numbers` (all); repeatable; English and Mandarin; a number that may be unfinished is masked too. "
        "Other values are refused"),
    Parameter("utterances", BOOLEAN, "`false`", "What was said on all channels, in the order in which it was said.",
        "for uploads: `results.utterances`, what was said on all channels in the order in which it was said; with "
        "`multichannel` the `speaker` is the channel, and `overlap` (ours) says whether another channel spoke at the "
        "same time; `endpointing` is on by default then. For live streams with `multichannel`: finals come in that "
        "order, with `overlap`, so that a final may wait until the other side has finished what it began earlier"),
    Parameter("utt_split", NUMBER, "0.8", "Silence in seconds that separates utterances, for uploads.",
        "silence in seconds that separates two utterances of an upload"),
    Parameter("paragraphs", BOOLEAN, "`false`", "`paragraphs` of sentences, for uploads; turns `punctuate` on.",
        "for uploads: paragraphs of sentences, which end at long pauses and where the speaker changes; turns "
        "`punctuate` on; refused for live streams"),
    Parameter("diarize", BOOLEAN, "`false`", "Distinguishes speakers; needs a server started with --speakers.",
        "a `speaker` for each word, numbered from 0 in each channel, and in utterances and paragraphs of uploads, "
        "whose words have a `speaker_confidence`, too; [speakers](speakers.md)"),
    Parameter("diarize_model", {"enum": [*DIARIZERS]}, "–", "As `diarize=true`; `v2` for uploads only.",
        "`latest`, `v1` or, for uploads, `v2`: as `diarize=true`; the server has one speaker model"),
    Parameter("diarize_version", TEXT, "–", "Accepted.", "accepted", kind=Kind.HARMLESS),
    Parameter("diarize_min_speakers", _whole(SPEAKER_COUNTS), "1", "fewest speakers of a channel, for uploads.",
        f"fewest speakers of a channel of an upload, 1 to {MOST}", ours=True),
    Parameter("diarize_max_speakers", _whole(SPEAKER_COUNTS), str(MOST), "most speakers of a channel.",
        f"most speakers of a channel, 1 to {MOST}", ours=True),
    Parameter("speaker", TEXT, "–", "the voice that the stream listens to: `first`, or the name of an enrolled voice.",
        "the voice that the stream [listens to](speakers.md#listen-to-one-voice): `first`, that of the first words, or "
        "the name of an [enrolled voice](speakers.md#enrolled-voices) that the key may use; words of others have "
        "`other_voice`", ours=True),
    Parameter("speaker_only", BOOLEAN, "`false`", "leaves out the words of other voices than `speaker`.",
        "with `speaker`: leaves out the words of other voices; `other_voice_words` of the metadata counts them",
        ours=True),
    Parameter("endpointing", {"anyOf": [MILLISECONDS, BOOLEAN, {"const": SMART}]}, f"{DEFAULT_ENDPOINTING_MS:g} ms",
        "Silence that ends an utterance, in ms; off by default for uploads without `utterances`.",
        "silence that ends an utterance, at least the server's minimum; `false`: off; `smart` (ours, live streams "
        "only): the score of an end of turn, with the turn model if the server has one"),
    Parameter("wait_in_numbers", BOOLEAN, "`true`", "`false`: `endpointing=smart` ends inside numbers, too.",
        "`false`: with `endpointing=smart`, words that end inside a number or a spelled name "
        "[do not delay](voice-agents.md#unfinished-numbers) the end of an utterance", live_only=True, ours=True),
    Parameter("interim_results", BOOLEAN, "`false`", "Partial results.",
        "partial results, each time the words change", live_only=True),
    Parameter("interim_interval_ms", MILLISECONDS, "0", "at most one partial per this much audio, in ms.",
        "at most one partial of a segment per this much audio, in ms", live_only=True, ours=True),
    Parameter("interim_stability", {"enum": list(INTERIM_STABILITIES)}, "`low`",
        "whether interims end before words that may still change.",
        "`high`: interims end before a word that may still change, so fewer words are shown and replaced, and a word "
        "comes a little later; `low`: interims have all words", live_only=True, ours=True),
    Parameter("utterance_end_ms", {"anyOf": [_whole(range(1, MAX_MS + 1)), {"const": False}]}, "off",
        "`UtteranceEnd` after this silence, in ms.", "sends `UtteranceEnd` after this silence, in ms", live_only=True),
    Parameter("vad_events", BOOLEAN, "`false`", "`SpeechStarted`.", "sends `SpeechStarted`", live_only=True),
    Parameter("step_results", BOOLEAN, "`false`", "a result for each step.",
        "sends a result for every step, with the times of the step", live_only=True, ours=True),
    Parameter("stable_words", BOOLEAN, "`false`", "the number of words that can no longer change.",
        "adds `tutti.stable_words`: the number of leading words that can no longer change", live_only=True, ours=True),
    Parameter("latency", BOOLEAN, "`false`", "the parts of each result's latency.",
        "adds `tutti.latency` to each result caused by audio: the parts of its latency", live_only=True, ours=True),
    Parameter("latency_budget_ms", _whole(BUDGETS_MS), "the server's", "target latency of a step, in ms.",
        f"target latency of a live step, {BUDGETS_MS[0]:,} to {BUDGETS_MS[-1]:,} ms",
        live_only=True, ours=True),
    Parameter("rewind", _whole(REWINDS_S), "0", "seconds of finals in which `Rewind` finds key terms.",
        "seconds of finals in which a `Rewind` message can look for further key terms later; refused if the model "
        "is neither decoded by beam search nor a transducer",
        live_only=True, ours=True),
    Parameter("resumable", BOOLEAN, "`false`", "tickets for resuming a lost stream.",
        "sends tickets with which a stream continues after a lost connection, on any replica",
        live_only=True, ours=True),
    Parameter("receipt", BOOLEAN, "`false`", "signed receipts of finals; refused for uploads.",
        "adds a signed `receipt` to each final and to the last message: digests of audio, model, key terms, settings "
        "and words, with which `tutti replay` derives the words again; key terms cannot change, nor `Context` add any; "
        "refused without a key of the server, and for uploads", ours=True),
    Parameter("rest", BOOLEAN, "the server's", "`false`: long silence is computed, too.",
        "`false`: every step is computed, also in [long silence](sizing.md#rest-in-silence); `true` is refused where "
        "streams do not rest",
        ours=True),
    Parameter("filler_words", BOOLEAN, "`false`", "Accepted; listed in `x-ignored-params` if true.",
        'accepted, and listed in `x-ignored-params`: words such as "uh" are not added or removed', kind=Kind.IGNORED),
    Parameter("no_delay", BOOLEAN, "–", "Accepted.", "accepted", kind=Kind.HARMLESS),
    Parameter("mip_opt_out", BOOLEAN, "–", "Accepted.", kind=Kind.HARMLESS),
    Parameter("version", TEXT, "–", "Accepted.", kind=Kind.HARMLESS),
    Parameter("extra", TEXTS, "–", "`KEY:VALUE`, returned in `extra` of the metadata; repeatable."),
    Parameter("tag", TEXTS, "–", "Labels of the stream for the operator's logs; repeatable.", live_only=True),
)
# fmt: on
LISTS = {
    "custom_intent",
    "custom_topic",
    "detect_language",
    "language_hint",
    "language_hints",
    "replace",
    "search",
}  # fmt: skip


def _refused(name: str, kind: Kind) -> Parameter:
    return Parameter(name, TEXTS if name in LISTS else TEXT, "–", "Refused.", kind=kind)


REFUSED = (
    *(_refused(name, Kind.UNSUPPORTED) for name in sorted(FEATURES)),
    *(_refused(name, Kind.OTHER_VERSION) for name in sorted(OTHER_VERSION)),
)
TABLE = {parameter.name: parameter for parameter in (*PARAMETERS, *REFUSED)}


def parameter_table() -> str:
    """Return the parameter table in Markdown."""
    rows: list[list[Parameter]] = []
    for parameter in PARAMETERS:
        if parameter.detail is not None:
            rows.append([])
        rows[-1].append(parameter)
    lines = ["| parameter | default | meaning |", "|---|---|---|"]
    for row in rows:
        names = ", ".join(f"`{parameter.name}`" + " (ours)" * parameter.ours for parameter in row)
        defaults = ", ".join(dict.fromkeys(parameter.default for parameter in row))
        lines.append(f"| {names} | {defaults} | {row[0].detail}{_exclusions(row[0].name)} |")
    return "\n".join(lines)


def _exclusions(name: str) -> str:
    """Return what cannot be combined with a parameter, as the end of a sentence."""
    refused = [(row.first.name, row.second.name) for row in EXCLUSIONS if not row.yields]
    pairs = [*refused, *((second, first) for first, second in refused)]
    others = [other for one, other in pairs if one.partition("=")[0] == name]
    names = [f"`{other}`" if other.partition("=")[0] in TABLE else other for other in others]
    return f"; cannot be combined with {', '.join(names)}" if names else ""
