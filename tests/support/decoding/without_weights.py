"""Decoding in a process that must not read a model's weights, which another process has."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from batching.thread.step_token import StepToken
from model.ctc.interface import Decoder, LogProbs
from model.ctc.words import Word
from model.facts import ModelFacts
from server.configuration.models_file import ModelEntry
from server.models.engine_source import EnginePlan
from server.models.loading import LoadedModel, ModelCard, load_decoders
from server.settings import Settings


class NoEngines:
    """The engines of a model whose steps are not computed here."""

    gpu = None

    def maker(self, plan: EnginePlan, step_token: StepToken | None, clock: Callable[[], float]) -> NoReturn:
        raise AssertionError(f"no engine is made here: {plan.name}")

    def warn_of_dependent_rows(self, reproducible: bool) -> None:
        """Do nothing: the process with the weights checks them."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """What a model with its decoders shows, and the words of one stream."""

    name: str
    languages: tuple[str, ...]
    card: ModelCard
    digests: dict[str, str]  # of its decoders
    words: tuple[Word, ...]


def decoded(model: LoadedModel, outputs: LogProbs) -> Decoded:
    """Decode the outputs (T, …) of one stream."""
    decoders: dict[str, Decoder] = {"": model.decoder, **model.grammars}
    decoders |= {f"{finals} {name}".rstrip(): decoder for (finals, name), decoder in model.passes.items()}
    state: Any = model.decoder.start(model.facts.config.delay_frames)
    model.decoder.advance([state], outputs[None])
    digests = {name: decoder.digest for name, decoder in decoders.items()}
    return Decoded(model.name, model.languages, model.card, digests, model.decoder.take(state))


def other_process() -> ProcessPoolExecutor:
    """Return a pool of one process, which has nothing of this one's memory."""
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))


def decoded_without(
    weights: Iterable[Path],
    facts: ModelFacts,
    outputs: LogProbs,
    pool: ProcessPoolExecutor,
    *,
    entry: ModelEntry | None,
    settings: Settings,
) -> Decoded:
    """Decode in a pool's process, which fails if it opens one of the files `weights`, or loads torch.

    Only for a transducer it may load graphs: its prediction network and its joiner.
    """
    return pool.submit(_decoded, facts, entry, settings, outputs, {f"{path}" for path in weights}).result()


def _decoded(
    facts: ModelFacts, entry: ModelEntry | None, settings: Settings, outputs: LogProbs, weights: set[str]
) -> Decoded:
    sys.addaudithook(_refusing(weights))
    modules: dict[str, Any] = sys.modules
    if facts.transducer is None:
        modules["onnxruntime"] = None  # an import fails
    elif modules.get("onnxruntime", ...) is None:
        del modules["onnxruntime"]
    found = decoded(load_decoders(facts, entry, settings, NoEngines()), outputs)
    assert "torch" not in sys.modules
    return found


def _refusing(weights: set[str]) -> Callable[[str, tuple[Any, ...]], None]:
    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and f"{arguments[0]}" in weights:
            raise AssertionError(f"{arguments[0]} is opened")

    return hook
