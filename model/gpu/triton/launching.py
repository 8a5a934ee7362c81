"""Launch options of the kernels of a step: overlapped or not, with or without prefetched weights."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Launching:
    """Launch options; they change timing, not results."""

    overlapped: bool = False
    """Programmatic dependent launch: a kernel is scheduled while the previous one ends."""
    ahead: bool = False
    """A kernel prefetches the weights of the next one into the second-level cache."""

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of every launch."""
        return {"PDL": True, "launch_pdl": True} if self.overlapped else {"PDL": False}

    def fetched(self, weights: Tensor | None, otherwise: Tensor) -> dict[str, Any]:
        """Return the arguments of a launch that prefetches `weights`, if any; `otherwise` is a placeholder tensor."""
        if weights is None or not self.ahead:
            return {"ahead": otherwise, "ahead_bytes": 0, "AHEAD": False}
        return {"ahead": weights, "ahead_bytes": weights.numel() * weights.element_size(), "AHEAD": True}


PLAIN = Launching()


class Aside:
    """A second CUDA stream: launches inside of `with` run concurrently with later launches.

    In a capture they become branches of the graph. On a CPU it does nothing.
    """

    def __init__(self, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if on_gpu else None  # type: ignore[no-untyped-call]
        self._begun = torch.cuda.Event() if on_gpu else None  # type: ignore[no-untyped-call]
        self._over = torch.cuda.Event() if on_gpu else None  # type: ignore[no-untyped-call]
        self._inside = torch.cuda.stream(self._stream)

    def __enter__(self) -> None:
        """Wait for all launches so far."""
        if self._begun is not None and self._stream is not None:
            self._begun.record()
            self._stream.wait_event(self._begun)
        self._inside.__enter__()  # type: ignore[no-untyped-call]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Return to the previous stream."""
        if self._over is not None:
            self._over.record()
        self._inside.__exit__(kind, error, trace)

    def join(self) -> None:
        """Make the current stream wait for the launches of this one."""
        if self._over is not None:
            torch.cuda.current_stream().wait_event(self._over)
