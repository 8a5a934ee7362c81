"""Digits that count together although other words stand between them: a number that is read out in groups. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

RUN_S = 30.0  # longest pause between two numbers of a run
GROUP = 3  # digits of a group: what follows one belongs to the number that is read out
FIRST_DIGITS = 4  # of single digits and pairs, no more than these are shown before a run is known to be a number
MAX_DIGITS = 64  # kept of a run


@dataclass(slots=True)
class DigitRun:
    """Digits of one channel that count together."""

    digits: str = ""
    starts_s: list[float] = field(default_factory=list)  # of its numbers
    end_s: float = -math.inf
    others: int = 0  # other words since its last number
    known: bool = False  # it has a group, or more than `FIRST_DIGITS` digits: what follows belongs to it

    def add(self, digits: str, size: int, start_s: float, end_s: float, most_others: int) -> bool | None:
        """Add the digits of a number; return whether it is masked, None if it does not belong to this run.

        `size`: all digits of this number, with those of earlier segments. `most_others`: words before a short number
        that belongs to the run.
        """
        belongs = start_s - self.end_s < RUN_S and (self.others <= most_others or (self.known and size >= GROUP))
        if not belongs:
            if size < GROUP and self.recent(start_s):
                return None  # "two people" ends no run of groups
            self.digits, self.starts_s, self.known = "", [], False
        masked = belongs and (self.known or len(self.digits + digits) > FIRST_DIGITS)
        self.digits = (self.digits + digits)[-MAX_DIGITS:]
        self.known = self.known or size >= GROUP or len(self.digits) > FIRST_DIGITS
        self.starts_s = [*self.starts_s, start_s][-MAX_DIGITS:]
        self.end_s, self.others = end_s, 0
        return masked

    def recent(self, start_s: float) -> bool:
        """Whether it is known to be a number that may go on at this time."""
        return self.known and start_s - self.end_s < RUN_S
