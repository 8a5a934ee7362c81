"""Panels of the dashboard and their queries, as data."""

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
    """One graph. `unit` is Grafana's name of the unit; `line` is a limit to draw."""

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
    """Return PromQL for a quantile of a histogram."""
    return f"histogram_quantile({share}, sum by ({by}, le) (rate({metric}_bucket{{{INSTANCES}}}[{RATE}])))"


def rate(metric: str, by: str = "instance", only: str = "") -> str:
    """Return PromQL for events per second."""
    return f"sum by ({by}) (rate({metric}{{{INSTANCES}{only}}}[{RATE}]))"


def gauge(metric: str, by: str = "instance") -> str:
    """Return PromQL for a gauge."""
    return f"sum by ({by}) ({metric}{{{INSTANCES}}})"


MODEL = "instance, model"  # for metrics that differ by model


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
                "From the last sample of a result until its frame is written. The objective is p98 below 100 ms.",
                "s",
                _both("tutti_result_latency_seconds"),
                line=0.1,
            ),
            Panel(
                "Where the time goes, p98",
                "Parts of a result's latency, in order. They add up to the latency; their quantiles only nearly so.",
                "s",
                tuple(Query(quantile(0.98, f"tutti_{part}_seconds", by="job"), name) for part, name in STAGES),
            ),
            Panel(
                "Where the time goes, p50",
                "The same parts at the median.",
                "s",
                tuple(Query(quantile(0.5, f"tutti_{part}_seconds", by="job"), name) for part, name in STAGES),
            ),
            Panel(
                "Model step and search, p98",
                "By model: one batch in the model, decoding its results, the second pass over a finished segment.",
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
                "From Finalize, the end of the stream or an endpoint until the final text is written.",
                "s",
                _both("tutti_finalize_latency_seconds"),
            ),
            Panel(
                "Time to final",
                "From the audio of a final's last word, as recognized, until the final is written. "
                "It contains the silence until the client's Finalize, or until the endpoint.",
                "s",
                _both("tutti_time_to_final_seconds"),
            ),
            Panel(
                "Delay of words, p50",
                "From the audio of a word's end, as recognized, until it is first shown, marked as stable, and final.",
                "s",
                (Query(quantile(0.5, "tutti_word_delay_seconds", by="instance, kind"), "{{kind}} {{instance}}"),),
            ),
            Panel(
                "First interim",
                "From the first audio to the first words. Includes silence before the speech.",
                "s",
                _both("tutti_time_to_first_interim_seconds"),
            ),
            Panel(
                "Streams that ended",
                "Streams per second by outcome. Watch `error` and `idle_timeout`.",
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
                "Open live channels, the limit, and the estimated capacity at the current mix of models.",
                "short",
                (
                    Query(gauge("tutti_sessions_active"), "open {{instance}}"),
                    Query(gauge("tutti_sessions_max"), "limit {{instance}}"),
                    Query(gauge("tutti_estimated_session_capacity"), "estimate {{instance}}"),
                ),
            ),
            Panel(
                "Streams by model",
                "Slots in use, including uploads; the replica's capacity for this model alone; the reserve.",
                "short",
                (
                    Query(gauge("tutti_state_pool_slots_used", by=MODEL), "open {{instance}} {{model}}"),
                    Query(gauge("tutti_model_session_capacity", by=MODEL), "alone {{instance}} {{model}}"),
                    Query(gauge("tutti_reserved_sessions", by=MODEL), "held back {{instance}} {{model}}"),
                ),
            ),
            Panel(
                "Uploads",
                "Bodies being received, recordings waiting for free capacity, and those being recognized.",
                "short",
                (Query(gauge("tutti_uploads_active", by="stage"), "{{stage}}"),),
                stacked=True,
            ),
            Panel(
                "Slower than at the start",
                "Time of batches relative to the warm-up: 2 if other processes take half of the machine.",
                "short",
                (
                    Query(gauge("tutti_slowdown_ratio", by=MODEL), "slowdown {{instance}} {{model}}"),
                    Query(gauge("tutti_uploads_wait", by=MODEL), "uploads wait {{instance}} {{model}}"),
                ),
                line=2.0,
            ),
            Panel(
                "Refused",
                "Refused handshakes and uploads per second, by reason.",
                "reqps",
                (Query(rate("tutti_handshakes_rejected_total", by="reason"), "{{reason}}"),),
                stacked=True,
            ),
            Panel(
                "Rows of a batch",
                "Mean and p98. Batches grow with the load.",
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
                "Sampled. Grows without bound only if the model is too slow for the incoming audio.",
                "short",
                (Query(gauge("tutti_batch_queue_depth", by=MODEL), "{{instance}} {{model}}"),),
            ),
            Panel(
                "Audio not yet recognized, p98",
                "Seconds of received but unprocessed audio of a stream.",
                "s",
                (Query(quantile(0.98, "tutti_audio_backlog_seconds"), "{{instance}}"),),
            ),
            Panel(
                "Audio a second",
                "Seconds of audio received per second, by encoding. Uploads are many times faster than live streams.",
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
                "Delay of a timer. Above 50 ms something blocks the event loop, and every stream waits for it.",
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
                "Resident memory. Follows the number of streams and is flat at a steady load.",
                "bytes",
                (Query(gauge("process_resident_memory_bytes"), "{{instance}}"),),
            ),
            Panel(
                "GPU memory",
                "As reported by the allocator; 0 without a GPU.",
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
                "Ready: 1 while new streams are accepted. Draining: streams still open on a draining replica.",
                "short",
                (
                    Query(gauge("tutti_ready"), "ready {{instance}}"),
                    Query(gauge("tutti_sessions_draining"), "draining {{instance}}"),
                ),
            ),
        ),
    ),
)
