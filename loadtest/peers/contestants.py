"""The servers of the comparison: command line and settings of each.

Each peer has the settings that performed best on two cores shared with the load generator; other settings that were
tried can be selected by name.
"""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass, replace

from loadtest.errors import BadSettings, PeerMissing

OURS = "tutti"
PUBLISHED = "-published"  # in names of servers with the published model of `--onnx`


@dataclass(frozen=True, slots=True)
class Contestant:
    """One server with its settings."""

    name: str
    letter: str  # in the report; empty for tutti
    title: str
    command: tuple[str, ...]  # `--port N` is added
    first: int  # streams at the start of the search
    bar: float = 0.0  # target ratio of our streams to its
    needs: str = ""  # required package of the `peers` extra
    default: bool = True  # measured by default

    @property
    def published(self) -> bool:
        """Whether it serves the published model of `--onnx`."""
        return PUBLISHED in self.name

    @property
    def counterpart(self) -> str:
        """Name of our server with the same model."""
        return OURS + PUBLISHED if self.published else OURS


def _module(name: str, *options: str) -> tuple[str, ...]:
    return (sys.executable, "-m", f"loadtest.peers.{name}", *options)


def _variant(of: Contestant, name: str, title: str, first: int, *options: str) -> Contestant:
    """Return the same server with other settings, measured only if named."""
    return replace(of, name=name, title=title, first=first, command=(*of.command, *options), default=False)


_SERVE = (sys.executable, "-m", "server.cli", "serve", "--host", "127.0.0.1", "--decoder", "greedy")
_SHERPA_COMMAND = _module("sherpa_server", "--folder", "{onnx}")
_SHERPA = Contestant("sherpa-fp32", "a", "sherpa-onnx, fp32", _SHERPA_COMMAND, 250, 2.0, "sherpa_onnx")
_INT8 = (*_SHERPA_COMMAND, "--model", "model.int8.onnx")

_PUBLISHED = replace(
    _SHERPA,
    name="sherpa" + PUBLISHED,
    title="sherpa-onnx, the same published model, fp32",
    command=(*_SHERPA_COMMAND, "--published"),
    first=10,
    default=False,
)
_PUBLISHED_INT8 = replace(
    _PUBLISHED,
    name=_PUBLISHED.name + "-int8",
    title="sherpa-onnx, the same published model, dynamic int8",
    command=_module("sherpa_server", "--folder", "{int8}", "--published"),
)
_SERVE_PUBLISHED = (*_SERVE, "--max-streams", "1024", "--model", "{onnx}")
_OURS_PUBLISHED = Contestant(
    OURS + PUBLISHED,
    "",
    "tutti, a published model, fp32",
    (*_SERVE_PUBLISHED, "--precision", "fp32"),
    10,
    default=False,
)
_OURS_PUBLISHED_INT8 = replace(
    _OURS_PUBLISHED,
    name=_OURS_PUBLISHED.name + "-int8",
    title="tutti, the same published model, int8 by tutti quantize",
    command=(*_SERVE_PUBLISHED, "--precision", "int8"),
    first=60,
)
_TWO_THREADS = ("--threads", "2")

ALL = (
    Contestant(OURS, "", "tutti, greedy", (*_SERVE, "--max-streams", "1024"), 400),
    _SHERPA,
    replace(_SHERPA, name="sherpa-int8", title="sherpa-onnx, int8", command=_INT8),
    _variant(_SHERPA, "sherpa-2", "sherpa-onnx, fp32, 2 threads", 200, *_TWO_THREADS),
    _OURS_PUBLISHED,
    _OURS_PUBLISHED_INT8,
    _variant(
        _OURS_PUBLISHED_INT8, "tutti-published-int8-2", f"{_OURS_PUBLISHED_INT8.title}, 2 threads", 60, *_TWO_THREADS
    ),
    _PUBLISHED,
    _variant(_PUBLISHED, "sherpa-published-2", f"{_PUBLISHED.title}, 2 threads", 10, *_TWO_THREADS),
    _PUBLISHED_INT8,
    _variant(_PUBLISHED_INT8, "sherpa-published-int8-2", f"{_PUBLISHED_INT8.title}, 2 threads", 10, *_TWO_THREADS),
)


def chosen(names: str) -> tuple[Contestant, ...]:
    """Return the servers of a list with commas; by default the default ones. Raises: BadSettings, PeerMissing."""
    by_name = {contestant.name: contestant for contestant in ALL}
    asked = names.split(",") if names else [contestant.name for contestant in ALL if contestant.default]
    if unknown := [name for name in asked if name not in by_name]:
        raise BadSettings(f"--peers {', '.join(unknown)}: must be one of {', '.join(by_name)}")
    found = tuple(by_name[name] for name in asked)
    missing = {one.needs for one in found if one.needs and importlib.util.find_spec(one.needs) is None}
    if missing:
        raise PeerMissing(f"{', '.join(sorted(missing))} not installed: pip install -e '.[peers]'")
    return found
