"""Properties of the probe models: states matter, and sizes are those of released models."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.networks.probes import KINDS, fastconformer, zipformer
from tests.support.networks.probes.calibration import open_session, run_windows, windows_of
from tests.support.networks.probes.graph import Graph
from tests.support.networks.probes.transducers import histories, scores
from tests.support.networks.published import probe_of

LONG = ["zipformer-chunk-32", "nemo-1040"]
WITH_STATES = [kind for kind in KINDS if kind != "nemo-buffered-transducer"]


def choices(probe, outputs):
    """Return the best symbol of each frame of row 0; for a transducer the best token after one history per frame."""
    if probe.kind == "nemo-transducer":
        outputs = [output.transpose(0, 2, 1) for output in outputs]
    frames = np.concatenate(outputs, axis=1)[0]
    if "ctc" in probe.kind:
        return frames.argmax(1)
    decoder, joiner = (open_session(probe.files[role]) for role in ("decoder", "joiner"))
    found = scores(joiner, frames, histories(decoder, probe.blank, probe.vocabulary))
    return np.delete(found, probe.blank, axis=1).argmax(1)


@pytest.mark.parametrize("name", [*WITH_STATES, *LONG])
def test_each_state_affects_the_output(name):
    probe = probe_of(name)
    session = open_session(probe.model)
    windows = windows_of(probe.kind, probe.window, probe.shift)
    usual = choices(probe, run_windows(session, probe.states, windows))
    for state, _ in probe.states:
        other = choices(probe, run_windows(session, probe.states, windows, zeroed=[state]))
        assert (other != usual).mean() > 0.02, state


@pytest.mark.parametrize(
    ("spec", "write", "millions", "nodes"),
    [
        (zipformer.Zipformer(**zipformer.SIZES["22m"]), zipformer.write_ctc, 22.5, 3_840),
        (fastconformer.FastConformer(**fastconformer.SIZES["26m"]), fastconformer.write_ctc, 26.3, 2_057),
    ],
    ids=["zipformer-22m", "fastconformer-26m"],
)
def test_exported_probes_have_the_numbers_of_weights_and_nodes_of_released_models(spec, write, millions, nodes):
    graph = Graph("probe", 0)
    write(graph, spec, 500)
    tables = (2 * spec.positions - 1) * (
        spec.hidden if isinstance(spec, fastconformer.FastConformer) else spec.position_size
    )
    weights = sum(array.size for array in graph.initializers.values()) - tables
    assert weights / 1e6 == pytest.approx(millions, rel=0.01)
    assert len(graph.nodes) == pytest.approx(nodes, rel=0.02)
