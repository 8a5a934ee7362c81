// The persistent GRU kernel under emulation, as a library: one call is one launch.

#include "emulation.h"
#include "gru_body.h"

static void kernel(void *arguments) { run(*static_cast<const Arguments *>(arguments)); }

extern "C" int launch(const void *weights, const float *bias, const half_bits *gates, const half_bits *x_in, half_bits *x_out,
                      half_bits *slab, const int *read, const int *write, const int *rows, unsigned *workspace, int frames,
                      int bucket, const emulation::Schedule *schedule) {
    Arguments arguments{static_cast<const Quad *>(weights), bias, gates, x_in, x_out, slab, read, write, rows, workspace, frames, bucket};
    return emulation::run(HIDDEN / UNITS, 32 * WARPS, sizeof(SharedLayout), kernel, &arguments, *schedule);
}

extern "C" long shared_bytes() { return sizeof(SharedLayout); }
extern "C" long workspace_words() { return BUFFERS_AT + 2l * BUFFER_WORDS; }
