"""What the files of a published model say: kind and contract, description, languages.

All errors in them are detected here, before the first stream: a missing key, symbols that do not fit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from model.errors import PublishedModelError
from model.published import contracts
from model.published.contracts import KINDS, Contract, check_batches, for_batches_of, recognize
from model.published.files import PublishedFiles
from model.published.graphs.metadata import Graph
from model.published.timing import PublishedDescription

_CODES = ("en", "zh", "ru", "de", "es", "fr", "ko", "ja", "it", "pt", "vi", "th", "id", "ar", "bn")
_NAMES = {
    "english": "en",
    "chinese": "zh",
    "russian": "ru",
    "german": "de",
    "spanish": "es",
    "french": "fr",
    "korean": "ko",
    "japanese": "ja",
    "italian": "it",
    "portuguese": "pt",
    "vietnamese": "vi",
    "cantonese": "yue",
}


def network_of(graphs: Mapping[str, Graph]) -> Graph:
    """Return the graph that computes frames: the model, or the encoder."""
    return graphs["model"] if "model" in graphs else graphs["encoder"]


def contract_for(graphs: Mapping[str, Graph]) -> Contract:
    """Return the contract of the model or encoder; decoder and joiner take batches. Raises: PublishedModelError."""
    contract = contract_of_network(network_of(graphs), encoder="encoder" in graphs)
    for role in ("decoder", "joiner") if contract.kind == "zipformer2-transducer" else ():
        check_batches(graphs[role])
    return contract


def contract_of_network(graph: Graph, *, encoder: bool) -> Contract:
    """Return the contract of a model, or of the encoder of a transducer. Raises: PublishedModelError."""
    if not encoder:
        return for_batches_of(graph, KINDS[recognize(graph)][1](graph))
    if "streaming_model_type" in graph.metadata:
        return for_batches_of(graph, contracts.nemo_buffered(graph))
    if any(key.startswith("cache_last_") or key == "normalize_type" for key in graph.metadata):
        return for_batches_of(graph, contracts.nemo(graph, "nemo-transducer"))
    _check_encoder_kind(graph)
    return for_batches_of(graph, contracts.zipformer2(graph, "zipformer2-transducer"))


def _check_encoder_kind(encoder: Graph) -> None:
    kind = encoder.metadata.get("model_type")
    if kind is None:
        raise PublishedModelError(f"{encoder.path.name} has no 'model_type' in its metadata")
    if kind != "zipformer2":
        raise PublishedModelError(
            f"{encoder.path.name}: transducers of kind {kind!r} are not supported, only those of zipformer2 and NeMo"
        )


def check_vocabulary(graph: Graph, contract: Contract, size: int) -> None:
    """Check the size of NeMo's vocabulary. Raises: PublishedModelError."""
    if contract.kind == "nemo-ctc" and graph.number("vocab_size") + 1 != size:  # without the blank
        raise PublishedModelError(
            f"{graph.path.name}: 'vocab_size' in the metadata is {graph.metadata['vocab_size']}, "
            f"but the model has {size} outputs"
        )


def description_of(files: PublishedFiles, contract: Contract, frames: int, digest: str) -> PublishedDescription:
    """Return the description of a model with this many frames per window."""
    raw = contract.fbank is None
    return PublishedDescription(
        name=files.folder.resolve().name,
        version=digest[:12],
        architecture=contract.kind,
        languages=languages_of(files.folder.resolve().name) if contract.prompts is None else contract.prompts.languages,
        sample_rate=contract.sample_rate,
        window=contract.window - contract.left,
        shift=contract.shift,
        frames_per_step=frames,
        frame_s=contract.shift * 0.01 / frames if raw else contract.subsampling * 0.01,
        hop=contract.sample_rate // 100,
        raw=raw,
        left=contract.left,
    )


def languages_of(name: str) -> tuple[str, ...]:
    """Return the languages in a release name such as `sherpa-onnx-streaming-zipformer-en-2023-06-26`; else ()."""
    if not name.startswith("sherpa-onnx"):
        return ()
    parts = re.split(r"[-_.]", name.lower())
    return tuple(dict.fromkeys(_NAMES.get(part, part) for part in parts if part in _NAMES or part in _CODES))
