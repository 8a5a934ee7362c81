"""Precision of the matrix products in training. Weights, softmax, CTC, sums of gradients and updates are float32."""

from __future__ import annotations

import math

import torch

from model.errors import PrecisionError
from model.machine.precision import multiplies_bf16, native_bf16
from model.torch_network.network import DTYPES

CHOICES = ("auto", *DTYPES)
AMPERE = (8, 0)  # the first compute capability with bf16 products


def training_precision(choice: str, device: torch.device) -> str:
    """Resolve `auto`: bf16 if the hardware has bf16 products, else fp16 on a GPU and fp32 on a CPU.

    Without such instructions a CPU multiplies bf16 forty times slower than fp32. Raises: PrecisionError for bf16 on a
    CPU without bf16 products.
    """
    if choice not in CHOICES:
        raise PrecisionError(f"unknown precision {choice!r} in the recipe; expected one of {', '.join(CHOICES)}")
    if device.type == "cuda":
        if choice != "auto":
            return choice
        return "bf16" if torch.cuda.get_device_capability(device) >= AMPERE else "fp16"
    if choice == "bf16" and not multiplies_bf16():
        raise PrecisionError("this processor has no bf16 products: set the recipe's precision to fp32 or auto")
    if choice != "auto":
        return choice
    return "bf16" if native_bf16() else "fp32"


class LossScale:
    """Factor on the loss that keeps small gradients in the range of fp16; always 1 for other precisions.

    It is a power of two, so that dividing by it is exact: halved when an update is not finite, doubled after `PATIENCE`
    finite ones, as in torch.amp.GradScaler. It starts low because losses are sums over a micro-batch, not means.
    Source: Micikevicius et al. 2017, arXiv:1710.03740, section 3.2.
    """

    FIRST = 2.0**8
    PATIENCE = 2_000

    def __init__(self, precision: str) -> None:
        self.moves = precision == "fp16"
        self.value = self.FIRST if self.moves else 1.0
        self.finite = 0  # updates since the last change

    def follow(self, norm: float) -> None:
        """Adapt to the norm of an update's gradient, which may be NaN or infinite."""
        if not self.moves:
            return
        if not math.isfinite(norm):
            self.value, self.finite = self.value / 2, 0
            return
        self.finite += 1
        if self.finite == self.PATIENCE:
            self.value, self.finite = self.value * 2, 0

    def state_dict(self) -> dict[str, float]:
        """State for a snapshot."""
        return {"value": self.value, "finite": self.finite}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Restore from `state_dict`; ignored if the precision is not fp16."""
        if self.moves:
            self.value, self.finite = state["value"], int(state["finite"])
