// One GRU layer on the chip: its sizes, which thread has which part, fragments of U in registers and shared memory, and
// bounded waiting for other blocks. Shared by the recurrence (gru_exchange.h, gru_body.h) and by its backward pass
// (gru_backward_body.h).
//
// Included after the primitives and sizes that gru_body.h names.

constexpr int TILE_ROWS = 8;  // batch rows of a work item: N of the product
constexpr int K_STEPS = HIDDEN / 16;
constexpr int SEGMENTS = K_STEPS < WARPS ? K_STEPS : WARPS;
constexpr int RUN = K_STEPS / SEGMENTS;         // k16 steps of a segment
constexpr int LONGER = K_STEPS % SEGMENTS;      // number of segments, the first ones, that are a step longer
constexpr int MAX_PAIRS = (RUN + (LONGER > 0) + 1) / 2;
constexpr int GATE_ROWS = (3 * UNITS + 15) / 16 * 16;
constexpr int TILES = GATE_ROWS / 16;
constexpr int FRAGMENTS = 2 * MAX_PAIRS * TILES;  // of a warp, 16 bytes a lane
constexpr int SHARED_FRAGMENTS = FRAGMENTS - REGISTER_FRAGMENTS;
#ifdef BULK_FRAGMENTS
constexpr int ROOM_FRAGMENTS = BULK_FRAGMENTS;
#else
constexpr int ROOM_FRAGMENTS = SHARED_FRAGMENTS;
#endif
constexpr int GATE_THREADS = UNITS * TILE_ROWS;
constexpr int GATE_GROUPS = 32 * WARPS / GATE_THREADS;  // of threads, which take turns with the gates of work items
constexpr int ITEM_TILES = MAX_ROWS / TILE_ROWS;
constexpr int EPOCHS_AT = 64;                         // words of the workspace: error, then epochs, then buffers
constexpr int BUFFERS_AT = EPOCHS_AT + (MAX_ROWS + 63) / 64 * 64;

static_assert(HIDDEN % 16 == 0 && HIDDEN % UNITS == 0 && UNITS % 4 == 0, "sizes");
static_assert(GATE_THREADS <= 32 * WARPS && MAX_ROWS <= 32 * WARPS && MAX_ROWS % TILE_ROWS == 0, "threads");

struct Place {  // of a thread
    int warp, lane;
    int first, steps;      // of the warp's run
    int group;             // whose work items' gates it computes; GATE_GROUPS or more: none
    int own_unit, column;  // of these: unit of the block, batch row of the tile
    int unit;
    int word;              // of that unit and row in a tile of the exchange
};

DEVICE constexpr int first_of(int segment) { return segment * RUN + (segment < LONGER ? segment : LONGER); }
DEVICE constexpr int segment_of(int step) {
    return step < LONGER * (RUN + 1) ? step / (RUN + 1) : LONGER + (step - LONGER * (RUN + 1)) / RUN;
}

DEVICE int word_of(const Place &place);  // each exchange has an order of its own

DEVICE Place place_of(int thread, int block) {
    Place place;
    place.warp = thread / 32;
    place.lane = thread % 32;
    place.first = first_of(place.warp);
    place.steps = place.warp >= SEGMENTS ? 0 : RUN + (place.warp < LONGER);
    place.group = thread / GATE_THREADS;
    place.own_unit = thread % GATE_THREADS / TILE_ROWS;
    place.column = thread % TILE_ROWS;
    place.unit = block * UNITS + place.own_unit;
    place.word = word_of(place);
    return place;
}

// The segments differ by one step, so only the last pair of steps may lack a step or both: its fragments of U are zero.
DEVICE constexpr bool complete(int step) { return step < RUN; }

// Fragment f is in registers or in shared memory; those of shared memory are spread evenly over the run.
DEVICE constexpr int register_of(int f) { return f * REGISTER_FRAGMENTS / FRAGMENTS; }
DEVICE constexpr bool in_register(int f) { return register_of(f) != register_of(f + 1); }

// Fragments [from, to) of the warp; weights are [block][warp][fragment][lane], `room` is the block's shared memory.
DEVICE void load_fragments(const Quad *all, Quad *room, const Place &place, int from, int to, Quad *held) {
    const Quad *weights = all + (static_cast<long>(block_index()) * WARPS + place.warp) * FRAGMENTS * 32 + place.lane;
    Quad *stored = room + place.warp * SHARED_FRAGMENTS * 32 + place.lane;
#pragma unroll
    for (int f = from; f < to; ++f) {
        if (in_register(f)) held[register_of(f)] = load_weights(weights + f * 32);
        else copy_weights(stored + (f - register_of(f)) * 32, weights + f * 32);
    }
}

// Calls `again` for each of COUNT loads until no lane of the warp says that its load brought an old word; it then has
// loaded that once more. False: the bound was reached.
template <int COUNT, class Again>
DEVICE bool poll(const unsigned *error, Again again) {
    for (int polls = 0;; ++polls) {
        bool waits = false;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) waits |= again(i);
        if (!warp_any(waits)) return true;
        if (polls >= SPIN_LIMIT || (polls % 256 == 255 && load_flag(error) != 0u)) return false;
    }
}
