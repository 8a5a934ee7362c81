"""What every test shares."""

import asyncio
import inspect
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import typer.testing
from hypothesis import HealthCheck, settings

os.environ.setdefault("TUTTI_FRONT_ENDS", "0")  # whatever the machine: tests of several processes ask for them

from model.machine.runtime import set_up_torch
from tests.support.servers.live_server import LiveServer
from tests.support.streams.engine_bench import start_engine  # noqa: F401  a fixture

RELEASE = (
    "documents/test_commands_here.py",
    "server/models/test_new_language.py",
    "model/int8/test_portability.py",
    "ecosystem/test_lean_server.py",
    "deploy/test_ray_training.py",
    "deploy/test_upgrade.py",
    "deploy/test_ray_cluster.py",
    "deploy/test_release.py",
    "deploy/test_wheels.py",
    "gpu/test_interpreted.py",
    "model/published/graphs/test_dequantized.py",
    "deploy/test_chart_pod.py",
    "lab/gpu/test_gru_compiled.py",
    "gpu/test_triton_gates.py",
    "lab/gpu/test_gru_emulation.py",
    "lab/gpu/test_gru_mutations.py",
    "server/text/test_many_read_outs.py",
    "examples/test_serving.py",
    "examples/test_captions.py",
    "ecosystem/test_clients_page.py",
    "ecosystem/test_whisper.py",
    "server/tools/test_model_check.py",
    "loadtest/generator/test_two_models.py",
    "loadtest/rulers/test_turn_takes.py",
)
"""Files for `make test-release`: they take long and prove a release rather than a change. `.ci/run` leaves them out.

Files of a release built twice, new environments, an upgrade, Ray clusters, a language and two examples trained from
nothing, older processors emulated, GPU kernels interpreted and compiled, programs that measure under load, the
commands of the documents, Whisper, and what `tutti model check` prints.
"""

SLOW = (
    "server/processes/test_server_of_processes.py",
    "server/processes/test_admission_and_end.py",
    "server/processes/test_speakers_and_rest.py",
    "server/processes/test_changed_files.py",
    "server/processes/test_few_descriptors.py",
    "server/processes/test_failed_starts.py",
    "server/protocols/audiosocket/test_audiosocket_port.py",
    "ecosystem/deepgram/test_deepgram_sdk.py",
    "server/models/test_published_server.py",
    "server/models/test_words_in_noise.py",
    "loadtest/programs/test_demo.py",
    "loadtest/rulers/test_rulers.py",
    "deploy/proxies/test_proxies.py",
    "deploy/proxies/test_public_paths.py",
    "server/http/test_metrics_port.py",
    "ecosystem/agents/test_livekit.py",
    "ecosystem/test_restart.py",
    "server/test_faults_engine.py",
    "server/models/test_two_languages.py",
    "server/http/test_browser_page.py",
    "server/receipts/test_replay.py",
    "server/protocols/uploads/test_upload_places.py",
    "server/protocols/uploads/test_upload_lengths.py",
    "server/audio/recordings/test_linear_searches.py",
    "server/http/test_browser_refusals.py",
    "deploy/monitoring/test_monitoring.py",
    "model/published/test_probes.py",
    "deploy/proxies/test_failover.py",
    "server/test_faults.py",
    "loadtest/generator/test_arrivals.py",
    "server/recognition/test_fork_models.py",
    "model/lexicon/test_shipped_lexicon.py",
    "model/int8/test_arm64.py",
    "lab/gpu/test_backward_emulation.py",
    "model/machine/test_warm_shapes.py",
    "server/tools/test_doctor.py",
    "server/test_without_torch.py",
    "server/usage/test_usage_server.py",
    "server/resume/test_resume_processors.py",
    "server/tools/test_evaluate.py",
    "model/published/test_parity.py",
    "model/published/compiled/test_steps.py",
    "server/test_secrets.py",
    "server/test_clock_step.py",
    "deploy/monitoring/test_alertmanager.py",
    "model/published/compiled/test_precompile.py",
    "clients/test_installed_client.py",
    "documents/test_commands.py",
)
"""Other files that take 6 s and more, about the longest first: `make test` leaves these and `RELEASE` out."""

# `CliRunner` builds the parsers of all commands at each call, 0.2 s; they do not change.
typer.testing._get_command = cache(typer.testing._get_command)  # type: ignore[attr-defined]

# A shell starts programs in the background with Ctrl-C ignored, which the programs of the tests would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A machine that is busy elsewhere draws examples slowly; that says nothing about the code.
settings.register_profile("tutti", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tutti")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark slow files, and start the longest first, so that two processes end at about the same time."""
    folder = Path(__file__).parent
    slow = [folder / name for name in (*RELEASE, *SLOW)]
    assert all(path.exists() for path in slow), "a file of RELEASE or SLOW does not exist"
    for item in items:
        if item.path.is_relative_to(folder / "lab"):
            item.add_marker("lab")
        if item.path in slow[: len(RELEASE)]:
            item.add_marker("release")
        if item.path in slow or item.get_closest_marker("release"):
            item.add_marker("slow")
    items.sort(key=lambda item: slow.index(item.path) if item.path in slow else len(slow))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Distribute tests by file, and give those of `ecosystem`, which share servers and clients, to one process."""
    from xdist.scheduler import LoadFileScheduling

    scheduling: Any = LoadFileScheduling(config, log)
    of_file = scheduling._split_scope
    scheduling._split_scope = lambda test: "ecosystem" if "/ecosystem/" in of_file(test) else of_file(test)
    return scheduling


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine on an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    asyncio.run(pyfuncitem.obj(**arguments))
    return True


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Compute as a server on two cores does: with one thread, so that tests measure no barrier spinning."""
    if find_spec("torch") is not None:
        set_up_torch(1)


@pytest.fixture
def live_server() -> Iterator[Callable[..., LiveServer]]:
    """Start the real app on a free loopback port: `live_server(model=…, max_streams=2)`; stopped after the test."""
    with ExitStack() as stack:

        def start(**options: Any) -> LiveServer:
            return stack.enter_context(LiveServer(**options))

        yield start
