"""The commands of deploy/README.md that need neither a container engine nor a cluster work."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from deploy.helm import render
from server.access.keys import Key, parse_keys, read_secrets
from server.resume.tickets import KEY_BYTES, read_keys
from server.settings import Settings
from tests.support.audio.speech import ROOT
from tests.support.deployment.chart import of_kind, rendered
from tests.support.needs import need_package, need_programs

README = (ROOT / "deploy" / "README.md").read_text()


def block(kind: str) -> str:
    """Return the only block of this kind."""
    [found] = re.findall(rf"^```{kind}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    return found


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the commands that create the keys; returns their folder."""
    need_programs("openssl", "sha256sum")
    folder = tmp_path_factory.mktemp("checkout")
    words = ["bash", "-euo", "pipefail", "-c", block("sh secrets")]
    done = subprocess.run(words, cwd=folder, check=True, capture_output=True, text=True)
    (folder / "printed").write_text(done.stdout.rsplit("API key: ", 1)[1].strip())
    return folder / "deploy" / "compose" / "secrets"


def test_the_commands_create_valid_keys(secrets: Path) -> None:
    [key] = read_keys(read_secrets("key", (), secrets / "resume_keys"))
    assert len(key) == KEY_BYTES
    printed = (secrets.parents[2] / "printed").read_text()
    [known] = parse_keys(read_secrets("key", (), secrets / "api_keys"))
    assert known.digest == Key.of(printed).digest, "the printed key is the one that the server accepts"
    Settings(api_keys_file=secrets / "api_keys", token_keys_file=secrets / "token_keys")


def test_compose_mounts_the_created_keys(secrets: Path) -> None:
    compose = (ROOT / "deploy" / "compose" / "compose.yaml").read_text()
    wanted = set(re.findall(r"file: \./secrets/(\w+)", compose))
    assert wanted == {path.name for path in secrets.iterdir()}
    assert all(path.stat().st_mode & 0o004 for path in secrets.iterdir()), "readable by user 10001"


def test_paths_in_the_readme_exist() -> None:
    named = set(re.findall(r"(?<![\w/])(?:deploy|docs|model|tests)/[\w./-]+\w", README))
    assert len(named) > 10
    made = {name for name in named if name.startswith("deploy/compose/secrets")}
    assert [name for name in sorted(named - made) if not (ROOT / name).exists()] == []
    folders = re.findall(r"^\| ((?:`\w+/`(?:, )?)+) \|", README, re.MULTILINE)
    for name in re.findall(r"`(\w+)/`", " ".join(folders)):
        assert (ROOT / "deploy" / name).is_dir(), name


def test_the_helm_command_renders_with_its_values() -> None:
    need_package("helm_python")
    [line] = re.findall(r"^helm install (.*?[^\\])$", README, re.MULTILINE | re.DOTALL)
    release, chart, *options = shlex.split(line.replace("\\\n", " "))
    given = dict(zip(options[::2], options[1::2], strict=True))
    assert ROOT / chart == render.CHART
    manifests = rendered(
        Path(given["--values"]).stem, release=release, namespace=given["--namespace"], values=[given["--set"]]
    )
    [container] = of_kind(manifests, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert container["image"].startswith(given["--set"].partition("=")[2])
    [volume] = re.findall(r"create secret generic (\S+)", README)
    assert volume in str(of_kind(manifests, "Deployment"))
