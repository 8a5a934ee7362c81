"""The mean of two checkpoints of one run: `python -m model.training.average EARLIER LATER --share 0.6 --out OUT`.

What two stages learned differently in detail cancels out. Source: Wortsman et al. 2022, arXiv:2203.05482; here the
later run started from the earlier checkpoint, so that both lie in one valley.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from model import checkpoint
from model.errors import TrainingError
from model.network import Network


def average(earlier: Network, later: Network, share: float) -> Network:
    """Weigh `later` by `share` in 0..1 and `earlier` by the rest. Raises: TrainingError if the sizes differ."""
    if not 0 <= share <= 1:
        raise TrainingError(f"a share of {share} is not between 0 and 1")
    ours, theirs = earlier.state_dict(), later.state_dict()
    if {k: v.shape for k, v in ours.items()} != {k: v.shape for k, v in theirs.items()}:
        raise TrainingError("the two checkpoints have other sizes")
    facts = {**later.config.training, "averaged": {"with": earlier.config.training.get("updates"), "share": share}}
    mean = Network(dataclasses.replace(later.config, training=facts))
    mean.load_state_dict({name: (1 - share) * ours[name] + share * theirs[name] for name in ours})
    return mean


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("earlier", type=Path)
    parser.add_argument("later", type=Path)
    parser.add_argument("--share", type=float, default=0.6, help="weight of the later one")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    earlier, later = (checkpoint.load(path)[0] for path in (options.earlier, options.later))
    checkpoint.save(average(earlier, later, options.share), options.out)


if __name__ == "__main__":
    main()
