"""Process setup for computation: torch's threads, oneDNN's kernel cache, the interpreter's switch interval.

Called by entry points, and by `model.acoustic` before it loads a model in torch; nothing else in this package sets the
environment or a process-wide setting.
"""

from __future__ import annotations

import os
import sys

from model.machine.cores import usable_cores

KEPT_KERNELS = 8_192  # more than there are products of all warmed-up batch sizes


def set_up_torch(threads: int) -> None:
    """Set torch's compute threads (0: all cores but one, for the event loop); enlarge oneDNN's kernel cache.

    If a parallel region has all cores, a step waits at its barriers for any core that is busy with other work.
    """
    import torch

    keep_kernels()  # before torch creates the first one
    sum_in_fp32()
    torch.set_num_threads(threads_of(threads))


def threads_of(threads: int) -> int:
    """Return the number of compute threads; 0 means all cores but one."""
    return threads or _cores_left()


def steps_at_once(threads: int, others: int = 0) -> int:
    """Return how many steps can run at once, at least 1; see `threads_of`.

    They leave one core to the event loop, and `others` to other processes of the server.
    """
    return max(1, (_cores_left() - others) // threads_of(threads))


def _cores_left() -> int:
    return max(1, usable_cores() - 1)


def sum_in_fp32() -> None:
    """Make the GPU library accumulate fp16 products in fp32; torch allows fp16 by default."""
    import torch

    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False


def keep_kernels() -> None:
    """Enlarge oneDNN's kernel cache for all batch sizes, unless the environment sets it; before the first product.

    It creates a kernel for each shape of a product, 3 to 15 ms each, and caches 1,024 by default: so few that some are
    created again under load (loadtest/LOG.md). It reads the variable when it creates the first one.
    Source: https://uxlfoundation.github.io/oneDNN/dev_guide_primitive_cache.html
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(KEPT_KERNELS))


def shorten_switches() -> None:
    """Set the interpreter's switch interval to a tenth of a millisecond instead of five.

    The model thread needs the interpreter lock for microseconds between long calls without it; during
    a burst of messages on the event loop, a batch would wait for longer than it takes to compute with the default.
    """
    sys.setswitchinterval(0.0001)
