"""Build a release from the current commit: `make release`, or `python -m deploy.release.build --out build/release`.

Wheels, the npm package, the chart, the context of the images, a bill of materials (SBOM) of each image, the
documentation site and their SHA-256; continuous integration attests where they come from. The files of the commit are
exported first, and every time in them is that of the commit, so a second run on the same machine gives the same bytes.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from deploy.release.versions import ROOT, version

WEB = ("tutti.js", "continuity.js", "unacknowledged.js")  # of server/web: the client, and what it imports
IGNORE = "deploy/docker/Dockerfile.dockerignore"
LOCKS = {  # by target of the Dockerfile
    "cpu": "deploy/requirements.lock",
    "torch": "deploy/requirements-torch.lock",
    "cuda": "deploy/requirements-cuda.lock",
}
SUMS = "SHA256SUMS"


class ReleaseError(Exception):
    """The release cannot be built; the text says what to do."""


def release(out: Path, root: Path = ROOT) -> list[Path]:
    """Build everything into `out`, which is emptied first. Returns: all files. Raises: ReleaseError, ValueError."""
    if changed := _git(root, "status", "--porcelain").decode().splitlines():
        raise ReleaseError(f"release: {len(changed)} files are not committed ({changed[0][3:]} …); commit them first")
    commit = _git(root, "rev-parse", "HEAD").decode().strip()
    epoch = int(_git(root, "log", "-1", "--format=%ct"))
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="tutti-release-") as name:
        tree = Path(name) / "tree"
        export(root, commit, tree)
        number = version(tree)
        environment = os.environ | {"SOURCE_DATE_EPOCH": str(epoch)}
        build_wheels(tree, out, environment)
        write_sboms(tree, out, Path(name), environment)
        pack_npm(tree, out, Path(name) / "npm")
        pack(out / f"tutti-{number}.tgz", files_in(tree / "deploy/helm/tutti", "tutti"), epoch)  # as `helm package`
        pack(out / f"tutti-{number}-images.tar.gz", context(tree), epoch)
        build_site(tree, Path(name) / "site", environment)
        pack(out / f"tutti-{number}-site.tar.gz", files_in(Path(name) / "site", "site"), epoch)
    built = sorted(out.iterdir())
    sums = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in built}
    (out / SUMS).write_text("".join(f"{digest}  {name}\n" for name, digest in sums.items()), encoding="utf-8")
    return [*built, out / SUMS]


def export(root: Path, commit: str, tree: Path) -> None:
    """Write the files of a commit to `tree`."""
    with tarfile.open(fileobj=io.BytesIO(_git(root, "archive", commit))) as archive:
        archive.extractall(tree, filter="data")


def build_wheels(tree: Path, out: Path, environment: Mapping[str, str]) -> None:
    """Build the wheels of server, client and lab. Raises: ReleaseError."""
    for source in (tree, tree / "clients", tree / "lab"):
        words = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(source)]
        _run(words, tree, environment)
    [server] = out.glob("tutti_asr-*.whl")
    add_machine_code(server, tree, environment)


def add_machine_code(wheel: Path, tree: Path, environment: Mapping[str, str]) -> None:
    """Add code for every kind of processor to the server's wheel; it takes minutes. Raises: ReleaseError."""
    _run([sys.executable, "-m", "model.prebuilt.wheel", str(wheel)], tree, environment)


def write_sboms(tree: Path, out: Path, folder: Path, environment: Mapping[str, str]) -> None:
    """Write the Python packages of each image as CycloneDX JSON, with their hashes. Raises: ReleaseError.

    Needs the wheels in `out`: the client's is a package of the images that no lock has.
    """
    [client] = out.glob("tutti_asr_client-*.whl")
    for target, lock in LOCKS.items():
        needs = folder / f"{target}.txt"
        needs.write_text(f"{(tree / lock).read_text(encoding='utf-8')}\n./{client.name}\n", encoding="utf-8")
        sbom = out / f"tutti-{version(tree)}-{target}.cdx.json"
        words = [sys.executable, "-m", "cyclonedx_py", "requirements", "--pyproject", str(tree / "pyproject.toml")]
        _run([*words, "--output-reproducible", "--output-file", str(sbom), str(needs)], tree, environment)


def pack_npm(tree: Path, out: Path, folder: Path) -> None:
    """Build the npm package of the JavaScript client. Raises: ReleaseError."""
    shutil.copytree(tree / "deploy/release/npm", folder)
    for path in (*(tree / "server/web" / name for name in WEB), tree / "LICENSE"):
        shutil.copy(path, folder)
    _run(
        [_program("npm"), "pack", "--silent", "--offline", "--pack-destination", str(out.resolve())], folder, os.environ
    )


def build_site(tree: Path, folder: Path, environment: Mapping[str, str]) -> None:
    """Build the documentation site. Raises: ReleaseError."""
    words = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    _run(words, tree, {**environment, "NO_MKDOCS_2_WARNING": "1"})


def context(tree: Path) -> dict[str, Path]:
    """Return what `docker build -f deploy/docker/Dockerfile - < FILE` needs, by its name in the archive."""
    lines = (tree / IGNORE).read_text(encoding="utf-8").splitlines()
    left_out = tuple(line for line in lines if "/" in line and line[0] not in "!#*")
    found = {name: tree / name for name in (IGNORE, IGNORE.removesuffix(".dockerignore"))}
    for name in (line[1:] for line in lines if line.startswith("!")):
        found |= files_in(tree / name, name) if (tree / name).is_dir() else {name: tree / name}
    return {name: path for name, path in found.items() if not name.startswith(left_out)}


def files_in(folder: Path, name: str) -> dict[str, Path]:
    """Return the files in a folder by their names in an archive, below `name`."""
    return {f"{name}/{path.relative_to(folder).as_posix()}": path for path in folder.rglob("*") if path.is_file()}


def pack(target: Path, files: Mapping[str, Path], epoch: int) -> None:
    """Write a tar.gz whose bytes depend on the files' names, bits of execution and contents, and on `epoch` alone."""
    with (
        target.open("wb") as raw,
        gzip.GzipFile("", "wb", mtime=epoch, fileobj=raw) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for name, path in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            data = path.read_bytes()
            entry.size, entry.mtime = len(data), epoch
            entry.mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
            archive.addfile(entry, io.BytesIO(data))


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise ReleaseError(f"release: {name} is not installed; install it")
    return found


def _git(root: Path, *words: str) -> bytes:
    command = [_program("git"), "-C", str(root), *words]
    done = subprocess.run(command, capture_output=True, check=False)  # noqa: S603 - of this repository
    if done.returncode:
        raise ReleaseError(f"release: git {words[0]}: {done.stderr.decode().strip()}")
    return done.stdout


def _run(words: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
    done = subprocess.run(  # noqa: S603 - programs named in this file
        words, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        last_lines = (done.stdout + done.stderr).strip().splitlines()[-20:]
        raise ReleaseError("\n".join([f"release: {' '.join(words[:4])} failed:", *last_lines]))


def main() -> None:
    """Build and list the files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "release")
    try:
        for path in release(parser.parse_args().out.resolve()):
            print(f"{path.stat().st_size:>12,}  {path}")  # noqa: T201
    except (ReleaseError, ValueError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
