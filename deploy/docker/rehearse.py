"""Carries out an image's Dockerfile without a container engine: `python deploy/docker/rehearse.py`.

Every COPY and RUN of the stages that a target needs is done in clean folders under build/rehearsal; then the result is
served from a read-only root as its own user until it is healthy, and drained. What is not shown: that the base image
has what this machine lends, and that the layers are small. Takes minutes, mostly download and unpacking.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from chamber import SYSTEM_PATH, Chamber
from dockerfile_parse import DockerfileParser
from ignore import Ignore

HERE = Path(__file__).parent
CHECKOUT = HERE.parent.parent
STEP_TIMEOUT_S = 1_800.0
HEALTHY_WITHIN_S = 120.0
STOPPED_WITHIN_S = 30.0


@dataclass(slots=True)
class Stage:
    """One FROM with what follows it, and what it sets."""

    name: str
    base: str
    steps: list[tuple[str, str]] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    workdir: str = "/"
    user: int | None = None
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    healthcheck: list[str] = field(default_factory=list)


def read_stages(path: Path, arguments: dict[str, str]) -> dict[str, Stage]:
    """Stages by name. `arguments` are those of the build; they win over the file's defaults."""
    stages: dict[str, Stage] = {}
    stage: Stage | None = None
    known = {"PATH": SYSTEM_PATH}
    for entry in DockerfileParser(str(path)).structure:
        instruction, value = entry["instruction"], entry["value"]
        if instruction == "ARG":
            name, _, default = value.partition("=")
            known[name] = arguments.get(name, default)
        elif instruction == "FROM":
            base, _, name = filled(value, known).partition(" AS ")
            stage = stages[name] = Stage(name, base)
        elif instruction != "COMMENT" and stage is not None:
            stage.steps.append((instruction, value))
    for each in stages.values():
        each.steps = [(word, filled(value, known) if word in ("ENV", "RUN") else value) for word, value in each.steps]
    return stages


def filled(text: str, known: dict[str, str]) -> str:
    """With the values of the variables that are known in the place of their names."""
    return re.sub(r"\$\{(\w+)\}", lambda found: known.get(found[1], found[0]), text)


def build(stages: dict[str, Stage], name: str, work: Path, done: dict[str, Path]) -> Path:
    """Build one stage and those that it needs; return its root."""
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
        carry_out(stages, stage, (instruction, value), work, done)
    return root


def carry_out(stages: dict[str, Stage], stage: Stage, step: tuple[str, str], work: Path, done: dict[str, Path]) -> None:
    """One instruction. Raises: CalledProcessError, TimeoutExpired; SystemExit for one that is not known here."""
    root = done[stage.name]
    match step:
        case ("RUN", value):
            chamber = Chamber(root, stage.env, stage.workdir)
            chamber.furnish()
            chamber.run(["sh", "-c", value], STEP_TIMEOUT_S)
        case ("COPY", value) if value.startswith("--from="):
            source, place, target = value.removeprefix("--from=").split()
            clone(build(stages, source, work, done) / place.lstrip("/"), root / target.lstrip("/"))
        case ("COPY", value):
            *sources, target = value.split()
            for source in sources:
                copy_context(source, root / target.lstrip("/"), into=target.endswith("/"))
        case (instruction, value):
            describe(stage, instruction, value)


def describe(stage: Stage, instruction: str, value: str) -> None:
    """An instruction that changes no file. Raises: SystemExit: none may be passed over in silence."""
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
    elif instruction not in ("EXPOSE", "STOPSIGNAL"):
        sys.exit(f"no rehearsal of {instruction}")


def copy_context(source: str, target: Path, *, into: bool) -> None:
    """Copy from the checkout what the ignore file lets through. Raises: SystemExit if that is nothing."""
    let_through = Ignore((HERE / "Dockerfile.dockerignore").read_text())
    start = (CHECKOUT / source).resolve()
    # Of the checkout only what is named there: virtual environments and build folders are not walked.
    tops = [start] if start != CHECKOUT else [CHECKOUT / name for name in let_through.tops]
    files = [file for top in tops for file in ([top] if top.is_file() else sorted(top.rglob("*"))) if file.is_file()]
    kept = [file for file in files if let_through(file.relative_to(CHECKOUT).as_posix())]
    if not kept:
        sys.exit(f"COPY {source}: the builder would not be given it")
    for file in kept:
        place = target / (file.name if into else file.relative_to(start) if start.is_dir() else "")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(file, place)


def clone(source: Path, target: Path) -> None:
    """A copy that shares the files' contents: steps add and remove files, none changes one."""
    target.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cp", "-al", f"{source}/.", str(target)], check=True)  # noqa: S603, S607


def serve(stage: Stage, root: Path) -> None:
    """Start the image's own command as its own user on a root that cannot be written, wait for its health, drain it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    env = stage.env | {"TUTTI_HOST": "127.0.0.1", "TUTTI_PORT": port}
    chamber = Chamber(root, env, stage.workdir, stage.user, sealed=True)
    chamber.furnish()
    # Says how long the beam search took to compile: it was, when the image was built.
    chamber.run([*stage.entrypoint, "python", "-m", "model.ctc.beam"], STEP_TIMEOUT_S)
    started = time.monotonic()
    words = chamber.command([*stage.entrypoint, *stage.command])
    server = subprocess.Popen(words, env=chamber.environment())  # noqa: S603 - of the Dockerfile
    try:
        while subprocess.run(chamber.command(stage.healthcheck), env=chamber.environment(), check=False).returncode:  # noqa: S603
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
    """Progress."""
    print(line, flush=True)  # noqa: T201


def main() -> None:
    """Rehearse one target."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--work", type=Path, default=CHECKOUT / "build" / "rehearsal")
    parser.add_argument("--keep", action="store_true", help="leave the folders there")
    asked = parser.parse_args()
    shutil.rmtree(asked.work, ignore_errors=True)
    # Wheels that lie in a folder already are taken from there, and torch's own index is not asked.
    arguments = {"TORCH_INDEX": f"file://{links}"} if (links := os.environ.get("PIP_FIND_LINKS")) else {}
    stages = read_stages(HERE / "Dockerfile", arguments)
    done: dict[str, Path] = {}
    try:
        root = build(stages, asked.target, asked.work.resolve(), done)
        used = subprocess.run(["du", "-sm", str(root / "opt" / "tutti")], capture_output=True, text=True, check=True)  # noqa: S603, S607
        say(f"/opt/tutti: {used.stdout.split()[0]} MiB beside the base image")
        serve(stages[asked.target], root)
    finally:
        if not asked.keep:
            shutil.rmtree(asked.work, ignore_errors=True)
    say("rehearsed: built, healthy on a read-only root as its own user, drained with exit code 0")


if __name__ == "__main__":
    main()
