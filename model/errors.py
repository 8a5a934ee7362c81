"""Errors of models and their inputs, grouped by who must act.

ModelError
├── CheckpointError     the operator: the file is missing, damaged, or of another format version
├── PublishedModelError the operator: a published model is damaged, incomplete, or of a kind that is not served
├── VocabularyError     the operator: the beam search cannot spell the symbols of a model; greedy decoding can
├── MissingPackage      the operator: an optional package is not installed; the message has the command
├── PrecisionError      the operator: this device cannot run the precision that was asked for
├── ManifestError       the author of the manifest: a line cannot be read
├── AudioError          the owner of the recording: the file cannot be decoded
├── LanguageModelError  the operator: a language model is missing or damaged, or a text for one is of no use
├── LexiconError        the operator: the pronunciations of words are missing, damaged, or in phones that are not heard
├── SynthesizerError    the operator: a speech synthesizer is missing or fails
└── TrainingError       the operator: the run cannot start or go on

DeviceLost              the operator: the GPU is gone. No `Exception`: what contains a failed step lets it pass
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

DISTRIBUTION = "tutti-asr"
ROOT = Path(__file__).parents[1]


def install_hint(extras: str) -> str:
    """The command that adds optional packages, `torch` or `torch,otel`, to this installation: a checkout or a wheel."""
    target = f"-e '.[{extras}]'" if (ROOT / "pyproject.toml").exists() else f"'{DISTRIBUTION}[{extras}]'"
    return f"pip install {target}"


class ModelError(Exception):
    """Base of everything that this package raises on purpose."""


class CheckpointError(ModelError):
    """A checkpoint is missing, damaged, or written by another format version."""


class PublishedModelError(ModelError):
    """A published model cannot be served; the message names the file and what is wrong with it."""


class VocabularyError(ModelError):
    """The beam search cannot spell a model's symbols; the message names one of them. Greedy decoding takes any."""


class MissingPackage(ModelError, ImportError):
    """An optional package is not installed; the message says what needs it, and how to install it."""


class PrecisionError(ModelError):
    """The precision or device is not available on this machine."""


class ManifestError(ModelError):
    """A manifest cannot be read; the message names file and line."""


class AudioError(ModelError):
    """An audio file cannot be decoded; the message names the file."""


class LanguageModelError(ModelError):
    """A language model or the text for one cannot be used; the message names the file, and the line if there is one."""


class LexiconError(ModelError):
    """Pronunciations cannot be used; the message names the file, the line if there is one, and what to do."""


class DeviceLost(BaseException):
    """The device itself is lost, and no step can run on it any more: the process must end."""


class TrainingError(ModelError):
    """A training run cannot start or go on."""


class SynthesizerError(ModelError):
    """A speech synthesizer is missing or fails; the message names the Debian package."""


def require(package: str, extra: str, purpose: str) -> None:
    """Check, without an import, that an optional package is installed. Raises: MissingPackage."""
    if find_spec(package) is None:
        raise MissingPackage(f"{purpose} needs {package}: {install_hint(extra)}")
