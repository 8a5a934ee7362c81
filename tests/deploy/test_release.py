"""`make release`: one version everywhere; what is built, equal bytes on a second run, usable packages."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deploy.release import build
from deploy.release.build import LOCKS, SUMS, ReleaseError, release
from deploy.release.versions import version
from tests.support.audio.speech import ROOT
from tests.support.needs import need_package, need_programs
from tests.support.servers.live_server import LiveServer

NUMBER = version()
FILES = {
    f"tutti_asr-{NUMBER}-py3-none-any.whl",
    f"tutti_asr_client-{NUMBER}-py3-none-any.whl",
    f"tutti_asr_lab-{NUMBER}-py3-none-any.whl",
    f"tutti-asr-client-{NUMBER}.tgz",
    f"tutti-{NUMBER}.tgz",
    f"tutti-{NUMBER}-images.tar.gz",
    f"tutti-{NUMBER}-site.tar.gz",
    f"tutti-{NUMBER}-cpu.cdx.json",
    f"tutti-{NUMBER}-torch.cdx.json",
    f"tutti-{NUMBER}-cuda.cdx.json",
}
TALK = """
import { TuttiStream } from "tutti-asr-client";
const stream = new TuttiStream(process.argv[2], { sampleRate: 16000, resumable: true });
let finals = 0;
stream.on("Results", ({ isFinal }) => { finals += isFinal; });
stream.open();
stream.send(new Int16Array(32000));
await stream.close();
console.log(finals);
process.exit(0);
"""
pytestmark = pytest.mark.timeout(400)


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "core.hooksPath=/dev/null"]
    return subprocess.run(
        ["git", "-C", folder, *identity, *words], capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a repository with the files of this checkout, committed or not."""
    need_programs("git", "npm", "node")
    for package in ("build", "cyclonedx_py", "mkdocs"):
        need_package(package)
    folder = tmp_path_factory.mktemp("checkout")
    for name in git(ROOT, "ls-files", "--cached", "--others", "--exclude-standard").splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    git(folder, "init", "--quiet")
    git(folder, "add", "--all", "--force")
    git(folder, "commit", "--quiet", "--message=release")
    return folder


@pytest.fixture(scope="module", autouse=True)
def without_machine_code() -> Iterator[None]:
    """Leave it out, which takes minutes; tests/model/machine/test_native.py builds some of it twice."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "add_machine_code", lambda wheel, _tree, _environment: zipfile.ZipFile(wheel).testzip())
        yield


@pytest.fixture(scope="module")
def released(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("released")
    release(out, checkout)
    return out


def test_a_second_run_gives_the_same_bytes(released: Path, checkout: Path, tmp_path: Path) -> None:
    assert {path.name for path in released.iterdir()} == FILES | {SUMS}
    release(tmp_path, checkout)
    assert [name.name for name in released.iterdir() if name.read_bytes() != (tmp_path / name.name).read_bytes()] == []


def test_sums_name_every_file(released: Path) -> None:
    subprocess.run(["sha256sum", "--check", "--strict", SUMS], cwd=released, capture_output=True, check=True)
    pairs = [line.split("  ") for line in (released / SUMS).read_text().splitlines()]
    sums = {name: digest for digest, name in pairs}
    assert set(sums) == FILES


def test_changes_that_are_not_committed_are_refused(checkout: Path, tmp_path: Path) -> None:
    stray = checkout / "server" / "stray.py"
    stray.touch()
    try:
        with pytest.raises(ReleaseError, match=r"1 files are not committed \(server/stray.py …\); commit them first"):
            release(tmp_path / "out", checkout)
    finally:
        stray.unlink()


@pytest.mark.parametrize("target", LOCKS)
def test_a_bill_of_materials_has_each_locked_package_with_its_hashes(released: Path, target: str) -> None:
    bill = json.loads((released / f"tutti-{NUMBER}-{target}.cdx.json").read_text())
    validator = need_package("cyclonedx.validation.json").JsonStrictValidator
    assert validator(need_package("cyclonedx.schema").SchemaVersion.V1_6).validate_str(json.dumps(bill)) is None
    locked = dict(re.findall(r"(?m)^([\w.-]+)(?:\[\w+\])?==([^\s;]+)", (ROOT / LOCKS[target]).read_text()))
    found = {each["name"]: each for each in bill["components"]}
    assert {name: each["version"] for name, each in found.items()} == locked | {"tutti-asr-client": NUMBER}
    hashes = [entry["hashes"] for name in locked for entry in found[name]["externalReferences"]]
    assert all(hashes)
    assert {each["alg"] for entry in hashes for each in entry} == {"SHA-256"}
    about = bill["metadata"]["component"]
    assert (about["name"], about["version"]) == ("tutti-asr", NUMBER)


def test_the_npm_package_streams_in_node(
    released: Path, tmp_path: Path, live_server: Callable[..., LiveServer]
) -> None:
    archive = released / f"tutti-asr-client-{NUMBER}.tgz"
    words = ["npm", "install", "--silent", "--offline", "--no-audit", "--no-fund", str(archive)]
    subprocess.run(words, cwd=tmp_path, check=True, timeout=60)
    (tmp_path / "talk.mjs").write_text(TALK)
    address = f"ws://{live_server().host}/v1/listen"
    words = ["node", "--experimental-websocket", "talk.mjs", address]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 1


def test_the_context_of_the_images_has_what_the_dockerfile_copies(released: Path) -> None:
    with tarfile.open(released / f"tutti-{NUMBER}-images.tar.gz") as archive:
        names = set(archive.getnames())
    assert {"deploy/docker/Dockerfile", "deploy/docker/start.sh", "deploy/requirements.lock", "pyproject.toml"} <= names
    assert {"server/cli/__init__.py", "clients/pyproject.toml", "model/weights/tutti-gru.safetensors"} <= names
    assert not [name for name in names if name.startswith(("tests/", "docs/", "loadtest/results/", ".git/"))]


def test_the_site_has_its_pages(released: Path) -> None:
    with tarfile.open(released / f"tutti-{NUMBER}-site.tar.gz") as archive:
        assert {"site/index.html", "site/faults.html"} <= set(archive.getnames())
