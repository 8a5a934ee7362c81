"""The files of a model change under a running server: restarts of the engine, losses of hosts, models loaded again."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from model.checkpoint import SHIPPED
from tests.server.processes.test_server_of_processes import AT_ONCE_S, during, phase_of
from tests.support.servers.front_ends import ENGINE_HOST, FRONT_END, RAW, FrontEnds, close_code, speech

ON_DEMAND = "second"
OTHER = f"{RAW}&model={ON_DEMAND}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the shipped model in a folder `first` and in one `second`, for a model that is loaded on demand."""
    folder = tmp_path_factory.mktemp("changed")
    for name in ("first", ON_DEMAND):
        (folder / name).mkdir()
        for file in (SHIPPED, SHIPPED.with_suffix(".json")):
            shutil.copy(file, folder / name)
    return folder


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[FrontEnds]:
    """A server with two front ends and the second model on demand."""
    models = folder / "models.toml"
    models.write_text(
        f'[[model]]\nname = "first"\npath = "{folder}/first/{SHIPPED.name}"\n'
        f'[[model]]\nname = "{ON_DEMAND}"\npath = "{folder}/{ON_DEMAND}/{SHIPPED.name}"\n'
        'languages = ["es"]\non_demand = true\n',
        encoding="utf-8",
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TUTTI_STALL_TIMEOUT_S", "60")  # longer than a test waits: the watchdog ends nothing here
        with FrontEnds(2, f"--models-file={models}", "--decoder=greedy", log=folder / "log", spare=True) as server:
            yield server


def change(folder: Path) -> None:
    """Replace a model's file by one with another weight."""
    file = folder / SHIPPED.name
    blob = bytearray(file.read_bytes())
    blob[len(blob) // 2] ^= 1
    new = file.with_suffix(".new")
    new.write_bytes(blob)
    new.replace(file)


def test_a_restart_with_other_files_is_refused_and_streams_continue(served: FrontEnds, folder: Path) -> None:
    served.until(lambda: len(served.processes(ENGINE_HOST)) == 2)
    serving = served.processes(ENGINE_HOST)[0].pid
    served.opened(OTHER).close()  # loads it
    change(folder / ON_DEMAND)
    answers = []

    def restart() -> None:
        with served.http as http:
            answers.append(http.post("/admin/engine/restart"))

    outcomes = during(served, speech(2, 3.0), restart, after_s=AT_ONCE_S)
    assert [outcome.problem for outcome in outcomes] == ["", ""]
    assert answers[0].status_code == 409
    assert f"the files of the model '{ON_DEMAND}' have changed" in answers[0].text
    assert served.processes(ENGINE_HOST)[0].pid == serving
    change(folder / ON_DEMAND)  # back again
    restart()
    assert answers[1].status_code == 200, answers[1].text


def test_a_model_that_is_unloaded_and_loaded_again_has_its_new_files(served: FrontEnds, folder: Path) -> None:
    def uuid() -> str:
        with served.http as http:
            return next(
                str(each["uuid"]) for each in http.get("/v1/status").json()["models"] if each["name"] == ON_DEMAND
            )

    served.opened(OTHER).close()
    before = uuid()
    change(folder / ON_DEMAND)
    with served.http as http:
        assert http.post(f"/admin/models/{ON_DEMAND}/unload").status_code in (200, 202)
        served.until(lambda: phase_of(served, ON_DEMAND) == "not loaded")
        assert http.post(f"/admin/models/{ON_DEMAND}/load").status_code == 200
    assert uuid() != before


def test_after_two_losses_with_other_files_each_the_server_is_back_with_them(served: FrontEnds, folder: Path) -> None:
    """Four front ends end within a minute, more than are replaced at once when they fail by themselves."""
    for _ in range(2):
        change(folder / "first")
        clients = [served.opened() for _ in range(2)]
        front_ends = {process.pid for process in served.processes(FRONT_END)}
        for host in served.processes(ENGINE_HOST):
            served.kill(host)
        assert [close_code(client) for client in clients] == [1011, 1011]
        served.until(lambda before=front_ends: not before & {each.pid for each in served.processes(FRONT_END)})
        served.until(lambda: len(served.processes(FRONT_END)) == 2 and served.opened_and_closed())
        served.until(served.both_serve)
    log = (folder / "log").read_text(encoding="utf-8")
    assert "the files of the model 'first' have changed: open streams end" in log
    assert "the new engine has another model" in log
    assert "no step has ended" not in log
