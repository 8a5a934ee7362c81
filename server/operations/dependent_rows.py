"""Startup warning for models whose output depends on batch composition."""

from __future__ import annotations

import structlog

from model.facts import AcousticModel
from model.published.rows import check_rows_quickly

_log: structlog.stdlib.BoundLogger = structlog.get_logger("tutti.dependent_rows")


def warn_of_dependent_rows(model: AcousticModel, reproducible: bool) -> None:
    """Compare a few windows of a published model alone and in batches; log a warning if any bit differs.

    Another warning says why its batches are not divided among threads though more than one is set.

    Rows of our own models are independent, which tests check, and so are rows that are stepped one at a time.
    """
    facts = model.facts
    if not facts.published:
        return
    name = facts.config.name
    if facts.undivided:
        _log.warning("batches are not divided among threads", model=name, reason=facts.undivided)
    if facts.one_row:
        _log.warning("model takes one row: streams are stepped one at a time, so capacity is lower", model=name)
        return
    if reproducible:
        return
    compared = check_rows_quickly(model, facts.tokens.blank)
    if compared.dependent_bits:
        _log.warning(
            "a stream's outputs depend on the other rows of its batch: --reproducible steps rows one at a time",
            model=name,
            precision=facts.precision,
            batches=list(compared.dependent_bits),
            largest_difference=float(f"{compared.largest_difference:.1e}"),
        )
