"""Choice of the recurrence of a training run: persistent kernels where they fit and agree with torch, else torch's."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from model.errors import PrecisionError
from model.torch_network.network import Scan
from tutti_asr_lab.gpu.driver import KernelError
from tutti_asr_lab.gpu.persistent import PersistentGru, PersistentGruBackward, fits
from tutti_asr_lab.gpu.scan import Kernels, LaunchedKernels, PersistentScan

RECURRENCES = ("auto", "persistent", "torch")
"""`persistent`: weights on the chip. `torch`: cuDNN on a GPU, the scan on a CPU. `auto`: `persistent` where it fits the
GPU and the precision and has passed a comparison with the scan, else `torch`."""
CHECK_ROWS, CHECK_FRAMES = 9, 6  # two tiles of rows
TOLERANCE = 0.02  # of the largest value: a rounding to bf16 is up to 0.004, and those of several frames add up


@dataclass(frozen=True, slots=True)
class PersistentRecurrence:
    """`GRULayer.recurrence` by kernels, for all layers of a network."""

    kernels: Kernels

    def __call__(self, gates: Tensor, weight: Tensor, bias: Tensor, first: Tensor) -> Tensor:
        """See `model.torch_network.network.Recurrence`."""
        states: Tensor = PersistentScan.apply(gates, weight, bias, first, self.kernels)  # type: ignore[no-untyped-call]
        return states

    def check(self) -> None:
        """Wait for the device. Raises: KernelError if a launch has aborted."""
        self.kernels.check()


def choose_recurrence(
    asked: str, hidden: int, precision: str, device: torch.device
) -> tuple[PersistentRecurrence | None, str]:
    """Return the recurrence for the layers of a network, None for torch's, and its description with the reason.

    Raises: PrecisionError if `persistent` was asked for and cannot be used.
    """
    library = "cuDNN" if device.type == "cuda" else "torch"
    if asked == "torch":
        return None, library
    found = _persistent(hidden, precision, device)
    if isinstance(found, PersistentRecurrence):
        return found, "persistent kernels"
    if asked == "persistent":
        raise PrecisionError(f"recurrence persistent is not possible here: {found}; set it to auto or torch")
    return None, f"{library}, because {found}"


def _persistent(hidden: int, precision: str, device: torch.device) -> PersistentRecurrence | str:
    """Return the recurrence by persistent kernels, or why it cannot be used."""
    if device.type != "cuda":
        return "the persistent kernels need a GPU"
    if precision == "fp32":
        return "the persistent kernels have no products in fp32"
    if not fits(hidden, torch.cuda.get_device_properties(device), training=True):
        return f"a layer of {hidden} units does not fit this GPU in both directions"
    try:
        kernels = launched_kernels(hidden, device)
        error = largest_error(kernels, hidden, device)
    except KernelError as failed:
        return str(failed)
    if not error <= TOLERANCE:  # NaN is refused too
        return f"the persistent kernels differ from torch's scan by {error:.0%} on this GPU"
    return PersistentRecurrence(kernels)


def launched_kernels(hidden: int, device: torch.device) -> LaunchedKernels:
    """Compile the kernels for a device. Raises: KernelError."""
    forward = PersistentGru(torch.zeros(3 * hidden, hidden), torch.zeros(3 * hidden), device)
    return LaunchedKernels(forward, PersistentGruBackward(hidden, device))


def largest_error(kernels: Kernels, hidden: int, device: torch.device) -> float:
    """Compare states and gradients of a random layer with those of the scan in float32.

    Returns: the largest error, relative to the largest value of its tensor. Raises: KernelError.
    """
    random = torch.Generator().manual_seed(1)

    def drawn(*shape: int, scale: float) -> Tensor:
        return (torch.randn(shape, generator=random) * scale).to(device)

    gates = drawn(CHECK_ROWS, CHECK_FRAMES, 3 * hidden, scale=0.5)
    weight, bias = drawn(3 * hidden, hidden, scale=hidden**-0.5), drawn(3 * hidden, scale=0.1)
    first, outputs = drawn(CHECK_ROWS, hidden, scale=0.5), drawn(CHECK_ROWS, CHECK_FRAMES, hidden, scale=1.0)
    leaves = [each.requires_grad_() for each in (gates, weight, bias, first)]
    by_frame = (gates.transpose(0, 1).contiguous(), weight, bias, first)
    ours = PersistentScan.apply(*leaves, kernels)  # type: ignore[no-untyped-call]
    theirs = Scan.apply(*by_frame).transpose(0, 1)  # type: ignore[no-untyped-call]
    found = [[out.detach(), *torch.autograd.grad((out * outputs).sum(), leaves)] for out in (ours, theirs)]
    kernels.check()
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(*found, strict=True))
