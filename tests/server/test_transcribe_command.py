"""`tutti transcribe`: containers, output formats, folders, standard input, bad values, closed pipes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import srt
from click.testing import Result
from typer.testing import CliRunner

from server.audio.formats import PLAIN
from server.cli import EXIT_BROKEN_PIPE, app
from server.cli.errors import EXIT_INTERRUPTED
from server.cli.transcribe import RawEncoding
from server.recognition.steps import Auxiliary
from tests.support.audio.media_files import container
from tests.support.audio.speech import SAMPLES
from tests.support.servers.live_server import LiveServer
from tests.support.servers.recognizers import voices
from tests.support.servers.recognizers.spelling import silence, spell
from tests.support.servers.recognizers.voices import Voices

Start = Callable[..., LiveServer]
runner = CliRunner()
LOGGED = re.compile(r"^\d{4}-\d\d-\d\d \d\d:.*\n", re.MULTILINE)  # log lines of the server in this process


def say(path: Path, text: str) -> Path:
    """Write a file that the spelling model of these tests transcribes as `text`."""
    path.parent.mkdir(exist_ok=True)
    soundfile.write(path, np.concatenate([spell(text), silence(0.5)]), 16_000)
    return path


def transcribe(*arguments: object) -> Result:
    return runner.invoke(app, ["transcribe", *map(str, arguments)])


def printed(result: Result) -> str:
    """Return the output of the command without the server's log lines."""
    return LOGGED.sub("", result.stdout)


def process(*arguments: object, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """Run the command as a user does."""
    environment = os.environ | options.pop("environment", {})
    words = [sys.executable, "-m", "server.cli", "transcribe", *map(str, arguments)]
    return subprocess.run(words, capture_output=True, timeout=60, check=False, env=environment, **options)


@pytest.fixture
def server(live_server: Start) -> list[str]:
    return ["--url", f"ws://{live_server().host}", "--retry", "0"]


def test_a_pipe_gets_plain_text_in_the_order_of_the_recordings(server: list[str], tmp_path: Path) -> None:
    long, short = say(tmp_path / "long.wav", "a long one " * 9), say(tmp_path / "short.wav", "short")
    result = transcribe(long, short, *server)
    assert printed(result) == "a long one " * 8 + "a long one\nshort\n"


def test_compressed_containers_are_read(server: list[str], tmp_path: Path) -> None:
    path = tmp_path / "speech.mka"
    path.write_bytes(container("matroska", "flac", spell("hello")[:, None], 16_000))
    assert printed(transcribe(path, *server)) == "hello\n"
    for kind, codec, rate in [("ipod", "aac", 16_000), ("webm", "libopus", 48_000), ("mp4", "aac", 16_000)]:
        path = tmp_path / f"speech.{kind}"
        path.write_bytes(container(kind, codec, spell("hello", rate)[:, None], rate))
        done = transcribe(path, *server, "--json")
        assert done.exit_code == 0
        assert json.loads(printed(done).splitlines()[-1])["duration_s"] == pytest.approx(
            len(spell("hello")) / 16e3, abs=0.2
        )


def test_output_formats_and_files(server: list[str], tmp_path: Path) -> None:
    path = say(tmp_path / "in" / "a.wav", "one two")
    assert printed(transcribe(path, *server, "--format", "srt")).startswith("1\n00:00:00,")
    assert printed(transcribe(path, *server, "--format", "vtt")).startswith("WEBVTT\n\n00:00:00.")
    assert json.loads(printed(transcribe(path, *server, "--format", "json")).splitlines()[-1])["text"] == "one two"
    out = tmp_path / "a.srt"
    assert printed(transcribe(path, *server, "--out", out)) == ""
    assert "one two" in out.read_text()
    say(tmp_path / "in" / "deep" / "b.wav", "three")
    folder = tmp_path / "texts"
    assert transcribe(tmp_path / "in", *server, "--out", folder, "--format", "text").exit_code == 0
    assert (folder / "a.txt").read_text() == "one two\n"
    assert (folder / "deep" / "b.txt").read_text() == "three\n"
    lessons = [say(tmp_path / name, "x") for name in ("1.1 lesson.wav", "1.2 lesson.wav")]
    lessons = [lesson.rename(lesson.with_suffix("")) for lesson in lessons]
    assert transcribe(*lessons, *server, "--out", folder).exit_code == 0
    assert (folder / "1.1 lesson.txt").read_text() == (folder / "1.2 lesson.txt").read_text() == "x\n"
    assert transcribe(tmp_path / "in", *server, "--out", folder, "--json").exit_code == 0
    assert json.loads((folder / "a.json").read_text().splitlines()[-1])["type"] == "file"


@pytest.mark.parametrize("pipe", ["-", "/dev/stdin"])
def test_a_pipe_is_a_recording(server: list[str], tmp_path: Path, pipe: str) -> None:
    done = process(pipe, *server, input=say(tmp_path / "a.wav", "hello").read_bytes())
    assert (done.returncode, done.stdout) == (0, b"hello\n")


def test_every_recording_of_a_folder_is_read_or_named(server: list[str], tmp_path: Path) -> None:
    folder = say(tmp_path / "in" / "a.wav", "one").parent
    (folder / "b.CAF").write_bytes(container("caf", "pcm_s16le", spell("two")[:, None], 16_000))
    (folder / "c.wav").symlink_to("none.wav")
    result = transcribe(folder, *server)
    assert (result.exit_code, printed(result)) == (1, "one\ntwo\n")
    assert f"{folder / 'c.wav'}: No such file" in result.stderr


def test_an_interruption_ends_the_reading_of_standard_input(server: list[str]) -> None:
    command = [sys.executable, "-c", "from server.cli import main; main()", "transcribe", "-", *server]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as started:
        assert started.stdin is not None
        started.stdin.write(bytes(1 << 20))  # more than a pipe holds: it is being read
        for _ in range(10):  # a signal between two reads is seen only at the next one
            started.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                started.wait(2)
                break
    assert started.returncode == EXIT_INTERRUPTED


def test_a_truncated_file_is_transcribed_with_a_warning(server: list[str], tmp_path: Path) -> None:
    path = say(tmp_path / "a.wav", "hello")
    path.write_bytes(path.read_bytes()[:-100])
    result = transcribe(path, *server)
    assert printed(result) == "hello\n"
    assert "truncated" in result.stderr


BAD = {
    "scheme": (["{file}", "--url", "foo://host"], "the scheme must be"),
    "no host": (["{file}", "--url", "ws://"], "the host is missing or invalid"),
    "empty": (["{file}", "--url", ""], "--url: must not be empty"),
    "port": (["{file}", "--url", "ws://h:99999"], "--url"),
    "bracket": (["{file}", "--url", "ws://[::1"], "--url"),
    "space": (["{file}", "--url", "ws://a b"], "the host is missing or invalid"),
    "second": (["{file}", "--url", "ws://127.0.0.1:9,foo://x"], "the scheme must be"),
    "key": (["{file}", "--url", "ws://127.0.0.1:9", "--api-key", "k\u00e9y"], "--api-key"),
    "retry": (["{file}", "--url", "ws://127.0.0.1:9", "--retry", "nan"], "--retry"),
    "retry below 0": (["{file}", "--url", "ws://127.0.0.1:9", "--retry", "-1"], "--retry"),
    "concurrency": (["{file}", "--concurrency", "0"], "--concurrency"),
    "ignored by a server": (["{file}", "--url", "ws://127.0.0.1:9", "--beams", "9"], "--beams"),
    "ignored here": (["{file}", "--resumable"], "--resumable: needs --url"),
    "missing": (["{folder}/none.wav"], "no such file"),
    "empty folder": (["{folder}/empty"], "no recording"),
    "stdin twice": (["-", "-"], "once"),
    "two formats": (["{file}", "--json", "--format", "srt"], "--json"),
    "subtitles of several": (["{file}", "{file}", "--format", "srt"], "--out"),
    "no folder": (["{file}", "--out", "{folder}/none/a.txt"], "no such folder"),
    "over the recording": (["{file}", "--out", "{file}"], "one of the recordings"),
    "names without channels": (["{file}", "--channel-names", "a,b"], "--channel-names: needs --multichannel"),
    "speakers of channels": (["{file}", "--multichannel", "--speakers"], "--speakers: cannot be combined with"),
    "empty name": (["{file}", "--multichannel", "--channel-names", "a,"], "a name has 1 to 20 characters"),
    "long name": (["{file}", "--multichannel", "--channel-names", "a" * 21], "a name has 1 to 20 characters"),
    "divided anyway": (["{file}", "--utterances", "--format", "vtt"], "--utterances: cannot be combined with vtt"),
    "encoding": (["{file}", "--encoding", "opus"], "'opus' is not one of"),
    "no rate": (["{file}", "--encoding", "mulaw"], "--encoding mulaw: needs --sample-rate from 4000 to 192000"),
    "rate alone": (["{file}", "--sample-rate", "8000"], "--sample-rate: needs --encoding"),
    "channels alone": (["{file}", "--channels", "2"], "--channels: needs --encoding"),
    "same output": (["{file}", "{folder}/x/a.wav", "--out", "{folder}/o"], "both"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_value_is_reported_in_one_line(name: str, tmp_path: Path) -> None:
    file = say(tmp_path / "a.wav", "x")
    say(tmp_path / "x" / "a.wav", "x")
    (tmp_path / "empty").mkdir()
    arguments, named = BAD[name]
    result = transcribe(*(part.format(file=file, folder=tmp_path) for part in arguments))
    assert result.exit_code == 2
    assert named in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert isinstance(result.exception, SystemExit)


def test_an_output_that_cannot_be_written_is_reported_in_one_line(server: list[str], tmp_path: Path) -> None:
    path, folder = tmp_path / "a.wav", tmp_path / "out"
    soundfile.write(path, spell("hi"), 16_000)
    (folder / "a.txt").mkdir(parents=True)
    for form in ("text", "json"):
        (folder / "a.json").mkdir(exist_ok=True)
        done = transcribe(path, *server, "--out", folder, "--format", form)
        assert (done.exit_code, type(done.exception)) == (1, SystemExit)
        assert "Is a directory" in done.stderr


@pytest.mark.parametrize(
    ("redirection", "problem"),
    [
        ("<&-", b"tutti: -: the recording is empty\n"),
        (">&-", b"tutti: -: the recording is empty\n"),
        (">/dev/full", b"tutti: output: No space left on device\n"),
    ],
)
def test_standard_streams_that_are_closed_or_full(
    server: list[str], tmp_path: Path, redirection: str, problem: bytes
) -> None:
    path = say(tmp_path / "a.wav", "x") if "full" in redirection else "-"
    words = ["sh", "-c", f'"$@" {redirection}', "sh", sys.executable, "-m", "server.cli", "transcribe", path, *server]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (1, problem)


def test_hosts_without_an_address_are_unreachable(tmp_path: Path) -> None:
    path = say(tmp_path / "a.wav", "x")
    for host in ("a" * 300, "no-such-host.invalid", "127.0.0.1:9/?token=secret", "user:secret@127.0.0.1:9"):
        result = transcribe(path, "--url", f"ws://{host}", "--retry", "0")
        assert result.exit_code == 1
        assert "no server at ws://" in result.stderr
        assert "secret" not in result.output


def test_an_unreachable_server_is_retried_for_the_given_time(tmp_path: Path) -> None:
    path = say(tmp_path / "a.wav", "x")
    result = transcribe(path, "--url", "ws://127.0.0.1:9/?token=secret", "--retry", "0.6")
    assert result.exit_code == 1
    assert "next attempt" in result.stderr
    assert "secret" not in result.output


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_closed_pipe_ends_the_command_silently(server: list[str], tmp_path: Path, options: list[str]) -> None:
    paths = [say(tmp_path / f"{number}.wav", "hello there") for number in range(4)]
    read, write = os.pipe()
    os.close(read)
    words = [sys.executable, "-m", "server.cli", "transcribe", *map(str, paths), *server, *options]
    with os.fdopen(write, "wb") as closed:
        done = subprocess.run(words, stdout=closed, stderr=subprocess.PIPE, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (EXIT_BROKEN_PIPE, b"")


def test_an_ascii_terminal_gets_escapes(server: list[str], tmp_path: Path) -> None:
    path = say(tmp_path / "\u00e9\u4f60.wav", "hello")
    ascii_only = {"PYTHONIOENCODING": "ascii"}
    lines = process(path, *server, "--json", environment=ascii_only)
    assert json.loads(lines.stdout.splitlines()[-1])["file"] == str(path)
    failed = process(tmp_path / "\u4f60.wav", environment=ascii_only)
    assert failed.returncode == 2
    assert b"no such file" in failed.stderr
    assert b"Traceback" not in failed.stderr


def test_numbers_are_masked_on_request(server: list[str], tmp_path: Path) -> None:
    path = say(tmp_path / "call.wav", "it is four seven nine")
    assert printed(transcribe(path, "--redact", "pci", "--redact", "ssn", *server)) == "it is [NUMBER_1]\n"
    refused = transcribe(path, "--redact", "name", *server)
    assert refused.exit_code == 1
    assert "redact: 'name' is not supported" in refused.output


def call(path: Path) -> Path:
    """Write a call: the caller on the left channel, the agent on the right one, who answers."""
    caller, agent = spell("hello there"), spell("yes")
    sides = [np.concatenate([caller, silence(4)]), np.concatenate([np.zeros_like(caller), silence(1), agent])]
    soundfile.write(path, np.stack([sides[0], np.pad(sides[1], (0, len(sides[0]) - len(sides[1])))], 1), 16_000)
    return path


@pytest.mark.parametrize("where", ["server", "here"])
def test_both_sides_of_a_call_are_labeled(server: list[str], tmp_path: Path, where: str) -> None:
    """In this process the shipped model recognizes the shipped recordings."""
    if where == "server":
        path, options, said = call(tmp_path / "call.wav"), server, ["hello there", "yes"]
    else:
        path, options, said = tmp_path / "call.wav", [], ["where is my order", "no"]
        sides = [soundfile.read(SAMPLES.parent / f"{name}.flac")[0] for name in ("order", "no")]
        later = np.concatenate([np.zeros(len(sides[0]) + 16_000), sides[1]])
        soundfile.write(path, np.stack([np.pad(sides[0], (0, len(later) - len(sides[0]))), later], 1), 16_000)
    named = [*options, "--multichannel", "--channel-names", "Caller, Agent"]
    assert printed(transcribe(path, *named)) == f"Caller: {said[0]}\nAgent: {said[1]}\n"
    cues = list(srt.parse(printed(transcribe(path, *named, "--format", "srt"))))
    assert [cue.content for cue in cues] == [f"Caller: {said[0]}", f"Agent: {said[1]}"]
    assert cues[0].end <= cues[1].start
    assert f"Channel 2: {said[1]}" in printed(transcribe(path, *options, "--multichannel", "--format", "vtt"))
    lines = [
        json.loads(line)
        for line in printed(transcribe(path, *options, "--multichannel", "--utterances", "--json")).splitlines()
    ]
    assert {line["channel"] for line in lines[:-1]} == {0, 1}
    assert [(one["channel"], one["transcript"]) for one in lines[-1]["utterances"]] == [*enumerate(said)]
    assert [" ".join(word["word"] for word in one["words"]) for one in lines[-1]["channels"]] == said


def test_utterances_of_one_channel_are_lines(server: list[str], tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    soundfile.write(path, np.concatenate([spell("one"), silence(2), spell("two"), silence(0.5)]), 16_000)
    assert printed(transcribe(path, *server)) == "one two\n"
    assert printed(transcribe(path, *server, "--utterances")) == "one\ntwo\n"


def test_encodings_of_raw_audio_are_those_of_the_server() -> None:
    assert {encoding.value for encoding in RawEncoding} == {encoding.value for encoding in PLAIN}


def test_raw_audio_is_read_with_its_encoding(server: list[str], tmp_path: Path) -> None:
    pcm = np.concatenate([spell("hello"), silence(0.5)]).astype("<i2")
    raw = ["--encoding", "linear16", "--sample-rate", "16000"]
    done = process("-", *server, *raw, input=pcm.tobytes() + b"\0")  # half a sample: the recorder was interrupted
    assert (done.returncode, done.stdout) == (0, b"hello\n")
    path = tmp_path / "call.raw"
    path.write_bytes(np.stack([pcm, np.zeros_like(pcm)], 1).tobytes())
    named = [*raw, "--channels", "2", "--multichannel", "--channel-names", "Caller,Agent"]
    assert printed(transcribe(path, *server, *named)) == "Caller: hello\n"
    without = transcribe(path, *server)
    assert without.exit_code == 1
    assert "not a supported recording (wav, " in without.stderr
    assert all(kind in without.stderr for kind in ("mp4", "aiff", "raw audio needs encoding and sample rate"))
    mono = transcribe(say(tmp_path / "mono.wav", "x"), *server, "--multichannel", "--channel-names", "Caller,Agent")
    assert "mono.wav: 1 channels, but 2 names for them" in mono.stderr


HELLO, ANSWER = "how do you do my dear friend", "very well so far and you too"  # long enough to know a voice


def test_speakers_are_named(live_server: Start, tmp_path: Path) -> None:
    running = live_server(speakers=True, auxiliary={Auxiliary.SPEAKERS: Voices()})
    options = ["--url", f"ws://{running.host}", "--retry", "0", "--speakers"]
    turns = [voices.say(HELLO, 0), silence(1.0), voices.say(ANSWER, 1), silence(1.0)]
    path = tmp_path / "talk.wav"
    soundfile.write(path, np.concatenate(turns), 16_000)
    said = [f"Speaker 1: {HELLO}", f"Speaker 2: {ANSWER}"]
    assert printed(transcribe(path, *options)).splitlines() == said
    assert [cue.content for cue in srt.parse(printed(transcribe(path, *options, "--format", "srt")))] == said
    vtt = printed(transcribe(path, *options, "--format", "vtt"))
    assert f"<v Speaker 1>{HELLO}" in vtt
    assert f"<v Speaker 2>{ANSWER}" in vtt
    refused = transcribe(path, "--url", f"ws://{live_server().host}", "--retry", "0", "--speakers")
    assert refused.exit_code == 1
    assert "start the server with --speakers" in refused.stderr
