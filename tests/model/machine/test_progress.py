"""The line that counts seconds on a terminal while functions are compiled."""

from __future__ import annotations

import io
import threading

import numba
import pytest
from numba.core import event

from model.machine import progress


class Terminal(io.StringIO):
    """A terminal that signals when a line was written."""

    def __init__(self) -> None:
        super().__init__()
        self.counted, self.cleared = threading.Event(), threading.Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        done = super().write(text)
        (self.cleared if text == progress.CLEAR else self.counted).set()
        return done


@pytest.fixture
def listeners(monkeypatch):
    registered = {name: [*found] for name, found in event._registered.items()}
    yield event._registered["numba:compile"]
    event._registered.clear()
    event._registered.update(registered)


def test_a_terminal_shows_that_a_function_is_compiled(listeners, monkeypatch):
    monkeypatch.setattr(progress, "EVERY_S", 0.001)
    terminal = Terminal()
    before = len(listeners)
    progress.show_compilation(terminal)
    assert len(listeners) == before + 1

    @numba.njit
    def inner(x):
        return x + 1

    @numba.njit
    def outer(x):
        return inner(x) * 2

    assert outer(3) == 8
    assert terminal.counted.wait(10)
    assert terminal.cleared.wait(10)
    text = terminal.getvalue()
    assert text.startswith("\rtutti: compiling for this processor, once for each installation: 0 s")
    assert text.endswith(progress.CLEAR)
    assert text.count(progress.CLEAR) == 1  # the inner function is compiled within the outer one


def test_seconds_count_from_the_first_compilation(monkeypatch):
    monkeypatch.setattr(progress, "EVERY_S", 0.001)
    now = iter([100.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(now, 112.0))
    terminal = Terminal()
    counter = progress._Counter(terminal)
    for _ in range(2):
        terminal.counted.clear()
        counter.on_start(None)
        assert terminal.counted.wait(10)
        counter.on_end(None)
    assert "installation: 12 s" in terminal.getvalue()


@pytest.mark.parametrize("shipped", [True, False])
def test_a_pipe_and_shipped_code_need_no_line(shipped, listeners, monkeypatch):
    before = len(listeners)
    monkeypatch.setattr(progress, "LIBRARY", object() if shipped else None)
    progress.show_compilation(Terminal() if shipped else io.StringIO())
    assert len(listeners) == before
