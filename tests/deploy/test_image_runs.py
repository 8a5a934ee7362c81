"""The images for processors are built from the Dockerfile and run as an operator runs them, by a container engine.

Read-only root, no HOME, user 10001, 512 MiB, few file descriptors, no capabilities. Its base image is made of Debian's
packages here, because the tests reach no registry of images (tests/support/image/build.py).
"""

from __future__ import annotations

import contextlib
import json
import platform
import re
import shlex
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import httpx
import pytest
from websockets.sync.client import connect

from loadtest.served import free_port
from server.operations.process import files_needed
from tests.ecosystem.recordings import FILES, audio, text
from tests.support.audio.speech import ROOT
from tests.support.deployment.edge import wait_until
from tests.support.image.build import COMMIT, image
from tests.support.image.engine import Engine, EngineError, limits
from tests.support.needs import need_programs, need_root
from tests.support.servers.fakes import WAIT_S
from tests.support.servers.live_server import Client, transcript

HEALTHY_WITHIN_S = 60.0
WITHOUT_DOCKER = ("--health-interval=disable", "--read-only-tmpfs=false")
"""podman's timer of health checks needs systemd; its --read-only leaves more folders writable than docker's."""
CGROUPS = Path("/sys/fs/cgroup")
PEAKS = ("memory.peak", "memory.max_usage_in_bytes")  # of cgroup v2 and v1


class Container:
    """Runs inside a `with` block, with the server's port on 127.0.0.1."""

    def __init__(
        self, engine: Engine, image: str, *options: str, files: int | None = None, words: Sequence[str] = ()
    ) -> None:
        """`options` of `podman run`; `files`: limit of open files; `words` replace the image's command."""
        self._engine = engine
        self.port = free_port()
        self._words = ["run", "--detach", f"--publish=127.0.0.1:{self.port}:8080", *WITHOUT_DOCKER, *limits(files)]
        self._words += [*options, image, *words]

    def __enter__(self) -> Self:
        self.name = self._engine.call(*self._words)
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(EngineError):
            self._engine.call("rm", "--force", "--time=0", self.name)

    @property
    def state(self) -> dict[str, Any]:
        """What podman says of the container: `Pid` of the first process, `ExitCode`, `OOMKilled` and others."""
        return dict(self._engine.inspect(self.name)["State"])

    def status(self, path: str) -> int:
        """Return the status of a page of the server, 0 for no answer."""
        try:
            return httpx.get(f"http://127.0.0.1:{self.port}{path}", timeout=5.0, trust_env=False).status_code
        except httpx.TransportError:
            return 0

    def wait_ready(self) -> None:
        """Wait until `/readyz` says 200. Raises: AssertionError with the log."""
        try:
            wait_until(lambda: self.status("/readyz") == httpx.codes.OK or not self.runs, 0.1, HEALTHY_WITHIN_S)
        finally:
            assert self.status("/readyz") == httpx.codes.OK, self.log()

    @property
    def runs(self) -> bool:
        """Whether its first process is alive."""
        return self.state["Status"] == "running"

    def healthy(self) -> bool:
        """Run the image's HEALTHCHECK once."""
        try:
            self._engine.call("healthcheck", "run", self.name)
        except EngineError:
            return False
        return True

    def execute(self, *words: str) -> str:
        """Run a command in the container as its user, and return the output. Raises: EngineError."""
        return self._engine.call("exec", self.name, *words)

    def log(self) -> str:
        """Return what the server has written so far, to both outputs."""
        return self._engine.call("logs", self.name, errors=True)

    def events(self) -> list[dict[str, Any]]:
        """Return the lines of the log that are JSON."""
        return [json.loads(line) for line in self.log().splitlines() if line.startswith("{")]

    def memory_peak(self) -> int:
        """Return the most memory that the container's control group has had, bytes, with its tmpfs."""
        groups = Path(f"/proc/{self.state['Pid']}/cgroup").read_text()
        found = dict(re.findall(r"(?m)^\d+:(memory|):/(.*)$", groups))
        places = [CGROUPS / kind / group / name for kind, group in found.items() for name in PEAKS]
        return next(int(place.read_text()) for place in places if place.exists())

    def processes(self) -> list[tuple[int, str, str]]:
        """Return number, name and state of every process in the container, as it sees them itself."""
        root = Path("/proc", str(self.state["Pid"]), "root", "proc")
        found = []
        for place in sorted(int(each.name) for each in root.iterdir() if each.name.isdigit()):
            with contextlib.suppress(OSError):
                text = (root / str(place) / "stat").read_text()
                name, _, rest = text.partition("(")[2].rpartition(")")
                found.append((place, name, rest.split()[0]))
        return found


MEMORY = 512 * 2**20
TORCH_MEMORY = 1_024 * 2**20
STREAMS = 64
FILES_LIMIT = files_needed(STREAMS) + 64
DRAIN_S = 2
LIMITS = (f"--memory={MEMORY}", f"--memory-swap={MEMORY}", "--pids-limit=256", "--cap-drop=all")
LIMITS += ("--security-opt=no-new-privileges", f"--env=TUTTI_MAX_STREAMS={STREAMS}")
LIMITS += (f"--env=TUTTI_DRAIN_TIMEOUT_S={DRAIN_S}",)
WITHOUT_HOME = ("--entrypoint", '["/usr/bin/env", "-u", "HOME", "/usr/bin/tini", "--", "/bin/sh", "/opt/start.sh"]')
HELD_BACK = {"x86_64": ("--env=ATEN_CPU_CAPABILITY=avx2",)}  # to the other processor that the image is compiled for
CLOSES_S = 8  # after the drain: docs/faults.md
COPIED = re.compile(r"\./\S+\.nb[ic]")

pytestmark = [pytest.mark.image, pytest.mark.timeout(1_800)]  # the first test builds the image


def documented() -> list[str]:
    """Return the options of the first documented `docker run`, without its ports."""
    found = re.search(r"(?m)^docker run --rm -p 8080:8080 (.*) tutti:cpu$", (ROOT / "docs/installing.md").read_text())
    assert found
    return shlex.split(found[1])


@pytest.fixture(scope="module")
def built() -> tuple[Engine, str]:
    """Build the image from this checkout; what has not changed is kept in build/images."""
    need_programs("podman", "runc", "mmdebstrap")
    need_root()
    return image()


@pytest.fixture(scope="module")
def running(built: tuple[Engine, str]) -> Iterator[Container]:
    """Run the image within the limits until its server is ready."""
    options = (*documented(), *LIMITS, *WITHOUT_HOME)
    with Container(*built, *options, files=FILES_LIMIT, words=("tutti", "serve")) as container:
        container.wait_ready()
        yield container


def live(container: Container) -> Client:
    """Open a live stream of raw audio."""
    url = f"ws://127.0.0.1:{container.port}/v1/listen?encoding=linear16&sample_rate=16000"
    return Client(connect(url, compression=None, open_timeout=WAIT_S, close_timeout=WAIT_S, proxy=None))


def uploaded(container: Container, name: str) -> str:
    """Return the text of a recording that is uploaded."""
    url = f"http://127.0.0.1:{container.port}/v1/listen"
    answer = httpx.post(url, content=Path(FILES[name]).read_bytes(), timeout=WAIT_S, trust_env=False)
    return str(answer.raise_for_status().json()["results"]["channels"][0]["alternatives"][0]["transcript"])


def machine_code(container: Container, folder: str) -> set[str]:
    """Return the files of machine code below a folder of the container."""
    found = set(COPIED.findall(container.execute("sh", "-c", f"cd {folder} && find . -type f")))
    assert len(found) > 20
    return found


@pytest.fixture(scope="module")
def torch_running(built: tuple[Engine, str]) -> Iterator[Container]:
    """Run the image with PyTorch, computing in 32-bit floats, within limits of its own."""
    engine, name = image("torch")
    words = ("tutti", "serve", "--model", "gru", "--precision", "fp32")
    limits = (*LIMITS, f"--memory={TORCH_MEMORY}", f"--memory-swap={TORCH_MEMORY}")
    with Container(engine, name, *documented(), *limits, *WITHOUT_HOME, files=FILES_LIMIT, words=words) as container:
        container.wait_ready()
        yield container


def test_the_torch_image_computes_in_floats_word_for_word(torch_running: Container) -> None:
    loaded = [event for event in torch_running.events() if event["event"] == "model loaded"]
    assert {(event["precision"], event["device"]) for event in loaded} == {("fp32", "cpu")}
    assert uploaded(torch_running, "account_number") == text("account_number")
    with live(torch_running) as client:
        client.send(audio("order"))
        assert transcript(client.finish()) == text("order")
    assert torch_running.execute("id", "-u") == "10001"
    assert machine_code(torch_running, "/tmp/machine-code") == machine_code(torch_running, "/opt/tutti/machine-code")
    assert torch_running.healthy()


def test_the_image_has_the_settings_of_the_dockerfile(built: tuple[Engine, str]) -> None:
    engine, name = built
    config = engine.inspect(name)["Config"]
    assert (config["User"], config["WorkingDir"]) == ("10001:10001", "/tmp")
    assert config["StopSignal"] in ("15", "SIGTERM")
    assert engine.inspect(name)["Healthcheck"]["Test"] == ["CMD", "python", "-I", "/opt/health.py"]
    labels = {name.removeprefix("org.opencontainers.image."): value for name, value in config["Labels"].items()}
    assert {"title", "description", "licenses", "version", "revision"} <= set(labels)
    assert labels["revision"] == COMMIT
    assert "unknown" not in labels.values()


def test_the_image_has_no_compiler_no_torch_and_no_pip(built: tuple[Engine, str]) -> None:
    engine, name = built
    script = "import importlib.util as u; print(*(n for n in ('torch', 'pip', 'server') if u.find_spec(n)))"
    assert engine.run_once(name, ["python", "-c", script]) == "server"
    assert engine.run_once(name, ["sh", "-c", "command -v cc gcc g++ clang ld make; true"]) == ""


def test_it_is_healthy_without_a_home_as_its_own_user(running: Container) -> None:
    assert running.status("/healthz") == httpx.codes.OK
    assert running.healthy()
    (first, first_name, _), (server, server_name, _) = running.processes()
    assert (first, first_name, server_name) == (1, "tini", "tutti")
    variables = running.execute("cat", f"/proc/{server}/environ").split("\0")
    assert not [each for each in variables if each.startswith("HOME=")]
    assert running.execute("id", "-u") == "10001"
    writable = running.execute("sh", "-c", "find / -xdev -type d -writable -not -path '/proc/*' 2>/dev/null; true")
    assert writable.split() in ([], ["/tmp"])


def test_it_transcribes_word_for_word_by_code_of_the_image_alone(running: Container) -> None:
    assert uploaded(running, "account_number") == text("account_number")
    with live(running) as client:
        client.send(audio("order"))
        assert transcript(client.finish()) == text("order")
    assert machine_code(running, "/tmp/machine-code") == machine_code(running, "/opt/tutti/machine-code")
    assert not [event for event in running.events() if event["level"] not in ("debug", "info")]


def test_as_many_streams_as_allowed_fit_into_memory_and_file_descriptors(running: Container) -> None:
    (_, _, _), (server, _, _) = running.processes()
    assert re.search(rf"Max open files +{FILES_LIMIT} +{FILES_LIMIT}", running.execute("cat", f"/proc/{server}/limits"))
    with ExitStack() as stack:
        clients = [stack.enter_context(live(running)) for _ in range(STREAMS)]
        for client in clients:
            client.send(audio("yes"))
        assert [transcript(client.finish()) for client in clients] == [text("yes")] * STREAMS
    peak = running.memory_peak()
    assert 100 * 2**20 < peak < MEMORY
    assert not running.state["OOMKilled"]


def test_orphans_are_reaped(running: Container) -> None:
    before = running.processes()
    running.execute("sh", "-c", "(sleep 0.2 & sleep 0.1 &); true")
    wait_until(lambda: running.processes() == before)


@pytest.fixture
def another(built: tuple[Engine, str]) -> Iterator[Container]:
    """Run the image as documented, for the other kind of processor that it is compiled for, where this one can."""
    with Container(*built, *documented(), *LIMITS, *HELD_BACK.get(platform.machine(), ())) as container:
        container.wait_ready()
        yield container


def test_on_another_processor_it_compiles_nothing_and_drains_on_sigterm(another: Container) -> None:
    with live(another) as client:
        client.send(audio("order"))
        client.say("Finalize")
        frames = client.until(lambda frame: frame.get("from_finalize", False))
        assert machine_code(another, "/tmp/machine-code") == machine_code(another, "/opt/tutti/machine-code")
        client.send(audio("yes"))
        started = time.monotonic()
        stopping = subprocess.Popen(another._engine.command("stop", another.name))
        rest, code, _ = client.rest()
    assert stopping.wait(timeout=WAIT_S) == 0
    assert time.monotonic() - started < DRAIN_S + CLOSES_S
    assert transcript([*frames, *rest]) == f"{text('order')} {text('yes')}"
    assert code == 1012
    assert another.state["ExitCode"] == 0
