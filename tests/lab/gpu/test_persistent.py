"""Host side of the persistent GRU kernel, as far as it runs without a GPU."""

from types import SimpleNamespace

import pytest
import torch

from tutti_asr_lab.gpu.driver import KernelError
from tutti_asr_lab.gpu.layer import layer_fits
from tutti_asr_lab.gpu.pack import layout_of
from tutti_asr_lab.gpu.persistent import Workspace, fits, range_of

H100 = {"shared_memory_per_block_optin": 232_448, "multi_processor_count": 132, "major": 9, "minor": 0}


A100 = {"shared_memory_per_block_optin": 166_912, "multi_processor_count": 108, "major": 8, "minor": 0}
LITTLE = {"shared_memory_per_block_optin": 101_376}


@pytest.mark.parametrize(
    ("hidden", "device", "inference", "training", "layer"),
    [
        (1760, {}, True, True, True),
        (2112, {}, True, True, True),
        (2560, {}, True, False, False),  # no backward layout with 20 units; weights of two products do not fit
        (4096, {}, False, False, False),
        (1760, {"multi_processor_count": 108}, False, False, False),
        (1760, {"multi_processor_count": 109}, False, False, False),
        (1760, {"multi_processor_count": 110}, True, True, True),
        (2560, LITTLE, False, False, False),
        (1760, LITTLE, None, False, False),
        (416, LITTLE, None, None, True),
        (416, {"major": 7, "minor": 5}, False, False, False),
        (1760, {"major": 8, "minor": 0}, None, None, False),  # no bulk copies
        (2112, A100 | {"multi_processor_count": 132}, None, False, False),
        (1536, A100, None, True, False),
    ],
)
def test_layers_fit_devices_with_a_multiprocessor_per_block_and_enough_memory(
    hidden, device, inference, training, layer
):
    """`None`: not said here."""
    properties = SimpleNamespace(**(H100 | device))
    found = fits(hidden, properties), fits(hidden, properties, training=True), layer_fits(hidden, properties)
    for result, expected in zip(found, (inference, training, layer), strict=True):
        assert expected in {None, result}


def test_a_workspace_reports_an_aborted_launch_until_it_is_reset():
    workspace = Workspace(layout_of(64), torch.device("cpu"))
    workspace.check()
    workspace.words[0] = 1
    workspace.words[100] = 7
    with pytest.raises(KernelError, match="timed out"):
        workspace.check()
    workspace.reset()
    workspace.check()
    assert not workspace.words.any()


def test_prefetches_are_multiples_of_16_bytes():
    tensors = [torch.zeros(30, dtype=torch.int8), torch.zeros(4, 4)]
    assert [range_of(tensors, at)[1].value for at in range(3)] == [16, 64, 0]
    assert range_of(tensors, 1)[0].value == tensors[1].data_ptr()
    assert range_of(tensors, 2)[0].value is None
