"""Reports of several processes as those of one service: models and status.

The drain's report is combined next to its definition, metrics by `server/operations/merged_metrics.py`. Each function
takes the reports of all front ends, at least one, and knows no process.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from server.http.operations import Health, ModelState, Status
from server.models.registry import Phase


def combined_models(reports: Sequence[Sequence[ModelState]]) -> list[ModelState]:
    """Return the state of each model, in the order of the first report: all streams, and the phase of the whole.

    A model that is loaded on demand is loaded in the processes that had a request for it: that counts as loaded.
    """
    by_name: dict[str, list[ModelState]] = {}
    for state in (state for report in reports for state in report):
        by_name.setdefault(state.name, []).append(state)
    return [
        msgspec.structs.replace(
            states[0],
            phase=_phase({state.phase for state in states}),
            streams=sum(state.streams for state in states),
        )
        for states in by_name.values()
    ]


def _phase(found: set[Phase]) -> Phase:
    """Return the phase of a model from those in the processes: what is under way in one is under way."""
    return next(each for each in (Phase.UNLOADING, Phase.LOADING, Phase.LOADED, Phase.ABSENT) if each in found)


def combined_status(reports: Sequence[Status]) -> Status:
    """Return the status of the service: all requests and slots in use, and the models that any process has loaded.

    `slots_total` is a limit of the service, which each process shows as a whole.
    """
    health = {report.system_health for report in reports}
    first = reports[0]
    models = {model.uuid: model for report in reports for model in report.models}
    return msgspec.structs.replace(
        first,
        system_health=next(word for word in (Health.DRAINING, Health.CRITICAL, Health.HEALTHY) if word in health),
        active_stream_requests=sum(report.active_stream_requests for report in reports),
        active_batch_requests=sum(report.active_batch_requests for report in reports),
        slots_used=sum(report.slots_used for report in reports),
        slots_total=max(report.slots_total for report in reports),
        models=list(models.values()),
    )
