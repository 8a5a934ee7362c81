"""Emulation of the persistent GRU kernel by g++ and fibers: compilation, scheduled launches, float64 reference."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from tests.support.needs import need_programs
from tutti_asr_lab.gpu.layer import split
from tutti_asr_lab.gpu.pack import Layout, pack
from tutti_asr_lab.gpu.persistent import range_of

ROOT = Path(__file__).parents[3]
FORWARD = ("gru_layout.h", "gru_exchange.h", "gru_body.h", "layer_body.h")
BACKWARD = ("gru_layout.h", "gru_backward_body.h")
KERNELS = ROOT / "lab" / "tutti_asr_lab" / "gpu"
EMULATION = Path(__file__).parent
DONE, HUNG, DIVERGED = 0, 2, 3


class Schedule(ctypes.Structure):
    """`emulation::Schedule`: which warp continues."""

    _fields_ = [
        ("seed", ctypes.c_uint),
        ("starved_block", ctypes.c_int),
        ("starved_warp", ctypes.c_int),
        ("ratio", ctypes.c_int),
        ("absent_block", ctypes.c_int),
        ("bound", ctypes.c_long),
    ]


def schedule(seed=0, *, starved_block=-1, starved_warp=-1, ratio=24, absent_block=-1, bound=1 << 26):
    return Schedule(seed, starved_block, starved_warp, ratio, absent_block, bound)


def build(
    layout: Layout, folder: Path, *, source="gru_emulated.cpp", spin_limit=1 << 20, changes=None, **sizes
) -> ctypes.CDLL:
    """Compile the kernel; `changes`: new text by old text, which must occur once in its headers."""
    need_programs("g++")
    folder = Path(tempfile.mkdtemp(dir=folder))
    names = BACKWARD if source == "gru_backward_emulated.cpp" else FORWARD
    bodies = {name: (KERNELS / name).read_text(encoding="utf-8") for name in names}
    for old, new in (changes or {}).items():
        assert sum(body.count(old) for body in bodies.values()) == 1, f"{old!r} must occur exactly once in the kernels"
        bodies = {name: body.replace(old, new) for name, body in bodies.items()}
    for name, body in bodies.items():
        (folder / name).write_text(body, encoding="utf-8")
    sizes = {**layout.defines(), "SPIN_LIMIT": spin_limit, "POLL_DELAY": 350, **sizes}
    options = ["-std=c++17", "-O1", "-shared", "-fPIC", "-ffp-contract=off", "-fno-strict-aliasing"]
    options += ["-Wno-unknown-pragmas", *(f"-D{name}={value}" for name, value in sizes.items())]
    options += [f"-I{folder}", f"-I{EMULATION}"]
    subprocess.run(["g++", *options, str(EMULATION / source), "-o", str(folder / "gru.so")], check=True)
    library = ctypes.CDLL(str(folder / "gru.so"))
    library.shared_bytes.restype = ctypes.c_long
    return library


@dataclass
class Layer:
    """Packed weights of one layer and the workspace; `launch` has the arguments of `PersistentGru.enqueue`."""

    library: ctypes.CDLL
    layout: Layout
    weights: Tensor  # (3H, H) fp16
    bias: Tensor  # (3H,) fp32

    def __post_init__(self):
        self.packed = pack(self.weights, self.layout)
        self.library.prefetched.restype = self.library.workspace_words.restype = ctypes.c_long
        self.workspace = torch.zeros(self.layout.workspace_words, dtype=torch.int32)

    def launch(self, gates, x_in, x_out, slab, read, write, rows, frames, when=None, ahead=()) -> int:  # noqa: PLR0917
        when = when or schedule()
        tensors = (self.packed, self.bias, gates, x_in, x_out, slab, read, write, rows, self.workspace)
        assert all(t.is_contiguous() for t in tensors)
        pointers = [ctypes.c_void_p(t.data_ptr()) for t in tensors]
        ranges = [value for at in (0, 1) for value in range_of(ahead, at)]
        return self.library.launch(
            *pointers, ctypes.c_int(frames), ctypes.c_int(len(read)), *ranges, ctypes.byref(when)
        )

    @property
    def error(self) -> int:
        return int(self.workspace[0])


@dataclass
class WholeLayer:
    """The kernel of a whole layer; `launch` has the arguments of `PersistentLayer.enqueue`."""

    library: ctypes.CDLL
    layout: Layout
    input: Tensor  # W (3H, H) fp16
    input_bias: Tensor  # (3H,) fp32
    scale: Tensor  # (H,) fp16, of the normalization
    shift: Tensor  # (H,) fp16
    recurrent: Tensor  # U (3H, H) fp16
    recurrent_bias: Tensor  # (3H,) fp32
    epsilon: float = 1e-5

    def __post_init__(self):
        self.packed = pack(self.input, self.layout), split(pack(self.recurrent, self.layout), self.layout)
        self.workspace = torch.zeros(self.layout.workspace_words, dtype=torch.int32)
        self.error = torch.zeros(1, dtype=torch.int32)

    def launch(self, x_in, x_out, gates, slab, read, write, rows, frames, when=None) -> int:  # noqa: PLR0917
        w, u = self.packed
        first = (w, self.input_bias, self.scale, self.shift)
        second = (u, self.recurrent_bias, gates, x_in, x_out, slab, read, write, rows, self.workspace, self.error)
        assert all(t.is_contiguous() for t in (*first, *second))
        return self.library.launch(
            *(ctypes.c_void_p(t.data_ptr()) for t in first),
            ctypes.c_float(self.epsilon),
            *(ctypes.c_void_p(t.data_ptr()) for t in second),
            ctypes.c_int(frames),
            ctypes.c_int(len(read)),
            ctypes.byref(when or schedule()),
        )


def reference(weights: Tensor, bias: Tensor, gates: Tensor, x: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
    """Return outputs (B, T, H) and last state (B, H) in float64; states are rounded to fp16 every frame."""
    u, c, hidden = weights.double(), bias.double(), weights.shape[1]
    state, out = first.double(), torch.empty(x.shape, dtype=torch.float64)
    for t in range(gates.shape[1]):
        g, p = gates[:, t].double(), state @ u.t() + c
        r = torch.sigmoid(g[:, :hidden] + p[:, :hidden])
        z = torch.sigmoid(g[:, hidden : 2 * hidden] + p[:, hidden : 2 * hidden])
        n = torch.tanh(g[:, 2 * hidden :] + r * p[:, 2 * hidden :])
        state = (n + z * (state - n)).half().double()
        out[:, t] = x[:, t].double() + state
    return out, state
