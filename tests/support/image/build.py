"""Build an image from the Dockerfile, without a registry: `python -m tests.support.image.build --target cpu`.

podman executes the Dockerfile on a base image of Debian's packages (base_image.py); images stay in build/images, where
a second run finds what has not changed. `--architecture arm64` needs qemu-user-static and binfmt_misc, and takes hours.
Needs Linux, root, podman, mmdebstrap, Debian's mirror and a package index.
"""

from __future__ import annotations

import argparse
import platform
import re
import subprocess
import sys
import time
from pathlib import Path

from deploy.release.versions import version
from tests.support.image.engine import Engine, EngineError


def pip_options(folder: Path) -> list[str]:
    """Return options of `podman build` that mount this machine's settings of pip, and the files that they name.

    Writes one file to `folder`. Without settings, as on most machines, there are no options. Raises:
    CalledProcessError.
    """
    values = settings()
    if not values:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "pip.conf"
    lines = ["[global]", *(f"{name} = {' '.join(value.split())}" for name, value in values.items()), ""]
    file.write_text("\n".join(lines))
    named = {place for value in values.values() for word in value.split() if (place := local_place(word))}
    mounts = [(file, Path("/etc/pip.conf")), *((place, place) for place in sorted(named))]
    return [f"--volume={source}:{target}:ro" for source, target in mounts]


def settings() -> dict[str, str]:
    """Return pip's settings of this machine by name. Raises: CalledProcessError."""
    words = [sys.executable, "-m", "pip", "config", "list"]
    return settings_in(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


def torch_index() -> dict[str, str]:
    """Return the option of `podman build` that names a local folder with torch's wheel, if there is one.

    It stands for PyTorch's index, which not every machine reaches. Raises: CalledProcessError.
    """
    folders = [Path(word) for word in settings().get("find-links", "").split()]
    found = [folder for folder in folders if any(folder.glob("torch-*+cpu-*.whl"))]
    return {"--build-arg=TORCH_INDEX": str(found[0])} if found else {}


def settings_in(listed: str) -> dict[str, str]:
    """Return pip's settings by name from the output of `pip config list`; variables take precedence."""
    found = re.findall(r"(?m)^(global|:env:)\.([\w-]+)='(.*)'$", listed)
    return {name: value for kind in ("global", ":env:") for scope, name, value in found if scope == kind}


def local_place(word: str) -> Path | None:
    """Return the file or folder that a word of the settings names, None for anything else.

    Of an index in a folder it is the one above it, where the packages may be.
    """
    if word.startswith("file:///"):
        place = Path(word.removeprefix("file://")).parent
    elif word.startswith("/"):
        place = Path(word)
    else:
        return None
    return place if place.exists() else None


SUITE = "bookworm"
PACKAGES = ("ca-certificates", "python3.11-venv")  # the second one brings pip
PYTHON = "python3.11"
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
LEFT_OUT = ("/usr/share/doc/*", "/usr/share/locale/*", "/usr/share/man/*")  # as in the slim images
MADE_WITHIN_S = 1_800.0  # of another architecture, emulated; of this one within a minute


def base_image(engine: Engine, architecture: str) -> str:
    """Return the name of the base image for Debian's name of an architecture; it is made once.

    Raises: EngineError, TimeoutExpired.
    """
    name = f"localhost/{PYTHON}-{SUITE}:{architecture}"
    if not engine.has_image(name):
        archive = engine.folder / f"base-{architecture}.tar"
        make_root(archive, architecture)
        settings = ("--change", f"ENV PATH={SYSTEM_PATH}", "--change", f'CMD ["{PYTHON}"]')
        engine.call("import", "--arch", architecture, *settings, str(archive), name, within_s=MADE_WITHIN_S)
        archive.unlink()
    return name


def make_root(archive: Path, architecture: str) -> None:
    """Write a root file system as a tar. Raises: EngineError, TimeoutExpired."""
    words = ["mmdebstrap", "--quiet", "--variant=minbase", f"--architectures={architecture}"]
    words += [f"--include={','.join(PACKAGES)}", *(f"--dpkgopt=path-exclude={place}" for place in LEFT_OUT)]
    words += [f'--customize-hook=ln -s {PYTHON} "$1/usr/bin/python"', SUITE, str(archive)]
    archive.parent.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(words, capture_output=True, text=True, timeout=MADE_WITHIN_S, check=False)
    if done.returncode:
        raise EngineError(f"mmdebstrap: {done.stderr.strip()}")


CHECKOUT = Path(__file__).parents[3]
DOCKER = CHECKOUT / "deploy" / "docker"
FOLDER = CHECKOUT / "build" / "images"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}  # Debian's names by those of the kernel
BUILT_WITHIN_S = 1_800.0
EMULATED = 20  # how many times longer another architecture may take
COMMIT = "built-here"


def image(target: str = "cpu", architecture: str = "", folder: Path = FOLDER) -> tuple[Engine, str]:
    """Return the engine and the name of the image, which is built from what has changed in the checkout.

    Raises: EngineError, TimeoutExpired.
    """
    own = ARCHITECTURES[platform.machine()]
    architecture = architecture or own
    engine = Engine(folder)
    base = base_image(engine, architecture)
    name = f"localhost/tutti:{target}-{architecture}"
    options = {
        "--build-arg=PYTHON_IMAGE": base,
        "--build-arg=COMMIT": COMMIT,
        "--build-arg=VERSION": version(),
        **(torch_index() if target == "torch" else {}),
        "--isolation": "chroot",
        "--format": "docker",  # an OCI image has no health check
        "--network": "host",
        "--arch": architecture,
        "--target": target,
        "--tag": name,
        "--ignorefile": f"{DOCKER / 'Dockerfile.dockerignore'}",
        "--file": f"{DOCKER / 'Dockerfile'}",
    }
    within_s = BUILT_WITHIN_S * (1 if architecture == own else EMULATED)
    words = [f"{option}={value}" for option, value in options.items()]
    engine.call("build", *words, *pip_options(folder / "pip"), str(CHECKOUT), within_s=within_s)
    return engine, name


def main() -> None:
    """Build one image and print its size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="cpu", choices=("cpu", "torch", "cuda"))
    parser.add_argument("--architecture", default="", choices=sorted(ARCHITECTURES.values()))
    parser.add_argument("--folder", type=Path, default=FOLDER)
    asked = parser.parse_args()
    started = time.monotonic()
    try:
        engine, name = image(asked.target, asked.architecture, asked.folder.resolve())
    except EngineError as error:
        sys.exit(str(error))
    size = engine.inspect(name)["Size"] / 2**20
    print(f"{name}: {size:.0f} MiB, built in {time.monotonic() - started:.0f} s, kept in {asked.folder}")  # noqa: T201


if __name__ == "__main__":
    main()
