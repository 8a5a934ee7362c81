"""Run the images' Dockerfile without a container engine: `python -m tests.support.deployment.rehearse_image`.

Executes every COPY and RUN of the stages that a target needs in clean folders under build/rehearsal, starts the image's
server on a read-only root as its own user, waits for its health check and drains it. Not shown: that the base image has
what is mounted from this machine, and the size of the layers. Takes minutes, mostly download and unpacking.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from dockerfile_parse import DockerfileParser

from tests.support.deployment.dockerignore import DockerIgnore
from tests.support.deployment.image_root import SYSTEM_PATH, ImageRoot

CHECKOUT = Path(__file__).parents[3]
DOCKER = CHECKOUT / "deploy" / "docker"
STEP_TIMEOUT_S = 1_800.0
HEALTHY_WITHIN_S = 120.0
STOPPED_WITHIN_S = 30.0


@dataclass(slots=True)
class Stage:
    """One FROM with its instructions and the resulting image settings."""

    name: str
    base: str
    steps: list[tuple[str, str]] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    workdir: str = "/"
    user: int | None = None
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    healthcheck: list[str] = field(default_factory=list)


def read_stages(path: Path) -> dict[str, Stage]:
    """Return stages by name."""
    stages: dict[str, Stage] = {}
    stage: Stage | None = None
    known = {"PATH": SYSTEM_PATH}
    for entry in DockerfileParser(str(path)).structure:
        instruction, value = entry["instruction"], entry["value"]
        if instruction == "ARG":
            name, _, default = value.partition("=")
            known[name] = default
        elif instruction == "FROM":
            base, _, name = expand(value, known).partition(" AS ")
            stage = stages[name] = Stage(name, base)
        elif instruction != "COMMENT" and stage is not None:
            stage.steps.append((instruction, value))
    for each in stages.values():
        each.steps = [(word, expand(value, known) if word in ("ENV", "RUN") else value) for word, value in each.steps]
    return stages


def expand(text: str, known: dict[str, str]) -> str:
    """Replace `${NAME}` by the value of a known variable."""
    return re.sub(r"\$\{(\w+)\}", lambda found: known.get(found[1], found[0]), text)


def build(stages: dict[str, Stage], name: str, work: Path, done: dict[str, Path]) -> Path:
    """Build a stage and those that it needs; returns its root."""
    if name in done:
        return done[name]
    stage, root = stages[name], work / name
    if stage.base in stages:
        clone(build(stages, stage.base, work, done), root)
        parent = stages[stage.base]
        stage.env, stage.workdir, stage.user = dict(parent.env), parent.workdir, parent.user
        stage.entrypoint, stage.command, stage.healthcheck = parent.entrypoint, parent.command, parent.healthcheck
    else:
        root.mkdir(parents=True)
        stage.env = {"PATH": SYSTEM_PATH}
    done[name] = root
    for instruction, value in stage.steps:
        say(f"{name}: {instruction} {' '.join(value.split())[:100]}")
        execute(stages, stage, (instruction, value), work, done)
    return root


def execute(stages: dict[str, Stage], stage: Stage, step: tuple[str, str], work: Path, done: dict[str, Path]) -> None:
    """Run one instruction. Raises: CalledProcessError, TimeoutExpired; SystemExit for an unknown one."""
    root = done[stage.name]
    match step:
        case ("RUN", value):
            image = ImageRoot(root, stage.env, stage.workdir)
            image.make_mount_points()
            image.run(["sh", "-c", value], STEP_TIMEOUT_S)
        case ("COPY", value) if value.startswith("--from="):
            source, place, target = value.removeprefix("--from=").split()
            clone(build(stages, source, work, done) / place.lstrip("/"), root / target.lstrip("/"))
        case ("COPY", value):
            *sources, target = value.split()
            for source in sources:
                copy_context(source, root / target.lstrip("/"), into=target.endswith("/"))
        case (instruction, value):
            record_setting(stage, instruction, value)


def record_setting(stage: Stage, instruction: str, value: str) -> None:
    """Record an instruction that changes no files. Raises: SystemExit for an unknown one."""
    if instruction == "ENV":
        path = stage.env["PATH"]
        stage.env |= {n: v.replace("$PATH", path) for n, _, v in (word.partition("=") for word in shlex.split(value))}
    elif instruction == "USER":
        stage.user = int(value.partition(":")[0])
    elif instruction == "WORKDIR":
        stage.workdir = value
    elif instruction == "ENTRYPOINT":
        stage.entrypoint = json.loads(value)
    elif instruction == "CMD":
        stage.command = json.loads(value)
    elif instruction == "HEALTHCHECK":
        stage.healthcheck = json.loads(value.partition("CMD")[2])
    elif instruction not in ("EXPOSE", "LABEL", "STOPSIGNAL"):
        sys.exit(f"no rehearsal of {instruction}")


def copy_context(source: str, target: Path, *, into: bool) -> None:
    """Copy the files included by .dockerignore. Raises: SystemExit if there are none."""
    included = DockerIgnore((DOCKER / "Dockerfile.dockerignore").read_text())
    start = (CHECKOUT / source).resolve()
    # Walk only the folders named in .dockerignore, not virtual environments or build folders.
    tops = [start] if start != CHECKOUT else [CHECKOUT / name for name in included.tops]
    files = [file for top in tops for file in ([top] if top.is_file() else sorted(top.rglob("*"))) if file.is_file()]
    kept = [file for file in files if included(file.relative_to(CHECKOUT).as_posix())]
    if not kept:
        sys.exit(f"COPY {source}: the builder would not be given it")
    for file in kept:
        place = target / (file.name if into else file.relative_to(start) if start.is_dir() else "")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(file, place)


def clone(source: Path, target: Path) -> None:
    """Copy a tree by hard links; no step modifies a file in place."""
    target.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cp", "-al", f"{source}/.", str(target)], check=True)


def serve(stage: Stage, root: Path) -> None:
    """Start the image's command as its user on a read-only root, wait until it is healthy, drain it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    env = stage.env | {"TUTTI_HOST": "127.0.0.1", "TUTTI_PORT": port}
    image = ImageRoot(root, env, stage.workdir, stage.user, read_only=True)
    image.make_mount_points()
    # logs the compile time of step and search, which were compiled with the image
    image.run([*stage.entrypoint, "python", "-m", "model.warm_up", "--published"], STEP_TIMEOUT_S)
    started = time.monotonic()
    words = image.command([*stage.entrypoint, *stage.command])
    server = subprocess.Popen(words, env=image.environment())
    try:
        while subprocess.run(image.command(stage.healthcheck), env=image.environment(), check=False).returncode:
            if server.poll() is not None or time.monotonic() - started > HEALTHY_WITHIN_S:
                sys.exit("the server did not become healthy")
        say(f"healthy after {time.monotonic() - started:.0f} s")
        server.terminate()
        if code := server.wait(STOPPED_WITHIN_S):
            sys.exit(f"the server ended with {code}")
    finally:
        if server.poll() is None:
            server.kill()
            server.wait()


def say(line: str) -> None:
    """Print progress."""
    print(line, flush=True)  # noqa: T201


def main() -> None:
    """Run one target."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--work", type=Path, default=CHECKOUT / "build" / "rehearsal")
    parser.add_argument("--keep", action="store_true", help="leave the folders there")
    asked = parser.parse_args()
    shutil.rmtree(asked.work, ignore_errors=True)
    stages = read_stages(DOCKER / "Dockerfile")
    done: dict[str, Path] = {}
    try:
        root = build(stages, asked.target, asked.work.resolve(), done)
        used = subprocess.run(["du", "-sm", str(root / "opt" / "tutti")], capture_output=True, text=True, check=True)
        say(f"/opt/tutti: {used.stdout.split()[0]} MiB in addition to the base image")
        serve(stages[asked.target], root)
    finally:
        if not asked.keep:
            shutil.rmtree(asked.work, ignore_errors=True)
    say("rehearsed: built, healthy on a read-only root as its own user, drained with exit code 0")


if __name__ == "__main__":
    main()
