// The recurrence of one GRU layer over a chunk of frames, in one launch whose weights stay on the chip.
//
// This file includes gru_exchange.h and gru_layout.h alone and is compiled twice: by NVRTC or nvcc below gru.cu, which gives it PTX, and by g++ below
// tests/lab/gpu/emulation.h, which runs each CUDA thread as a fiber. Both define the primitives that are called here:
//   thread_index, block_index, shared_memory, block_barrier, warp_any, shuffle_xor, mma_16816,
//   load_weights, copy_weights, copies_done, load_int, load_word_if, load_half_if, load_exchange_if, store_exchange_if,
//   load_flag, store_flag, store_pair, exp2_approx, reciprocal, float_of, half_of, cycles, prefetch, previous_kernel_done
// and the sizes: HIDDEN, UNITS (of a block), WARPS, REGISTER_FRAGMENTS (a warp), MAX_ROWS, SPIN_LIMIT, POLL_DELAY;
// where layer_body.h follows, BULK_FRAGMENTS (a warp) that shared memory has room for.
//
// Division of work. A block owns UNITS hidden units: 3 * UNITS rows of U (r, z, n one after another) in tiles of 16.
// K is cut into SEGMENTS runs of k16 steps, one run a warp. A warp's fragments of U are loaded once. A work item
// is one frame of eight batch rows: a warp multiplies its run with h(t - 1), the partial sums meet in shared memory, and
// 8 * UNITS threads add them in the order of the segments and compute the gates.

#include "gru_exchange.h"

// The warp's run of U h for one work item into shared memory. As soon as a pair of fragments has been used, the pair of
// the next work item is loaded into its registers.
template <bool STATE>
DEVICE void multiply(const Place &place, const Quad *held, const Quad *stored, Quad *entering, const Source &next,
                     float (*partial)[TILE_ROWS]) {
    float sum[TILES][4];
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile) sum[tile][0] = sum[tile][1] = sum[tile][2] = sum[tile][3] = 0.0f;
#pragma unroll
    for (int step = 0; step < 2 * MAX_PAIRS; ++step) {
        const unsigned low = step % 2 ? entering[step / 2].z : entering[step / 2].x;
        const unsigned high = step % 2 ? entering[step / 2].w : entering[step / 2].y;
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
            const int f = step * TILES + tile;
            mma_16816(sum[tile], in_register(f) ? held[register_of(f)] : stored[(f - register_of(f)) * 32], low, high);
        }
        if (step % 2) issue<STATE>(next, place, step / 2, entering[step / 2]);
    }
    if (place.steps == 0) return;
    const int row = place.lane / 4, column = place.lane % 4 * 2;
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile) {
        store_pair(&partial[tile * 16 + row][column], sum[tile][0], sum[tile][1]);
        store_pair(&partial[tile * 16 + row + 8][column], sum[tile][2], sum[tile][3]);
    }
}

struct Inputs {  // of one unit, batch row and frame; loaded long before they are used
    half_bits reset, update, candidate, residual, previous;
};

DEVICE void load_inputs(const Arguments &a, const SharedLayout &shared, const Place &place, int frame, int tile, int rows, Inputs &in) {
    const int row = tile * TILE_ROWS + place.column;
    const bool exists = row < rows && frame < a.frames && place.group < GATE_GROUPS;
    const long at = static_cast<long>(row) * a.frames + frame;
    const half_bits *gates = a.gates + at * 3 * HIDDEN + place.unit;
    load_half_if(in.reset, gates, exists);
    load_half_if(in.update, gates + HIDDEN, exists);
    load_half_if(in.candidate, gates + 2 * HIDDEN, exists);
    load_half_if(in.residual, a.x_in + at * HIDDEN + place.unit, exists);
    const int state = exists && frame == 0 ? shared.read[row] : 0;
    load_half_if(in.previous, a.slab + static_cast<long>(state) * HIDDEN + place.unit, exists && frame == 0);
}

// p of one gate: the segments in ascending order, then the bias.
DEVICE float recurrent(const SharedLayout &shared, const Place &place, int parity, int gate) {
    const int row = gate * UNITS + place.own_unit;
    float sum = shared.partial[parity][0][row][place.column];
#pragma unroll
    for (int s = 1; s < SEGMENTS; ++s) sum = sum + shared.partial[parity][s][row][place.column];
    return sum + shared.bias[row];
}

// h' of one unit and batch row, rounded.
DEVICE half_bits next_state(const SharedLayout &shared, const Place &place, const Inputs &in, int parity, float previous) {
    const float p_r = recurrent(shared, place, parity, 0);
    const float p_z = recurrent(shared, place, parity, 1);
    const float p_n = recurrent(shared, place, parity, 2);
    const float r = sigmoid(float_of(in.reset) + p_r);
    const float z = sigmoid(float_of(in.update) + p_z);
    const float n = tanh_of(float_of(in.candidate) + r * p_n);
    return half_of(n + z * (previous - n));
}

// Adds the segments, computes h' and stores it: to the other blocks first, then to the layer's output and the state.
// False: a warp of the block has timed out, and nothing was stored.
DEVICE bool finish_item(const Arguments &a, SharedLayout &shared, const Place &place, const Inputs &in, int parity, int frame,
                        int tile, int rows) {
    const int row = tile * TILE_ROWS + place.column;
    float &own = shared.own[tile][place.own_unit][place.column];
    const unsigned counted = shared.epochs[row] + frame;
    unsigned *to = exchange_of(a.workspace, counted, tile) + place.word;
    const int failed = shared.failed;
    const bool publishes = row < rows && place.own_unit % 2 == 0 && (frame + 1 < a.frames || a.frames == 1) && !failed;
    const half_bits next = next_state(shared, place, in, parity, frame == 0 ? float_of(in.previous) : own);
    const unsigned partner = shuffle_xor(next, TILE_ROWS);  // the next unit
    const unsigned word = (next | partner << 16) & ~MARK;  // a state beyond [-1, 1] must not look like a mark
    store_exchange_if(to, word | mark_of(counted), publishes);
    if (failed) return false;
    if (row >= rows) return true;
    own = float_of(next);
    const long at = (static_cast<long>(row) * a.frames + frame) * HIDDEN + place.unit;
    a.x_out[at] = half_of(float_of(in.residual) + float_of(next));
    if (frame > 0 && frame + 1 == a.frames) a.slab[static_cast<long>(shared.write[row]) * HIDDEN + place.unit] = next;
    return true;
}

// With one frame: wait until all blocks have published h(1), and so have read h(0); then write the states.
DEVICE bool settle(const Arguments &a, SharedLayout &shared, const Place &place, int rows) {
    for (int tile = 0; tile * TILE_ROWS < rows; ++tile) {
        const Source source = source_of(a, shared, place, 1, tile, rows);
        Quad ignored[MAX_PAIRS];
#pragma unroll
        for (int p = 0; p < MAX_PAIRS; ++p) issue<false>(source, place, p, ignored[p]);
        if (!await(source, place, a.workspace, ignored)) {
            store_flag(a.workspace, 1u);
            shared.failed = 1;
        }
    }
    block_barrier();
    if (shared.failed) return false;
    for (int row = place.column; row < rows && place.group == 0; row += TILE_ROWS) {
        const half_bits state = half_of(shared.own[row / TILE_ROWS][place.own_unit][place.column]);
        a.slab[static_cast<long>(shared.write[row]) * HIDDEN + place.unit] = state;
    }
    return true;
}

DEVICE void issue_first(const Arguments &a, const Place &place, int state, Quad *entering) {
    const Source first = state_source(a, place, state, place.lane / 4 < a.bucket);
#pragma unroll
    for (int p = 0; p < MAX_PAIRS; ++p) {
        entering[p] = Quad{0u, 0u, 0u, 0u};
        issue<true>(first, place, p, entering[p]);
    }
}

// Prefetches this block's share of the weights of later kernels.
DEVICE void prefetch_ahead(const Arguments &a) {
    constexpr int blocks = HIDDEN / UNITS;
    for (int i = 0; i < 2; ++i) {
        const long share = (a.ahead_bytes[i] / 16 + blocks - 1) / blocks * 16, first = share * block_index();
        const long end = first + share < a.ahead_bytes[i] ? first + share : a.ahead_bytes[i];
        for (long at = first; at < end; at += PREFETCH_BYTES) {
            prefetch(a.ahead[i] + at, end - at < PREFETCH_BYTES ? static_cast<int>(end - at) : PREFETCH_BYTES);
        }
    }
}

DEVICE void set_up_rows(const Arguments &a, SharedLayout &shared) {
    const int thread = thread_index();
    if (thread < MAX_ROWS) {
        shared.epochs[thread] = load_flag(a.workspace + EPOCHS_AT + thread);
        shared.read[thread] = thread < a.bucket ? load_int(a.read + thread) : 0;
        shared.write[thread] = thread < a.bucket ? load_int(a.write + thread) : 0;
    }
    if (thread < 3 * UNITS) shared.bias[thread] = a.bias[thread / UNITS * HIDDEN + block_index() * UNITS + thread % UNITS];
    if (thread == 0) shared.failed = load_flag(a.workspace) != 0u;
}

// Everything that is loaded once. The chain index, state row runs during the loads of the weights, the longest ones.
DEVICE void set_up(const Arguments &a, SharedLayout &shared, const Place &place, Quad *held, Quad *entering) {
    if (thread_index() == 0) {  // weights are not the output of a kernel: they may be loaded before the previous one has ended
        constexpr int bytes = WARPS * FRAGMENTS * 32 * 16;
        const char *weights = reinterpret_cast<const char *>(a.weights) + static_cast<long>(block_index()) * bytes;
        for (int at = 0; at < bytes; at += PREFETCH_BYTES) prefetch(weights + at, bytes - at < PREFETCH_BYTES ? bytes - at : PREFETCH_BYTES);
    }
    previous_kernel_done();
    const int row = place.lane / 4, state = row < a.bucket ? load_int(a.read + row) : 0;
    set_up_rows(a, shared);
    load_fragments(a.weights, shared.fragments, place, 0, FRAGMENTS / 2, held);
    issue_first(a, place, state, entering);
    load_fragments(a.weights, shared.fragments, place, FRAGMENTS / 2, FRAGMENTS, held);
    copies_done();
}

// All frames, once the fragments are held or stored and h(0) is on its way. `between` is called after each work item.
template <class Between>
DEVICE void recur(const Arguments &a, SharedLayout &shared, const Place &place, const Quad *held, Quad *entering, Between between) {
    const Quad *stored = shared.fragments + place.warp * SHARED_FRAGMENTS * 32 + place.lane;
    const int rows = load_int(a.rows) < a.bucket ? load_int(a.rows) : a.bucket;
    const int tiles = (rows + TILE_ROWS - 1) / TILE_ROWS, items = a.frames * tiles;
    block_barrier();
    if (shared.failed || rows <= 0) return;
    if (thread_index() == 32 * WARPS - 1) prefetch_ahead(a);

    Inputs in = {0, 0, 0, 0, 0};
    load_inputs(a, shared, place, place.group / tiles, place.group % tiles, rows, in);
    Source source = {a.workspace, 0u, true, false};  // of the first work item: a state, already on its way
    int frame = 0, tile = 0;
    for (int item = 0; item < items; ++item) {
        const int next_tile = tile + 1 < tiles ? tile + 1 : 0, next_frame = next_tile ? frame : frame + 1;
        if (!await(source, place, a.workspace, entering)) {
            store_flag(a.workspace, 1u);
            shared.failed = 1;
        }
        // With one tile the next h does not exist before this one's gates.
        source = Source{a.workspace, 0u, false, false};
        if (tiles > 1 && item + 1 < items) source = source_of(a, shared, place, next_frame, next_tile, rows);
        float(*partial)[TILE_ROWS] = shared.partial[item % 2][place.warp < SEGMENTS ? place.warp : 0];
        if (source.state) multiply<true>(place, held, stored, entering, source, partial);
        else multiply<false>(place, held, stored, entering, source, partial);
        block_barrier();
        const unsigned start = cycles();
        if (place.group == item % GATE_GROUPS) {
            if (!finish_item(a, shared, place, in, item % 2, frame, tile, rows)) return;
            // The next work item of this thread's group.
            int later_tile = tile, later_frame = frame;
            for (int i = 0; i < GATE_GROUPS; ++i) {
                later_tile = later_tile + 1 < tiles ? later_tile + 1 : 0;
                later_frame += later_tile == 0;
            }
            load_inputs(a, shared, place, later_frame, later_tile, rows, in);
        }
        if (tiles == 1 && item + 1 < items) {
            source = source_of(a, shared, place, next_frame, next_tile, rows);
            // A load issued before the other blocks' words are written costs a whole additional round trip to L2.
            while (POLL_DELAY > 0 && cycles() - start < POLL_DELAY) {
            }
#pragma unroll
            for (int p = 0; p < MAX_PAIRS; ++p) issue<false>(source, place, p, entering[p]);
        }
        between(item);
        tile = next_tile;
        frame = next_frame;
    }
    block_barrier();
    if (shared.failed) return;
    if (a.frames == 1 && !settle(a, shared, place, rows)) return;
    const unsigned published = a.frames == 1 ? 1u : a.frames - 1u;
    if (block_index() == 0 && thread_index() < rows) {
        store_flag(a.workspace + EPOCHS_AT + thread_index(), shared.epochs[thread_index()] + published);
    }
}

DEVICE void run(const Arguments &a) {
    SharedLayout &shared = *static_cast<SharedLayout *>(shared_memory());
    const Place place = place_of(thread_index(), block_index());
    Quad held[REGISTER_FRAGMENTS], entering[MAX_PAIRS];
    set_up(a, shared, place, held, entering);
    recur(a, shared, place, held, entering, [](int) {});
}
