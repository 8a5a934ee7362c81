"""Where log lines go: standard error, one line each, for people or as JSON. Set up once, at the entry point."""

from __future__ import annotations

import atexit
import logging
import re
import sys
import threading
from types import TracebackType
from typing import Any

import structlog

from server.operations.log_lines import LogLines
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
