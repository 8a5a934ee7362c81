"""How each command of a shell block is tested: run by `test_commands_here.py`, run by another test, or only checked.

A command belongs to the one pattern of its document that its text begins with. A document with a new command fails
`test_commands.py` until the command has a place here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from tests.support.documents.blocks import Command, commands


@dataclass(frozen=True, slots=True)
class Here:
    """Run as it stands by `tests/documents/test_commands_here.py`."""


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Run by another test: the file, and texts in it that show so."""

    test: str
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NotHere:
    """Only read by the program's own parser, or checked for the files that it names; and why."""

    why: str


@dataclass(frozen=True, slots=True)
class Same:
    """The same command as in another document, where it is run."""

    document: str


Class = Here | Elsewhere | NotHere | Same

HERE = Here()
ENGINE = NotHere("needs a container engine")
CLUSTER = NotHere("needs a cluster")
INSTALLS = NotHere("installs packages")
ROOT_ALONE = NotHere("changes the machine, as root")
SHELL = NotHere("prepares the commands after it")
GPU = NotHere("needs a GPU")
TESTS = NotHere("runs tests of this repository")

DEMO = Elsewhere("tests/loadtest/programs/test_demo.py", ("run_demo",))
MICROPHONE = Elsewhere("tests/clients/test_microphone.py", ('"-m", "server.cli", "listen"',))
DOCTOR = Elsewhere("tests/server/tools/test_doctor.py", ('"doctor"',))
FETCH = Elsewhere("tests/server/tools/fetch/test_model_fetch.py", ("fetch(NAME)",))
CHECK = Elsewhere("tests/server/tools/test_model_check.py", ('"model", "check"', '"--audio", DEMO'))
SERVES_FILE = Elsewhere("tests/model/published/test_refusals.py", ('"serve", "--model"',))
PUBLISHED = Elsewhere("tests/server/models/test_published_server.py", ("model=model(name)",))
LOADED = Elsewhere("tests/server/models/test_loading_models.py", ('["model", *words, "--url", url]',))
TUNE = Elsewhere("tests/lab/training/language_model/test_lm_tune.py", ('["tune", ',))
RECEIPTS = Elsewhere("tests/server/receipts/test_receipt_commands.py", ('tutti("replay"', 'tutti("replay", tmp_path'))
RECEIPT_KEYS = Elsewhere("tests/server/receipts/test_receipt_commands.py", ('"keys", "receipt"',))
CLIENTS = Elsewhere("tests/ecosystem/test_clients_page.py", ("BLOCKS = BLOCK.findall(PAGE.read_text())",))
LANGUAGE = Elsewhere("tests/server/models/test_new_language.py", ('["bash", "-ec", text]',))
TRAIN = Elsewhere("tests/server/models/test_new_language.py", ('"docs" / "new-language.md"',))
QUANTIZE = Elsewhere("tests/lab/training/quantization/test_quantize_command.py", ('["quantize", ', '"--validation"'))
QUANTIZE_ONNX = Elsewhere("tests/lab/training/published/test_quantize.py", ('["quantize", ', '"--audio"'))
AVERAGING = Elsewhere("tests/lab/training/acoustic/test_averaging.py", ('"--shares"', "main()"))
WHEELS = Elsewhere("tests/deploy/test_wheels.py", ('"-m", "build"',))
LOAD = Elsewhere("tests/loadtest/generator/test_faults_while_loading.py", ("run_loadtest(",))
FORECAST = Elsewhere(
    "tests/lab/planning/test_front_ends.py",
    ("--cores 2,4,8,16,64", "--cores 16 --gpu"),
)
RULERS = Elsewhere("tests/loadtest/rulers/test_rulers.py", ("Ruler.TTFS", "measure(RulerSettings("))
TURNS = Elsewhere("tests/loadtest/rulers/test_turn_takes.py", ("run_turns",))
EARLY = Elsewhere("tests/loadtest/rulers/test_early_end.py", ("EarlyEnd",))
FRONT_ENDS = Elsewhere("tests/server/processes/test_server_of_processes.py", ('("--front-ends", "1", ',))
SECRETS = Elsewhere("tests/deploy/test_readme.py", ('block("sh secrets")',))
RAY = Elsewhere("tests/deploy/test_ray_cluster.py", ("HAProxy", "lose_a_node("))

CLASSES: Mapping[str, Mapping[str, Class]] = {
    "README.md": {
        "make demo": DEMO,
        "make test": TESTS,
        "make serve": HERE,
        "curl ": HERE,
        ".venv/bin/tutti transcribe ": HERE,
        ".venv/bin/tutti listen": MICROPHONE,
        ".venv/bin/tutti model fetch": HERE,
        ".venv/bin/tutti serve --model DIR": SERVES_FILE,
        ".venv/bin/tutti doctor": DOCTOR,
    },
    "SECURITY.md": {"tutti keys new ": HERE, "tutti serve --api-keys-file ": HERE},
    "clients/README.md": {"python -c ": CLIENTS, "tutti transcribe ": CLIENTS, "curl ": CLIENTS},
    "deploy/README.md": {
        "mkdir -p deploy/compose/secrets": SECRETS,
        "key=": SECRETS,
        "printf ": SECRETS,
        "openssl ": SECRETS,
        "echo ": SECRETS,
        "chmod ": SECRETS,
        "cd -": SECRETS,
        "docker ": ENGINE,
        "tutti transcribe ": HERE,
        "export MODELS": SHELL,
        "mkdir -p $MODELS": SHELL,
        "tutti plan ": Elsewhere("tests/deploy/test_readme.py", ("^tutti (plan .*)$",)),
        "kubectl ": CLUSTER,
        "helm install ": Elsewhere("tests/deploy/test_readme.py", ("^helm install ",)),
        "compose=": ENGINE,
        "$compose ": ENGINE,
        "for container ": ENGINE,
    },
    "deploy/ray/README.md": {
        "haproxy ": RAY,
        "export TUTTI_RESUME_KEYS": SHELL,
        "ray start": RAY,
        "python -m deploy.ray --least": RAY,
        "python -m deploy.ray --gpus": GPU,
        "python -m tutti_asr_lab.training.on_ray": Elsewhere(
            "tests/deploy/test_ray_training.py", ("tutti_asr_lab.training.on_ray",)
        ),
    },
    "docs/batch-dispatch.md": {"make bench": Elsewhere("tests/loadtest/programs/test_capacity_program.py", ("run(",))},
    "docs/contact-center.md": {
        "python -": HERE,
        "tutti transcribe ": HERE,
        "curl ": HERE,
        "tutti evaluate ": HERE,
        "TUTTI_TWILIO_AUTH_TOKEN=": HERE,
        "tutti keys new ": HERE,
        "tutti usage ": HERE,
        "tutti keys receipt ": HERE,
        "TUTTI_RECEIPT_KEY_FILE=": HERE,
        "tutti replay ": RECEIPTS,
    },
    "docs/determinism.md": {
        "tutti doctor": Same("README.md"),
        "python -m model.evaluation.digest": HERE,
        "tutti model check DIR": CHECK,
        "python -m pytest ": TESTS,
        "make test-avx2": TESTS,
    },
    "docs/features.md": {
        ".venv/bin/tutti lm train ": Same("docs/fine-tuning.md"),
        ".venv/bin/tutti lm tune ": TUNE,
        ".venv/bin/tutti serve --lm ": Same("docs/fine-tuning.md"),
    },
    "docs/fine-tuning.md": {
        "tutti evaluate ": HERE,
        "tutti train ": TRAIN,
        "python -m tutti_asr_lab.training.acoustic.averaging ": HERE,
        "tutti quantize ": QUANTIZE,
        "tutti serve ": HERE,
        "tutti lm train ": HERE,
        "tutti lm perplexity ": HERE,
        "tutti lm tune ": TUNE,
    },
    "docs/front-ends.md": {
        "tutti serve": HERE,
        "tutti plan --cores ": Elsewhere(
            "tests/lab/planning/test_front_ends.py",
            ("--cores 2,4,8,16,64", "--cores 16 --gpu"),
        ),
    },
    "docs/gpu.md": {
        "pip install ": INSTALLS,
        "tutti doctor --device cuda": GPU,
        "tutti serve --device cuda": GPU,
        "python -m tutti_asr_lab.benchmarks.gpu samples": Elsewhere(
            "tests/lab/benchmarks/gpu/test_dry_run.py", ('main(["samples"])',)
        ),
        "python -m tutti_asr_lab.benchmarks.gpu run": GPU,
    },
    "docs/installing.md": {
        "python -m build ": WHEELS,
        "pipx install ": INSTALLS,
        "uv tool install ": INSTALLS,
        "tutti demo": DEMO,
        "docker ": ENGINE,
    },
    "docs/mandarin.md": {
        "tutti transcribe ": HERE,
        "tutti serve": HERE,
        "tutti evaluate ": HERE,
        "tutti lm train ": HERE,
    },
    "docs/measured.md": {
        ".venv/bin/tutti serve ": HERE,
        ".venv/bin/tutti loadtest --streams 200 ": LOAD,
        "grep ": NotHere("reads a development set that is not part of the repository"),
        ".venv/bin/python -m loadtest.capacity ": Elsewhere(
            "tests/loadtest/programs/test_capacity_program.py", ("vary",)
        ),
    },
    "docs/models.md": {
        "tutti model fetch": Same("README.md"),
        "tutti model fetch sherpa": FETCH,
        "tutti model check ": HERE,
        "tutti serve ": HERE,
        "tutti evaluate ": HERE,
        "tutti model list": LOADED,
        "tutti model load ": LOADED,
        "tutti model unload ": LOADED,
        "tutti quantize DIR ": QUANTIZE_ONNX,
    },
    "docs/new-language.md": {
        "python -m tutti_asr_lab.training.lexicon.table ": LANGUAGE,
        "tutti lm train ": LANGUAGE,
        "tutti synthesize ": LANGUAGE,
        "tutti train ": LANGUAGE,
        "tutti evaluate ": LANGUAGE,
    },
    "docs/own-models.md": {
        "tutti model check DIR": CHECK,
        "tutti serve --model DIR": SERVES_FILE,
        "tutti serve --model en=": PUBLISHED,
        "tutti export DIR": HERE,
    },
    "docs/receipts.md": {
        "tutti ": Same("docs/contact-center.md"),
        "TUTTI_RECEIPT_KEY_FILE=": Same("docs/contact-center.md"),
    },
    "docs/sizing.md": {
        "python3 -m venv ": INSTALLS,
        "install ": ROOT_ALONE,
        "systemctl ": ROOT_ALONE,
        "for port ": ROOT_ALONE,
    },
    "docs/training.md": {
        "tutti train ": TRAIN,
        "export GLOO_SOCKET_IFNAME": SHELL,
        "torchrun ": Elsewhere("tests/lab/training/acoustic/parallel/test_machines.py", ("torchrun(",)),
    },
    "docs/turns.md": {
        "tutti loadtest --ruler early-end": EARLY,
    },
    "docs/usage.md": {"TUTTI_USAGE_LOG=": HERE, "tutti usage ": HERE},
    "docs/voice-agents.md": {
        "tutti serve ": HERE,
        "tutti loadtest --ruler ttfs": RULERS,
        "tutti loadtest --ruler word-delay": RULERS,
    },
    "docs/written-forms.md": {"printf ": HERE, "tutti serve --written-forms ": HERE},
    "lab/tutti_asr_lab/training/recipes/README.md": {
        "lab/tutti_asr_lab/training/recipes/small.sh": Elsewhere(
            "tests/lab/training/test_recipe_scripts.py", ("SCRIPTS",)
        ),
        "DATA=": Elsewhere("tests/lab/training/test_recipe_scripts.py", ("SCRIPTS",)),
    },
    "tests/ecosystem/README.md": {"python tests/ecosystem/environments.py": INSTALLS, "pytest ": TESTS},
}


def patterns_of(command: Command) -> list[str]:
    """Return the patterns of its document that a command begins with."""
    plain = command.plain
    return [pattern for pattern in CLASSES.get(command.document, {}) if plain.startswith(pattern)]


@cache
def placed() -> Mapping[Command, Class]:
    """Return each command with its class, the longest pattern's; commands without one are left out."""
    found = {command: max(patterns_of(command), key=len, default=None) for command in commands()}
    return {command: CLASSES[command.document][name] for command, name in found.items() if name is not None}


def ours(command: Command) -> str:
    """Return the text of a command wherever tutti is installed."""
    return command.plain.removeprefix(".venv/bin/")


def unused() -> list[str]:
    """Return the patterns that no command begins with, or that a longer one takes all commands from."""
    taken = {(command.document, max(found, key=len)) for command in commands() if (found := patterns_of(command))}
    return [
        f"{document}: {pattern}"
        for document, known in CLASSES.items()
        for pattern in known
        if (document, pattern) not in taken
    ]
