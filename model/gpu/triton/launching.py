"""How the kernels of a step are launched: overlapped or not, with or without weights fetched ahead."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Launching:
    """Choices that change no bit, only when things happen."""

    overlapped: bool = False
    """Programmatic dependent launch: a kernel is placed on the chip while the one before it ends."""
    ahead: bool = False
    """A kernel asks for the weights of the next one to be brought into the second-level cache."""

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of every launch."""
        return {"PDL": True, "launch_pdl": True} if self.overlapped else {"PDL": False}

    def fetched(self, weights: Tensor | None, otherwise: Tensor) -> dict[str, Any]:
        """Arguments of a launch that fetches `weights` ahead, if any; `otherwise` stands for no tensor."""
        if weights is None or not self.ahead:
            return {"ahead": otherwise, "ahead_bytes": 0, "AHEAD": False}
        return {"ahead": weights, "ahead_bytes": weights.numel() * weights.element_size(), "AHEAD": True}


PLAIN = Launching()


class Aside:
    """A stream beside the current one: launches made inside of `with` run beside what is launched after it.

    Streams and events are those of a capture too, where they become branches of the graph. On a CPU it does nothing.
    """

    def __init__(self, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if on_gpu else None  # type: ignore[no-untyped-call]
        self._begun = torch.cuda.Event() if on_gpu else None  # type: ignore[no-untyped-call]
        self._over = torch.cuda.Event() if on_gpu else None  # type: ignore[no-untyped-call]
        self._inside = torch.cuda.stream(self._stream)

    def __enter__(self) -> None:
        """Wait for what has been launched so far."""
        if self._begun is not None and self._stream is not None:
            self._begun.record()
            self._stream.wait_event(self._begun)
        self._inside.__enter__()  # type: ignore[no-untyped-call]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Go back to the stream before."""
        if self._over is not None:
            self._over.record()
        self._inside.__exit__(kind, error, trace)

    def join(self) -> None:
        """Let the current stream wait for what was launched aside."""
        if self._over is not None:
            torch.cuda.current_stream().wait_event(self._over)
