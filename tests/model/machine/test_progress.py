"""The line that counts seconds on a terminal while functions are compiled."""

from __future__ import annotations

import io
import signal
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
    registered = {name: [*known] for name, known in event._registered.items()}
    interrupt = signal.getsignal(signal.SIGINT)
    yield event._registered["numba:compile"]
    signal.signal(signal.SIGINT, interrupt)
    event._registered.clear()
    event._registered.update(registered)


def test_an_output_that_is_closed_by_then_is_no_error():
    closed = Terminal()
    closed.close()
    progress._Counter(closed)._write("text")


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


def test_a_pipe_gets_no_line(monkeypatch):
    monkeypatch.setattr(progress, "EVERY_S", 0.001)
    pipe = io.StringIO()
    counter = progress._Counter(pipe)
    before = set(threading.enumerate())
    counter.on_start(None)
    (counting,) = set(threading.enumerate()) - before
    counter.on_end(None)
    counting.join(10)
    assert pipe.getvalue() == ""


def test_shipped_code_needs_no_line(listeners, monkeypatch):
    before = len(listeners), signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(progress, "LIBRARY", object())
    progress.show_compilation(Terminal())
    assert (len(listeners), signal.getsignal(signal.SIGINT)) == before


def test_ctrl_c_ends_a_compilation_and_interrupts_other_work_as_usual(monkeypatch):
    ended = []
    monkeypatch.setattr(progress.os, "_exit", ended.append)
    terminal = Terminal()
    counter = progress._Counter(terminal)
    with pytest.raises(KeyboardInterrupt):
        counter.interrupt(signal.SIGINT, None)
    assert ended == []
    counter.on_start(None)
    counter.interrupt(signal.SIGINT, None)
    counter.on_end(None)
    assert ended == [130]
    assert terminal.getvalue().startswith(progress.CLEAR)
