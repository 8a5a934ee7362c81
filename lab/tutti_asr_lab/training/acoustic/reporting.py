"""Progress report of a run: a line every few updates, rows in its CSV file, a plot after each validation."""

from __future__ import annotations

import importlib.util
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean

from model.torch_network.network import Network
from tutti_asr_lab.training.acoustic.curves import weight_exponents
from tutti_asr_lab.training.acoustic.curves.figures import RATES, Figures, Row
from tutti_asr_lab.training.acoustic.curves.learning_curves import draw
from tutti_asr_lab.training.acoustic.trainer import Progress
from tutti_asr_lab.training.acoustic.validation import Validation

LINE_EVERY = 50  # updates
LINE_EVERY_S = 30.0


class Reporting:
    """Reports of the leading process; owns the CSV file."""

    def __init__(
        self,
        out: Path,
        sources: Sequence[str],
        *,
        last_update: int,
        done: int,
        audio_s: float,
        peak_flops: float,
        announce: Callable[[str], None],
    ) -> None:
        """Open the report for checkpoint `out`: `done` of `last_update` updates are done, with `audio_s` of audio.

        `peak_flops`: operations per second of the products of all processes together.
        """
        self.out, self.last_update, self.announce = out, last_update, announce
        self.figures = Figures(out.with_suffix(".csv"), sources, done)
        self._before_s = self.figures.elapsed_s
        self._began = self._row_at = time.monotonic()
        self._first = done
        self._peak_flops = peak_flops
        self._audio_s = audio_s  # at the last row
        self._since: list[Progress] = []  # updates after the last row

    def progress(self, progress: Progress) -> None:
        """Add the result of an update; write a line and a row if due."""
        self._since.append(progress)
        late = time.monotonic() - self._row_at > LINE_EVERY_S
        if progress.update % LINE_EVERY == 0 or progress.update == self.last_update or progress.stopping or late:
            self._add_row()

    def validation(self, found: Validation) -> None:
        """Report a validation: a line, a row and the plot."""
        figures = found.to_dict()
        row = {**self._latest(), "validation_loss": figures["loss"]}
        for column in RATES:
            rate = column.removeprefix("greedy_")
            row |= {column: figures[rate]}
            row |= {f"{column} {source}": rates[rate] for source, rates in figures["by_source"].items()}
        self.figures.add(row)
        by_source = ", ".join(f"{source} {rates['wer']:.3f}" for source, rates in figures["by_source"].items())
        self.announce(
            f"update {row['update']:.0f} validation loss {found.loss:.3f} greedy WER {figures['wer']:.3f} ({by_source})"
        )
        if _can_draw():
            draw(self.figures.rows, self.out.with_suffix(".png"))
        self._row_at = time.monotonic()  # excludes the validation from the next row's speed

    def weights(self, network: Network) -> None:
        """Report the weights by binary exponent: a CSV file and a plot."""
        counted = weight_exponents.exponents(network.parameters())
        weight_exponents.write(counted, self.out.with_suffix(".weights.csv"))
        if _can_draw():
            weight_exponents.draw(counted, self.out.with_suffix(".weights.png"))

    def _add_row(self) -> None:
        now, latest = time.monotonic(), self._since[-1]
        elapsed_s, updates = now - self._row_at, len(self._since)
        losses = [p.loss for p in self._since if math.isfinite(p.loss)]
        audio_s = latest.audio_s - self._audio_s
        spent = {
            f"{part}_s": round(fmean(getattr(p.spent, part) for p in self._since), 4)
            for part in ("audio", "compute", "wait", "exchange", "step")
        }
        flops = sum(p.flops for p in self._since) / elapsed_s
        row: Row = {
            "update": latest.update,
            "epoch": latest.epoch,
            "heard_h": round(latest.audio_s / 3600, 3),
            "elapsed_s": round(self._before_s + now - self._began, 1),
            "loss": round(fmean(losses), 5) if losses else math.nan,
            "learning_rate": latest.learning_rate,
            "gradient_norm": round(latest.norm, 5),
            "real_time_factor": round(audio_s / elapsed_s, 1),
            "gflops": round(flops / 1e9, 3),
            "share_of_peak": round(flops / self._peak_flops, 4),
            **spent,
        }
        self.figures.add(row)
        self._row_at, self._audio_s = now, latest.audio_s
        self._since.clear()
        left_s = (self.last_update - latest.update) * (now - self._began) / max(1, latest.update - self._first)
        self.announce(
            f"update {latest.update}/{self.last_update} epoch {latest.epoch} loss {row['loss']:.3f} "
            f"rate {latest.learning_rate:.2g} audio {row['heard_h']:.1f} h, {row['real_time_factor']:.0f} x real time, "
            f"{elapsed_s / updates:.2f} s per update, {row['share_of_peak']:.1%} of peak, {left_s / 60:.0f} min left"
        )

    def _latest(self) -> Row:
        """Update, epoch, audio and time of the last update, for the row of a validation."""
        if self._since:
            self._add_row()
        last = self.figures.rows[-1] if self.figures.rows else {"update": self._first, "epoch": 0, "heard_h": 0.0}
        kept = ("update", "epoch", "heard_h")
        elapsed_s = round(self._before_s + time.monotonic() - self._began, 1)
        return {**{name: last[name] for name in kept if name in last}, "elapsed_s": elapsed_s}


def _can_draw() -> bool:
    """Whether matplotlib is installed, a part of the extra `training`."""
    return importlib.util.find_spec("matplotlib") is not None
