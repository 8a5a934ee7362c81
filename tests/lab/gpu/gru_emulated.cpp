// The persistent GRU kernel under emulation, as a library: one call is one launch.

#include "emulation.h"
#include "gru_body.h"

static void kernel(void *arguments) { run(*static_cast<const Arguments *>(arguments)); }

extern "C" int launch(const void *weights, const float *bias, const half_bits *gates, const half_bits *x_in, half_bits *x_out,
                      half_bits *slab, const int *read, const int *write, const int *rows, unsigned *workspace, int frames,
                      int bucket, const char *ahead0, long ahead0_bytes, const char *ahead1, long ahead1_bytes,
                      const emulation::Schedule *schedule) {
    Arguments arguments{static_cast<const Quad *>(weights), bias, gates, x_in, x_out, slab, read, write, rows, workspace, frames, bucket,
                        {ahead0, ahead1}, {ahead0_bytes, ahead1_bytes}};
    return emulation::run(HIDDEN / UNITS, 32 * WARPS, sizeof(SharedLayout), kernel, &arguments, *schedule);
}

// Bytes of [from, from + bytes) that the last launch has prefetched; a byte that was prefetched twice counts twice.
extern "C" long prefetched(const char *from, long bytes) {
    long total = 0;
    for (const auto &range : emulation::machine.prefetched) {
        const char *first = range.from < from ? from : range.from;
        const char *end = range.from + range.bytes < from + bytes ? range.from + range.bytes : from + bytes;
        if (first < end) total += end - first;
    }
    return total;
}

extern "C" long shared_bytes() { return sizeof(SharedLayout); }
extern "C" long workspace_words() { return BUFFERS_AT + 2l * BUFFER_WORDS; }
