"""Multipart form of `/v1/audio/transcriptions`: a body to a file and options, bounded. Blocking: for a thread."""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import Field, File, FormParser, parse_options_header

from server.errors import BadParameter
from server.protocols.openai.answers import AnswerFormat
from server.recognition.session import Finals, finals_of

MAX_FIELDS = 256  # key terms among them
MAX_FIELD_BYTES = 65_536
FILE = "file"
MAX_SHOWN = 64  # characters of a client's own text that an error repeats
GRANULARITIES = ("word", "segment")
_TRUE = ("true", "1")


@dataclass(frozen=True, slots=True)
class TranscriptionForm:
    """Options of a request. Those that this server lacks are accepted and ignored; so are key terms by some models."""

    body: bytes
    model: str | None
    language: str | None
    answer: AnswerFormat
    granularities: tuple[str, ...]
    stream: bool
    keywords: tuple[str, ...]
    grammar: str  # ours, as is `finals`
    finals: Finals | None


def parse_form(content_type: str, body: bytes) -> TranscriptionForm:
    """Read a form. Raises: BadParameter."""
    parts = _Parts()
    parts.read(content_type, body)
    if not parts.file:
        raise BadParameter("file: missing" if parts.file is None else "file: empty")
    answer = parts.one("response_format", AnswerFormat.JSON.value)
    if answer not in set(AnswerFormat):
        raise BadParameter(f"response_format: must be one of {', '.join(AnswerFormat)}")
    granularities = parts.every("timestamp_granularities")
    if not set(granularities) <= set(GRANULARITIES):
        raise BadParameter(f"timestamp_granularities: must be of {', '.join(GRANULARITIES)}")
    return TranscriptionForm(
        parts.file,
        parts.one("model", "") or None,
        parts.one("language", "") or None,
        AnswerFormat(answer),
        granularities,
        parts.one("stream", "false").lower() in _TRUE,
        parts.every("keywords"),
        parts.one("grammar", ""),
        finals_of(parts.one("finals", "")),
    )


class _Parts:
    """Fields of a form, and its file."""

    def __init__(self) -> None:
        self.file: bytes | None = None
        self._fields: list[tuple[str, str]] = []

    def read(self, content_type: str, body: bytes) -> None:
        """Parse a whole body. Raises: BadParameter."""
        kind, parameters = parse_options_header(content_type)
        boundary = parameters.get(b"boundary")
        if kind != b"multipart/form-data" or not boundary:
            raise BadParameter("content-type: must be multipart/form-data, with a boundary")
        try:
            parser = FormParser(
                "multipart/form-data",
                self._on_field,
                self._on_file,
                boundary=boundary,
                config={"MAX_MEMORY_FILE_SIZE": len(body) + 1},  # the body is in memory already, and nothing on disk
            )
            parser.write(body)
            parser.finalize()
            if self.file is None and b"--" + boundary + b"--" not in body:
                raise BadParameter("body: not a whole multipart form")
        except (FormParserError, ValueError) as error:
            raise BadParameter("body: not a whole multipart form") from error

    def one(self, name: str, default: str) -> str:
        """Return the last value of a field."""
        return ([value for key, value in self._fields if key == name] or [default])[-1]

    def every(self, name: str) -> tuple[str, ...]:
        """Return all values of a field, which clients write as a list, too: `name[]`."""
        return tuple(value for key, value in self._fields if key in (name, f"{name}[]"))

    def _on_field(self, field: Field) -> None:
        name, value = (field.field_name or b"").decode(errors="replace"), field.value or b""
        if name == FILE:  # sent without a file name, or with `filename*` alone
            self._take_file(name, value)
            return
        shown = name[:MAX_SHOWN] or "field"
        if len(self._fields) >= MAX_FIELDS:
            raise BadParameter(f"{shown}: at most {MAX_FIELDS} fields besides the file are taken")
        if len(name) + len(value) > MAX_FIELD_BYTES:
            raise BadParameter(f"{shown}: {len(value)} bytes are too many; a field has at most {MAX_FIELD_BYTES}")
        self._fields.append((name, value.decode(errors="replace")))

    def _on_file(self, file: File) -> None:
        assert isinstance(file.file_object, BytesIO)
        self._take_file((file.field_name or b"").decode(errors="replace"), file.file_object.getvalue())

    def _take_file(self, name: str, body: bytes) -> None:
        if name != FILE:
            raise BadParameter(f"{name[:MAX_SHOWN] or 'field'}: a file is taken in the field `file` alone")
        if self.file is not None:
            raise BadParameter("file: sent twice; one recording is taken")
        self.file = body
