"""Totals of the streams of a trial, by kind, and their times to resume."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from loadtest.generator.latencies import Latencies
from tutti_asr_lab.trials.streams import Outcome

MAX_PROBLEMS = 20


class StreamFigures(msgspec.Struct, frozen=True):
    """Totals of the streams of one kind; counts unless a unit is named."""

    streams: int
    finished: int
    equal: int  # word for word
    interrupted: int  # streams that lost a connection
    reconnections: int
    by_ticket: int  # resumed exactly where they were
    by_replay: int  # replayed from the last final
    before_ticket: int  # reconnections before the first ticket: replayed, or nothing had been sent
    refused_tickets: dict[str, int]
    closes: dict[int, int]  # codes other than 1000
    refusals: dict[int, int]  # HTTP statuses
    replayed_s: float
    lost_s: float
    problems: tuple[str, ...] = ()

    def line(self, name: str) -> str:
        """Return the totals as a line of a page."""
        closes = ", ".join(f"{count} by {code}" for code, count in self.closes.items()) or "none"
        text = f"{name} streams: {self.streams}, {self.finished} finished, {self.equal} equal word for word, "
        text += f"{self.interrupted} lost a connection ({closes}); "
        text += f"{self.by_ticket} times resumed by ticket, {self.by_replay} from the last final, "
        return text + f"{self.replayed_s:g} s sent again, {self.lost_s:g} s lost."


def figures(outcomes: Sequence[Outcome], references: Mapping[str, str]) -> StreamFigures:
    """Total the streams of one kind. `references`: each audio's text without a fault."""
    all_events = [outcome.events for outcome in outcomes]
    return StreamFigures(
        streams=len(outcomes),
        finished=sum(outcome.finished for outcome in outcomes),
        equal=sum(outcome.finished and outcome.text == references[outcome.audio.name] for outcome in outcomes),
        interrupted=sum(bool(outcome.lost_at) for outcome in outcomes),
        reconnections=sum(events.reconnects for events in all_events),
        by_ticket=sum(events.resumed for events in all_events),
        by_replay=sum(events.replayed for events in all_events),
        before_ticket=sum(outcome.before_ticket for outcome in outcomes),
        refused_tickets=dict(Counter(code for events in all_events for code in events.refused_tickets)),
        closes=dict(sorted(Counter(code for outcome in outcomes for code in outcome.closes).items())),
        refusals=dict(sorted(Counter(status for outcome in outcomes for status in outcome.statuses).items())),
        replayed_s=round(sum(events.replayed_s for events in all_events), 3),
        # Plain streams lose the audio after their end; only `judge` decides whether that counts.
        lost_s=round(sum(outcome.lost_s for outcome in outcomes), 3),
        problems=tuple(sorted({outcome.problem for outcome in outcomes if outcome.problem})[:MAX_PROBLEMS]),
    )


def resume_times(outcomes: Iterable[Outcome]) -> Latencies:
    """Return the times from detecting a loss to resuming the stream."""
    return _added(seconds for outcome in outcomes for seconds in outcome.events.resume_s)


def caught_up_times(outcomes: Iterable[Outcome]) -> Latencies:
    """Return the times from detecting a loss to sending all audio."""
    return _added(seconds for outcome in outcomes for seconds in outcome.events.caught_up_s)


def since(outcomes: Iterable[Outcome], fault_at: float) -> Latencies:
    """Return the times from the fault to the next connection, of each stream that lost its connection."""
    firsts = ([at for at in outcome.connected_at if at > fault_at] for outcome in outcomes if outcome.lost_at)
    return _added(min(ats) - fault_at for ats in firsts if ats)


def _added(seconds: Iterable[float]) -> Latencies:
    found = Latencies()
    for value in seconds:
        found.add(value)
    return found
