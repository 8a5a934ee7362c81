// The primitives of layer_body.h in PTX, and its kernels: a whole GRU layer, and a normalization by itself.

#include "gru.cu"

DEVICE Quad load_quad(const half_bits *from) { return *reinterpret_cast<const Quad *>(from); }
DEVICE void store_quad(half_bits *to, const Quad &q) { *reinterpret_cast<Quad *>(to) = q; }

// A barrier in shared memory that counts bytes; a block barrier after it lets the other threads copy and wait.
DEVICE void expect_bulk(unsigned long long *arrived, long bytes) {
    const unsigned barrier = static_cast<unsigned>(__cvta_generic_to_shared(arrived));
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier));
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(static_cast<unsigned>(bytes)) : "memory");
}

DEVICE void copy_bulk(unsigned long long *arrived, char *to, const char *from, long bytes) {
    const unsigned barrier = static_cast<unsigned>(__cvta_generic_to_shared(arrived));
    const unsigned target = static_cast<unsigned>(__cvta_generic_to_shared(to));
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
                 "r"(target), "l"(from), "r"(static_cast<unsigned>(bytes)), "r"(barrier) : "memory");
}

DEVICE void await_bulk(unsigned long long *arrived) {
    const unsigned barrier = static_cast<unsigned>(__cvta_generic_to_shared(arrived));
    unsigned done = 0;
    while (!done) {
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(barrier) : "memory");
    }
}

DEVICE void let_next_begin() { asm volatile("griddepcontrol.launch_dependents;"); }

DEVICE void unpack(unsigned word, float &low, float &high) {
    asm("{ .reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h; }" : "=f"(low), "=f"(high) : "r"(word));
}
DEVICE unsigned pack_halves(float low, float high) {
    unsigned word;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}
DEVICE float add_shuffled(float value, int distance) { return value + __shfl_xor_sync(0xffffffffu, value, distance); }
DEVICE float multiply_add(float x, float y, float z) { return __fmaf_rn(x, y, z); }
DEVICE float divide(float x, float y) { return __fdiv_rn(x, y); }
DEVICE float square_root(float x) { return __fsqrt_rn(x); }

#include "layer_body.h"

extern "C" __global__ void __launch_bounds__(32 * WARPS, 1)
gru_layer(const Quad *w, const float *w_bias, const half_bits *scale, const half_bits *shift, float epsilon, const char *next,
          long next_bytes, const Quad *u, const float *u_bias, half_bits *gates, const half_bits *x_in, half_bits *x_out,
          half_bits *slab, const int *read, const int *write, const int *rows, unsigned *workspace, unsigned *error, int frames, int bucket) {
    const Arguments recurrence{u, u_bias, gates, x_in, x_out, slab, read, write, rows, workspace, frames, bucket, {}, {}};
    run_layer(LayerArguments{w, w_bias, scale, shift, epsilon, next, next_bytes, gates, error, recurrence});
}

// y = norm(x), (columns, H) fp16; one warp per column. Further blocks prefetch the weights of the next launch.
extern "C" __global__ void __launch_bounds__(32 * WARPS)
layer_norm(const half_bits *x, const half_bits *scale, const half_bits *shift, float epsilon, half_bits *y, int columns,
           const char *next, long next_bytes) {
    const int blocks = (columns + WARPS - 1) / WARPS, column = block_index() * WARPS + thread_index() / 32;
    if (block_index() >= blocks && thread_index() == 0) prefetch_share(next, next_bytes, block_index() - blocks, gridDim.x - blocks);
    if (column >= columns) return;
    Quad chunks[LANE_CHUNKS], scales[LANE_CHUNKS], shifts[LANE_CHUNKS];
    load_column(scale, thread_index() % 32, scales);
    load_column(shift, thread_index() % 32, shifts);
    load_column(x + static_cast<long>(column) * HIDDEN, thread_index() % 32, chunks);
    normalize(chunks, scales, shifts, thread_index() % 32, epsilon, y + static_cast<long>(column) * HIDDEN);
}
