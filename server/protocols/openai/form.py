"""Parser of the multipart form of `/v1/audio/transcriptions`, with limits. Blocking: run it in a thread.

Also which fields are read, ignored or refused. Source: `TranscriptionCreateParams` of the `openai` package 3.51.0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from io import BytesIO

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import Field, File, FormParser, parse_options_header

from server.errors import BadParameter
from server.protocols.features import (
    DIARIZES,
    REDACT,
    SHOWN,
    Unsupported,
    boolean,
    check_given,
    check_single,
    finite,
    in_plain_names,
    named,
    refuse_unsupported,
    unknown,
    unsupported_features,
)
from server.protocols.openai.speakers import check_known, reference_body
from server.recognition.segments.speaker_rules import SpeakerRules
from server.recognition.session_options import SessionOptions, finals_of
from server.text.redaction_kinds import kinds_of


class AnswerFormat(StrEnum):
    """Values of `response_format`."""

    JSON = "json"
    TEXT = "text"
    SRT = "srt"
    DIARIZED_JSON = "diarized_json"
    VERBOSE_JSON = "verbose_json"
    VTT = "vtt"


MAX_FIELDS = 256  # including key terms
MAX_FIELD_BYTES = 65_536
MAX_REFERENCE_BYTES = 4 * 2**20  # of a data URL: 10 s of 48 kHz, two channels, 16 bits
FILE = "file"
STREAMED = (AnswerFormat.JSON, AnswerFormat.TEXT)  # formats whose content the events of `stream` have, too
GRANULARITIES, NOT_WHOLE = ("word", "segment"), "body: the multipart form is incomplete or invalid"

LISTS = frozenset({
    "include", "keywords", "known_speaker_names", "known_speaker_references", "languages", REDACT,
    "timestamp_granularities",
})  # fmt: skip
READ = frozenset({
    "finals", "grammar", "keywords", "language", "languages", "model", "multichannel", "prompt", REDACT,
    "response_format", "stream", "timestamp_granularities",
})  # fmt: skip
HARMLESS = frozenset({"chunking_strategy", "temperature"})  # ignored: the transcript means the same without them
UNSUPPORTED = frozenset({"include"})
OF_SPEAKERS = frozenset({"known_speaker_names", "known_speaker_references"})
KNOWN = READ | HARMLESS | UNSUPPORTED | OF_SPEAKERS
MAY_BE_EMPTY = frozenset({"finals", "grammar", "keywords", "language", "languages", "model", "prompt"})
"""Fields that may be empty, which means not set: forms of web pages send every field."""
MAX_TEMPERATURE = 1.0


@dataclass(frozen=True, slots=True)
class TranscriptionForm:
    """A parsed form. `ignored` are the names of fields without effect."""

    body: bytes
    model: str | None
    languages: tuple[str, ...]  # that may be spoken; empty: the model's
    answer: AnswerFormat
    granularities: tuple[str, ...]
    stream: bool
    keywords: tuple[str, ...]
    prompt: str  # its rare words are key terms
    options: SessionOptions  # with our `finals`, `grammar`, `multichannel` and `redact`
    references: Mapping[str, bytes]  # recordings of known voices, by their names
    ignored: tuple[str, ...]


def parse_form(
    content_type: str,
    body: bytes,
    query: Sequence[tuple[str, str]] = (),
    *,
    lenient: bool = False,
    speakers: bool = False,
) -> TranscriptionForm:
    """Parse a form; a `lenient` server ignores unsupported features. Raises: BadParameter.

    `speakers`: the server distinguishes speakers, for `diarized_json` and for models named as those that do.

    Parameters in the query count as fields, so they are not ignored there.
    """
    parts = _Parts()
    parts.read(content_type, body)
    parts.fields = in_plain_names([*parts.fields, *query], KNOWN)
    if not parts.file:
        raise BadParameter(f"file: {'missing' if parts.file is None else 'empty'}; send the recording in this field")
    ignored = check_fields(parts.fields, lenient=lenient, speakers=speakers)
    answer, stream = (
        parts.one("response_format", AnswerFormat.JSON.value),
        boolean("stream", parts.one("stream", "false")),
    )
    if answer not in set(AnswerFormat):
        raise BadParameter(f"response_format: {answer[:SHOWN]!r} is not valid; must be {', '.join(AnswerFormat)}")
    if answer == AnswerFormat.DIARIZED_JSON and not speakers:
        raise BadParameter(
            f"response_format: {answer} is not supported by this server; choose another one, or start the server with "
            "--speakers"
        )
    granularities = parts.every("timestamp_granularities")
    if not set(granularities) <= set(GRANULARITIES):
        raise BadParameter(f"timestamp_granularities: must be one or both of {', '.join(GRANULARITIES)}")
    if granularities and answer != AnswerFormat.VERBOSE_JSON:
        ignored = named({*ignored, "timestamp_granularities"})
    if stream and answer not in STREAMED:
        raise BadParameter(f"response_format: {answer} cannot be combined with stream; leave one of the two out")
    multichannel = boolean("multichannel", parts.one("multichannel", "false"))
    if stream and multichannel:
        raise BadParameter("multichannel: cannot be combined with stream; leave one of the two out")
    names, references = parts.every("known_speaker_names"), parts.every("known_speaker_references")
    if speakers:
        check_known(names, references)
    diarizes = answer == AnswerFormat.DIARIZED_JSON or parts.one("model", "").casefold().endswith(DIARIZES)
    if diarizes and multichannel:
        raise BadParameter("multichannel: cannot be combined with speakers; leave one of the two out")
    return TranscriptionForm(
        parts.file,
        parts.one("model", "") or None,
        tuple(filter(None, (*parts.every("language"), *parts.every("languages")))),
        AnswerFormat(answer),
        granularities,
        stream,
        parts.every("keywords"),
        parts.one("prompt", ""),
        SessionOptions(
            multichannel=multichannel,
            grammar=parts.one("grammar", ""),
            finals=finals_of(parts.one("finals", "")),
            redact=kinds_of(parts.every(REDACT)),
            speakers=SpeakerRules(at_end=True) if speakers and diarizes else None,
        ),
        {name: reference_body(url, name) for name, url in zip(names, references, strict=True)} if speakers else {},
        ignored,
    )


class _Parts:
    """Fields and file of a form."""

    def __init__(self) -> None:
        self.file: bytes | None = None
        self.fields: list[tuple[str, str]] = []

    def read(self, content_type: str, body: bytes) -> None:
        """Parse a whole body. Raises: BadParameter."""
        kind, parameters = parse_options_header(content_type)
        boundary = parameters.get(b"boundary")
        if kind != b"multipart/form-data" or not boundary:
            raise BadParameter("content-type: must be multipart/form-data with a boundary")
        try:
            parser = FormParser(
                "multipart/form-data",
                self._on_field,
                self._on_file,
                boundary=boundary,
                config={"MAX_MEMORY_FILE_SIZE": len(body) + 1},  # keep it in memory: nothing is written to disk
            )
            parser.write(body)
            parser.finalize()
            if self.file is None and b"--" + boundary + b"--" not in body:
                raise BadParameter(NOT_WHOLE)
        except (FormParserError, ValueError) as error:
            raise BadParameter(NOT_WHOLE) from error

    def one(self, name: str, default: str) -> str:
        """Return the first value of a field."""
        return next((value for key, value in self.fields if key == name), default)

    def every(self, name: str) -> tuple[str, ...]:
        """Return all values of a field."""
        return tuple(value for key, value in self.fields if key == name)

    def _on_field(self, field: Field) -> None:
        name, value = (field.field_name or b"").decode(errors="replace"), field.value or b""
        if name == FILE:  # sent without a file name, or only with `filename*`
            self._take_file(name, value)
            return
        title = name[:SHOWN] or "field"
        if len(self.fields) >= MAX_FIELDS:
            raise BadParameter(f"{title}: too many fields; at most {MAX_FIELDS} besides the file")
        most = MAX_REFERENCE_BYTES if name.startswith("known_speaker_references") else MAX_FIELD_BYTES
        if len(name) + len(value) > most:
            raise BadParameter(f"{title}: {len(value)} bytes; a field has at most {most}")
        self.fields.append((name, value.decode(errors="replace")))

    def _on_file(self, file: File) -> None:
        assert isinstance(file.file_object, BytesIO)
        self._take_file((file.field_name or b"").decode(errors="replace"), file.file_object.getvalue())

    def _take_file(self, name: str, body: bytes) -> None:
        if name != FILE:
            raise BadParameter(f"{name[:SHOWN] or 'field'}: files are accepted only in the field `file`")
        if self.file is not None:
            raise BadParameter("file: sent more than once; send one recording per request")
        self.file = body


def check_fields(fields: Sequence[tuple[str, str]], *, lenient: bool, speakers: bool = False) -> tuple[str, ...]:
    """Check the fields of a form; return the names of the ignored ones. Raises: BadParameter."""
    plain = in_plain_names(fields, KNOWN)
    listed = [(name, value) for name, value in plain if name in KNOWN]
    features = [feature for name, value in plain if (feature := _unsupported(name, value)) is not None]
    if speakers:
        features = [feature for feature in features if feature.name not in OF_SPEAKERS | {"model"}]
    refuse_unsupported(features, lenient=lenient, here=OF_SPEAKERS)
    check_given((name, value) for name, value in listed if value.strip() or name not in MAY_BE_EMPTY)
    check_single(listed, LISTS)
    for name, value in plain:
        if name == "temperature":
            _check_temperature(value)
    return named({*unknown(plain, READ | UNSUPPORTED | OF_SPEAKERS), *(feature.name for feature in features)})


def _unsupported(name: str, value: str) -> Unsupported | None:
    """Return the unsupported feature that a field requests, or None."""
    if name in UNSUPPORTED | OF_SPEAKERS:
        return Unsupported(name, always=False) if value.strip() else None
    return next(iter(unsupported_features([(name, value)], READ)), None)


def _check_temperature(value: str) -> None:
    """Raises: BadParameter."""
    if not 0 <= finite(value) <= MAX_TEMPERATURE:
        raise BadParameter(f"temperature: {value[:SHOWN]!r} is not valid; must be from 0 to {MAX_TEMPERATURE:g}")
