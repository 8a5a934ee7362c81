"""The command of the rendered pod, with its variables, keys, probes and hooks, is run as the kubelet would run it."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from llvmlite.binding import get_host_cpu_name

from loadtest.served import free_port
from tests.support.audio.speech import ROOT
from tests.support.deployment.chart import of_kind, of_pod, rendered
from tests.support.deployment.edge import wait_until
from tests.support.deployment.keys import key_lines
from tests.support.needs import need_programs
from tests.support.servers.fakes import WAIT_S

DOCKERFILE = (ROOT / "deploy" / "docker" / "Dockerfile").read_text().split("AS replica\n")[1].split("\nFROM ")[0]
STARTS_WITHIN_S = 90.0


def image_command() -> list[str]:
    """Return entry point and command of the image, from this checkout."""
    words = [each for kind in ("ENTRYPOINT", "CMD") for each in _json(kind)]
    return [str(ROOT / "deploy" / "docker" / Path(word).name) if word.startswith("/opt/") else word for word in words]


def _json(kind: str) -> list[str]:
    [found] = re.findall(rf"^{kind} \[(.*)\]$", DOCKERFILE, re.MULTILINE)
    return [each.strip(' "') for each in found.split(",")]


def image_variables() -> dict[str, str]:
    """Return the variables that the image sets."""
    [block] = re.findall(r"^ENV ((?:.*\\\n)+.*)$", DOCKERFILE, re.MULTILINE)
    return dict(each.split("=", 1) for each in shlex.split(block.replace("\\\n", "")))


def answer(port: int, probe: dict[str, Any]) -> int:
    """Return the status that a probe gets, 0 for no answer."""
    asked = probe["httpGet"]
    try:
        return httpx.get(f"http://127.0.0.1:{port}{asked['path']}", timeout=probe["timeoutSeconds"]).status_code
    except httpx.TransportError:
        return 0


@pytest.mark.parametrize("created", [True, False])
def test_the_pod_starts_answers_its_probes_and_drains(tmp_path: Path, *, created: bool) -> None:
    need_programs("tini")
    _, lines = key_lines()
    contents = {name: [line] for name, line in lines.items()} if created else {}
    manifests = rendered(keys={"contents": contents}, settings={"drain_timeout_s": 20}, preStopSeconds=1)
    pod = of_kind(manifests, "Deployment")["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert not {"command", "args"} & set(container), "the image's own command"
    files = of_kind(manifests, "Secret")["stringData"] if created else lines
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    port = free_port()
    env = image_variables() | of_pod(manifests, {"/etc/tutti": str(tmp_path)})
    env |= {"TUTTI_PORT": str(port), "TUTTI_METRICS_PORT": "0", "TUTTI_HOST": "127.0.0.1"}
    env |= {"NUMBA_CPU_NAME": get_host_cpu_name()}  # for which this checkout is compiled, as the image is for others
    del env["NUMBA_CACHE_DIR"]
    env |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    log = (tmp_path / "log").open("wb")
    process = subprocess.Popen(image_command(), env=env, cwd=tmp_path, stdout=log, stderr=log)
    try:
        probes = [container[f"{name}Probe"] for name in ("startup", "readiness", "liveness")]
        wait_until(lambda: answer(port, probes[0]) == 200 or process.poll() is not None, 0.1, STARTS_WITHIN_S)
        assert [answer(port, probe) for probe in probes] == [200, 200, 200], (tmp_path / "log").read_text()
        refused = httpx.get(f"http://127.0.0.1:{port}/v1/models")
        assert refused.status_code == 401, "the keys are read"
        subprocess.run(container["lifecycle"]["preStop"]["exec"]["command"], check=True, timeout=WAIT_S)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=WAIT_S) == 0
    finally:
        process.kill()
        log.close()
