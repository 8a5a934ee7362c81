"""The server process: threads, logs, uvicorn, signals. What `tutti serve` runs.

uvicorn closes every WebSocket the moment it is told to stop, so the first signal is ours: it drains, and only an empty
server is stopped. A second signal stops at once.
"""

from __future__ import annotations

import os
import sys

import torch


def set_threads(threads: int) -> None:
    """Set torch's compute threads; 0 leaves one core to the event loop.

    With every core in a parallel region, a step waits at its barriers for whichever core is busy elsewhere.
    """
    torch.set_num_threads(threads or max(1, len(os.sched_getaffinity(0)) - 1))


def shorten_switches() -> None:
    """Let a thread that waits for the interpreter have it after half a millisecond instead of five.

    The model thread needs it for microseconds between two long stretches without it; while the event loop works through
    a burst of messages, the default lets a batch stand still for longer than it takes to compute.
    """
    sys.setswitchinterval(0.0005)
