"""The servers of the comparison: command line and settings of each.

sherpa-onnx has the settings that performed best on two cores shared with the load generator; other settings that were
tried can be selected by name.
"""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass

from loadtest.errors import BadSettings, PeerMissing

OURS = "tutti"
PUBLISHED = "-published"  # in names of servers with the published model of `--onnx`


@dataclass(frozen=True, slots=True)
class Contestant:
    """One server with its settings."""

    name: str
    title: str
    first: int  # streams at the start of the search
    command: tuple[str, ...]  # `--port N` is added

    @property
    def published(self) -> bool:
        """Whether it serves the published model of `--onnx`."""
        return PUBLISHED in self.name

    @property
    def counterpart(self) -> str:
        """Name of our server with the same model."""
        return OURS + PUBLISHED if self.published else OURS


_SERVE = (sys.executable, "-m", "server.cli", "serve", "--host", "127.0.0.1")
_TUTTI = (*_SERVE, "--decoder", "greedy", "--max-streams", "1024")
_OURS_FP32 = (*_TUTTI, "--model", "{onnx}", "--precision", "fp32")
_OURS_INT8 = (*_TUTTI, "--model", "{onnx}", "--precision", "int8")
_SHERPA = (sys.executable, "-m", "loadtest.peers.sherpa_server", "--folder")
_FP32, _INT8 = (*_SHERPA, "{onnx}", "--published"), (*_SHERPA, "{int8}", "--published")
_TWO = ("--threads", "2")
_PUBLISHED = "the same published model"
ALL = (
    Contestant(OURS, "tutti, greedy", 400, _TUTTI),
    Contestant("sherpa-fp32", "sherpa-onnx, fp32", 250, (*_SHERPA, "{onnx}")),
    Contestant("sherpa-int8", "sherpa-onnx, int8", 250, (*_SHERPA, "{onnx}", "--model", "model.int8.onnx")),
    Contestant("sherpa-2", "sherpa-onnx, fp32, 2 threads", 200, (*_SHERPA, "{onnx}", *_TWO)),
    Contestant("tutti-published", "tutti, a published model, fp32", 10, _OURS_FP32),
    Contestant("tutti-published-int8", f"tutti, {_PUBLISHED}, int8 by tutti quantize", 60, _OURS_INT8),
    Contestant(
        "tutti-published-int8-2", f"tutti, {_PUBLISHED}, int8 by tutti quantize, 2 threads", 60, (*_OURS_INT8, *_TWO)
    ),
    Contestant("sherpa-published", f"sherpa-onnx, {_PUBLISHED}, fp32", 10, _FP32),
    Contestant("sherpa-published-2", f"sherpa-onnx, {_PUBLISHED}, fp32, 2 threads", 10, (*_FP32, *_TWO)),
    Contestant("sherpa-published-int8", f"sherpa-onnx, {_PUBLISHED}, dynamic int8", 10, _INT8),
    Contestant("sherpa-published-int8-2", f"sherpa-onnx, {_PUBLISHED}, dynamic int8, 2 threads", 10, (*_INT8, *_TWO)),
)
DEFAULT = (OURS, "sherpa-fp32", "sherpa-int8")


def chosen(names: str) -> tuple[Contestant, ...]:
    """Return the servers of a list with commas; by default the default ones. Raises: BadSettings, PeerMissing."""
    by_name = {contestant.name: contestant for contestant in ALL}
    wanted = names.split(",") if names else DEFAULT
    if unknown := [name for name in wanted if name not in by_name]:
        raise BadSettings(f"--peers {', '.join(unknown)}: must be one of {', '.join(by_name)}")
    if any(name.startswith("sherpa") for name in wanted) and importlib.util.find_spec("sherpa_onnx") is None:
        raise PeerMissing("sherpa_onnx not installed: pip install -e '.[peers]'")
    return tuple(by_name[name] for name in wanted)
