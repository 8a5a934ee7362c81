"""`python -m tutti_asr_lab.benchmarks.gpu run|samples`: measure, and write `gpu.json`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tutti_asr_lab.benchmarks.gpu import records, runner

RESULTS = Path(__file__).parents[4] / "loadtest" / "results"
DRY_FOLDER = Path("build/gpu-dry")  # not loadtest/results: a dry run measures nothing


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    options = _parser().parse_args(arguments)
    return int(options.work(options))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tutti_asr_lab.benchmarks.gpu", description=__doc__)
    commands = parser.add_subparsers(required=True)
    run = commands.add_parser("run", help="measure")
    run.add_argument("--sections", default="", help="sections to measure, with commas; all by default")
    run.add_argument("--dry", action="store_true", help="run all code with tiny sizes on a CPU, to test it")
    run.add_argument("--folder", type=Path, default=None, help="folder for gpu.json")
    run.add_argument("--commit", default="", help="commit to record if this folder is not a checkout")
    run.set_defaults(work=_run)
    samples = commands.add_parser(
        "samples", help="decode the shipped recordings to arrays, for a GPU host without soundfile"
    )
    samples.set_defaults(work=_samples)
    section = commands.add_parser("section")  # of the processes that `run` starts
    section.add_argument("name")
    section.add_argument("seconds", type=float)
    section.add_argument("device")
    section.add_argument("--dry", action="store_true")
    section.set_defaults(work=lambda o: runner.run_section(o.name, o.seconds, o.device, dry=o.dry))
    return parser


def _run(options: argparse.Namespace) -> int:
    import torch

    if not options.dry and not torch.cuda.is_available():
        print("tutti_asr_lab.benchmarks.gpu: torch finds no GPU; use --dry to test on a CPU", file=sys.stderr)  # noqa: T201
        return 1
    folder = options.folder or (DRY_FOLDER if options.dry else RESULTS)
    chosen = options.sections.split(",") if options.sections else [*runner.SECTIONS]
    settings = runner.Settings(folder / records.NAME, "cpu" if options.dry else "cuda", options.dry, options.commit)
    runner.run(settings, {name: runner.SECTIONS[name] for name in chosen})
    return 0


def _samples(_options: argparse.Namespace) -> int:
    from tutti_asr_lab.benchmarks.gpu.sections.recordings import SAMPLES, write_samples

    print(f"wrote {write_samples()} recordings to {SAMPLES}")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
