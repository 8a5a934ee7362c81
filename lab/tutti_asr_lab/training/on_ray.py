"""Training on a Ray cluster: `python -m tutti_asr_lab.training.on_ray --workers 4 --out /shared/tutti.safetensors …`.

Ray places the processes, restarts all of them when one or its node is lost, and keeps its own files next to the
checkpoint. The loop, the order of sums and the snapshots are those of `tutti_asr_lab.training`, so a run on Ray has the
same bits as one on a single machine.
"""

from __future__ import annotations

import logging
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import ray
import typer
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

from model.config import ModelConfig
from tutti_asr_lab.training.acoustic.parallel.launch import MEET_S, Place, processes_for
from tutti_asr_lab.training.acoustic.recipe import RECIPES, Recipe, read_recipe
from tutti_asr_lab.training.acoustic.run import Every, Places, train


@dataclass(frozen=True, slots=True)
class Plan:
    """Training run and its resources on the cluster."""

    config: ModelConfig
    recipe: Recipe
    places: Places
    every: Every
    workers: int
    cpus: float = 1.0  # per process
    gpu: bool = False  # one per process
    pin: bool = False  # each process to cores of its own
    max_failures: int = 3  # lost processes or nodes since the start; -1 for any number


def run(plan: Plan) -> None:
    """Train on the cluster to which `ray.init` connected. All files must be in folders that every node can access.

    Raises: TrainingError for a number of processes that cannot share an update; Ray's error after too many failures.
    """
    processes_for(plan.workers, plan.recipe.micro_batches, plan.workers)
    TorchTrainer(
        _work,
        train_loop_config={"plan": plan},
        torch_config=TorchConfig(backend="gloo", timeout_s=int(MEET_S)),
        scaling_config=ScalingConfig(
            num_workers=plan.workers,
            use_gpu=plan.gpu,
            resources_per_worker={"CPU": plan.cpus, **({"GPU": 1} if plan.gpu else {})},
            placement_strategy="SPREAD",
        ),
        run_config=RunConfig(
            name=f"{plan.places.out.stem}.ray",
            storage_path=str(plan.places.out.parent.resolve()),
            failure_config=FailureConfig(max_failures=plan.max_failures),
        ),
    ).fit()


def _work(given: dict[str, Plan]) -> None:
    """Work of one process, whose process group Ray has set up; after a failure all resume from the last snapshot."""
    plan = given["plan"]
    place = Place.of(os.environ)
    device = "cuda" if plan.gpu else "cpu"
    train(
        plan.config, plan.recipe, plan.places, place=place, device=device, every=plan.every, pin=plan.pin, announce=_say
    )


def _say(line: str) -> None:
    """Print a line and flush it; Ray forwards it to the machine where the run was started."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(
    *,
    manifest: Annotated[list[Path], typer.Option(help="Training recordings, JSON lines; repeatable.")],
    out: Annotated[Path, typer.Option(help="Checkpoint to write, in a folder that every node can access.")],
    workers: Annotated[int, typer.Option(help="Processes: 1, 2, 4, … up to the recipe's micro-batches.")],
    recipe: Annotated[Path, typer.Option(help="Recipe, JSON.")] = RECIPES / "small.json",
    init: Annotated[Path | None, typer.Option(help="Checkpoint to start from.")] = None,
    teacher: Annotated[list[Path] | None, typer.Option(help="Checkpoint for distillation; repeatable.")] = None,
    validation: Annotated[list[Path] | None, typer.Option(help="Held-out recordings; repeatable.")] = None,
    noise: Annotated[list[Path] | None, typer.Option(help="Noise and room responses; repeatable.")] = None,
    cache: Annotated[Path, typer.Option(help="Folder of each node's decoded audio.")] = Path("build/audio"),
    address: Annotated[str, typer.Option(help="Address of the Ray cluster; `local` starts one here.")] = "auto",
    cpus: Annotated[float, typer.Option(help="CPUs per process.")] = 1.0,
    gpu: Annotated[bool, typer.Option("--gpu", help="Use one GPU per process.")] = False,
    pin: Annotated[bool, typer.Option("--pin", help="Give each process cores of its own.")] = False,
    max_failures: Annotated[int, typer.Option(help="Lost processes or nodes before giving up; -1: no limit.")] = 3,
) -> None:
    """Train on a Ray cluster. The same command resumes from the last snapshot."""
    config, chosen = read_recipe(recipe)
    files = Places(
        [path.resolve() for path in manifest],
        [path.resolve() for path in validation or []],
        [path.resolve() for path in noise or []],
        out.resolve(),
        cache.resolve(),
        init.resolve() if init is not None else None,
        teachers=[path.resolve() for path in teacher or []],
    )
    ray.init(address=None if address == "local" else address, include_dashboard=False, logging_level=logging.WARNING)
    run(Plan(config, chosen, files, Every(), workers, cpus=cpus, gpu=gpu, pin=pin, max_failures=max_failures))
    ray.shutdown()


if __name__ == "__main__":
    typer.run(main)
