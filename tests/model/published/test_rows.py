"""Rows of a batch compared with single streams: batch dependence is detected, and logged once at the start."""

from __future__ import annotations

import numpy as np
import pytest
from structlog.testing import capture_logs

from model.acoustic import load_model, load_own
from model.config import BLANK
from model.published.rows import QUICK_SIZES, SIZES, check_rows, check_rows_quickly, tokens_of
from server.operations.dependent_rows import warn_of_dependent_rows
from tests.support.networks.probes import make_probe

DEPENDENT = "a stream's outputs depend on the other rows of its batch: --reproducible steps rows one at a time"


@pytest.fixture(scope="module")
def quantized(tmp_path_factory):
    return load_model(make_probe("zipformer2-ctc", tmp_path_factory.mktemp("bytes"), quantized=True).folder)


def test_rows_of_a_checkpoint_are_bit_identical_to_single_streams():
    found = check_rows(load_own(), BLANK)
    assert found.equal_bits == found.equal_tokens == dict.fromkeys(SIZES, True)
    assert found.largest_difference == 0


def test_rows_of_a_quantized_graph_differ_from_single_streams(quantized):
    found = check_rows(quantized, quantized.tokens.blank)
    assert found.dependent_bits == (2, 3, 8, 32)
    assert not all(found.equal_tokens.values())
    assert check_rows_quickly(quantized, quantized.tokens.blank).dependent_bits == QUICK_SIZES


def test_rows_stepped_one_at_a_time_equal_single_streams(quantized):
    found = check_rows(quantized, quantized.tokens.blank, tile_rows=16)
    assert not found.dependent_bits
    assert all(found.equal_tokens.values())


def test_tokens_are_the_best_path_or_the_symbols_of_a_transducer():
    log_probs = np.eye(4, dtype=np.float32)[[3, 1, 1, 3, 1, 2, 2]]
    assert tokens_of(log_probs, 3) == [1, 1, 2]
    assert tokens_of(log_probs, 1) == [3, 3, 2]
    written = np.array([[[5, -0.1], [2, -0.2]], [[-1, -1], [-1, -1]], [[0, -0.3], [-1, -1]]], np.float32)
    assert tokens_of(written, 0) == [5, 2, 0]


def test_serving_warns_once_about_rows_that_depend_on_their_batch(quantized):
    with capture_logs() as lines:
        warn_of_dependent_rows(quantized, reproducible=False)
    (line,) = lines
    assert (line["log_level"], line["batches"], line["precision"]) == ("warning", list(QUICK_SIZES), "int8")
    assert line["event"] == DEPENDENT


def test_there_is_no_warning_for_rows_stepped_one_at_a_time_or_checkpoints(quantized):
    with capture_logs() as lines:
        warn_of_dependent_rows(quantized, reproducible=True)
        warn_of_dependent_rows(load_own(), reproducible=False)
    assert not lines
