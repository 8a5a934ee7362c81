"""Who is compared: how each server is started, and with which settings.

The settings of a peer are those that served it best on two cores with the load generator beside it; the others that
were tried are here too, to be asked for by name.
"""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass

from loadtest.errors import BadSettings, PeerMissing

OURS = "tutti"


@dataclass(frozen=True, slots=True)
class Contestant:
    """One server with its settings."""

    name: str
    letter: str  # of the comparison; empty for ours
    title: str
    command: tuple[str, ...]  # `--port N` is added
    first: int  # streams with which the search begins
    bar: float = 0.0  # how many times its streams ours should sustain
    needs: str = ""  # a package of the `peers` extra
    default: bool = True  # runs when nobody is named


def _module(name: str, *options: str) -> tuple[str, ...]:
    return (sys.executable, "-m", f"loadtest.peers.{name}", *options)


_SERVE = (sys.executable, "-m", "server.cli", "serve", "--host", "127.0.0.1", "--decoder", "greedy")
_SHERPA = ("sherpa_server", "--folder", "{onnx}")

ALL = (
    Contestant(OURS, "", "tutti, greedy", (*_SERVE, "--max-streams", "1024"), 400),
    Contestant("fastapi", "a", "FastAPI + torch, module as written", _module("fastapi_torch"), 40, 8.0),
    Contestant("ray", "b", "Ray Serve, @serve.batch", _module("ray_model"), 10, 4.0, "ray"),
    Contestant("mosec", "c", "mosec behind a WebSocket proxy", _module("mosec_proxy"), 150, 4.0, "mosec"),
    Contestant("sherpa-fp32", "d", "sherpa-onnx, fp32", _module(*_SHERPA), 250, 2.0, "sherpa_onnx"),
    Contestant(
        "sherpa-int8",
        "d",
        "sherpa-onnx, int8",
        _module(*_SHERPA, "--model", "model.int8.onnx"),
        250,
        2.0,
        "sherpa_onnx",
    ),
    Contestant(
        "fastapi-recorded",
        "a",
        "FastAPI + torch, tutti's own step",
        _module("fastapi_torch", "--recorded"),
        50,
        8.0,
        default=False,
    ),
    Contestant(
        "fastapi-thread",
        "a",
        "FastAPI + torch, step in a thread",
        _module("fastapi_torch", "--in-thread"),
        30,
        8.0,
        default=False,
    ),
    Contestant(
        "fastapi-2",
        "a",
        "FastAPI + torch, 2 threads",
        _module("fastapi_torch", "--threads", "2"),
        40,
        8.0,
        default=False,
    ),
    Contestant(
        "ray-2", "b", "Ray Serve, 2 threads", _module("ray_model", "--threads", "2"), 10, 4.0, "ray", default=False
    ),
    Contestant(
        "mosec-2", "c", "mosec, 2 threads", _module("mosec_proxy", "--threads", "2"), 150, 4.0, "mosec", default=False
    ),
    Contestant(
        "mosec-workers",
        "c",
        "mosec, 2 workers",
        _module("mosec_proxy", "--workers", "2"),
        150,
        4.0,
        "mosec",
        default=False,
    ),
    Contestant(
        "sherpa-2",
        "d",
        "sherpa-onnx, fp32, 2 threads",
        _module(*_SHERPA, "--threads", "2"),
        200,
        2.0,
        "sherpa_onnx",
        default=False,
    ),
)


def chosen(names: str) -> tuple[Contestant, ...]:
    """The contestants of a list with commas; the default ones for an empty one. Raises: BadSettings, PeerMissing."""
    by_name = {contestant.name: contestant for contestant in ALL}
    asked = names.split(",") if names else [contestant.name for contestant in ALL if contestant.default]
    if unknown := [name for name in asked if name not in by_name]:
        raise BadSettings(f"no peer is called {', '.join(unknown)}; there are {', '.join(by_name)}")
    found = tuple(by_name[name] for name in asked)
    missing = {one.needs for one in found if one.needs and importlib.util.find_spec(one.needs) is None}
    if missing:
        raise PeerMissing(f"{', '.join(sorted(missing))} not installed: pip install -e '.[peers]'")
    return found
