"""20,000 generated calls in which a number is read out in groups: no digit is shown after the first group."""

from __future__ import annotations

import pytest

from tests.server.text.test_read_outs import check

CALLS, SEEDS = 2_500, range(100, 108)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_digit_of_a_number_in_groups_is_shown_in_many_calls(seed: int) -> None:
    counts = check(CALLS, seed)
    assert counts["shown digit words of first groups"] < 0.06 * counts["digit words"]
