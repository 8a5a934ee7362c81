// The recurrence of one GRU layer over a chunk of frames, in one launch whose weights stay on the chip.
//
// This file includes nothing and is compiled twice: by NVRTC or nvcc below gru.cu, which gives it PTX, and by g++ below
// tests/gpu/emulation.h, which runs each CUDA thread as a fiber. Both define the primitives that are called here:
//   thread_index, block_index, shared_memory, block_barrier, warp_any, shuffle_xor, mma_16816,
//   load_weights, load_word, load_half, load_int, load_exchange, store_exchange, load_flag, store_flag,
//   store_pair, exp2_approx, reciprocal, float_of, half_of
// and the sizes: HIDDEN, UNITS (of a block), WARPS, REGISTER_FRAGMENTS (a warp), MAX_ROWS, SPIN_LIMIT.
//
// Who computes what. A block owns UNITS hidden units: 3 * UNITS rows of U (r, z, n one after another) in tiles of 16.
// K is cut into SEGMENTS runs of k16 steps, one run a warp. A warp's fragments of U are loaded once. A work item
// is one frame of eight batch rows: a warp multiplies its run with h(t - 1), the partial sums meet in shared memory, and
// 8 * UNITS threads add them in the order of the segments and compute the gates.
//
// How h(t) reaches the other blocks. |h| <= 1, so bit 14 of its fp16 bits is always 0 and is free to say which frame a
// word belongs to. A 32-bit word of two units carries the same mark in both halves: a word is old or new, and says so
// itself; there is no counter, flag or fence. Words lie in the order of the B fragments, so that a lane's 16 bytes are
// its fragments of two k16 steps. Frame f of a batch row goes to buffer f % 2 with the mark of f / 2 % 2. f counts the
// frames that this row has published since the workspace was zeroed (`epochs`, one a row: a row that a launch does not
// have keeps its count), so a buffer holds frame f - 2 or f, whose marks differ.
//   Overwriting: a block publishes f + 2 after all its warps have read f + 1 of all blocks, and a block publishes f + 1
//   after all its warps have read f. So nobody still reads f when f + 2 is written.
//   States: read[b] may be write[b]. A block writes a state row after it has seen h(1) of that row from all blocks, and a
//   block publishes h(1) after it has read h(0). With one frame nobody needs h(1): it is published and awaited for this.
//   Epochs: block 0 raises them after it has seen a word of every block, and a block publishes after it has read them.

constexpr int TILE_ROWS = 8;  // batch rows of a work item: N of the product
constexpr int K_STEPS = HIDDEN / 16;
constexpr int SEGMENTS = K_STEPS < WARPS ? K_STEPS : WARPS;
constexpr int RUN = K_STEPS / SEGMENTS;         // k16 steps of a segment
constexpr int LONGER = K_STEPS % SEGMENTS;      // so many segments, the first, are a step longer
constexpr int MAX_PAIRS = (RUN + (LONGER > 0) + 1) / 2;
constexpr int PAIRS = SEGMENTS * MAX_PAIRS;     // of a work item; some of a shorter run are half empty or empty
constexpr int GATE_ROWS = (3 * UNITS + 15) / 16 * 16;
constexpr int TILES = GATE_ROWS / 16;
constexpr int FRAGMENTS = 2 * MAX_PAIRS * TILES;  // of a warp, 16 bytes a lane
constexpr int SHARED_FRAGMENTS = FRAGMENTS - REGISTER_FRAGMENTS;
constexpr int GATE_THREADS = UNITS * TILE_ROWS;
constexpr bool TWO_HALVES = 2 * GATE_THREADS == 32 * WARPS;
constexpr int ITEM_TILES = MAX_ROWS / TILE_ROWS;
constexpr int PAIR_WORDS = 128;                       // 32 lanes of four words
constexpr int BUFFER_WORDS = ITEM_TILES * PAIRS * PAIR_WORDS;  // one of the two
constexpr int EPOCHS_AT = 64;                         // words of the workspace: error, then epochs, then buffers
constexpr int BUFFERS_AT = EPOCHS_AT + (MAX_ROWS + 63) / 64 * 64;
constexpr unsigned MARK = 0x40004000u;                // bit 14 of both halves
constexpr float LOG2E = 1.4426950408889634f;

static_assert(HIDDEN % 16 == 0 && HIDDEN % UNITS == 0 && UNITS % 4 == 0, "sizes");
static_assert(GATE_THREADS <= 32 * WARPS && MAX_ROWS <= 32 * WARPS && MAX_ROWS % TILE_ROWS == 0, "threads");

struct SharedLayout {
    Quad fragments[SHARED_FRAGMENTS > 0 ? WARPS * SHARED_FRAGMENTS * 32 : 1];
    float partial[2][SEGMENTS][GATE_ROWS][TILE_ROWS];  // by parity of the work item: one barrier an item is enough
    float own[ITEM_TILES][UNITS][TILE_ROWS];           // h of this block's units, the rounded value
    float bias[3 * UNITS];
    unsigned epochs[MAX_ROWS];
    int failed;
};

struct Arguments {
    const Quad *weights;      // [block][warp][fragment][lane]
    const float *bias;        // (3H)
    const half_bits *gates;   // (B, T, 3H)
    const half_bits *x_in;    // (B, T, H)
    half_bits *x_out;         // (B, T, H), may be x_in
    half_bits *slab;          // (capacity + 2, H)
    const int *read, *write;  // (B)
    const int *rows;          // (1)
    unsigned *workspace;
    int frames;
};

struct Place {  // of a thread
    int warp, lane;
    int first, steps;      // of the warp's run
    int own_unit, column;  // of the gates it computes: unit of the block, batch row of the tile
    int unit;
    int word;              // of that unit and row in a tile of the exchange
};

DEVICE constexpr int first_of(int segment) { return segment * RUN + (segment < LONGER ? segment : LONGER); }
DEVICE constexpr int segment_of(int step) {
    return step < LONGER * (RUN + 1) ? step / (RUN + 1) : LONGER + (step - LONGER * (RUN + 1)) / RUN;
}

DEVICE Place place_of(int thread, int block) {
    Place place;
    place.warp = thread / 32;
    place.lane = thread % 32;
    place.first = first_of(place.warp);
    place.steps = place.warp >= SEGMENTS ? 0 : RUN + (place.warp < LONGER);
    place.own_unit = thread % GATE_THREADS / TILE_ROWS;
    place.column = thread % TILE_ROWS;
    place.unit = block * UNITS + place.own_unit;
    const int step = place.unit / 16, inside = place.unit % 16;
    const int local = step - first_of(segment_of(step));
    const int pair = segment_of(step) * MAX_PAIRS + local / 2;
    place.word = pair * PAIR_WORDS + (place.column * 4 + inside % 8 / 2) * 4 + local % 2 * 2 + inside / 8;
    return place;
}

// Fragment f lies in registers or in shared memory; those of shared memory are spread evenly over the run.
DEVICE constexpr int register_of(int f) { return f * REGISTER_FRAGMENTS / FRAGMENTS; }
DEVICE constexpr bool in_register(int f) { return register_of(f) != register_of(f + 1); }

DEVICE unsigned mark_of(unsigned frame) { return frame & 2u ? 0u : MARK; }  // a zeroed workspace holds no frame
DEVICE bool stale(const Quad &q, unsigned mark) {
    return (((q.x ^ mark) | (q.y ^ mark) | (q.z ^ mark) | (q.w ^ mark)) & MARK) != 0u;
}

DEVICE float sigmoid(float x) { return reciprocal(1.0f + exp2_approx(-x * LOG2E)); }
DEVICE float tanh_of(float x) { return 2.0f * sigmoid(2.0f * x) - 1.0f; }

// A tile's words of frame f, in the order of the B fragments: [pair][lane][four words].
DEVICE unsigned *exchange_of(unsigned *workspace, unsigned frame, int tile) {
    return workspace + BUFFERS_AT + (frame & 1u) * BUFFER_WORDS + tile * PAIRS * PAIR_WORDS;
}

// h(0): B fragments from a state row.
DEVICE void gather(const Place &place, const half_bits *state, bool active, Quad *entering) {
    const half_bits *from = state + place.first * 16 + place.lane % 4 * 2;
#pragma unroll
    for (int p = 0; p < MAX_PAIRS; ++p) {
        entering[p] = Quad{0u, 0u, 0u, 0u};
        if (active && 2 * p < place.steps) {
            entering[p].x = load_word(from + p * 32);
            entering[p].y = load_word(from + p * 32 + 8);
            if (2 * p + 1 < place.steps) {
                entering[p].z = load_word(from + p * 32 + 16);
                entering[p].w = load_word(from + p * 32 + 24);
            }
        }
    }
}

// h(t): B fragments from the exchange, as soon as all words of the run carry the mark. False: the bound was reached.
// All loads are issued before the first is looked at; a later round loads again what was stale, and only that.
DEVICE bool receive(const Place &place, const unsigned *tile, unsigned mark, bool active, unsigned *error, Quad *entering) {
    const unsigned *from = tile + place.warp * MAX_PAIRS * PAIR_WORDS + place.lane * 4;
#pragma unroll
    for (int p = 0; p < MAX_PAIRS; ++p) {
        entering[p] = Quad{mark, mark, mark, mark};
        if (active && 2 * p < place.steps) entering[p] = load_exchange(from + p * PAIR_WORDS);
    }
    for (int polls = 0;; ++polls) {
        bool waits = false;
#pragma unroll
        for (int p = 0; p < MAX_PAIRS; ++p) {
            if (2 * p + 1 >= RUN && 2 * p + 1 >= place.steps) entering[p].z = entering[p].w = mark;  // of no step
            if (stale(entering[p], mark)) {
                entering[p] = load_exchange(from + p * PAIR_WORDS);
                waits = true;
            }
        }
        if (!warp_any(waits)) break;
        if (polls >= SPIN_LIMIT || (polls % 256 == 255 && load_flag(error) != 0u)) return false;
    }
#pragma unroll
    for (int p = 0; p < MAX_PAIRS; ++p) {
        entering[p].x ^= mark;
        entering[p].y ^= mark;
        entering[p].z ^= mark;
        entering[p].w ^= mark;
    }
    return true;
}

// The warp's run of U h for one work item into shared memory.
DEVICE void multiply(const Place &place, const Quad *held, const Quad *stored, const Quad *entering, float (*partial)[TILE_ROWS]) {
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
    }
    if (place.steps == 0) return;
    const int row = place.lane / 4, column = place.lane % 4 * 2;
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile) {
        store_pair(&partial[tile * 16 + row][column], sum[tile][0], sum[tile][1]);
        store_pair(&partial[tile * 16 + row + 8][column], sum[tile][2], sum[tile][3]);
    }
}

struct Inputs {  // of one unit, batch row and frame; loaded before the wait for h, used after it
    unsigned reset_update, candidate_residual;
};

DEVICE Inputs load_inputs(const Arguments &a, int row, int frame, int unit) {
    const long at = static_cast<long>(row) * a.frames + frame;
    const half_bits *gates = a.gates + at * 3 * HIDDEN + unit;
    Inputs in;
    in.reset_update = load_half(gates) | static_cast<unsigned>(load_half(gates + HIDDEN)) << 16;
    in.candidate_residual = load_half(gates + 2 * HIDDEN) | static_cast<unsigned>(load_half(a.x_in + at * HIDDEN + unit)) << 16;
    return in;
}

DEVICE float low_half(unsigned both) { return float_of(static_cast<half_bits>(both & 0xffffu)); }
DEVICE float high_half(unsigned both) { return float_of(static_cast<half_bits>(both >> 16)); }

// p of one gate: the segments in ascending order, then the bias.
DEVICE float recurrent(const SharedLayout &shared, int parity, int gate, int unit, int column) {
    float sum = shared.partial[parity][0][gate * UNITS + unit][column];
#pragma unroll
    for (int s = 1; s < SEGMENTS; ++s) sum = sum + shared.partial[parity][s][gate * UNITS + unit][column];
    return sum + shared.bias[gate * UNITS + unit];
}

// h' of one unit and batch row, rounded.
DEVICE half_bits next_state(const SharedLayout &shared, const Inputs &in, int parity, int unit, int column, float previous) {
    const float r = sigmoid(low_half(in.reset_update) + recurrent(shared, parity, 0, unit, column));
    const float z = sigmoid(high_half(in.reset_update) + recurrent(shared, parity, 1, unit, column));
    const float n = tanh_of(low_half(in.candidate_residual) + r * recurrent(shared, parity, 2, unit, column));
    return half_of(n + z * (previous - n));
}

// With one frame: wait until all blocks have published h(1), and so have read h(0); then write the states.
DEVICE bool settle(const Arguments &a, SharedLayout &shared, const Place &place, int rows) {
    for (int tile = 0; tile * TILE_ROWS < rows; ++tile) {
        const int row = tile * TILE_ROWS + place.lane / 4;
        const unsigned frame = shared.epochs[row];
        Quad ignored[MAX_PAIRS];
        if (!receive(place, exchange_of(a.workspace, frame, tile), mark_of(frame), row < rows, a.workspace, ignored)) {
            store_flag(a.workspace, 1u);
            shared.failed = 1;
        }
    }
    block_barrier();
    if (shared.failed) return false;
    for (int row = place.column; row < rows && thread_index() < GATE_THREADS; row += TILE_ROWS) {
        half_bits *state = a.slab + static_cast<long>(load_int(a.write + row)) * HIDDEN;
        state[place.unit] = half_of(shared.own[row / TILE_ROWS][place.own_unit][place.column]);
    }
    return true;
}

DEVICE void set_up(const Arguments &a, SharedLayout &shared, const Place &place, Quad *held) {
    const int thread = thread_index();
    const Quad *weights = a.weights + (static_cast<long>(block_index()) * WARPS + place.warp) * FRAGMENTS * 32 + place.lane;
    Quad *stored = shared.fragments + place.warp * SHARED_FRAGMENTS * 32 + place.lane;
#pragma unroll
    for (int f = 0; f < FRAGMENTS; ++f) {
        if (in_register(f)) held[register_of(f)] = load_weights(weights + f * 32);
        else stored[(f - register_of(f)) * 32] = load_weights(weights + f * 32);
    }
    if (thread < MAX_ROWS) shared.epochs[thread] = a.workspace[EPOCHS_AT + thread];
    if (thread < 3 * UNITS) shared.bias[thread] = a.bias[thread / UNITS * HIDDEN + block_index() * UNITS + thread % UNITS];
    if (thread == 0) shared.failed = load_flag(a.workspace) != 0u;
}

// Adds the segments, computes h' and hands it on: to the other blocks first, then to the layer's output and the state.
DEVICE void finish_item(const Arguments &a, SharedLayout &shared, const Place &place, const Inputs &in, int parity, int tile, int frame, bool computes) {
    const int row = tile * TILE_ROWS + place.column;
    float &own = shared.own[tile][place.own_unit][place.column];
    const half_bits next = next_state(shared, in, parity, place.own_unit, place.column, own);
    const unsigned partner = shuffle_xor(next, TILE_ROWS);  // the unit beside
    if (!computes) return;
    if (place.own_unit % 2 == 0 && (frame + 1 < a.frames || a.frames == 1)) {
        const unsigned counted = shared.epochs[row] + frame;
        const unsigned word = (next | partner << 16) & ~MARK;  // a state beyond [-1, 1] must not look like a mark
        store_exchange(exchange_of(a.workspace, counted, tile) + place.word, word | mark_of(counted));
    }
    own = float_of(next);
    const long at = (static_cast<long>(row) * a.frames + frame) * HIDDEN + place.unit;
    a.x_out[at] = half_of(high_half(in.candidate_residual) + float_of(next));
    if (frame > 0 && frame + 1 == a.frames) a.slab[static_cast<long>(load_int(a.write + row)) * HIDDEN + place.unit] = next;
}

// h(frame) of a tile of batch rows as B fragments. False: the bound was reached.
DEVICE bool enter(const Arguments &a, const SharedLayout &shared, const Place &place, int tile, int frame, int rows, Quad *entering) {
    const int row = tile * TILE_ROWS + place.lane / 4;
    const bool active = row < rows;
    if (frame == 0) {
        const half_bits *state = a.slab;
        if (active) state += static_cast<long>(load_int(a.read + row)) * HIDDEN;
        gather(place, state, active, entering);
        return true;
    }
    const unsigned counted = shared.epochs[row] + frame - 1;
    return receive(place, exchange_of(a.workspace, counted, tile), mark_of(counted), active, a.workspace, entering);
}

DEVICE void run(const Arguments &a) {
    SharedLayout &shared = *static_cast<SharedLayout *>(shared_memory());
    const int thread = thread_index();
    const Place place = place_of(thread, block_index());
    Quad held[REGISTER_FRAGMENTS];
    set_up(a, shared, place, held);
    const Quad *stored = shared.fragments + place.warp * SHARED_FRAGMENTS * 32 + place.lane;
    const int rows = load_int(a.rows) < MAX_ROWS ? load_int(a.rows) : MAX_ROWS;
    for (int row = place.column; row < rows && thread < GATE_THREADS; row += TILE_ROWS) {
        const half_bits *state = a.slab + static_cast<long>(load_int(a.read + row)) * HIDDEN;
        shared.own[row / TILE_ROWS][place.own_unit][place.column] = float_of(load_half(state + place.unit));
    }
    block_barrier();
    if (shared.failed) return;

    int item = 0;
    for (int frame = 0; frame < a.frames; ++frame) {
        for (int tile = 0; tile * TILE_ROWS < rows; ++tile, ++item) {
            // Half of the threads are enough for the gates of an item; where there are two halves they take turns.
            const bool gate_thread = TWO_HALVES ? thread / GATE_THREADS == item % 2 : thread < GATE_THREADS;
            const bool computes = gate_thread && tile * TILE_ROWS + place.column < rows;
            Inputs in = {0u, 0u};
            if (computes) in = load_inputs(a, tile * TILE_ROWS + place.column, frame, place.unit);
            Quad entering[MAX_PAIRS];
            if (!enter(a, shared, place, tile, frame, rows, entering)) {
                store_flag(a.workspace, 1u);
                shared.failed = 1;
            }
            multiply(place, held, stored, entering, shared.partial[item % 2][place.warp < SEGMENTS ? place.warp : 0]);
            block_barrier();
            if (shared.failed) return;
            if (gate_thread) finish_item(a, shared, place, in, item % 2, tile, frame, computes);
        }
    }
    if (rows <= 0) return;
    block_barrier();
    if (a.frames == 1 && !settle(a, shared, place, rows)) return;
    const unsigned published = a.frames == 1 ? 1u : a.frames - 1u;
    if (block_index() == 0 && thread < rows) a.workspace[EPOCHS_AT + thread] = shared.epochs[thread] + published;
}
