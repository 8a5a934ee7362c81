"""Files of a transducer's networks, and what decides their form, so that each process loads the same ones.

Where the encoder has a compiled step, the networks are compiled too if their structure allows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from weakref import WeakValueDictionary

from model.ctc.tokens import Tokens
from model.published.compiled.transducer.checking import compiled_networks
from model.published.contracts import Contract
from model.published.files import PublishedFiles
from model.published.graphs.metadata import Graph
from model.published.reading import check_vocabulary, network_of
from model.published.scales import Scales
from model.published.transducer.networks import Recurrent, Stateless, TransducerNetworks


@dataclass(frozen=True, slots=True)
class NetworkForm:
    """How networks run: compiled if possible, with these scales; `in_floats`: weights in 8 bits are read as floats."""

    compiled: bool = False
    scales: Scales | None = field(default=None, compare=False)  # which the model's digest covers
    in_floats: bool = False


@dataclass(frozen=True, slots=True)
class TransducerFiles:
    """Where the networks of a transducer are: can be pickled, so that another process loads them too.

    `recurrent`: layers and width of NeMo's prediction network. `digest` is that of the model, which covers the form.
    """

    decoder: Path
    joiner: Path
    tokens: Tokens
    width: int  # of a frame
    recurrent: tuple[int, int] | None
    digest: str
    form: NetworkForm = NetworkForm()

    def load(self) -> TransducerNetworks:
        """Return the networks, those that this process has loaded already if there are any, else on the CPU.

        Raises: PublishedModelError.
        """
        return _LOADED.get(self) or self.of(Graph.load(self.decoder), Graph.load(self.joiner))[0]

    def of(self, decoder: Graph, joiner: Graph) -> tuple[TransducerNetworks, str]:
        """Check these graphs and return the networks, for `load` too, and why they are not compiled if they could be.

        Raises: PublishedModelError.
        """
        published: Stateless | Recurrent
        if self.recurrent is None:
            published = Stateless.of(decoder, joiner, self.tokens, self.width)
        else:
            published = Recurrent.of(self.recurrent, decoder, joiner, self.tokens, self.width)
        networks: TransducerNetworks = published
        reason = ""
        if self.form.compiled:
            networks, reason = compiled_networks(published, self.form.scales, in_floats=self.form.in_floats)
        _LOADED[self] = networks
        return networks, reason


def symbols_and_files(
    graphs: Mapping[str, Graph],
    files: PublishedFiles,
    digest: str,
    contract: Contract,
    width: int,
    *,
    form: NetworkForm,
) -> tuple[Tokens, TransducerFiles | None]:
    """Return the symbols, and the other files of a transducer; `width`: outputs of a frame.

    Raises: PublishedModelError.
    """
    graph = network_of(graphs)
    if "model" in graphs:
        tokens = Tokens.read(files.tokens, width)
        check_vocabulary(graph, contract, width)
        return tokens, None
    decoder, joiner = graphs["decoder"], graphs["joiner"]
    size = graph.number("vocab_size") + 1 if contract.recurrent else decoder.number("vocab_size")
    tokens = Tokens.read(files.tokens, size)
    lstm = (graph.number("pred_rnn_layers"), graph.number("pred_hidden")) if contract.recurrent else None
    return tokens, TransducerFiles(decoder.path, joiner.path, tokens, width, lstm, digest, form)


_LOADED: WeakValueDictionary[TransducerFiles, TransducerNetworks] = WeakValueDictionary()
"""Networks of this process that are in use, so that a model and its decoder share them."""
