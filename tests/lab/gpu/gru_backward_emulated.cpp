// The backward pass of the persistent GRU kernel under emulation, as a library: one call is one launch.

#include "emulation.h"
#include "gru_backward_body.h"

static void kernel(void *arguments) { run_backward(*static_cast<const BackwardArguments *>(arguments)); }

extern "C" int launch_backward(const void *weights, const half_bits *factors, const float *outputs, half_bits *products,
                               half_bits *candidates, float *first, unsigned *workspace, int frames, int rows,
                               const emulation::Schedule *schedule) {
    BackwardArguments arguments{static_cast<const Quad *>(weights), factors, outputs, products, candidates, first, workspace, frames, rows};
    return emulation::run(HIDDEN / UNITS, 32 * WARPS, sizeof(BackwardShared), kernel, &arguments, *schedule);
}

extern "C" long shared_bytes() { return sizeof(BackwardShared); }
extern "C" long workspace_words() { return BUFFERS_AT + 2l * 2 * BUFFER_WORDS; }
