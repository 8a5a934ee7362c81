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


def test_streams_of_a_model_add_up() -> None:
    found = combined_models([models(Phase.LOADED, streams) for streams in (1, 0, 4)])
    assert found == [ModelState("en", Phase.LOADED, 6, default=True), ModelState("es", Phase.LOADED, 5, default=False)]


@pytest.mark.parametrize("phase", Phase)
def test_a_phase_of_all_processes_is_that_of_the_service(phase: Phase) -> None:
    for processes in (1, 3):
        assert combined_models([models(phase, 0)] * processes)[1].phase is phase


@pytest.mark.parametrize(
    ("phases", "whole"),
    [
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


def test_a_model_that_one_process_does_not_list_has_the_phase_of_the_others() -> None:
    found = combined_models([models(Phase.LOADED, 1)[:1], models(Phase.LOADED, 3)])
    assert [(state.name, state.phase, state.streams) for state in found] == [
        ("en", Phase.LOADED, 4),
        ("es", Phase.LOADED, 3),
    ]


def test_requests_and_slots_of_a_status_add_up_and_the_limit_does_not() -> None:
    found = combined_status([status(streams=3), status(streams=4)])
    assert found == Status(Health.HEALTHY, 7, 2, 11, 100, EN, [EN])


def test_a_status_lists_models_that_any_process_has_loaded() -> None:
    found = combined_status([status(), status(Health.HEALTHY, 1, ES), status()])
    assert found.models == [EN, ES]


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


def test_a_report_of_one_process_is_that_of_the_service() -> None:
    assert combined_status([status(Health.CRITICAL, 2, ES)]) == status(Health.CRITICAL, 2, ES)
    assert combined_models([models(Phase.LOADING, 1)]) == models(Phase.LOADING, 1)
