// The primitives of layer_body.h in PTX, and its kernels: a whole GRU layer, and a normalisation by itself.

#include "gru.cu"

DEVICE Quad load_quad(const half_bits *from) { return *reinterpret_cast<const Quad *>(from); }
DEVICE void store_quad(half_bits *to, const Quad &q) { *reinterpret_cast<Quad *>(to) = q; }
DEVICE void prefetch_line(const char *from) { asm volatile("prefetch.global.L2 [%0];" ::"l"(from)); }
DEVICE float add_shuffled(float value, int distance) { return value + __shfl_xor_sync(0xffffffffu, value, distance); }
DEVICE float divide(float x, float y) { return __fdiv_rn(x, y); }
DEVICE float square_root(float x) { return __fsqrt_rn(x); }

#include "layer_body.h"

extern "C" __global__ void __launch_bounds__(32 * WARPS, 1)
gru_layer(const Quad *w, const float *w_bias, const half_bits *scale, const half_bits *shift, float epsilon, const char *next,
          long next_bytes, const Quad *u, const float *u_bias, half_bits *gates, const half_bits *x_in, half_bits *x_out,
          half_bits *slab, const int *read, const int *write, const int *rows, unsigned *workspace, unsigned *error, int frames, int bucket) {
    const Arguments recurrence{u, u_bias, gates, x_in, x_out, slab, read, write, rows, workspace, frames, bucket};
    run_layer(LayerArguments{w, w_bias, scale, shift, epsilon, next, next_bytes, gates, error, recurrence});
}

// y = norm(x), (columns, H) fp16; a warp a column. The blocks beyond fetch the weights of the next launch.
extern "C" __global__ void __launch_bounds__(32 * WARPS)
layer_norm(const half_bits *x, const half_bits *scale, const half_bits *shift, float epsilon, half_bits *y, int columns,
           const char *next, long next_bytes) {
    const int blocks = (columns + WARPS - 1) / WARPS, column = block_index() * WARPS + thread_index() / 32;
    if (block_index() >= blocks) prefetch(next, next_bytes, block_index() - blocks, gridDim.x - blocks);
    if (column >= columns) return;
    Quad chunks[LANE_CHUNKS];
    load_column(x + static_cast<long>(column) * HIDDEN, thread_index() % 32, chunks);
    normalise(chunks, thread_index() % 32, scale, shift, epsilon, y + static_cast<long>(column) * HIDDEN);
}
