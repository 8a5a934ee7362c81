// The primitives of gru_body.h in PTX, which gru_backward_body.h has in common. Includes no CUDA header: NVRTC brings none.

#define DEVICE static __device__ __forceinline__

typedef unsigned short half_bits;
struct alignas(16) Quad {
    unsigned x, y, z, w;
};

DEVICE int thread_index() { return threadIdx.x; }
DEVICE int block_index() { return blockIdx.x; }
DEVICE void block_barrier() { __syncthreads(); }
DEVICE bool warp_any(bool value) { return __any_sync(0xffffffffu, value); }
DEVICE unsigned shuffle_xor(unsigned value, int mask) { return __shfl_xor_sync(0xffffffffu, value, mask); }

extern __shared__ Quad dynamic_shared[];
DEVICE void *shared_memory() { return dynamic_shared; }

DEVICE void mma_16816(float *sum, const Quad &a, unsigned low, unsigned high) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(low), "r"(high));
}

// Volatile, so that the compiler neither loads a weight again inside the loop nor moves a load past the wait for h.
DEVICE Quad load_weights(const Quad *from) {
    Quad q;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(q.x), "=r"(q.y), "=r"(q.z), "=r"(q.w) : "l"(from));
    return q;
}

// Into shared memory, past the registers.
DEVICE void copy_weights(Quad *to, const Quad *from) {
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from));
}

DEVICE void copies_done() { asm volatile("cp.async.wait_all;" ::: "memory"); }

DEVICE int load_int(const int *from) {
    int value;
    asm volatile("ld.global.s32 %0, [%1];" : "=r"(value) : "l"(from));
    return value;
}

// Predicated loads: after a branch the warp would wait for them.
DEVICE void load_word_if(unsigned &word, const unsigned *from, bool condition) {
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %2, 0; @p ld.global.u32 %0, [%1]; }"
                 : "+r"(word) : "l"(from), "r"(static_cast<unsigned>(condition)));
}

DEVICE void load_half_if(half_bits &half, const half_bits *from, bool condition) {
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %2, 0; @p ld.global.u16 %0, [%1]; }"
                 : "+h"(half) : "l"(from), "r"(static_cast<unsigned>(condition)));
}

// Relaxed at the scope of the device: served by L2, each 32-bit element whole.
DEVICE void load_exchange_if(Quad &q, const unsigned *from, bool condition) {
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %5, 0; @p ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4]; }"
                 : "+r"(q.x), "+r"(q.y), "+r"(q.z), "+r"(q.w) : "l"(from), "r"(static_cast<unsigned>(condition)));
}

DEVICE void store_exchange_if(unsigned *to, unsigned word, bool condition) {
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %2, 0; @p st.relaxed.gpu.global.u32 [%0], %1; }" ::
                 "l"(to), "r"(word), "r"(static_cast<unsigned>(condition)));
}

DEVICE unsigned load_flag(const unsigned *from) {
    unsigned word;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(word) : "l"(from));
    return word;
}

DEVICE void store_flag(unsigned *to, unsigned word) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(word));
}

DEVICE void store_pair(float *to, float first, float second) { *reinterpret_cast<float2 *>(to) = make_float2(first, second); }

DEVICE float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));  // what it flushes is lost in 1 + y anyway
    return y;
}

// 1 / x rounded to nearest, for normal x > 0: the sequence that rcp.rn.f32 is made of, without its branch for results
// below the normal numbers. Those are taken as 2^-126, which a sum with an fp16 number loses just as well. NaN stays NaN.
DEVICE float reciprocal(float x) {
    float y;
    asm("min.NaN.f32 %0, %0, 0f7E800000;" : "+f"(x));  // 2^126
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return __fmaf_rn(y, __fmaf_rn(-x, y, 1.0f), y);
}

DEVICE unsigned cycles() {
    unsigned now;
    asm volatile("mov.u32 %0, %%clock;" : "=r"(now));
    return now;
}

DEVICE void prefetch(const char *from, int bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes));
#endif
}

// If the launch may start before the end of the previous kernel, waits for that; else does nothing.
DEVICE void previous_kernel_done() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

DEVICE float float_of(half_bits half) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
    return value;
}

DEVICE half_bits half_of(float value) {
    half_bits half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
    return half;
}
