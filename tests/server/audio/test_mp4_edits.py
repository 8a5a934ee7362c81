"""MP4 cut by its edit list, as voice memos are cut without encoding them again: what was cut is left out."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from server.errors import NotTaken
from tests.support.audio.media_files import by_ffmpeg, index_first, likeness, speech, streamed, uploaded

RATE, PRIMING = 16_000, 1_024  # samples that the encoder puts before the audio


def edited(body: bytes, *edits: tuple[int, int]) -> bytes:
    """Return the file with this edit list: of each part milliseconds and the sample at which it begins."""
    at = body.index(b"elst") - 4
    listed = b"elst" + struct.pack(">II", 0, len(edits))
    listed += b"".join(struct.pack(">IiI", ms, start, 0x10000) for ms, start in edits)
    old_bytes = int.from_bytes(body[at : at + 4], "big")
    more = 4 + len(listed) - old_bytes
    grown = bytearray(body[:at] + struct.pack(">I", 4 + len(listed)) + listed + body[at + old_bytes :])
    places = [body.rindex(name, 0, at) - 4 for name in (b"edts", b"trak", b"moov")]
    if body.index(b"moov") < body.index(b"mdat"):
        table = grown.index(b"stco") + 8
        count = int.from_bytes(grown[table : table + 4], "big")
        places += [table + 4 * chunk for chunk in range(1, count + 1)]
    for place in places:
        (number,) = struct.unpack_from(">I", grown, place)
        struct.pack_into(">I", grown, place, number + more)
    return bytes(grown)


FIRST, LAST = index_first("aac", RATE, 1), by_ffmpeg("mp4", "aac", RATE, 1)  # by where the index is
WHOLE = speech()[:, 0]


@pytest.mark.parametrize("body", [FIRST, LAST], ids=["index first", "index last"])
@pytest.mark.parametrize(("from_ms", "to_ms"), [(0, 1_000), (500, 1_500), (500, 2_000), (0, 2_000)])
def test_only_what_is_not_cut_is_decoded(body: bytes, from_ms: int, to_ms: int) -> None:
    cut = edited(body, (to_ms - from_ms, PRIMING + from_ms * RATE // 1_000))
    kept = WHOLE[from_ms * RATE // 1_000 : to_ms * RATE // 1_000]
    result = uploaded(cut)[0][:, 0]
    assert abs(len(result) - len(kept)) <= PRIMING  # FFmpeg cuts whole packets
    assert likeness(result[: len(kept)], kept[: len(result)])[0] > 0.99
    if body is FIRST:
        assert len(result) == len(kept)
        assert np.array_equal(streamed([cut[:900], cut[900:]])[:, 0], result)


@pytest.mark.parametrize("body", [FIRST, LAST], ids=["index first", "index last"])
def test_all_parts_are_decoded_one_after_another(body: bytes) -> None:
    second = PRIMING * 25  # parts begin with a packet
    cut = edited(body, (512, PRIMING), (256, second))
    result = uploaded(cut)[0][:, 0]
    assert abs(len(result) - 768 * 16) <= 3 * PRIMING
    kept = np.concatenate([WHOLE[: 512 * 16], WHOLE[second - PRIMING :][: 256 * 16]])
    assert likeness(result[: 480 * 16], kept[: 480 * 16])[0] > 0.99


def test_several_parts_are_refused_live() -> None:
    with pytest.raises(NotTaken, match="cut to 2 parts"):
        streamed([edited(FIRST, (512, PRIMING), (256, 20_480))])


def test_a_length_of_zero_is_unknown() -> None:
    assert len(uploaded(edited(FIRST, (0, PRIMING)))[0]) >= len(WHOLE)
