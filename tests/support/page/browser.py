"""Chromium with a recording as its microphone, and the server's page in it. Needs `apt-get install chromium`."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import soundfile
import soxr
from playwright.sync_api import Browser, ConsoleMessage, Page, WebSocket, sync_playwright

from tests.support.servers.fakes import WAIT_S
from tests.support.servers.live_server import LiveServer

PROGRAM = "chromium"
WAIT_MS = WAIT_S * 1000
MICROPHONE_HZ = 48_000  # as a real one
SILENCE_S = 0.8  # before a recording: the microphone runs before the page listens


@contextmanager
def chromium(microphone: Path) -> Iterator[Browser]:
    """Start Chromium; pages get the microphone without a prompt, and it plays this WAV file once."""
    arguments = [
        "--use-fake-ui-for-media-stream",
        "--use-fake-device-for-media-stream",
        f"--use-file-for-fake-audio-capture={microphone}%noloop",
    ]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which(PROGRAM), args=arguments)
        yield browser
        browser.close()


def microphone_file(recording: Path, folder: Path) -> Path:
    """Write a recording as the WAV file that Chromium takes for a microphone."""
    samples, rate = soundfile.read(recording, dtype="float32")
    silence = np.zeros(round(SILENCE_S * MICROPHONE_HZ), dtype=np.float32)
    audio = np.concatenate([silence, soxr.resample(samples, rate, MICROPHONE_HZ)])
    path = folder / "microphone.wav"
    soundfile.write(path, audio, MICROPHONE_HZ, subtype="PCM_16")
    return path


class OpenPage:
    """The page of a server, the addresses it requested and the problems it reported."""

    def __init__(self, browser: Browser, server: LiveServer, before: str = "", **options: Any) -> None:
        """Open it; `before` is a script that runs ahead of the page's own, `options` are those of the context."""
        self.host = server.host
        self.page: Page = browser.new_page(**options)
        self.page.set_default_timeout(WAIT_MS)
        self.problems: list[str] = []
        self.addresses: list[str] = []
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("requestfailed", lambda request: self.problems.append(f"{request.url} failed"))
        self.page.on("request", lambda request: self.addresses.append(request.url))
        self.page.on("websocket", self._on_websocket)
        if before:
            self.page.add_init_script(before)
        self.page.goto(f"http://{self.host}/")

    def _on_console(self, said: ConsoleMessage) -> None:
        if said.type in ("error", "warning"):
            self.problems.append(said.text)

    def _on_websocket(self, socket: WebSocket) -> None:
        self.addresses.append(socket.url)

    def fast(self) -> OpenPage:
        """Select transcribing recordings faster than they play."""
        self.page.get_by_label("transcribe as fast as possible").check()
        return self

    def plain(self) -> OpenPage:
        """Select words as spoken: without capitals, punctuation and digits."""
        self.page.get_by_label("Punctuation and digits").uncheck()
        return self

    @property
    def hosts(self) -> set[str]:
        """Hosts that the page sent requests to."""
        return {urlsplit(address).netloc for address in self.addresses if not address.startswith("blob:")}

    def press(self, name: str) -> None:
        """Press a button."""
        self.page.get_by_role("button", name=name, exact=True).click()

    def wait_idle(self) -> None:
        """Wait until no stream is open."""
        self.page.wait_for_selector("#status[data-state=idle]")

    def said(self) -> str:
        """The text of the finals."""
        return " ".join(self.page.locator("#log .said").all_inner_texts())


def cut_connections(server: LiveServer) -> None:
    """Abort every connection of the server, as a failing network does."""

    def cut() -> None:
        for connection in list(server.server.server_state.connections):
            connection.transport.abort()

    server.server.loop.call_soon_threadsafe(cut)
