// A whole GRU layer in one launch: normalization, the product with W, and the recurrence of gru_body.h.
//
// Included after gru_body.h, and compiled for a GPU and for a CPU as that is. Further primitives:
//   load_quad, store_quad, expect_bulk, copy_bulk, await_bulk, let_next_begin, unpack,
//   pack_halves, add_shuffled, multiply_add, divide, square_root
// and the size GROUP.
//
// Division of work. A block owns the rows of W that belong to its hidden units, in the tiles, runs and fragments of U,
// so it computes the gates of its own units: no other block waits for them. Every block normalizes all columns
// (a column is one frame of one batch row) itself while its weights are being loaded: that is less work than to write,
// launch and read. There are GROUP columns at most, so a warp has two.
//
// While a layer computes, U is loaded to shared memory and the next layer's W to the cache, so memory is never idle while
// blocks wait for one another. Both are requested in slices, spread over the launch: memory answers in the order of
// the requests, and a layer's few inputs would wait for all of its weights. A launch begins while the previous one ends.

constexpr int GROUP_TILES = GROUP / 8;
static_assert(GROUP == 2 * WARPS, "a warp has two columns");
constexpr int CHUNKS = HIDDEN / 8;       // of 16 bytes, of a column
constexpr int LANE_CHUNKS = (CHUNKS + 31) / 32;
constexpr int COLUMN = HIDDEN + 8;       // halves from column to column in shared memory: no two lanes share a bank
constexpr int PARTIAL = GROUP + 8;       // floats from row to row of partial sums, likewise
constexpr int STAGE = 4;                 // k16 steps whose fragments are loaded together
constexpr int BLOCKS = HIDDEN / UNITS;
constexpr int MOVED_FRAGMENTS = BULK_FRAGMENTS - SHARED_FRAGMENTS;     // of a warp: from shared memory on to registers
constexpr int DIRECT_FRAGMENTS = REGISTER_FRAGMENTS - MOVED_FRAGMENTS;  // from the cache to registers
static_assert(MOVED_FRAGMENTS >= 0 && DIRECT_FRAGMENTS >= 0, "fragments");
constexpr long STORED_BYTES = static_cast<long>(WARPS) * BULK_FRAGMENTS * 32 * sizeof(Quad);   // of a block
constexpr long HELD_BYTES = static_cast<long>(WARPS) * DIRECT_FRAGMENTS * 32 * sizeof(Quad);
constexpr long BULK = 16384;             // bytes of one request, at most
constexpr int STEPS = 2 * MAX_PAIRS, STAGES = (STEPS + STAGE - 1) / STAGE;
constexpr int SLICES = 8;
constexpr int PROJECTED = 4;             // slices of U requested before the product with W; the others during it
constexpr int LATER = PROJECTED + STAGES > SLICES ? PROJECTED + STAGES : SLICES;  // the first slice after the product
constexpr long SLICE_BYTES = STORED_BYTES / WARPS / SLICES;  // of U, a warp
static_assert(STORED_BYTES % (WARPS * SLICES * 16) == 0, "slices");

constexpr long COLUMN_BYTES = GROUP * COLUMN * sizeof(half_bits);
constexpr long PARTIAL_BYTES = static_cast<long>(SEGMENTS) * GATE_ROWS * PARTIAL * sizeof(float);
constexpr long OWN_BYTES = sizeof(SharedLayout::partial);
constexpr long LARGEST = COLUMN_BYTES > PARTIAL_BYTES ? COLUMN_BYTES : PARTIAL_BYTES;

// The normalized columns, then the partial sums of the product with W, then those of the recurrence share one buffer,
// which begins with `recurrence.partial`, the last of its members.
struct LayerShared {
    SharedLayout recurrence;
    alignas(16) char room[LARGEST > OWN_BYTES ? LARGEST - OWN_BYTES : 16];
    float bias[3 * UNITS];                   // of W
    alignas(8) unsigned long long arrived;   // counts the bytes of U that come in bulk
};

struct LayerArguments {
    const Quad *weights;        // W: [block][warp][fragment][lane]; U in `recurrence` has for each block first the
                                // fragments that stay in shared memory, then those that go on from there to registers,
                                // then those that come to registers directly
    const float *bias;          // (3H)
    const half_bits *scale, *shift;  // (H), of the normalization
    float epsilon;
    const char *next;           // weights of the next launch, `next_bytes`
    long next_bytes;
    half_bits *gates;           // (B, T, 3H): those of its units are written and read by a block alone
    unsigned *error;            // set if the workspace reports that a block has aborted
    Arguments recurrence;
};

// Asks the cache for one of `shares` equal parts of some memory; one thread is enough.
DEVICE void prefetch_share(const char *from, long bytes, int share, int shares) {
    const long part = (bytes / shares + 127) / 128 * 128, begin = share * part;
    const long end = begin + part < bytes ? begin + part : bytes;
    for (long at = begin; at < end; at += BULK) prefetch(from + at, static_cast<int>(end - at < BULK ? end - at : BULK));
}

DEVICE float column_sum(float sum) {  // over the lanes of a warp, the same tree in each of them
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) sum = add_shuffled(sum, distance);
    return sum;
}

DEVICE half_bits (*columns_of(LayerShared &shared))[COLUMN] {
    return reinterpret_cast<half_bits (*)[COLUMN]>(&shared.recurrence.partial);
}
DEVICE float (*partial_of(LayerShared &shared))[GATE_ROWS][PARTIAL] {
    return reinterpret_cast<float (*)[GATE_ROWS][PARTIAL]>(&shared.recurrence.partial);
}

DEVICE void values_of(const Quad &q, float *values) {
    unpack(q.x, values[0], values[1]);
    unpack(q.y, values[2], values[3]);
    unpack(q.z, values[4], values[5]);
    unpack(q.w, values[6], values[7]);
}

// A lane's part of a column.
DEVICE void load_column(const half_bits *from, int lane, Quad *chunks) {
#pragma unroll
    for (int j = 0; j < LANE_CHUNKS; ++j) {
        chunks[j] = Quad{0u, 0u, 0u, 0u};
        if (j * 32 + lane < CHUNKS) chunks[j] = load_quad(from + (j * 32 + lane) * 8);
    }
}

// One column by one warp: mean, then the mean square of what is left, both in one fixed order; one rounding.
DEVICE void normalize(const Quad *chunks, const Quad *scales, const Quad *shifts, int lane, float epsilon, half_bits *to) {
    float sum = 0.0f, squares = 0.0f, values[8], scale[8], shift[8];
#pragma unroll
    for (int j = 0; j < LANE_CHUNKS; ++j) {
        values_of(chunks[j], values);
#pragma unroll
        for (int i = 0; i < 8; ++i) sum = sum + values[i];
    }
    const float mean = divide(column_sum(sum), static_cast<float>(HIDDEN));
#pragma unroll
    for (int j = 0; j < LANE_CHUNKS; ++j) {
        if (j * 32 + lane >= CHUNKS) continue;
        values_of(chunks[j], values);
#pragma unroll
        for (int i = 0; i < 8; ++i) squares = multiply_add(values[i] - mean, values[i] - mean, squares);
    }
    const float variance = divide(column_sum(squares), static_cast<float>(HIDDEN));
    const float inverse = reciprocal(square_root(variance + epsilon));
#pragma unroll
    for (int j = 0; j < LANE_CHUNKS; ++j) {
        if (j * 32 + lane >= CHUNKS) continue;
        values_of(chunks[j], values);
        values_of(scales[j], scale);
        values_of(shifts[j], shift);
#pragma unroll
        for (int i = 0; i < 8; ++i) values[i] = multiply_add((values[i] - mean) * inverse, scale[i], shift[i]);
        const Quad packed = {pack_halves(values[0], values[1]), pack_halves(values[2], values[3]),
                             pack_halves(values[4], values[5]), pack_halves(values[6], values[7])};
        store_quad(to + (j * 32 + lane) * 8, packed);
    }
}

// Requests one slice by each warp's first lane: of U up to SLICES, then of the weights of the next launch.
DEVICE void ask(const LayerArguments &a, LayerShared &shared, const Place &place, int slice) {
    if (place.lane != 0) return;
    if (slice == 0 && place.warp == 0) {  // and the part of U that is loaded to registers directly
        const char *held = reinterpret_cast<const char *>(a.recurrence.weights) + block_index() * (STORED_BYTES + HELD_BYTES);
        if (HELD_BYTES > 0) prefetch_share(held + STORED_BYTES, HELD_BYTES, 0, 1);
    }
    if (slice < SLICES) {
        const long at = place.warp * (STORED_BYTES / WARPS) + slice * SLICE_BYTES;
        const char *from = reinterpret_cast<const char *>(a.recurrence.weights) + block_index() * (STORED_BYTES + HELD_BYTES) + at;
        copy_bulk(&shared.arrived, reinterpret_cast<char *>(shared.recurrence.fragments) + at, from, SLICE_BYTES);
    } else {
        prefetch_share(a.next, a.next_bytes, (block_index() * WARPS + place.warp) * SLICES + slice - SLICES, BLOCKS * WARPS * SLICES);
    }
}

DEVICE void load_stage(const Quad *weights, int stage, Quad *fragments) {
#pragma unroll
    for (int f = 0; f < STAGE * TILES; ++f) {
        if (stage * STAGE * TILES + f < FRAGMENTS) fragments[f] = load_weights(weights + (stage * STAGE * TILES + f) * 32);
    }
}

// The warp's run of W for all columns, its fragments in stages of which one is always on its way; the first is already.
DEVICE void project(const LayerArguments &a, LayerShared &shared, const Quad *weights, const half_bits *columns, const Place &place,
                    int tiles, Quad (*fragments)[STAGE * TILES], float (*sum)[GROUP_TILES][4]) {
#pragma unroll
    for (int stage = 0; stage < STAGES; ++stage) {
        load_stage(weights, stage + 1, fragments[(stage + 1) % 2]);
        ask(a, shared, place, PROJECTED + stage);
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

// The gates of the block's units: segments in ascending order, then the bias, one rounding.
DEVICE void add_segments(const LayerArguments &a, LayerShared &shared, int columns) {
    const float (*partial)[GATE_ROWS][PARTIAL] = partial_of(shared);
    for (int at = thread_index(); at < 3 * UNITS * GROUP; at += 32 * WARPS) {
        const int row = at / GROUP, column = at % GROUP;
        if (column >= columns) continue;
        float sum = partial[0][row][column];
#pragma unroll
        for (int s = 1; s < SEGMENTS; ++s) sum = sum + partial[s][row][column];
        const int gate = row / UNITS * HIDDEN + block_index() * UNITS + row % UNITS;
        a.gates[static_cast<long>(column) * 3 * HIDDEN + gate] = half_of(sum + shared.bias[row]);
    }
}

DEVICE void keep_partial(LayerShared &shared, const Place &place, int tiles, const float (*sum)[GROUP_TILES][4]) {
    const int row = place.lane / 4, column = place.lane % 4 * 2;
    if (place.warp >= SEGMENTS) return;
#pragma unroll
    for (int t = 0; t < GROUP_TILES; ++t) {
        if (t >= tiles) continue;
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
            float (*to)[PARTIAL] = partial_of(shared)[place.warp] + tile * 16 + row;
            store_pair(&to[0][t * 8 + column], sum[tile][t][0], sum[tile][t][1]);
            store_pair(&to[8][t * 8 + column], sum[tile][t][2], sum[tile][t][3]);
        }
    }
}

// From the layer's input to the gates of the block's units. Requests all that is needed later once the input has been
// requested: requests are served in order.
DEVICE void gates_of(const LayerArguments &a, LayerShared &shared, const Place &place, Quad *entering) {
    const Arguments &r = a.recurrence;
    const int columns = r.bucket * r.frames, tiles = (columns + 7) / 8, row = place.lane / 4;
    Quad scales[LANE_CHUNKS], shifts[LANE_CHUNKS], one[LANE_CHUNKS], other[LANE_CHUNKS], fragments[2][STAGE * TILES];
    load_column(a.scale, place.lane, scales);
    load_column(a.shift, place.lane, shifts);
    previous_kernel_done();
    const bool first = place.warp < columns, second = place.warp + WARPS < columns;
    const half_bits *input = r.x_in + static_cast<long>(place.warp) * HIDDEN;
    const int state = row < r.bucket ? load_int(r.read + row) : 0;
    if (first) load_column(input, place.lane, one);
    if (second) load_column(input + WARPS * HIDDEN, place.lane, other);
    const Quad *weights = a.weights + (static_cast<long>(block_index()) * WARPS + place.warp) * FRAGMENTS * 32 + place.lane;
    load_stage(weights, 0, fragments[0]);
    ask(a, shared, place, 0);
    ask(a, shared, place, 1);
    issue_first(r, place, state, entering);
    for (int at = thread_index(); at < 3 * UNITS; at += 32 * WARPS) {
        shared.bias[at] = a.bias[at / UNITS * HIDDEN + block_index() * UNITS + at % UNITS];
    }
    set_up_rows(r, shared.recurrence);
    if (first) normalize(one, scales, shifts, place.lane, a.epsilon, columns_of(shared)[place.warp]);
    ask(a, shared, place, 2);
    if (second) normalize(other, scales, shifts, place.lane, a.epsilon, columns_of(shared)[place.warp + WARPS]);
    ask(a, shared, place, 3);
    block_barrier();
    float sum[TILES][GROUP_TILES][4];
#pragma unroll
    for (int i = 0; i < TILES * GROUP_TILES * 4; ++i) sum[i / 4 / GROUP_TILES][i / 4 % GROUP_TILES][i % 4] = 0.0f;
    project(a, shared, weights, columns_of(shared)[row] + place.first * 16 + place.lane % 4 * 2, place, tiles, fragments, sum);
#pragma unroll
    for (int slice = PROJECTED + STAGES; slice < SLICES; ++slice) ask(a, shared, place, slice);
    let_next_begin();
    ask(a, shared, place, LATER);
    block_barrier();  // the columns have been read
    keep_partial(shared, place, tiles, sum);
    ask(a, shared, place, LATER + 1);
    block_barrier();
    add_segments(a, shared, columns);
    ask(a, shared, place, LATER + 2);
    block_barrier();
}

DEVICE void run_layer(const LayerArguments &a) {
    LayerShared &shared = *static_cast<LayerShared *>(shared_memory());
    const Arguments &r = a.recurrence;
    const int thread = thread_index();
    if (thread == 0) expect_bulk(&shared.arrived, STORED_BYTES);
    block_barrier();
    const Place place = place_of(thread, block_index());
    Quad held[REGISTER_FRAGMENTS], entering[MAX_PAIRS];
    gates_of(a, shared, place, entering);
    const Quad *direct = r.weights + (block_index() * (STORED_BYTES + HELD_BYTES) + STORED_BYTES) / sizeof(Quad);
    const Quad *moved = shared.recurrence.fragments + WARPS * SHARED_FRAGMENTS * 32;
#pragma unroll
    for (int f = MOVED_FRAGMENTS; f < REGISTER_FRAGMENTS; ++f) {
        held[f] = load_weights(direct + (place.warp * DIRECT_FRAGMENTS + f - MOVED_FRAGMENTS) * 32 + place.lane);
    }
    await_bulk(&shared.arrived);
    // From registers a frame's product takes less than half of the time that it takes to read U from shared memory.
#pragma unroll
    for (int f = 0; f < MOVED_FRAGMENTS; ++f) held[f] = moved[(place.warp * MOVED_FRAGMENTS + f) * 32 + place.lane];
    recur(r, shared.recurrence, place, held, entering, [&](int item) {
        const int slice = LATER + 3 + 3 * item;
        for (int i = slice; i < slice + 3 && i < 2 * SLICES; ++i) ask(a, shared, place, i);
    });
    if (thread == 0 && load_flag(r.workspace) != 0u) store_flag(a.error, 1u);
}
