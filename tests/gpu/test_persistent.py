"""Host side of the persistent GRU kernel, as far as it runs without a GPU."""

from types import SimpleNamespace

import pytest
import torch

from model.gpu.cuda.driver import KernelError
from model.gpu.cuda.layer import layer_fits
from model.gpu.cuda.pack import layout_of
from model.gpu.cuda.persistent import Workspace, fits, range_of

H100 = {"shared_memory_per_block_optin": 232_448, "multi_processor_count": 132, "major": 9, "minor": 0}


@pytest.mark.parametrize(
    ("hidden", "device", "expected"),
    [
        (1760, {}, True),
        (2560, {}, True),
        (4096, {}, False),
        (1760, {"multi_processor_count": 109}, False),
        (1760, {"multi_processor_count": 110}, True),
        (2560, {"shared_memory_per_block_optin": 101_376}, False),
        (416, {"major": 7, "minor": 5}, False),
    ],
)
def test_a_layer_fits_a_device_with_a_multiprocessor_per_block_and_enough_memory(hidden, device, expected):
    assert fits(hidden, SimpleNamespace(**(H100 | device))) == expected


@pytest.mark.parametrize(
    ("hidden", "device", "expected"),
    [
        (1760, {}, True),
        (2112, {}, True),
        (2560, {}, False),  # the backward pass has no layout with 20 units
        (1760, {"multi_processor_count": 108}, False),
        (
            2112,
            {"shared_memory_per_block_optin": 166_912, "major": 8, "minor": 0},
            False,
        ),  # an A100 with more processors
        (1536, {"shared_memory_per_block_optin": 166_912, "multi_processor_count": 108, "major": 8, "minor": 0}, True),
        (1760, {"shared_memory_per_block_optin": 101_376}, False),
    ],
)
def test_training_needs_room_for_both_directions(hidden, device, expected):
    assert fits(hidden, SimpleNamespace(**(H100 | device)), training=True) == expected


@pytest.mark.parametrize(
    ("hidden", "device", "expected"),
    [
        (1_760, {}, True),
        (2_560, {}, False),  # the weights of two products do not fit a multiprocessor
        (1_760, {"major": 8, "minor": 0}, False),  # no bulk copies
        (1_760, {"multi_processor_count": 108}, False),
        (1_760, {"shared_memory_per_block_optin": 101_376}, False),
        (416, {"shared_memory_per_block_optin": 101_376}, True),
    ],
)
def test_a_whole_layer_fits_only_a_device_with_its_instructions_and_shared_memory(hidden, device, expected):
    assert layer_fits(hidden, SimpleNamespace(**(H100 | device))) == expected


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
