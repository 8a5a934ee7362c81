"""Reports of several processes become those of one service."""

from __future__ import annotations

import itertools

import pytest

from server.http.operations import Health, LoadedCard, ModelState, Status
from server.models.registry import Phase
from server.processes.remote_operations import combined_models, combined_status

EN, ES = LoadedCard("en", "1", "u-en"), LoadedCard("es", "1", "u-es")


def models(phase: Phase, streams: int) -> list[ModelState]:
    return [ModelState("en", Phase.LOADED, 2, default=True), ModelState("es", phase, streams, default=False)]


def status(health: Health = Health.HEALTHY, streams: int = 1, *cards: LoadedCard) -> Status:
    return Status(health, streams, 1, streams + 2, 100, EN, [EN, *cards])


@pytest.mark.parametrize(
    ("phases", "whole"),
    [
        *(((phase,) * processes, phase) for phase in Phase for processes in (1, 3)),
        ((Phase.ABSENT, Phase.LOADING), Phase.LOADING),
        ((Phase.LOADING, Phase.LOADED), Phase.LOADING),
        ((Phase.ABSENT, Phase.LOADED), Phase.LOADED),
        ((Phase.UNLOADING, Phase.LOADED), Phase.UNLOADING),
        ((Phase.UNLOADING, Phase.ABSENT), Phase.UNLOADING),
        ((Phase.UNLOADING, Phase.LOADED, Phase.ABSENT), Phase.UNLOADING),
    ],
)
def test_what_is_under_way_in_one_process_is_under_way(phases: tuple[Phase, ...], whole: Phase) -> None:
    for order in itertools.permutations(phases):
        assert combined_models([models(phase, 0) for phase in order])[1].phase is whole


def test_streams_of_a_model_add_up_also_if_a_process_does_not_list_it() -> None:
    combined = combined_models([models(Phase.LOADED, 1)[:1], models(Phase.LOADED, 3), models(Phase.LOADED, 1)])
    assert [(state.name, state.phase, state.streams, state.default) for state in combined] == [
        ("en", Phase.LOADED, 6, True),
        ("es", Phase.LOADED, 4, False),
    ]


def test_requests_slots_and_models_of_a_status_add_up_and_the_limit_does_not() -> None:
    combined = combined_status([status(streams=3), status(Health.HEALTHY, 4, ES), status(streams=0)])
    assert combined == Status(Health.HEALTHY, 7, 3, 13, 100, EN, [EN, ES])


@pytest.mark.parametrize(
    ("processes", "whole"),
    [
        ((Health.HEALTHY, Health.HEALTHY), Health.HEALTHY),
        ((Health.HEALTHY, Health.CRITICAL), Health.CRITICAL),
        ((Health.CRITICAL, Health.DRAINING), Health.DRAINING),
        ((Health.DRAINING, Health.HEALTHY), Health.DRAINING),
    ],
)
def test_the_health_is_that_of_the_worst_process(processes: tuple[Health, ...], whole: Health) -> None:
    assert combined_status([status(health) for health in processes]).system_health is whole
