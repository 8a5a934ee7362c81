"""A second CTC target for training: the phones of the text, predicted from a middle layer. Nothing of it is shipped.

English spelling is irregular, and a few hours of speech do not suffice to learn it together with the sounds; phones
represent the sounds alone. Source of the idea: Fernández et al. 2007 (hierarchical CTC), Sanabria and Metze 2018,
arXiv:1807.06234.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from model.errors import TrainingError
from model.network import Network

STRESS = str.maketrans("", "", "ˈˌ")
_SWITCH = re.compile(r"\([^)]*\)")  # espeak-ng names a language in brackets where it changes to another
SPEAK = ("espeak-ng", "-q", "--ipa", "--sep=_", "-v", "en-us")


@dataclass(frozen=True, slots=True)
class Pronunciations:
    """Phones by word, as indices from 1 into `phones`; 0 is the blank."""

    phones: tuple[str, ...]
    words: Mapping[str, tuple[int, ...]]

    @classmethod
    def of(cls, texts: Iterable[str]) -> Pronunciations:
        """Pronounce every word of the texts with espeak-ng. Raises: TrainingError if it is missing or fails."""
        words = sorted({word for text in texts for word in text.split()})
        spoken = dict(zip(words, _speak(words), strict=True))
        phones = tuple(sorted({phone for sounds in spoken.values() for phone in sounds}))
        index = {phone: number for number, phone in enumerate(phones, 1)}
        return cls(phones, {word: tuple(index[phone] for phone in sounds) for word, sounds in spoken.items()})

    def target(self, text: str) -> list[int]:
        """Phones of a text, without word boundaries."""
        return [phone for word in text.split() for phone in self.words[word]]


def _speak(words: Sequence[str]) -> list[list[str]]:
    if not words:
        return []
    try:
        done = subprocess.run(  # noqa: S603  (fixed arguments)
            SPEAK, input="\n".join(words) + "\n", capture_output=True, text=True, check=True, encoding="utf-8"
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise TrainingError(f"phone targets need espeak-ng (a Debian package): {error}") from error
    lines = done.stdout.splitlines()
    if len(lines) != len(words):
        raise TrainingError(f"espeak-ng pronounced {len(lines)} of {len(words)} words")
    return [[phone for phone in _SWITCH.sub("", line).translate(STRESS).strip().split("_") if phone] for line in lines]


class PhoneHead(nn.Module):
    """Phone logits from the input of the last GRU layer, captured by a hook on the network's forward pass."""

    def __init__(self, network: Network, phones: int) -> None:
        super().__init__()
        self.head = nn.Linear(network.config.hidden, phones + 1)
        self._captured: list[Tensor] = []
        network.norms[-1].register_forward_pre_hook(self._capture)

    def _capture(self, norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if norm.training:
            self._captured.append(inputs[0])

    def logits(self) -> Tensor:
        """(B, T, P + 1) of the forward pass just made; call it once after each."""
        (hidden,) = self._captured  # (B, T, H)
        self._captured.clear()
        logits: Tensor = self.head(hidden)
        return logits
