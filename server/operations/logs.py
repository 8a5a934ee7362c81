"""Log lines: set up once, written by a thread of their own within a bound, named by request id."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import re
import sys
import threading
import uuid
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from types import TracebackType
from typing import Any

import structlog

from server.settings import Settings

FLUSH_S = 1.0  # for the last lines of a process
_SECRETS = re.compile(
    r"(?i)([?&](?:token|access_token|key|api_key|ticket)=)[^&\s\"']+"
    r"|(\b(?:authorization|sec-websocket-protocol)\b[\"']?\s*[:=,]\s*b?[\"']?)[^\"'\r\n]+"
)


def configure_logs(settings: Settings) -> LogLines:
    """Route structlog, libraries' warnings and what no thread caught to one renderer, and return where the lines go."""
    fd = sys.stderr.fileno()
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if settings.log_format == "json":
        render: list[Any] = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    else:
        render = [
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback)
        ]
    render.append(redacted)
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    out = LogLines(fd, lambda count: _said_lost(count, shared, render))
    structlog.configure(
        processors=[*shared, *render],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(out),  # type: ignore[arg-type]  # it writes and flushes, no more
        cache_logger_on_first_use=True,
    )
    lines = logging.StreamHandler(out)
    strip: list[Any] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta]
    lines.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=[*strip, *render]))
    # uvicorn names whole queries at level info, and a query may hold a token.
    logging.basicConfig(level=max(level, logging.WARNING), handlers=[lines], force=True)
    logging.captureWarnings(capture=True)
    threading.excepthook = _thread_died
    sys.excepthook = _process_died
    atexit.register(out.drain, FLUSH_S)
    return out


def redacted(_: object, __: str, line: str) -> str:
    """Take keys and tokens out of a rendered line: the last defence, where a library repeats what a client sent."""
    return _SECRETS.sub(lambda found: (found[1] or found[2]) + "…", line)


def _said_lost(count: int, shared: list[Any], render: list[Any]) -> str:
    line: Any = {"event": "log lines were lost", "count": count}
    for processor in (*shared, *render):
        line = processor(None, "warning", line)
    return f"{line}\n"


def _thread_died(died: threading.ExceptHookArgs) -> None:
    if died.exc_value is None or isinstance(died.exc_value, SystemExit):
        return
    name = died.thread.name if died.thread else "unknown"
    structlog.get_logger("tutti").error("a thread died", thread=name, exc_info=died.exc_value)


def _process_died(
    kind: type[BaseException],  # noqa: ARG001 - Python's signature
    error: BaseException,
    _: TracebackType | None,
) -> None:
    structlog.get_logger("tutti").critical("the process died", exc_info=error)


MAX_LINES = 4_096  # about a megabyte: a second of the busiest server
RETRY_S = 1.0  # after an error of the file


class LogLines:
    """A text file as structlog and logging want one, over a file descriptor that stays the caller's."""

    def __init__(self, fd: int, said_lost: Callable[[int], str]) -> None:
        """`said_lost` makes the line that tells how many were lost."""
        self._fd = fd
        self._said_lost = said_lost
        self._lines: deque[str] = deque()
        self._wake = threading.Event()
        self._idle = threading.Event()
        self._idle.set()
        self._stopping = threading.Event()
        self._unsaid = 0
        self._lost = 0
        self._count: Callable[[float], None] | None = None
        self._thread = threading.Thread(target=self._main, name="log", daemon=True)
        self._thread.start()

    def write(self, text: str) -> int:
        """Queue a line; never waits, never raises."""
        if len(self._lines) >= MAX_LINES:
            self._lose(1)
        else:
            self._idle.clear()
            self._lines.append(text)
            self._wake.set()
        return len(text)

    def flush(self) -> None:
        """Do nothing: `drain` waits."""

    def isatty(self) -> bool:
        """Say that colours are not wanted."""
        return False

    def drain(self, timeout_s: float) -> None:
        """Wait until all is written, at most so long: before the process ends."""
        self._stopping.set()
        self._idle.wait(timeout_s)

    def count_lost(self, count: Callable[[float], None]) -> None:
        """Tell this how many lines are lost, on any thread, from now on and so far."""
        self._count = count
        count(self._lost)

    def _lose(self, count: int) -> None:
        self._lost += count
        self._unsaid += count
        if self._count is not None:
            self._count(count)

    def _main(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            while self._lines:
                self._send()
            self._idle.set()
            if self._lines:  # queued between the last look and the flag
                self._idle.clear()

    def _send(self) -> None:
        """Write all that is queued, or lose it."""
        lines = [self._lines.popleft() for _ in range(len(self._lines))]
        unsaid = self._unsaid
        text = (self._said_lost(unsaid) if unsaid else "") + "".join(lines)
        try:
            _write_all(self._fd, text.encode(errors="backslashreplace"))
        except OSError:
            self._lose(len(lines))
            self._stopping.wait(RETRY_S)  # an error that lasts must not take a core
        else:
            self._unsaid -= unsaid


def _write_all(fd: int, data: bytes) -> None:
    while data:
        with contextlib.suppress(InterruptedError):
            data = data[os.write(fd, data) :]


_waiting: ContextVar[str | None] = ContextVar("tutti_request_id_waiting", default=None)
_current: ContextVar[str | None] = ContextVar("tutti_request_id", default=None)


def name_request() -> str:
    """Name the request that this context serves; whoever answers it takes the name with `take_request_id`."""
    request_id = str(uuid.uuid4())
    _waiting.set(request_id)
    _current.set(request_id)
    return request_id


def take_request_id() -> str:
    """Return the name of the context's request, once; a fresh one otherwise: no two things bear one name."""
    request_id = _waiting.get()
    _waiting.set(None)
    return request_id or str(uuid.uuid4())


def current_request_id() -> str | None:
    """Return the name of the context's request, None outside any."""
    return _current.get()
