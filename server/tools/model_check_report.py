"""The document of `tutti model check` as lines of text: a name and a finding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from model.attention_config import ATTENTION_ARCHITECTURE
from model.config import OWN_ARCHITECTURE

Document = dict[str, Any]
OWN_KINDS = (OWN_ARCHITECTURE, ATTENTION_ARCHITECTURE)
MB = 1e6
NAME_WIDTH = 16


def lines(document: Document) -> Iterator[str]:
    """Yield all lines, problems last."""
    rows = [*_facts(document["model"]), *_rows(document["rows"]), *_speed(document["speed"])]
    rows += _compiled(document)
    if "audio" in document:
        rows += _audio(document["audio"])
    yield from (f"{name:{NAME_WIDTH}} {text}" for name, text in rows)
    yield from (f"{'wrong':{NAME_WIDTH}} {text}" for text in document["wrong"])


def _facts(model: Document) -> Iterator[tuple[str, str]]:
    languages = f", {', '.join(model['languages'])}" if model["languages"] else ""
    yield "model", f"{model['name']} ({model['version']}){languages}"
    yield "kind", f"{model['kind']}, {model['precision']}"
    window, shift = f"window {model['window_ms']:g} ms", f"shift {model['shift_ms']:g} ms"
    if model["context_ms"]:
        window += f" with {model['context_ms']:g} ms of earlier audio, which every step computes again"
    yield "audio", f"{model['sample_rate']} Hz, {window}, {shift}, output frames of {model['frame_ms']:g} ms"
    latency = f"at most {model['latency_ms']:g} ms from a sound until the step that decodes it has its audio"
    yield "latency", latency if model["kind"] in OWN_KINDS else f"{latency}, due to the window"
    yield "symbols", f"{model['symbols']}: {model['spelling']}"
    drop = "; drop_words_in_noise = true in a file of models drops them" if model["words_in_noise"] == "kept" else ""
    yield "words in noise", model["words_in_noise"] + drop
    yield (
        "size",
        f"{model['file_bytes'] / MB:.1f} MB of files, {model['state_bytes'] / 1024:.1f} KiB of state per stream",
    )
    first = "" if model["kind"] in OWN_KINDS else "; a first load compares and compiles, later ones do not"
    yield "load", f"{model['load_s']:.1f} s{first}"


def _rows(rows: Document) -> Iterator[tuple[str, str]]:
    if rows["one_row"]:
        yield "rows", "independent: the graph has one row, so streams are run one at a time"
        return
    bits, tokens = _sizes(rows["equal_bits"], same=False), _sizes(rows["equal_tokens"], same=False)
    sizes = _sizes(rows["equal_bits"], same=True)
    if sizes:
        yield "rows", f"in batches of {sizes} bit-identical to alone"
    if bits:
        largest = f"outputs differ by at most {rows['largest_difference']:.1e}"
        yield "", f"in batches of {bits} not bit-identical, {largest}; --reproducible runs rows one at a time"
        yield "", f"different symbols in batches of {tokens}" if tokens else "the same symbols in all batches"
    yield from _too_large(rows["left_out"], "above this model's largest batch")


def _too_large(sizes: Sequence[int], reason: str) -> Iterator[tuple[str, str]]:
    if sizes:
        yield "", f"not measured in batches of {', '.join(map(str, sizes))}: {reason}"


def _sizes(equal: Mapping[int, bool], *, same: bool) -> str:
    return ", ".join(str(size) for size, one in equal.items() if one is same)


def _speed(speed: Document) -> Iterator[tuple[str, str]]:
    name = "speed"
    for rows, milliseconds in speed["batch_ms"].items():
        yield name, f"batch of {rows}: {milliseconds:.1f} ms, real-time factor {speed['real_time_factor'][rows]:.4f}"
        name = ""
    yield from _too_large(speed["left_out"], f"this model's largest batch is {speed['largest_batch']}")
    if speed["undivided"]:
        yield "threads", f"1: batches are not divided among threads, because {speed['undivided']}"
    else:
        yield "threads", f"{speed['threads']}"
    objective = f"for results within {speed['objective_ms']:g} ms"
    yield "live streams", f"about {speed['live_streams']} on this machine {objective}, by the server's estimate"


def _compiled(document: Document) -> Iterator[tuple[str, str]]:
    name = "compiled step"
    if "compiled_step" in document:
        yield name, _verdict(document["compiled_step"])
    if "compiled_search" in document:
        search = document["compiled_search"]
        yield "", "decoder and joiner: " + ("compiled" if search["applied"] else f"as published, {search['reason']}")
    if "as_published" in document:
        now = document["speed"]["batch_ms"]
        for rows, milliseconds in document["as_published"]["batch_ms"].items():
            yield "", f"batch of {rows}: {milliseconds:.1f} ms as published, {now[rows]:.1f} ms compiled"
    if "int8" in document:
        yield from _int8(document["int8"])


def _verdict(verdict: Document) -> str:
    largest = verdict["largest_difference"]
    difference = "not finite" if largest is None else f"{largest:.1e}" if largest else "0"
    if verdict["applied"]:
        return f"runs, largest difference {difference} in floats"
    suffix = f"; largest difference {difference}" if largest is None or largest > 0 else ""
    return f"none: {verdict['reason']}{suffix}"


def _int8(report: Document) -> Iterator[tuple[str, str]]:
    products = f"{report['products']} of {report['of']} products, {len(report['left_out'])} left in floats"
    yield "int8", f"{products}; scales from {report['seconds']:.0f} s of audio"
    equal, differing = report["equal_symbols"], report["wer_to_floats"]
    if report["words"]:
        yield "", f"symbols {equal:.2%} equal to those in floats, word error rate to their text {differing:.2%}"
    else:
        yield "", "not compared with floats: the calibration's recordings had no words"
    if "wer_floats" in report:
        floats, integers = report["wer_floats"]["wer"], report["wer_int8"]["wer"]
        yield "", f"word error rate to the transcripts {floats:.2%} in floats, {integers:.2%} in 8-bit integers"


def _audio(audio: Document) -> Iterator[tuple[str, str]]:
    yield "text", audio["text"] or "(none)"
    sherpa = audio["sherpa"]
    if "left_out" in sherpa:
        yield "sherpa-onnx", f"not compared: {sherpa['left_out']}"
    elif sherpa["equal"]:
        yield "sherpa-onnx", f"{sherpa['version']}: the same {sherpa['tokens']} tokens"
    else:
        first = sherpa["first_difference"]
        theirs, ours = _token(first["theirs"]), _token(first["ours"])
        difference = f"token {first['place']} is {theirs} in sherpa-onnx, {ours} here"
        yield "sherpa-onnx", f"{sherpa['version']}: {difference}"


def _token(token: str | None) -> str:
    return "missing" if token is None else repr(token)
