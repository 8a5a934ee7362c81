"""The log's word, at the start, on a model whose outputs for a stream depend on the other rows of its batch."""

from __future__ import annotations

import structlog

from model.published.published_model import PublishedModel
from model.published.rows import check_rows_quickly

_log: structlog.stdlib.BoundLogger = structlog.get_logger("tutti.rows")


def warn_of_dependent_rows(model: object, reproducible: bool) -> None:
    """Compare a few windows of a published model alone and in batches, and warn if some bit differs.

    Our own models' rows are independent, which tests hold; so are those that are stepped one at a time.
    """
    if not isinstance(model, PublishedModel):
        return
    name = model.config.name
    if model.contract.one_row:
        _log.info("this model's graph takes one row: streams are stepped one at a time", model=name)
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
