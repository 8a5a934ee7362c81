"""Deep Speech 2's deployment as a setting for the simulator. What the paper says, what is inferred, and how.

Said (https://arxiv.org/abs/1512.02595, section 7.1, of Batch Dispatch with 10 streams): median latency 44 ms, p98
70 ms; more than half of the work in batches of at least 2; over 90 % of the batches at most 4. For 20 and 30 streams
the paper has pictures alone, and no number of them is used here.

Not said: how long a batch takes, and how much audio a client sends at a time. Inferred here, for what the paper says:

* A batch of up to 10 takes the same time, because its kernel is bound by reading the weights there (section 7.2
  compares kernels for batches of 1 to 10); beyond, time grows in proportion, which is the pessimistic guess.
* That time is 29.3 ms: eager dispatch on a busy device has a median latency of one and a half batches.
* A message holds 120 ms: of the lengths tried in steps of 20 ms, the shortest at which both statements on batch sizes
  hold.

p98 was not fitted. It comes out at two batches, 59 ms; the paper's 70 ms include what is not simulated, such as
decoding.
`tests/batching/test_simulation_deep_speech.py` holds all of this.
"""

from __future__ import annotations

from batching.simulation.calibration import Calibration, Overheads, Provenance
from batching.simulation.service_table import ServiceTable

STREAMS = (10, 20, 30)
PUBLISHED_MS = {"median": 44.0, "p98": 70.0}
"""Of 10 streams; the paper's introduction has 67 ms for p98."""

BATCH_S, FLAT_ROWS, MESSAGE_S = PUBLISHED_MS["median"] * 1e-3 / 1.5, 10, 0.12


def deep_speech_2() -> Calibration:
    """The inferred device, without any cost around the model."""
    table = ServiceTable.constant({1: BATCH_S, FLAT_ROWS: BATCH_S, 2 * FLAT_ROWS: 2 * BATCH_S})
    hardware = "inferred from Deep Speech 2, section 7.1: not measured"
    return Calibration(Provenance(hardware=hardware, model="Deep Speech 2"), MESSAGE_S, table, Overheads())
