"""Startup warning for models whose output depends on batch composition."""

from __future__ import annotations

import structlog

from model.published.published_model import PublishedModel
from model.published.rows import check_rows_quickly

_log: structlog.stdlib.BoundLogger = structlog.get_logger("tutti.dependent_rows")


def warn_of_dependent_rows(model: object, reproducible: bool) -> None:
    """Compare a few windows of a published model alone and in batches; log a warning if any bit differs.

    Another warning says why its batches are not divided among threads though more than one is set.

    Rows of our own models are independent, which tests check, and so are rows that are stepped one at a time.
    """
    if not isinstance(model, PublishedModel):
        return
    name = model.config.name
    if model.undivided:
        _log.warning("batches are not divided among threads", model=name, reason=model.undivided)
    if model.contract.one_row:
        _log.warning("model takes one row: streams are stepped one at a time, so capacity is lower", model=name)
        return
    if reproducible:
        return
    found = check_rows_quickly(model, model.tokens.blank)
    if found.dependent_bits:
        _log.warning(
            "a stream's outputs depend on the other rows of its batch: --reproducible steps rows one at a time",
            model=name,
            precision=model.precision,
            batches=list(found.dependent_bits),
            largest_difference=float(f"{found.largest_difference:.1e}"),
        )
