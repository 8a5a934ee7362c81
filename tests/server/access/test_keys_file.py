"""The keys file: its format, reloading while the server runs, and the command that writes it."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result
from websockets.exceptions import InvalidStatus

from server.access.keys import CHECK_EVERY_S, Credentials, Key, KeyRing, KeysFile, parse_keys, read_secrets
from server.cli import app
from server.errors import NotAuthorized, SettingsError
from server.operations.process import on_sighup
from server.resume.tickets import read_keys
from tests.support.servers.fakes import FakeClock
from tests.support.servers.live_server import LiveServer

Start = Callable[..., LiveServer]


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def test_a_line_has_a_digest_a_name_a_quota_and_origins(tmp_path: Path) -> None:
    text = f"""
        # ours
        {digest("a")}
        {digest("b").upper()}  shop  # the shop
        {digest("c")} streams=3 origins=https://a.example,http://b.example:81/ call-center
    """
    path = tmp_path / "keys"
    path.write_text(text)
    a, b, c = parse_keys(read_secrets("key", (), path))
    assert (a, b) == (Key.of("a"), Key(Key.of("b").digest, "shop"))
    assert (c.name, c.streams, c.origins) == ("call-center", 3, {"https://a.example", "http://b.example:81"})


@pytest.mark.parametrize(
    "rest",
    ["two names", "streams=", "streams=0", "streams=-1", "streams=1 streams=2", "origins=a.example", "quota=1", "n/me"],
)
def test_an_invalid_line_is_named_by_its_number_and_not_repeated(rest: str) -> None:
    with pytest.raises(SettingsError, match=r"^keys:2: ") as refused:
        parse_keys([("keys:2", f"{digest('a')} {rest}")])
    assert digest("a") not in str(refused.value)


def test_only_lines_that_begin_with_a_hash_are_comments_of_a_file_of_secrets(tmp_path: Path) -> None:
    path = tmp_path / "secrets"
    path.write_text("\n  # one a line\n  first#1 \nsecond\n")
    assert read_secrets("key", ["given"], path) == [
        ("key 1", "given"),
        (f"{path}:3", "first#1"),
        (f"{path}:4", "second"),
    ]


def test_a_digest_that_occurs_twice_is_an_error() -> None:
    with pytest.raises(SettingsError, match=r"^keys:2: "):
        parse_keys([("keys:1", f"{digest('a')} streams=1"), ("keys:2", digest("a"))])


def test_a_changed_file_is_reloaded_within_a_second_and_a_broken_one_keeps_the_keys(tmp_path: Path) -> None:
    clock, path = FakeClock(), tmp_path / "keys"
    path.write_text(digest("old"))
    file = KeysFile(path, clock)
    path.write_text(f"{digest('new')} grown")
    assert file.keys == (Key.of("old"),), "checked once a second"
    clock.advance(CHECK_EVERY_S)
    assert [key.name for key in file.keys] == ["grown"]
    for broken in (b"nonsense", b"# empty", b"\xff\xfe\x00"):
        path.write_bytes(broken)
        clock.advance(CHECK_EVERY_S)
        assert [key.name for key in file.keys] == ["grown"], "the previous keys stay valid"
    path.unlink()
    clock.advance(CHECK_EVERY_S)
    assert [key.name for key in file.keys] == ["grown"]
    replacement = tmp_path / "next"
    replacement.write_text(digest("last"))
    replacement.replace(path)
    clock.advance(CHECK_EVERY_S)
    assert file.keys == (Key.of("last"),)


def test_a_key_removed_from_the_file_is_refused_and_so_are_its_tokens(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"{digest('kept')}\n{digest('gone')}")
    ring = KeyRing.load([], path)
    token = ring.tokens.mint(Key.of("gone").id, 60, time.time())
    assert ring.check(Credentials(token, None, bearer=True)).by_token
    path.write_text(digest("kept"))
    ring.reload()
    for credentials in (Credentials("gone", None), Credentials(token, None, bearer=True)):
        with pytest.raises(NotAuthorized):
            ring.check(credentials)


def test_a_running_server_accepts_a_new_key_and_refuses_the_old_one(live_server: Start, tmp_path: Path) -> None:
    clock, path = FakeClock(), tmp_path / "keys"
    path.write_text(digest("old"))
    server = live_server(api_keys_file=path, clock=clock)
    with server.listen({"Authorization": "Token old"}) as client:
        path.write_text(digest("newer key"))
        clock.advance(CHECK_EVERY_S)
        with server.listen({"Authorization": "Token newer key"}) as other:
            other.finish()
        with pytest.raises(InvalidStatus) as refused:
            server.listen({"Authorization": "Token old"})
        assert refused.value.response.status_code == 401
        client.finish()  # an open stream stays open


def test_a_file_is_read_again_when_its_mode_changes_and_once_after_a_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, path, reads = FakeClock(), tmp_path / "keys", list[None]()
    path.write_text(digest("old"))
    file, before = KeysFile(path, clock), path.stat().st_ctime_ns
    monkeypatch.setattr("server.access.keys.read_secrets", lambda *_: reads.append(None) or ())
    while path.stat().st_ctime_ns == before:
        path.chmod(0o640)  # it may be readable now
    for count in (1, 2):
        clock.advance(CHECK_EVERY_S)
        assert (file.keys, len(reads)) == ((), count)
        path.write_text(digest("new"))
        file.reload()


async def test_sighup_reads_the_file_at_once(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(digest("old"))
    ring = KeyRing.load([], path, clock=FakeClock())
    done = asyncio.Event()
    on_sighup(lambda: (ring.reload(), done.set()))
    path.write_text(digest("new"))
    os.kill(os.getpid(), signal.SIGHUP)
    await asyncio.wait_for(done.wait(), 10)
    assert ring.check(Credentials("new", None)).key == Key.of("new")


# The command


def keys(*arguments: str, text: str = "") -> Result:
    return CliRunner().invoke(app, ["keys", *arguments], input=text)


def test_a_new_key_is_printed_once_and_its_file_accepts_it(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(digest("first"))  # without a newline at the end
    made = keys("new", "--name", "shop", "--streams", "2", "--origin", "https://shop.example", "--file", str(path))
    key = made.stdout.strip()
    assert made.exit_code == 0
    assert len(key) > 40
    assert key not in path.read_text()
    found = KeyRing.load([], path).check(Credentials(key, None)).key
    assert (found.name, found.streams, found.origins) == ("shop", 2, {"https://shop.example"})
    assert keys("new").stdout != made.stdout


def test_a_new_file_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    assert keys("new", "--file", str(path)).exit_code == 0
    assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0


def test_a_given_key_is_hashed_from_standard_input() -> None:
    hashed = keys("hash", "--name", "mine", text="s3cret\n")
    assert hashed.exit_code == 0
    assert hashed.stdout.strip() == f"{digest('s3cret')}  mine"
    assert "s3cret" not in hashed.output
    assert keys("hash").exit_code == 1
    assert keys("hash", "--name", "two words", text="k").exit_code == 2


def test_replicas_accept_the_ticket_keys_that_the_command_makes() -> None:
    first, second = (keys("resume").stdout.strip() for _ in range(2))
    assert first != second
    assert len(read_keys([("first", first), ("second", second)])) == 2
