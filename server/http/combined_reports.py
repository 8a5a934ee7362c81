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

    A model is loaded once every process has it, and not loaded once no process has it.
    """
    by_name: dict[str, list[ModelState]] = {}
    for state in (state for report in reports for state in report):
        by_name.setdefault(state.name, []).append(state)
    return [
        msgspec.structs.replace(
            states[0],
            phase=_phase([state.phase for state in states], len(reports)),
            streams=sum(state.streams for state in states),
        )
        for states in by_name.values()
    ]


def _phase(phases: list[Phase], processes: int) -> Phase:
    """Return the phase of a model; a process that does not list it has not loaded it."""
    found = {*phases, *([Phase.ABSENT] if len(phases) < processes else [])}
    if len(found) == 1:
        return found.pop()
    return Phase.UNLOADING if Phase.UNLOADING in found else Phase.LOADING


def combined_status(reports: Sequence[Status]) -> Status:
    """Return the status of the service: all requests and slots in use, and the models that every process has loaded.

    `slots_total` is a limit of the service, which each process shows as a whole.
    """
    health = {report.system_health for report in reports}
    first, *others = reports
    return msgspec.structs.replace(
        first,
        system_health=next(word for word in (Health.DRAINING, Health.CRITICAL, Health.HEALTHY) if word in health),
        active_stream_requests=sum(report.active_stream_requests for report in reports),
        active_batch_requests=sum(report.active_batch_requests for report in reports),
        slots_used=sum(report.slots_used for report in reports),
        slots_total=max(report.slots_total for report in reports),
        models=[model for model in first.models if all(model in report.models for report in others)],
    )
