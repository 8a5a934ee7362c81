"""`python -m tutti_asr_lab.benchmarks.gpu run|render|merge|samples`: measure, and write `gpu.json` and `gpu.md`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tutti_asr_lab.benchmarks.gpu import records, report
from tutti_asr_lab.benchmarks.gpu.runner import PARTS, Runner, Settings
from tutti_asr_lab.benchmarks.gpu.sections import child

RESULTS = Path(__file__).parents[4] / "loadtest" / "results"
DOCUMENT = Path(__file__).parents[4] / "docs" / "gpu.md"
DRY_FOLDER = Path("build/gpu-dry")  # not loadtest/results: a dry run measures nothing
PART_S = 480.0


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    options = _parser().parse_args(arguments)
    return int(options.work(options))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tutti_asr_lab.benchmarks.gpu", description=__doc__)
    commands = parser.add_subparsers(required=True)
    run = commands.add_parser("run", help="measure one part, or all parts")
    run.add_argument("--part", default="all", choices=[*PARTS, "all"])
    run.add_argument("--sections", default="", help="sections to measure instead of a part, with commas")
    run.add_argument("--dry", action="store_true", help="run all code with tiny sizes on a CPU, to test it")
    run.add_argument("--brief", action="store_true", help="fewer sizes and shorter levels: half a minute per section")
    run.add_argument("--folder", type=Path, default=None, help="folder for gpu.json and gpu.md")
    run.add_argument("--device", default="auto", choices=["auto", "cuda", "cpu"])
    run.add_argument("--seconds", type=float, default=PART_S, help="time limit of each part")
    run.add_argument("--commit", default="", help="commit to record if this folder is not a checkout")
    run.set_defaults(work=_run)
    render = commands.add_parser("render", help="write gpu.md and the table of docs/gpu.md from gpu.json")
    render.add_argument("--folder", type=Path, default=RESULTS)
    render.set_defaults(work=_render)
    merge = commands.add_parser("merge", help="merge several gpu.json files, oldest first, and render")
    merge.add_argument("documents", nargs="+", type=Path)
    merge.add_argument("--folder", type=Path, default=RESULTS)
    merge.set_defaults(work=_merge)
    samples = commands.add_parser(
        "samples", help="decode the shipped recordings to arrays, for a GPU host without soundfile"
    )
    samples.set_defaults(work=_samples)
    _hidden(commands)
    return parser


def _hidden(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the internal commands of the processes that `run` starts."""
    facts = commands.add_parser("facts")
    facts.add_argument("--device", required=True)
    facts.add_argument("--commit", default="")
    facts.set_defaults(work=_facts)
    compiled = commands.add_parser("compile")
    compiled.add_argument("--network", required=True)
    compiled.add_argument("--rows", type=int, required=True)
    compiled.add_argument("--device", required=True)
    compiled.set_defaults(work=_compile)
    section = commands.add_parser("section")
    section.add_argument("name")
    section.add_argument("--first", type=int, default=0)
    section.add_argument("--seconds", type=float, required=True)
    section.add_argument("--device", required=True)
    section.add_argument("--dry", action="store_true")
    section.add_argument("--brief", action="store_true")
    section.set_defaults(work=lambda o: child.main(o.name, o.first, o.seconds, o.device, dry=o.dry, brief=o.brief))


def _run(options: argparse.Namespace) -> int:
    device = _device("cpu" if options.dry else options.device)
    if device == "cpu" and not options.dry:
        print("tutti_asr_lab.benchmarks.gpu: torch finds no GPU; use --dry to test on a CPU", file=sys.stderr)  # noqa: T201
        return 1
    folder = options.folder or (DRY_FOLDER if options.dry else RESULTS)
    settings = Settings(folder / records.NAME, device, options.seconds, options.dry, options.commit, options.brief)
    chosen = PARTS if options.part == "all" else {options.part: PARTS[options.part]}
    if options.sections:
        every = {name: seconds for part in PARTS.values() for name, seconds in part.items()}
        chosen = {"chosen": {name: every[name] for name in options.sections.split(",")}}
    sections = [name for part in chosen.values() for name in part]
    for part, content in chosen.items():
        results = Runner(settings).run(part, content)
    report.write(results, folder)
    print(report.tables(results, sections))  # noqa: T201 - the last lines are the tables
    return 0


def _device(asked: str) -> str:
    if asked != "auto":
        return asked
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _render(options: argparse.Namespace) -> int:
    results = records.read(options.folder / records.NAME)
    print(f"wrote {report.write(results, options.folder)}")  # noqa: T201
    if options.folder == RESULTS:
        report.refresh(results, DOCUMENT)
        print(f"wrote the figures of {DOCUMENT}")  # noqa: T201
    return 0


def _merge(options: argparse.Namespace) -> int:
    whole = records.merged(records.read(path) for path in options.documents)
    if any(run.dry for run in whole.runs) and options.folder == RESULTS:
        print("tutti_asr_lab.benchmarks.gpu: dry runs cannot be merged into the results", file=sys.stderr)  # noqa: T201
        return 1
    records.write(whole, options.folder / records.NAME)
    return _render(options)


def _samples(_options: argparse.Namespace) -> int:
    from tutti_asr_lab.benchmarks.gpu.sections.recordings import SAMPLES, write_samples

    print(f"wrote {write_samples()} recordings to {SAMPLES}")  # noqa: T201
    return 0


def _compile(options: argparse.Namespace) -> int:
    import torch

    from tutti_asr_lab.benchmarks.gpu.sections.compile import run_once

    run_once(options.network, options.rows, torch.device(options.device))
    return 0


def _facts(options: argparse.Namespace) -> int:
    import torch

    from tutti_asr_lab.benchmarks.gpu.machine import describe

    print(child.FACTS + json.dumps(describe(torch.device(options.device), options.commit)))  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
