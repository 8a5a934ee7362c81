"""`tutti transcribe` and `tutti listen`: recordings or a microphone, through a server or in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from server.cli.errors import complain, fail, refuse, refuse_ignored, shorten
from server.cli.options import (
    BeamsOption,
    DecoderOption,
    DeviceOption,
    FinalsOption,
    GrammarOption,
    GrammarsOption,
    KeyOption,
    LanguageOption,
    LmOption,
    ModelOption,
    PrecisionOption,
    UrlOption,
    announce_compilation,
    model_for,
    same_options_as,
    settings_from,
)

if TYPE_CHECKING:
    from server.audio.formats import AudioForm
    from tutti_asr_client.files.display import Display
    from tutti_asr_client.files.transcribe import OpenTranscriber

OF_THIS_PROCESS = ["decoder", "beams", "lm", "grammars", "model", "device", "precision"]
PREFERRED_RATE = 16_000  # Hz; a device without it records at its own, and the server or session converts
OF_A_SERVER = ["retry", "resumable", "api_key"]
OF_THE_QUERY = ["keyterm", "smart_format", "grammar", "finals", "redact", "interim_stability", "diarize"]


KeytermOption = Annotated[
    list[str] | None, typer.Option(help="Key term: a word or phrase to favor; repeatable. Needs beam search.")
]
SmartFormatOption = Annotated[
    bool,
    typer.Option("--smart-format", help="Capitalize, punctuate the ends of utterances, and write numbers as digits."),
]
RedactOption = Annotated[
    list[str] | None, typer.Option(help="Kind of numbers to mask, such as pci or ssn; repeatable. English, Mandarin.")
]
RetryOption = Annotated[
    float,
    typer.Option(help="Seconds to keep retrying if the server is unreachable, full or restarting; 0: no retry.", min=0),
]
ResumableOption = Annotated[
    bool,
    typer.Option("--resumable", help="Request resume tickets, so that another replica can continue a lost stream."),
]


class RawEncoding(StrEnum):
    """Encodings without a header, those of `server.audio.formats.PLAIN`."""

    ALAW = "alaw"
    LINEAR16 = "linear16"
    LINEAR32 = "linear32"
    MULAW = "mulaw"


class OutputFormat(StrEnum):
    """Format of the transcripts."""

    TEXT = "text"
    SRT = "srt"
    VTT = "vtt"
    JSON = "json"


def recognition(
    *,
    url: UrlOption = None,
    keyterm: KeytermOption = None,
    smart_format: SmartFormatOption = False,
    redact: RedactOption = None,
    api_key: KeyOption = None,
    retry: RetryOption = 30.0,
    resumable: ResumableOption = False,
    decoder: DecoderOption = None,
    beams: BeamsOption = None,
    lm: LmOption = None,
    grammars: GrammarsOption = None,
    language: LanguageOption = None,
    grammar: GrammarOption = None,
    finals: FinalsOption = None,
    model: ModelOption = None,
    device: DeviceOption,
    precision: PrecisionOption,
) -> None:
    """Options of both commands: what is recognized, and where."""


@same_options_as(recognition)
def transcribe(
    context: typer.Context,
    files: Annotated[
        list[Path],
        typer.Argument(help="Recordings (wav, flac, ogg, mp3, m4a and more); folders of them; - for standard input."),
    ],
    *,
    realtime: Annotated[bool, typer.Option("--realtime", help="Send audio in real time.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines; the same as --format json.")] = False,
    output_format: Annotated[
        OutputFormat | None,
        typer.Option("--format", help="text, srt, vtt or json. Default: from the suffix of --out, else text."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="File for the transcript; for several recordings, a folder.")] = None,
    multichannel: Annotated[
        bool, typer.Option("--multichannel", help="Transcribe each channel on its own, with speakers' names.")
    ] = False,
    channel_names: Annotated[
        str | None, typer.Option(help="Names of the channels with --multichannel, such as Caller,Agent.")
    ] = None,
    speakers: Annotated[
        bool, typer.Option("--speakers", help="Name the speakers; a server has to be started with --speakers.")
    ] = False,
    utterances: Annotated[
        bool, typer.Option("--utterances", help="A line of text, or an object in JSON, for all words between pauses.")
    ] = False,
    encoding: Annotated[RawEncoding | None, typer.Option(help="Encoding of files without a header.")] = None,
    sample_rate: Annotated[int | None, typer.Option(help="Sample rate in Hz of files without a header.")] = None,
    channels: Annotated[int | None, typer.Option(help="Channels of files without a header. Default: 1.", min=1)] = None,
    concurrency: Annotated[int, typer.Option(help="Recordings transcribed at once.", min=1)] = 8,
    **options: Any,
) -> None:
    """Transcribe recordings through a server (--url), or with the engine in this process.

    On a terminal the text is shown as it grows; in a pipe each recording is one line of plain text, in the given order.
    Engine options (--decoder, --beams, --lm, --grammars, --model, --device, --precision) cannot be combined with --url.
    """
    _check(context, options["url"])
    if as_json and output_format not in (None, OutputFormat.JSON):
        refuse(f"--format {output_format}: cannot be combined with --json")
    from server.audio.pcm import MAX_CHANNELS
    from server.tools.recordings import BadInput, RecordingReader, piped_bodies, recordings_of
    from tutti_asr_client.files.transcribe import run

    names = _channel_names(channel_names, multichannel=multichannel)
    form = _raw_form(context, encoding, sample_rate, channels)
    try:
        recordings = recordings_of(files)
        layout = {"by_utterance": utterances, "multichannel": multichannel, "names": names, "speakers": speakers}
        display = _display(recordings, files, OutputFormat.JSON if as_json else output_format, out, layout)
    except BadInput as error:
        refuse(str(error))
    if speakers and multichannel:
        refuse("--speakers: cannot be combined with --multichannel, which names channels")
    options["diarize"] = speakers
    shared: dict[str, Any] = {"realtime": realtime, "concurrency": concurrency}
    shared["read"] = RecordingReader(
        complain, piped_bodies(recordings), form=form, multichannel=multichannel, names=names
    )
    # A slot is freed only after its recording's last batch.
    slots = {"max_batch": concurrency, "max_streams": 2 * concurrency * (MAX_CHANNELS if multichannel else 1)}
    _exit_after(lambda opened: run(recordings, opened, display, **shared), context, options, slots)


@same_options_as(recognition)
def listen(
    context: typer.Context,
    *,
    source: Annotated[
        str | None, typer.Option("--input", help="Input device: its number, or a part of its name.")
    ] = None,
    list_inputs: Annotated[bool, typer.Option("--list-inputs", help="Show the input devices and exit.")] = False,
    seconds: Annotated[float | None, typer.Option(help="Stop after this much audio.", min=0.1)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,
    **options: Any,
) -> None:
    """Transcribe a microphone through a server (--url), or with the engine in this process, until Ctrl-C.

    Each finished segment is a line; on a terminal its words are shown before as they change. --device is where the
    model computes; --input is the microphone.
    """
    _check(context, options["url"])
    if "interim_stability=" not in (options["url"] or ""):
        options["interim_stability"] = "high"  # words on the terminal do not change
    from tutti_asr_client.errors import ClientError
    from tutti_asr_client.files.microphone import input_devices, input_rate
    from tutti_asr_client.files.transcribe import run_microphone

    chosen = int(source) if source is not None and source.isdecimal() else source
    try:
        if list_inputs:
            refuse_ignored(context, context.params.keys() - {"list_inputs"}, "cannot be combined with --list-inputs")
            typer.echo(input_devices())
            return
        rate = input_rate(chosen, PREFERRED_RATE)
    except ClientError as error:
        fail(error)

    def run(opened: OpenTranscriber) -> int:
        if options["url"] is None:
            typer.echo("loading the model …", err=True)
        return run_microphone(opened, device=chosen, limit_s=seconds, as_json=as_json)

    _exit_after(run, context, options, {"max_batch": 1, "max_streams": 2}, microphone_hz=rate)


def _exit_after(
    run: Callable[[OpenTranscriber], int],
    context: typer.Context,
    options: dict[str, Any],
    slots: dict[str, int],
    *,
    microphone_hz: int | None = None,
) -> NoReturn:
    """Exit with the code of `run`, with a transcriber of the server at --url, or of the engine in this process.

    `options` are those of `recognition`; `slots` the engine's. `microphone_hz`: of live audio; None: for recordings.
    """
    if options["url"] is not None:
        raise typer.Exit(run(_remote(options, microphone_hz or PREFERRED_RATE)))
    from model.errors import ModelError
    from server.errors import SettingsError
    from server.tools.local import open_local
    from tutti_asr_client.errors import ClientError

    engine = {name: options[name] for name in OF_THIS_PROCESS}
    settings = settings_from({**engine, "model": model_for(options["language"], options["model"]), **slots})
    announce_compilation()
    try:
        live = microphone_hz is not None
        code = run(lambda: open_local(settings, microphone_hz, live=live, **_given(options, OF_THE_QUERY)))
    except (ClientError, ModelError, SettingsError) as error:
        fail(error)
    raise typer.Exit(code)


def _remote(options: dict[str, Any], sample_rate: int) -> OpenTranscriber:
    """Return a transcriber of the server at --url, for audio of this rate."""
    from tutti_asr_client.errors import BadUrl
    from tutti_asr_client.files.transcribe import remote

    query = _given(options, [*OF_THE_QUERY, "language"])
    server: dict[str, Any] = {name: options[name] for name in ("api_key", "resumable")}
    server |= {"sample_rate": sample_rate, "retry_s": options["retry"], "query": query}
    try:
        there = remote(options["url"], **server)
    except BadUrl as error:
        refuse(f"--url: {error}")
    return lambda: nullcontext(there)


def _given(options: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """Return the parameters that were given: the address may have its own query."""
    return {name: options[name] for name in names if options.get(name)}


def _channel_names(given: str | None, *, multichannel: bool) -> list[str]:
    """Return the names of the channels; none if they were not given."""
    if given is None:
        return []
    if not multichannel:
        refuse("--channel-names: needs --multichannel")
    from server.text.subtitles import LABEL_COLUMNS, columns

    names = [name.strip() for name in given.split(",")]
    if not all(name.isprintable() and 0 < columns(name) <= LABEL_COLUMNS for name in names):
        refuse(f"--channel-names {shorten(given)}: a name has 1 to {LABEL_COLUMNS} characters; commas separate names")
    return names


def _raw_form(
    context: typer.Context, encoding: RawEncoding | None, sample_rate: int | None, channels: int | None
) -> AudioForm:
    """Return the format of files without a header."""
    from server.audio.formats import audio_form
    from server.audio.recordings.recording import RATES

    if encoding is None:
        refuse_ignored(context, ["sample_rate", "channels"], "needs --encoding")
    elif sample_rate not in RATES:
        refuse(f"--encoding {encoding}: needs --sample-rate from {RATES[0]} to {RATES[-1]}")
    return audio_form(encoding, sample_rate, channels or 1)


def _display(
    recordings: list[Path], roots: list[Path], form: OutputFormat | None, out: Path | None, fields: dict[str, Any]
) -> Display:
    """Return the display of the results; `fields` are those of a `Layout`. Raises: BadInput."""
    from server.tools.recordings import BadInput
    from server.tools.transcripts import JsonOutput, Layout, TextOutput, format_of, outputs_of

    chosen = format_of(form, out)
    if out is None and form is None and not any(fields.values()) and sys.stdout.isatty():
        from rich.console import Console

        from tutti_asr_client.files.display import TerminalDisplay

        return TerminalDisplay(Console())
    if chosen in ("srt", "vtt"):
        if out is None and len(recordings) > 1:
            raise BadInput(f"--format {chosen}: requires --out FOLDER for several recordings")
        if fields["by_utterance"]:
            raise BadInput(f"--utterances: cannot be combined with {chosen}, which is divided at pauses anyway")
    layout = Layout(chosen, **fields)
    targets = None if out is None else outputs_of(recordings, roots, out, chosen)
    return JsonOutput(layout, targets) if chosen == "json" else TextOutput(recordings, layout, complain, targets)


def _check(context: typer.Context, url: str | None) -> None:
    """Reject options that would be ignored."""
    if url is None:
        refuse_ignored(context, OF_A_SERVER, "needs --url")
    else:
        refuse_ignored(context, OF_THIS_PROCESS, "cannot be combined with --url; the server determines it")
