"""Process setup for computation: torch's threads, oneDNN's kernel cache, the interpreter's switch interval.

Called by entry points, and by `model.acoustic` before it loads a model in torch; nothing else in this package sets the
environment or a process-wide setting.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

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


def steps_at_once(threads: int) -> int:
    """Return how many steps can run at once and leave one core to the event loop, at least 1; see `threads_of`."""
    return max(1, _cores_left() // threads_of(threads))


def _cores_left() -> int:
    return max(1, usable_cores() - 1)


def usable_cores(quota_file: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Return the cores that this process may use: by its affinity and by the CPU quota of its control group.

    More threads than the quota would all stop for the rest of each period. Source: Linux, cgroup-v2.rst, cpu.max.
    """
    allowed = len(os.sched_getaffinity(0))
    quota = cpu_quota(quota_file)
    return allowed if quota is None else max(1, min(allowed, int(quota)))


def cpu_quota(file: Path = Path("/sys/fs/cgroup/cpu.max")) -> float | None:
    """Return the CPU quota of the control group in cores, None for no limit."""
    try:
        quota, period = file.read_text(encoding="ascii").split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None


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
    """Set the interpreter's switch interval to half a millisecond instead of five.

    The model thread needs the interpreter lock for microseconds between long calls without it; during
    a burst of messages on the event loop, a batch would wait for longer than it takes to compute with the default.
    """
    sys.setswitchinterval(0.0005)
