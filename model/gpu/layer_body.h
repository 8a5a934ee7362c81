// A whole GRU layer in one launch: normalisation, the product with W, and the recurrence of gru_body.h.
//
// Included after gru_body.h, and compiled for a GPU and for a CPU as that is. Further primitives:
//   load_quad, store_quad, prefetch_bulk, copy_bulk, await_bulk, add_shuffled, multiply_add, divide, square_root
// and the size GROUP: the columns at a time, 32, or 16 where shared memory has no room for more.
//
// Who computes what. A block owns the rows of W that belong to its hidden units, in the tiles, runs and fragments of U,
// so what it computes are the gates of its own units: no other block waits for them. Every block normalises all columns
// (a column is one frame of one batch row) by itself, GROUP at a time, while its weights are on their way: that is less
// work than to write, launch and read. Weights are asked for long before they are used: U before the product with W, the
// next layer's W before the recurrence. So the memory is never idle while blocks wait for one another.

constexpr int GROUP_TILES = GROUP / 8;
constexpr int CHUNKS = HIDDEN / 8;       // of 16 bytes, of a column
constexpr int LANE_CHUNKS = (CHUNKS + 31) / 32;
constexpr int COLUMN = HIDDEN + 8;       // halves from column to column in shared memory: no two lanes share a bank
constexpr int PARTIAL = GROUP + 8;       // floats from row to row of partial sums, likewise
constexpr int STAGE = 4;                 // k16 steps whose fragments are loaded together
constexpr int BLOCKS = HIDDEN / UNITS;
constexpr long STORED_BYTES = static_cast<long>(WARPS) * SHARED_FRAGMENTS * 32 * sizeof(Quad);   // of a block
constexpr long HELD_BYTES = static_cast<long>(WARPS) * REGISTER_FRAGMENTS * 32 * sizeof(Quad);
constexpr long BULK = 16384;             // bytes of one request

struct LayerShared {
    SharedLayout recurrence;
    union {
        alignas(16) half_bits columns[GROUP][COLUMN];    // normalised
        float partial[SEGMENTS][GATE_ROWS][PARTIAL];     // of the product with W, once all have read the columns
    };
    float bias[3 * UNITS];                               // of W
    alignas(8) unsigned long long arrived;               // counts the bytes of U that come in bulk
};

struct LayerArguments {
    const Quad *weights;        // W: [block][warp][fragment][lane]; U in `recurrence` has for each block first the
                                // fragments for shared memory, then those for registers
    const float *bias;          // (3H)
    const half_bits *scale, *shift;  // (H), of the normalisation
    float epsilon;
    const char *next;           // what the next launch reads, `next_bytes` of it
    long next_bytes;
    half_bits *gates;           // (B, T, 3H): those of its units are written and read by a block alone
    unsigned *error;            // set where the workspace says that a block has given up
    Arguments recurrence;
};

DEVICE float column_sum(float sum) {  // over the lanes of a warp, the same tree in each of them
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) sum = add_shuffled(sum, distance);
    return sum;
}

DEVICE unsigned half_at(const Quad &q, int i) {
    const unsigned word = i / 2 == 0 ? q.x : i / 2 == 1 ? q.y : i / 2 == 2 ? q.z : q.w;
    return i % 2 ? word >> 16 : word & 0xffffu;
}
DEVICE float value_at(const Quad &q, int i) { return float_of(static_cast<half_bits>(half_at(q, i))); }

// A lane's part of a column.
DEVICE void load_column(const half_bits *from, int lane, Quad *chunks) {
#pragma unroll
    for (int j = 0; j < LANE_CHUNKS; ++j) {
        chunks[j] = Quad{0u, 0u, 0u, 0u};
        if (j * 32 + lane < CHUNKS) chunks[j] = load_quad(from + (j * 32 + lane) * 8);
    }
}

// One column by one warp: mean, then the mean square of what is left, both in one fixed order; one rounding.
DEVICE void normalise(const Quad *chunks, const Quad *scales, const Quad *shifts, int lane, float epsilon, half_bits *to) {
    float sum = 0.0f, squares = 0.0f;
#pragma unroll
    for (int j = 0; j < LANE_CHUNKS; ++j) {
#pragma unroll
        for (int i = 0; i < 8; ++i) sum = sum + value_at(chunks[j], i);
    }
    const float mean = divide(column_sum(sum), static_cast<float>(HIDDEN));
#pragma unroll
    for (int j = 0; j < LANE_CHUNKS; ++j) {
        if (j * 32 + lane >= CHUNKS) continue;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const float centred = value_at(chunks[j], i) - mean;
            squares = multiply_add(centred, centred, squares);
        }
    }
    const float variance = divide(column_sum(squares), static_cast<float>(HIDDEN));
    const float inverse = reciprocal(square_root(variance + epsilon));
#pragma unroll
    for (int j = 0; j < LANE_CHUNKS; ++j) {
        if (j * 32 + lane >= CHUNKS) continue;
        unsigned words[4];
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const float scaled = (value_at(chunks[j], i) - mean) * inverse;
            const unsigned half = half_of(multiply_add(scaled, value_at(scales[j], i), value_at(shifts[j], i)));
            words[i / 2] = i % 2 ? words[i / 2] | half << 16 : half;
        }
        store_quad(to + (j * 32 + lane) * 8, Quad{words[0], words[1], words[2], words[3]});
    }
}

// The group's columns into shared memory; a warp takes every eighth. Columns that do not exist stay undefined: nothing
// of them reaches another column.
DEVICE void normalise_group(const LayerArguments &a, LayerShared &shared, const Place &place, int first, int columns) {
    Quad scales[LANE_CHUNKS], shifts[LANE_CHUNKS], one[LANE_CHUNKS], other[LANE_CHUNKS];
    load_column(a.scale, place.lane, scales);
    load_column(a.shift, place.lane, shifts);
    for (int column = place.warp; column < GROUP && first + column < columns; column += 2 * WARPS) {
        const half_bits *from = a.recurrence.x_in + static_cast<long>(first + column) * HIDDEN;
        const bool two = column + WARPS < GROUP && first + column + WARPS < columns;
        load_column(from, place.lane, one);
        if (two) load_column(from + static_cast<long>(WARPS) * HIDDEN, place.lane, other);
        normalise(one, scales, shifts, place.lane, a.epsilon, shared.columns[column]);
        if (two) normalise(other, scales, shifts, place.lane, a.epsilon, shared.columns[column + WARPS]);
    }
}

// The warp's run of W for the tiles of the group, its fragments in stages of which one is always on its way.
DEVICE void project(const LayerArguments &a, const LayerShared &shared, const Place &place, int tiles, float (*sum)[GROUP_TILES][4]) {
    constexpr int STEPS = 2 * MAX_PAIRS, STAGES = (STEPS + STAGE - 1) / STAGE;
    const Quad *weights = a.weights + (static_cast<long>(block_index()) * WARPS + place.warp) * FRAGMENTS * 32 + place.lane;
    const half_bits *columns = shared.columns[place.lane / 4] + place.first * 16 + place.lane % 4 * 2;
    Quad fragments[2][STAGE * TILES];
#pragma unroll
    for (int f = 0; f < STAGE * TILES && f < FRAGMENTS; ++f) fragments[0][f] = load_weights(weights + f * 32);
#pragma unroll
    for (int stage = 0; stage < STAGES; ++stage) {
        const int later = (stage + 1) * STAGE * TILES;
#pragma unroll
        for (int f = 0; f < STAGE * TILES; ++f) {
            if (later + f < FRAGMENTS) fragments[(stage + 1) % 2][f] = load_weights(weights + (later + f) * 32);
        }
#pragma unroll
        for (int s = 0; s < STAGE; ++s) {
            const int step = stage * STAGE + s;
            if (step >= STEPS) continue;
            const bool exists = complete(step) || step < place.steps;  // else the fragments of W are zero
#pragma unroll
            for (int t = 0; t < GROUP_TILES; ++t) {
                if (t >= tiles) continue;
                const unsigned *words = reinterpret_cast<const unsigned *>(columns + t * 8 * COLUMN + step * 16);
                const unsigned low = exists ? words[0] : 0u, high = exists ? words[4] : 0u;
#pragma unroll
                for (int tile = 0; tile < TILES; ++tile) mma_16816(sum[tile][t], fragments[stage % 2][s * TILES + tile], low, high);
            }
        }
    }
}

// The gates of the block's units for the group: segments in ascending order, then the bias, one rounding.
DEVICE void add_segments(const LayerArguments &a, const LayerShared &shared, int first, int count) {
    for (int at = thread_index(); at < 3 * UNITS * GROUP; at += 32 * WARPS) {
        const int row = at / GROUP, column = at % GROUP;
        if (column >= count) continue;
        float sum = shared.partial[0][row][column];
#pragma unroll
        for (int s = 1; s < SEGMENTS; ++s) sum = sum + shared.partial[s][row][column];
        const int gate = row / UNITS * HIDDEN + block_index() * UNITS + row % UNITS;
        a.gates[static_cast<long>(first + column) * 3 * HIDDEN + gate] = half_of(sum + shared.bias[row]);
    }
}

DEVICE void gates_of(const LayerArguments &a, LayerShared &shared, const Place &place, int columns) {
    for (int first = 0; first < columns; first += GROUP) {
        const int count = columns - first < GROUP ? columns - first : GROUP, tiles = (count + 7) / 8;
        if (first > 0) block_barrier();  // the partial sums have been read
        normalise_group(a, shared, place, first, columns);
        block_barrier();
        float sum[TILES][GROUP_TILES][4];
#pragma unroll
        for (int i = 0; i < TILES * GROUP_TILES * 4; ++i) sum[i / 4 / GROUP_TILES][i / 4 % GROUP_TILES][i % 4] = 0.0f;
        project(a, shared, place, tiles, sum);
        block_barrier();  // the columns have been read
        const int row = place.lane / 4, column = place.lane % 4 * 2;
        if (place.warp < SEGMENTS) {
#pragma unroll
            for (int t = 0; t < GROUP_TILES; ++t) {
                if (t >= tiles) continue;
#pragma unroll
                for (int tile = 0; tile < TILES; ++tile) {
                    float (*to)[PARTIAL] = shared.partial[place.warp] + tile * 16 + row;
                    store_pair(&to[0][t * 8 + column], sum[tile][t][0], sum[tile][t][1]);
                    store_pair(&to[8][t * 8 + column], sum[tile][t][2], sum[tile][t][3]);
                }
            }
        }
        block_barrier();
        add_segments(a, shared, first, count);
    }
    block_barrier();
}

// Asks the cache for one of `shares` equal parts of some memory; one thread is enough.
DEVICE void prefetch(const char *from, long bytes, int share, int shares) {
    const long part = (bytes / shares + 127) / 128 * 128, begin = share * part;
    const long end = begin + part < bytes ? begin + part : bytes;
    for (long at = begin; at < end; at += BULK) prefetch_bulk(from + at, end - at < BULK ? end - at : BULK);
}

// What depends on no other kernel's results but on weights: U is on its way while the columns are normalised.
DEVICE void ask_for_weights(const LayerArguments &a, LayerShared &shared) {
    const char *recurrent = reinterpret_cast<const char *>(a.recurrence.weights) + block_index() * (STORED_BYTES + HELD_BYTES);
    if (thread_index() == 0) {
        copy_bulk(&shared.arrived, shared.recurrence.fragments, recurrent, STORED_BYTES, BULK);
        prefetch(recurrent + STORED_BYTES, HELD_BYTES, 0, 1);
    }
    for (int row = thread_index(); row < 3 * UNITS; row += 32 * WARPS) {
        shared.bias[row] = a.bias[row / UNITS * HIDDEN + block_index() * UNITS + row % UNITS];
    }
}

DEVICE void run_layer(const LayerArguments &a) {
    LayerShared &shared = *static_cast<LayerShared *>(shared_memory());
    const Arguments &r = a.recurrence;
    const Place place = place_of(thread_index(), block_index());
    ask_for_weights(a, shared);
    const int real = load_int(r.rows), rows = real < r.bucket ? real : r.bucket;
    set_up_rows(r, shared.recurrence);
    gates_of(a, shared, place, rows * r.frames);
    if (thread_index() == 0) prefetch(a.next, a.next_bytes, block_index(), BLOCKS);
    const int row = place.lane / 4, state = row < r.bucket ? shared.recurrence.read[row] : 0;
    Quad held[REGISTER_FRAGMENTS], entering[MAX_PAIRS];
    issue_first(r, place, state, entering);
    const Quad *from = r.weights + (block_index() * (STORED_BYTES + HELD_BYTES) + STORED_BYTES) / sizeof(Quad);
#pragma unroll
    for (int f = 0; f < REGISTER_FRAGMENTS; ++f) held[f] = load_weights(from + (place.warp * REGISTER_FRAGMENTS + f) * 32 + place.lane);
    await_bulk(&shared.arrived);
    recur(r, shared.recurrence, place, held, entering);
    if (thread_index() == 0 && load_flag(r.workspace) != 0u) store_flag(a.error, 1u);
}
