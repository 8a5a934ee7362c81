"""`tutti replay` and `tutti keys receipt`: exit codes and what they print."""

from __future__ import annotations

import json
import stat
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import SimpleNamespace

import pytest
import soundfile
from typer.testing import CliRunner, Result

from server.cli import app
from server.receipts.keys import ReceiptKeys
from server.replica import Replica
from server.settings import Settings
from server.tools.local import open_replica
from tests.support.servers.live_server import Frame
from tests.support.servers.receipted import RATE, record, shipped_server, spoken, with_keys

Call = SimpleNamespace
runner = CliRunner()


def tutti(*arguments: object) -> Result:
    return runner.invoke(app, [str(each) for each in arguments])


@pytest.fixture(scope="module")
def call(tmp_path_factory: pytest.TempPathFactory) -> Call:
    folder = tmp_path_factory.mktemp("call")
    key_file, keys = with_keys(folder)
    public = folder / "public.json"
    public.write_text(keys.as_text(private=False))
    audio = spoken("order")
    with shipped_server(key_file) as server:
        frames = record(server, audio, smart_format="true")
    return Call(audio=audio, frames=frames, public=public)


def store(folder: Path, call: Call, name: str = "call", frames: list[Frame] | None = None) -> tuple[Path, Path]:
    messages, audio = folder / f"{name}.jsonl", folder / f"{name}.wav"
    messages.write_text("\n".join(json.dumps(frame) for frame in frames or call.frames))
    soundfile.write(audio, call.audio, RATE)
    return messages, audio


def with_another_word(call: Call) -> list[Frame]:
    frames: list[Frame] = json.loads(json.dumps(call.frames))
    frames[0]["channel"]["alternatives"][0]["words"][1]["word"] = "was"
    return frames


# Replays


def test_a_stream_with_valid_receipts_has_no_difference(call: Call, tmp_path: Path) -> None:
    messages, audio = store(tmp_path, call, frames=[{"type": "SpeechStarted"}, *call.frames])
    done = tutti("replay", audio, messages, "--keys", call.public)
    assert done.exit_code == 0, done.output
    assert "finals are the same; signatures are valid" in done.stdout
    assert "without a signature: 1 SpeechStarted" in done.stdout


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no receipts"),
        ("{", "line 1 is not JSON"),
        ('{"type": "Results"}', "no receipts"),
        ('{"receipt": "a.b.c"}', "not a receipt"),
        ('{"analysis": []}', "no receipts"),
    ],
)
def test_other_files_are_refused_with_their_name(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "messages.jsonl"
    path.write_text(text)
    done = tutti("replay", path, path)
    assert done.exit_code == 1
    assert f"{path}: {problem}" in " ".join(done.stderr.split())


def test_a_difference_is_printed_and_is_the_exit_code(call: Call, tmp_path: Path) -> None:
    messages, audio = store(tmp_path, call, frames=with_another_word(call))
    done = tutti("replay", audio, messages, "--json")
    assert done.exit_code == 1
    found = json.loads(done.stdout)
    assert found["signatures_checked"] is False
    assert [each["part"] for each in found["differences"]] == ["words"]


def test_the_streams_of_a_folder_are_replayed_and_those_that_differ_are_named(call: Call, tmp_path: Path) -> None:
    for number in range(10):  # more than are replayed together
        store(tmp_path, call, str(number), with_another_word(call) if number in (1, 9) else None)
    done = tutti("replay", tmp_path, "--keys", call.public)
    assert done.exit_code == 1
    assert done.stdout.splitlines() == [
        "1.jsonl: words: the message of receipt 0 has other words than were signed",
        "9.jsonl: words: the message of receipt 0 has other words than were signed",
        "10 streams replayed, 2 differ; signatures are valid",
    ]
    done = tutti("replay", tmp_path, "--json")
    assert done.exit_code == 1
    report = json.loads(done.stdout)
    assert [stream["stream"] for stream in report["streams"] if stream["differences"]] == ["1.jsonl", "9.jsonl"]
    for number in (1, 9):
        store(tmp_path, call, str(number))
    done = tutti("replay", tmp_path)
    assert (done.exit_code, done.stdout.strip()) == (
        0,
        "10 streams replayed, 0 differ; signatures were not checked (--keys)",
    )


def test_streams_of_a_folder_share_one_engine(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []

    def counted(settings: Settings) -> AbstractAsyncContextManager[Replica]:
        opened.append(settings)
        return open_replica(settings)

    monkeypatch.setattr("server.tools.replay.open_replica", counted)
    for name in ("a", "b"):
        store(tmp_path, call, name)
    assert tutti("replay", tmp_path).exit_code == 0
    assert len(opened) == 1


def test_a_stream_without_audio_and_a_folder_without_streams_are_refused(call: Call, tmp_path: Path) -> None:
    assert "no messages of streams; expected files NAME.jsonl" in " ".join(tutti("replay", tmp_path).stderr.split())
    messages, audio = store(tmp_path, call)
    assert tutti("replay", tmp_path, messages).exit_code == 2
    assert tutti("replay", audio).exit_code == 2
    audio.unlink()
    done = tutti("replay", tmp_path)
    assert done.exit_code == 1
    assert "0 files of audio named call.*; there must be one" in " ".join(done.stderr.split())


# Keys


def test_a_new_key_signs_and_the_old_one_still_verifies(tmp_path: Path) -> None:
    path = tmp_path / "key.json"
    first = tutti("keys", "receipt", "--file", path)
    assert first.exit_code == 0, first.output
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    signed = ReceiptKeys.load(path).sign(b"old")
    assert '"d"' not in first.stdout
    second = tutti("keys", "receipt", "--file", path)
    public = ReceiptKeys.read(second.stdout)
    assert public.verify(signed) == b"old"
    assert public.verify(ReceiptKeys.load(path).sign(b"new")) == b"new"
    assert tutti("keys", "receipt", "--file", path, "--public").stdout == second.stdout
    assert sorted(tmp_path.iterdir()) == [path]


def test_a_file_that_is_no_key_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "key.json"
    path.write_text("something else")
    done = tutti("keys", "receipt", "--file", path)
    assert done.exit_code == 1
    assert "expected a JSON Web Key of type Ed25519" in " ".join(done.stderr.split())
    assert path.read_text() == "something else"
