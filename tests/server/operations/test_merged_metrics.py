"""Metrics of several processes: the text of one service, and counters that never fall."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from server.operations.loop_metrics import Counters, Gauges, counter, histogram
from server.operations.merged_metrics import Totals, snapshot
from server.operations.metrics import GAUGES, LIVE, Metrics, process_registry

ODD = 'a "b"\\c\nd é'  # escaped in the text format


def merged(snapshots: Iterable[bytes]) -> bytes:
    """The text of these processes as one service."""
    totals = Totals()
    for number, content in enumerate(snapshots):
        totals.take(number, content)
    return totals.exposition()


class Frozen(Collector):
    """What a registry holds now: a second `collect` would find other memory and processor times."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._families = list(registry.collect())

    def collect(self) -> Iterable[Metric]:
        return self._families


def process(streams: int, *, version: str = "1.0", model: str = "en") -> Metrics:
    """The metrics of one process that has had `streams` streams."""
    metrics = Metrics(max_batch=8, max_streams=100)
    metrics.sessions_active["deepgram"].inc(streams)
    metrics.sessions_max.set(300)
    metrics.ready.set(float(streams > 0))
    metrics.loop_tasks.set(7)
    metrics.build_info.labels(version, "", model, "cpu").set(1)
    metrics.sessions.labels("vosk", "completed").inc(streams)
    metrics.audio_bytes.value += 2_560.0 * streams
    metrics.first_interim.observe_all([0.004, 0.2][:streams])
    of_model = metrics.of_model(model)
    of_model.capacity.set(400 + streams)
    of_model.slots_used.set(streams)
    of_model.queue_depth.value = streams
    of_model.batches.value += streams
    of_model.batch_size.observe(min(streams, 8))
    return metrics


def values(text: bytes, name: str) -> dict[tuple[str, ...], float]:
    """The samples of a series by the values of their labels, those in the order of their names."""
    families = text_string_to_metric_families(text.decode())
    return {tuple(s.labels.values()): s.value for family in families for s in family.samples if s.name == name}


def test_the_text_of_one_snapshot_is_that_of_its_process() -> None:
    frozen = Frozen(process(2, model=ODD).registry)
    totals = Totals()
    totals.take(1, snapshot(frozen))
    assert merged([snapshot(frozen)]) == totals.exposition() == generate_latest(frozen)


def test_three_processes_add_up_to_one_service() -> None:
    frozen = [Frozen(process(streams, version=f"1.{streams}").registry) for streams in (1, 2, 5)]
    text = merged(map(snapshot, frozen))
    families = {family.name: family for family in text_string_to_metric_families(text.decode())}
    alone = {family.name: family for family in text_string_to_metric_families(generate_latest(frozen[0]).decode())}
    assert list(families) == list(alone), "the same families in the same order"
    for name, family in alone.items():
        assert (families[name].type, families[name].documentation) == (family.type, family.documentation)
    assert values(text, "tutti_sessions_total")[("completed", "vosk")] == 8
    assert values(text, "tutti_audio_bytes_received_total") == {(): 8 * 2_560}
    assert values(text, "tutti_batches_total") == {("en",): 8}
    assert values(text, "tutti_sessions_active") == {(name,): 8.0 * (name == "deepgram") for name in LIVE}
    assert values(text, "tutti_time_to_first_interim_seconds_count") == {(): 5}
    assert values(text, "tutti_time_to_first_interim_seconds_sum")[()] == pytest.approx(3 * 0.004 + 2 * 0.2)
    buckets = values(text, "tutti_batch_size_bucket")
    assert buckets == {("1.0", "en"): 1, ("2.0", "en"): 2, ("4.0", "en"): 2, ("8.0", "en"): 3, ("+Inf", "en"): 3}


def test_gauges_are_combined_as_the_table_says() -> None:
    text = merged(snapshot(process(streams, version=f"1.{streams}").registry) for streams in (2, 5, 0))
    assert values(text, "tutti_sessions_max") == {(): 300}
    assert values(text, "tutti_model_session_capacity") == {("en",): 405}
    assert values(text, "tutti_batch_queue_depth") == {("en",): 5}
    assert values(text, "tutti_state_pool_slots") == {("en",): 100}
    assert values(text, "tutti_state_pool_slots_used") == {("en",): 7}
    assert values(text, "tutti_event_loop_tasks") == {(): 21}
    assert values(text, "tutti_ready") == {(): 0}
    assert values(text, "tutti_build_info") == {("", "cpu", "en", "1.2"): 1}, "one series, that of the first process"
    assert len(values(text, "python_info")) == 1
    alone = values(snapshot_text(process_registry()), "process_start_time_seconds")
    assert values(text, "process_start_time_seconds") == alone


def snapshot_text(registry: CollectorRegistry) -> bytes:
    return merged([snapshot(registry)])


def test_every_gauge_says_how_it_is_combined() -> None:
    metrics = process(1)
    gauges = {family.name for family in metrics.registry.collect() if family.type == "gauge"}
    assert gauges == set(GAUGES), "add new gauges to `GAUGES` in server/operations/metrics.py"
    assert {family.type for family in metrics.registry.collect()} == {"counter", "gauge", "histogram"}


def test_no_series_has_a_timestamp_or_an_exemplar() -> None:
    """A snapshot would lose them."""
    samples = [sample for family in process(1).registry.collect() for sample in family.samples]
    assert samples
    assert all(sample.timestamp is None and sample.exemplar is None for sample in samples)


def test_a_process_without_streams_changes_only_metrics_of_processes() -> None:
    front, engine = process(3).registry, process_registry()
    assert {family.name.split("_")[0] for family in engine.collect()} == {"process", "python"}
    text, alone = merged([snapshot(engine), snapshot(front)]), snapshot_text(front)
    assert values(text, "tutti_ready") == values(alone, "tutti_ready") == {(): 1}
    resident = "process_resident_memory_bytes"
    assert values(text, resident)[()] > 1.5 * values(alone, resident)[()]


def test_the_end_of_a_process_keeps_its_counts_and_drops_its_gauges() -> None:
    totals = Totals()
    for number, streams in ((1, 2), (2, 5)):
        totals.take(number, snapshot(process(streams).registry))
    before = totals.exposition()
    totals.end(1)
    after = totals.exposition()
    for name in ("tutti_sessions_total", "tutti_batches_total", "tutti_batch_size_bucket", "tutti_batch_size_sum"):
        assert values(after, name) == values(before, name), name
    assert values(after, "tutti_sessions_active")[("deepgram",)] == 5
    assert values(after, "tutti_event_loop_tasks") == {(): 7}


def test_a_snapshot_that_arrives_after_the_end_is_not_counted_again() -> None:
    totals, late = Totals(), snapshot(process(2).registry)
    totals.take(1, late)
    totals.end(1)
    totals.take(1, late)
    totals.end(1)
    totals.end(2)  # ended before its first snapshot
    assert values(totals.exposition(), "tutti_batches_total") == {("en",): 2}


class Small:
    """A process with one metric of each type."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.bytes = counter(self.registry, "x_bytes", "text")
        self.rows = Counters(self.registry, "x_rows", "text", "model")
        self.depth = Gauges(self.registry, "tutti_batch_queue_depth", "text", "model")
        self.wait = histogram(self.registry, "x_seconds", "text", (0.1, 1.0))

    def work(self, amount: int) -> None:
        self.bytes.value += amount
        self.rows.labels(str(amount % 3)).value += 1
        self.depth.labels("en").value = amount
        self.wait.observe(amount / 10)


actions = st.lists(
    st.tuples(st.sampled_from(["work", "take", "end", "replace"]), st.integers(0, 2), st.integers(0, 20)), max_size=40
)


@given(actions)
def test_no_counter_falls_whatever_processes_do(steps: list[tuple[str, int, int]]) -> None:
    totals, places, last = Totals(), {place: (place, Small()) for place in range(3)}, dict[tuple[str, str], float]()
    for at, (action, place, amount) in enumerate(steps):
        number, small = places[place]
        match action:
            case "work":
                small.work(amount)
            case "take":
                totals.take(number, snapshot(small.registry))
            case "end":
                totals.end(number)
            case "replace":
                totals.end(number)
                places[place] = (3 + at, Small())
        families = text_string_to_metric_families(totals.exposition().decode())
        found = {(s.name, str(s.labels)): s.value for f in families if f.type != "gauge" for s in f.samples}
        assert all(found[series] >= value for series, value in last.items())
        last = found


@pytest.mark.parametrize("value", [True, 3, 2.5])
def test_a_gauge_that_no_table_lists_is_summed_whatever_kind_of_number_it_has(value: float) -> None:
    registry = CollectorRegistry()
    Gauges(registry, "x_open", "text", "model").labels("en").value = value
    assert values(merged([snapshot(registry)] * 2), "x_open") == {("en",): 2.0 * value}
