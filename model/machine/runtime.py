"""Set-up of a process that computes: torch's threads, oneDNN's kernels, the interpreter's switches between threads.

Entry points call it, and `model.acoustic` before it loads a model in torch; nothing else in this package writes the
environment or a setting of the process.
"""

from __future__ import annotations

import os
import sys

KEPT_KERNELS = 8_192  # more than the products of all batch sizes that a server warms up


def set_up_torch(threads: int) -> None:
    """Set torch's compute threads, 0: all cores but one, which is left to the event loop; keep oneDNN's kernels.

    With every core in a parallel region, a step waits at its barriers for whichever core is busy elsewhere.
    """
    import torch

    keep_kernels()  # before torch prepares the first one
    sum_in_fp32()
    torch.set_num_threads(threads_of(threads))


def threads_of(threads: int) -> int:
    """Compute threads: so many, or for 0 as many as there are cores but one."""
    return threads or _cores_left()


def steps_at_once(threads: int) -> int:
    """How many steps of so many compute threads, as for `threads_of`, leave a core to the event loop; 1 at least."""
    return max(1, _cores_left() // threads_of(threads))


def _cores_left() -> int:
    return max(1, len(os.sched_getaffinity(0)) - 1)


def sum_in_fp32() -> None:
    """Let a GPU's library add the parts of an fp16 product in fp32; torch allows it fp16 by default."""
    import torch

    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False


def keep_kernels() -> None:
    """Let oneDNN keep the kernels of all batch sizes, unless the environment says how many; before the first product.

    It prepares a kernel for each shape of a product, 3 to 15 ms each, and keeps 1,024 by default: so few that some are
    prepared again under load (loadtest/LOG.md). It reads the variable when it prepares the first one.
    Source: https://uxlfoundation.github.io/oneDNN/dev_guide_primitive_cache.html
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(KEPT_KERNELS))


def shorten_switches() -> None:
    """Let a thread that waits for the interpreter have it after half a millisecond instead of five.

    The model thread needs it for microseconds between two long stretches without it; while the event loop works through
    a burst of messages, the default lets a batch stand still for longer than it takes to compute.
    """
    sys.setswitchinterval(0.0005)
