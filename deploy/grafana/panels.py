"""Rows of the dashboard's panels with their queries, as data. Knows no layout."""

from __future__ import annotations

from dataclasses import dataclass

INSTANCES = 'instance=~"$instance"'
RATE = "$__rate_interval"


@dataclass(frozen=True, slots=True)
class Query:
    """One PromQL expression and the legend of its series."""

    expr: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One graph. `unit` is Grafana's name of it; `line` a limit to draw."""

    title: str
    about: str
    unit: str
    queries: tuple[Query, ...]
    line: float | None = None
    stacked: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """A titled row of panels."""

    title: str
    panels: tuple[Panel, ...]


def quantile(share: float, metric: str, by: str = "instance") -> str:
    """PromQL of a quantile of a histogram."""
    return f"histogram_quantile({share}, sum by ({by}, le) (rate({metric}_bucket{{{INSTANCES}}}[{RATE}])))"


def rate(metric: str, by: str = "instance", only: str = "") -> str:
    """PromQL of events a second."""
    return f"sum by ({by}) (rate({metric}{{{INSTANCES}{only}}}[{RATE}]))"


def gauge(metric: str, by: str = "instance") -> str:
    """PromQL of a gauge."""
    return f"sum by ({by}) ({metric}{{{INSTANCES}}})"


MODEL = "instance, model"  # where the models of a replica differ


def _both(metric: str) -> tuple[Query, ...]:
    return (Query(quantile(0.5, metric), "p50 {{instance}}"), Query(quantile(0.98, metric), "p98 {{instance}}"))


STAGES = (
    ("queue_wait", "waiting for a batch"),
    ("batch_inference", "model step"),
    ("handover", "handed to the event loop"),
    ("decode", "search and text"),
    ("write", "written to the socket"),
)

ROWS = (
    Row(
        "Are callers well served?",
        (
            Panel(
                "Result latency",
                "From the last sample that a result needs to its frame written. The objective is p98 below 100 ms.",
                "s",
                _both("tutti_result_latency_seconds"),
                line=0.1,
            ),
            Panel(
                "Where the time goes, p98",
                "The parts of a result's latency, in their order. They add up to it, quantiles only nearly so.",
                "s",
                tuple(Query(quantile(0.98, f"tutti_{part}_seconds", by="job"), name) for part, name in STAGES),
            ),
            Panel(
                "Where the time goes, p50",
                "As beside, for the middle result.",
                "s",
                tuple(Query(quantile(0.5, f"tutti_{part}_seconds", by="job"), name) for part, name in STAGES),
            ),
            Panel(
                "Model step and search, p98",
                "Of each model: one batch in the model, decoding its results, the second decode of an ended segment.",
                "s",
                (
                    Query(quantile(0.98, "tutti_batch_inference_seconds", by=MODEL), "step {{instance}} {{model}}"),
                    Query(quantile(0.98, "tutti_decode_seconds", by=MODEL), "search {{instance}} {{model}}"),
                    Query(quantile(0.98, "tutti_second_decode_seconds", by=MODEL), "second {{instance}} {{model}}"),
                    Query(
                        quantile(0.98, "tutti_second_decode_wait_seconds", by=MODEL),
                        "waiting for it {{instance}} {{model}}",
                    ),
                ),
            ),
            Panel(
                "Final text after Finalize or the end",
                "From Finalize, the end of the stream or an endpoint to the final text written.",
                "s",
                _both("tutti_finalize_latency_seconds"),
            ),
            Panel(
                "First interim",
                "From the first audio to the first words; speech that begins late counts against nobody.",
                "s",
                _both("tutti_time_to_first_interim_seconds"),
            ),
            Panel(
                "Streams that ended",
                "How they ended, a second. `error` and `idle_timeout` are worth a look.",
                "cps",
                (Query(rate("tutti_sessions_total", by="outcome"), "{{outcome}}"),),
                stacked=True,
            ),
        ),
    ),
    Row(
        "How full is it?",
        (
            Panel(
                "Streams against capacity",
                "Live channels open, the limit, and the estimate within the objective, at the present mix of models.",
                "short",
                (
                    Query(gauge("tutti_sessions_active"), "open {{instance}}"),
                    Query(gauge("tutti_sessions_max"), "limit {{instance}}"),
                    Query(gauge("tutti_estimated_session_capacity"), "estimate {{instance}}"),
                ),
            ),
            Panel(
                "Streams by model",
                "Slots taken, also by uploads; what the replica could carry of that model alone; what is held back.",
                "short",
                (
                    Query(gauge("tutti_state_pool_slots_used", by=MODEL), "open {{instance}} {{model}}"),
                    Query(gauge("tutti_model_session_capacity", by=MODEL), "alone {{instance}} {{model}}"),
                    Query(gauge("tutti_reserved_sessions", by=MODEL), "held back {{instance}} {{model}}"),
                ),
            ),
            Panel(
                "Uploads",
                "Bodies on their way, recordings that wait until live streams leave room, and those being recognized.",
                "short",
                (Query(gauge("tutti_uploads_active", by="stage"), "{{stage}}"),),
                stacked=True,
            ),
            Panel(
                "Slower than at the start",
                "Time of batches as a multiple of the warm-up's: 2 where others take half of the machine.",
                "short",
                (
                    Query(gauge("tutti_slowdown_ratio", by=MODEL), "slowdown {{instance}} {{model}}"),
                    Query(gauge("tutti_uploads_wait", by=MODEL), "uploads wait {{instance}} {{model}}"),
                ),
                line=2.0,
            ),
            Panel(
                "Refused",
                "Handshakes and uploads that were not taken, a second, by reason.",
                "reqps",
                (Query(rate("tutti_handshakes_rejected_total", by="reason"), "{{reason}}"),),
                stacked=True,
            ),
            Panel(
                "Rows of a batch",
                "Mean and p98. Larger batches are how one machine carries more streams.",
                "short",
                (
                    Query(
                        f"{rate('tutti_batch_rows_total', by=MODEL)} / {rate('tutti_batches_total', by=MODEL)}",
                        "mean {{instance}} {{model}}",
                    ),
                    Query(quantile(0.98, "tutti_batch_size", by=MODEL), "p98 {{instance}} {{model}}"),
                ),
            ),
            Panel(
                "Steps that wait for a batch",
                "Sampled. It grows without bound only when the model is too slow for the audio that comes.",
                "short",
                (Query(gauge("tutti_batch_queue_depth", by=MODEL), "{{instance}} {{model}}"),),
            ),
            Panel(
                "Audio not yet recognised, p98",
                "Seconds of audio that a stream is behind.",
                "s",
                (Query(quantile(0.98, "tutti_audio_backlog_seconds"), "{{instance}}"),),
            ),
            Panel(
                "Audio a second",
                "Seconds of audio that come in each second, by encoding: live streams, and uploads many times faster.",
                "short",
                (Query(rate("tutti_audio_seconds_total", by="encoding"), "{{encoding}}"),),
                stacked=True,
            ),
        ),
    ),
    Row(
        "Is the process well?",
        (
            Panel(
                "Event loop lag",
                "How late a timer fires. Above 50 ms something holds the loop, and every stream waits for it.",
                "s",
                _both("tutti_event_loop_lag_seconds"),
                line=0.05,
            ),
            Panel(
                "Processor",
                "Cores in use.",
                "short",
                (Query(rate("process_cpu_seconds_total", only=',job="tutti"'), "{{instance}}"),),
            ),
            Panel(
                "Memory",
                "Resident. It follows the number of streams and stays flat at a steady load.",
                "bytes",
                (Query(gauge("process_resident_memory_bytes"), "{{instance}}"),),
            ),
            Panel(
                "GPU memory",
                "The allocator's view; 0 without a GPU.",
                "bytes",
                (
                    Query(
                        f"{gauge('tutti_gpu_memory_allocated_bytes')} or 0 * {gauge('tutti_ready')}",
                        "{{instance}}",
                    ),
                ),
            ),
            Panel(
                "Why segments closed",
                "Endpoints, Finalize, the end of streams, and the maximum length.",
                "cps",
                (Query(rate("tutti_endpoints_total", by="reason"), "{{reason}}"),),
                stacked=True,
            ),
            Panel(
                "Ready, and draining",
                "1 while new streams may come; streams still open on a replica that drains.",
                "short",
                (
                    Query(gauge("tutti_ready"), "ready {{instance}}"),
                    Query(gauge("tutti_sessions_draining"), "draining {{instance}}"),
                ),
            ),
        ),
    ),
)
