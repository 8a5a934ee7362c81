"""Files of the images pass linters, are locked and match the program. `test_image_runs.py` builds and runs one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deploy.docker.health import HEALTHY, UNHEALTHY, check
from model.machine.instructions import LEVELS, WITH_VNNI
from model.prebuilt.image import TARGETS
from server.operations.drain import SPREAD_S
from server.settings import Settings
from tests.support.audio.speech import ROOT
from tests.support.deployment.edge import closed_port
from tests.support.needs import missing, need_ipv6
from tests.support.servers.live_server import LiveServer

_PARTS = re.compile(r"\*\*/|\*\*|\*|\?|\[[^\]]+\]|[^*?\[]+")
_REGEX_OF = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}


class DockerIgnore:
    """Patterns of one file in order; the last match decides."""

    def __init__(self, text: str) -> None:
        lines = [line.strip() for line in text.splitlines()]
        self._patterns = [
            (line.startswith("!"), _compiled(line.removeprefix("!")))
            for line in lines
            if line and not line.startswith("#")
        ]
        self.tops = sorted({line[1:].split("/")[0] for line in lines if line.startswith("!")})
        """First components of the included paths."""

    def __call__(self, path: str) -> bool:
        """Whether a file, relative to the root of the context, is sent to the builder."""
        own = PurePosixPath(path)
        names = [path, *(parent.as_posix() for parent in own.parents if parent != PurePosixPath())]
        included = True
        for includes, pattern in self._patterns:
            if any(pattern.fullmatch(name) for name in names):
                included = includes
        return included


def _compiled(pattern: str) -> re.Pattern[str]:
    parts = _PARTS.findall(pattern.strip("/"))
    return re.compile("".join(_REGEX_OF.get(part) or (part if part[0] == "[" else re.escape(part)) for part in parts))


DEPLOY = ROOT / "deploy"
DOCKER = DEPLOY / "docker"
DOCKERFILE = (DOCKER / "Dockerfile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCKS = {  # and the extras in it
    "requirements.lock": ["otel", "published"],
    "requirements-torch.lock": ["otel", "published", "torch"],
    "requirements-cuda.lock": ["otel", "published", "torch"],
}
NOT_OF_THE_SERVER = {
    "TUTTI_CERT",
    "TUTTI_TLS_PORT",
    "TUTTI_STOP_GRACE",
    "TUTTI_API_KEY",
}  # of proxies, compose, clients
FLUSH_AND_CLOSE_S = 3 + 5  # docs/faults.md: the flush, and connections that do not close
V3 = "avx avx2 bmi1 bmi2 fma"
V4 = f"{V3} avx512f avx512bw avx512cd avx512dq avx512vl avx512_vnni"
OWN = "tutti-asr-client"  # built from the checkout, like the program itself


def program(name: str) -> str:
    """Return a program of the `deploy` extra; if it is missing, skip the test, or fail in CI."""
    local = Path(sys.executable).parent / name
    if not local.exists():
        missing(f"{name} not installed")
    return str(local)


def locked(name: str) -> dict[str, tuple[str, int]]:
    """Return version and number of hashes by package."""
    found: dict[str, tuple[str, int]] = {}
    for entry in re.split(r"\n(?=[a-z])", (DEPLOY / name).read_text()):
        if match := re.match(r"([a-zA-Z0-9._-]+)(?:\[[^\]]*\])?==([^\s;]+)", entry):
            found[canonicalize_name(match[1])] = (match[2], entry.count("--hash=sha256:"))
    return found


def test_the_dockerfile_passes_its_linter() -> None:
    done = subprocess.run([program("hadolint"), DOCKER / "Dockerfile"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_images_run_as_an_unprivileged_user_and_check_health_without_curl() -> None:
    replica = DOCKERFILE.split("AS replica")[1]
    assert re.search(r"^USER [1-9]\d+:[1-9]\d+$", replica, re.MULTILINE)
    assert "HEALTHCHECK" in replica
    assert "curl" not in DOCKERFILE
    assert re.search(r"^ARG PYTHON_IMAGE=python:3\.\d+\.\d+-slim-\w+$", DOCKERFILE, re.MULTILINE), (
        "a tag that can have a digest"
    )
    assert {"cpu", "torch", "cuda"} <= set(re.findall(r"^FROM .* AS (\S+)$", DOCKERFILE, re.MULTILINE))


def test_labels_state_title_license_version_and_commit() -> None:
    replica = DOCKERFILE.split("AS replica")[1].split("\nCOPY")[0]
    labels = dict(re.findall(r'org\.opencontainers\.image\.(\w+)="([^"]*)"', replica))
    assert labels["licenses"] == PROJECT["project"]["license"]
    assert (labels["title"], labels["version"], labels["revision"]) == ("tutti", "${VERSION}", "${COMMIT}")
    assert "\nSTOPSIGNAL SIGTERM\n" in DOCKERFILE


def test_documented_docker_runs_have_options_of_the_image_and_time_to_drain() -> None:
    page = (ROOT / "docs" / "installing.md").read_text()
    runs = re.findall(r"^docker run (.*)$", page, re.MULTILINE)
    assert len(runs) == 2
    settings = Settings()
    needed_s = settings.drain_timeout_s + SPREAD_S + FLUSH_AND_CLOSE_S
    port = re.search(r"TUTTI_PORT=(\d+)", DOCKERFILE)
    assert port
    for run in runs:
        assert f"-p {port[1]}:{port[1]}" in run
        assert "--read-only --tmpfs /tmp" in run, "the image writes there alone"
        stop = re.search(r"--stop-timeout (\d+)", run)
        assert stop
        assert int(stop[1]) > needed_s
        assert set(re.findall(r"-e TUTTI_(\w+)=", run)) <= {name.upper() for name in Settings.model_fields}
    assert "-v " in runs[1]
    assert "-t tutti:cpu ." in page


@pytest.mark.parametrize("name", LOCKS)
def test_every_required_package_is_locked_in_an_allowed_version(name: str) -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    lines = [*PROJECT["project"]["dependencies"], *(line for extra in LOCKS[name] for line in extras[extra])]
    wanted = [needed for line in lines if (needed := Requirement(line)).name != OWN]
    lock = locked(name)
    stale = [str(each) for each in wanted if canonicalize_name(each.name) not in lock or not _admits(each, lock)]
    assert not stale, "run deploy/lock.py"
    assert all(hashes for _, hashes in lock.values()), "a package without a hash"


def _admits(wanted: Requirement, lock: dict[str, tuple[str, int]]) -> bool:
    return wanted.specifier.contains(lock[canonicalize_name(wanted.name)][0], prereleases=True)


def test_only_the_cuda_image_has_cuda_and_the_small_one_no_torch() -> None:
    assert "torch" not in locked("requirements.lock")
    assert locked("requirements-torch.lock")["torch"][0].endswith("+cpu")
    for name in ("requirements.lock", "requirements-torch.lock"):
        assert not [package for package in locked(name) if package.startswith(("nvidia", "cuda", "triton"))]
    assert [package for package in locked("requirements-cuda.lock") if package.startswith("nvidia")]


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_that_is_installed_on_top_of_the_first_one_changes_no_version(name: str) -> None:
    assert locked("requirements.lock").items() <= locked(name).items()


def test_dockerignore_includes_the_program_and_no_local_files() -> None:
    lets_through = DockerIgnore((DOCKER / "Dockerfile.dockerignore").read_text())
    for path in (
        "server/cli/__init__.py",
        "model/weights/tutti-gru.safetensors",
        "server/web/index.html",
        "pyproject.toml",
        "clients/pyproject.toml",
        "clients/tutti_asr_client/py.typed",
    ):
        assert lets_through(path), path
    for path in (
        ".git/config",
        ".venv/bin/python",
        "deploy/compose/secrets/api_keys",
        "model/weights/x.arpa.gz-1.lm",
        "server/cli/__pycache__/a.pyc",
        "build/x",
        "tests/conftest.py",
        "model/ctc/__pycache__/k.nbi",
        "clients/build/lib/tutti_asr_client/stale.py",
        "clients/tutti_asr_client.egg-info/SOURCES.txt",
    ):
        assert not lets_through(path), path
    for source in re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE):
        for path in source.split():
            assert path == "." or lets_through(path), path


def test_the_health_check_reflects_the_response_of_the_server(live_server: Callable[..., LiveServer]) -> None:
    server = live_server()
    port = int(server.host.rsplit(":", 1)[1])
    assert check("/healthz", port) == HEALTHY
    server.replica.sessions.draining = True
    assert check("/healthz", port) == HEALTHY, "a draining replica is alive"
    assert check("/readyz", port) == UNHEALTHY
    assert check("/healthz", closed_port()) == UNHEALTHY


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::", "[::]", "::1", "[::1]", "localhost"])
def test_the_health_check_uses_the_address_of_the_server(live_server: Callable[..., LiveServer], host: str) -> None:
    if ":" in host:
        need_ipv6()
    server = live_server(**({"host": host} if host else {}))
    assert check("/healthz", int(server.host.rsplit(":", 1)[1]), host) == HEALTHY


@pytest.mark.parametrize("writable", [True, False])
def test_start_sh_copies_the_compiler_cache_and_execs_the_server(tmp_path: Path, *, writable: bool) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "code.nbi").write_text("code")
    script = (DOCKER / "start.sh").read_text().replace("/opt/tutti/machine-code", str(kept))
    place = tmp_path / "cache" if writable else Path("/proc/nothing/here")
    shell = shutil.which("sh")
    assert shell
    words = [shell, "-c", script, "start", shell, "-c", f'cat {place}/code.nbi 2>/dev/null; echo "$$" "$PPID"']
    env = {"NUMBA_CACHE_DIR": str(place), "PATH": os.environ["PATH"]}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=env) as process:
        output, _ = process.communicate(timeout=20)
    assert output.startswith("code") == writable
    assert output.removeprefix("code").split() == [str(process.pid), str(os.getpid())], "signals reach the server"


@pytest.mark.parametrize(("given", "expected"), [("", "true"), ("false", "false")])
def test_sagemaker_starts_the_image_with_the_argument_serve(tmp_path: Path, given: str, expected: str) -> None:
    tutti = tmp_path / "tutti"
    tutti.write_text('#!/bin/sh\necho "$TUTTI_SAGEMAKER" "$@"\n')
    tutti.chmod(0o755)
    env = {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    words = ["sh", str(DOCKER / "start.sh"), "serve"]
    variables = {"TUTTI_SAGEMAKER": given} if given else {}
    done = subprocess.run(words, env=env | variables, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [expected, "serve"]
    assert "com.amazonaws.sagemaker.capabilities.bidirectional-streaming=true" in DOCKERFILE


@pytest.mark.parametrize(
    ("flags", "variables", "expected"),
    [
        (V4, {}, WITH_VNNI),
        (f"{V3} avx512f avx512_vnni", {}, (LEVELS[1], "")),
        (V3, {}, (LEVELS[1], "")),
        ("sse4_2 avx", {}, ("", "unset")),
        (V4, {"NUMBA_CPU_NAME": "znver3"}, ("znver3", "unset")),
        (V4, {"ATEN_CPU_CAPABILITY": "avx2"}, ("", "unset")),
    ],
)
def test_start_sh_selects_a_processor_that_the_image_was_compiled_for(
    tmp_path: Path, flags: str, variables: dict[str, str], expected: tuple[str, str]
) -> None:
    (tmp_path / "cpuinfo").write_text(f"flags : {flags}\n")
    script = (DOCKER / "start.sh").read_text().replace("/proc/cpuinfo", str(tmp_path / "cpuinfo"))
    assert selected_by(script, tmp_path, "x86_64", variables) == expected


def selected_by(script: str, folder: Path, machine: str, variables: dict[str, str]) -> tuple[str, ...]:
    """Return what start.sh selects on a machine for which `uname -m` answers `machine`."""
    uname = folder / "uname"
    uname.write_text(f"#!/bin/sh\necho {machine}\n")
    uname.chmod(0o755)
    words = ["sh", "-c", script, "start", "sh", "-c", 'echo "$NUMBA_CPU_NAME|${NUMBA_CPU_FEATURES-unset}"']
    env = {"NUMBA_CACHE_DIR": str(folder / "cache"), "PATH": f"{folder}:{os.environ['PATH']}"} | variables
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=True)
    return tuple(done.stdout.rstrip("\n").split("|"))


@pytest.mark.parametrize("machine", TARGETS)
def test_the_image_is_compiled_for_the_processors_of_start_sh(tmp_path: Path, machine: str) -> None:
    script = (DOCKER / "start.sh").read_text().replace("/proc/cpuinfo", str(tmp_path / "cpuinfo"))
    selected = set()
    for flags in (V4, V3):
        (tmp_path / "cpuinfo").write_text(f"flags : {flags}\n")
        selected.add(selected_by(script, tmp_path, machine, {}))
    assert selected == set(TARGETS[machine])


def test_every_variable_set_in_deploy_is_a_setting() -> None:
    known = {f"TUTTI_{name.upper()}" for name in Settings.model_fields} | NOT_OF_THE_SERVER
    files = [path for path in DEPLOY.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    named = {(path.name, name) for path in files for name in re.findall(r"TUTTI_[A-Z_]+[A-Z]", path.read_text())}
    assert not [pair for pair in named if pair[1] not in known]
