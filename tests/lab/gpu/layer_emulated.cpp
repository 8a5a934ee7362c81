// The kernel of a whole GRU layer under emulation, as a library: one call is one launch.
//
// What is copied in bulk arrives when it is awaited, not before; a wait for more or less than was announced is an error.

#include "emulation.h"
#include "gru_body.h"

struct Bulk {
    char *to;
    const char *from;
    long bytes;
};
struct BulkState {
    long expected;
    std::vector<Bulk> asked;
};
static std::vector<BulkState> bulk;  // by block
static bool bulk_wrong;

DEVICE Quad load_quad(const half_bits *from) { return *reinterpret_cast<const Quad *>(from); }
DEVICE void store_quad(half_bits *to, const Quad &q) { *reinterpret_cast<Quad *>(to) = q; }
DEVICE void expect_bulk(unsigned long long *, long bytes) { bulk[block_index()].expected = bytes; }
DEVICE void copy_bulk(unsigned long long *, char *to, const char *from, long bytes) {
    bulk_wrong |= reinterpret_cast<uintptr_t>(to) % 16 || reinterpret_cast<uintptr_t>(from) % 16 || bytes % 16;
    bulk[block_index()].asked.push_back({to, from, bytes});
}
DEVICE void await_bulk(unsigned long long *) {
    long bytes = 0;
    for (const Bulk &one : bulk[block_index()].asked) bytes += one.bytes;
    bulk_wrong |= bytes != bulk[block_index()].expected;
    for (const Bulk &one : bulk[block_index()].asked) std::memcpy(one.to, one.from, one.bytes);
    bulk[block_index()].asked.clear();
    bulk[block_index()].expected = 0;
}
DEVICE void let_next_begin() {}
DEVICE void unpack(unsigned word, float &low, float &high) {
    low = float_of(static_cast<half_bits>(word & 0xffffu));
    high = float_of(static_cast<half_bits>(word >> 16));
}
DEVICE unsigned pack_halves(float low, float high) { return half_of(low) | static_cast<unsigned>(half_of(high)) << 16; }
DEVICE float add_shuffled(float value, int distance) {
    unsigned word;
    std::memcpy(&word, &value, 4);
    word = shuffle_xor(word, distance);
    float other;
    std::memcpy(&other, &word, 4);
    return value + other;
}
DEVICE float multiply_add(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
DEVICE float divide(float x, float y) { return x / y; }
DEVICE float square_root(float x) { return __builtin_sqrtf(x); }

#include "layer_body.h"

static void kernel(void *arguments) { run_layer(*static_cast<const LayerArguments *>(arguments)); }

extern "C" int launch(const void *w, const float *w_bias, const half_bits *scale, const half_bits *shift, float epsilon, const void *u,
                      const float *u_bias, half_bits *gates, const half_bits *x_in, half_bits *x_out, half_bits *slab, const int *read,
                      const int *write, const int *rows, unsigned *workspace, unsigned *error, int frames, int bucket,
                      const emulation::Schedule *schedule) {
    const Arguments recurrence{static_cast<const Quad *>(u), u_bias, gates, x_in, x_out, slab, read, write, rows, workspace, frames, bucket, {}, {}};
    LayerArguments arguments{static_cast<const Quad *>(w), w_bias, scale, shift, epsilon, nullptr, 0, gates, error, recurrence};
    bulk.assign(BLOCKS, BulkState{});
    bulk_wrong = false;
    const int outcome = emulation::run(BLOCKS, 32 * WARPS, sizeof(LayerShared), kernel, &arguments, *schedule);
    return bulk_wrong ? 5 : outcome;
}

extern "C" long shared_bytes() { return sizeof(LayerShared); }
