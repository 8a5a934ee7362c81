"""Build an image from the Dockerfile, without a registry: `python -m tests.support.image.build --target cpu`.

podman executes the Dockerfile on a base image of Debian's packages (base_image.py); images stay in build/images, where
a second run finds what has not changed. `--architecture arm64` needs qemu-user-static and binfmt_misc, and takes hours.
Needs Linux, root, podman, mmdebstrap, Debian's mirror and a package index.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from pathlib import Path

from deploy.release.versions import version
from tests.support.image.base_image import base_image
from tests.support.image.engine import Engine, EngineError
from tests.support.image.pip_settings import pip_options, torch_index

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
