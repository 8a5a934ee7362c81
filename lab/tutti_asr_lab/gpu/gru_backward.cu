// The kernel of gru_backward_body.h, and the primitives that it has in addition to those of gru_ptx.h.

#include "gru_ptx.h"

struct alignas(16) Words {  // of two units
    unsigned long long first, second;
};

DEVICE void mma_16816_bf16(float *sum, const Quad &a, unsigned low, unsigned high) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(low), "r"(high));
}

// Each word whole; relaxed at the scope of the device: served by L2.
DEVICE void load_words_if(Words &words, const unsigned long long *from, bool condition) {
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %3, 0; @p ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2]; }"
                 : "+l"(words.first), "+l"(words.second) : "l"(from), "r"(static_cast<unsigned>(condition)));
}

DEVICE void store_word_if(unsigned long long *to, unsigned long long word, bool condition) {
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %2, 0; @p st.relaxed.gpu.global.b64 [%0], %1; }" ::
                 "l"(to), "l"(word), "r"(static_cast<unsigned>(condition)));
}

DEVICE float float_from(unsigned bits) { return __uint_as_float(bits); }

DEVICE half_bits bf16_of(float value) {
    half_bits half;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(half) : "f"(value));
    return half;
}

#include "gru_backward_body.h"

extern "C" __global__ void __launch_bounds__(32 * WARPS, 1)
persistent_gru_backward(const Quad *weights, const half_bits *factors, const float *outputs, half_bits *products,
                        half_bits *candidates, float *first, unsigned *workspace, int frames, int rows) {
    run_backward(BackwardArguments{weights, factors, outputs, products, candidates, first, workspace, frames, rows});
}
