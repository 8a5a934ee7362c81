// The backward pass through the recurrence of one GRU layer, in one launch whose weights stay on the chip.
//
// Compiled twice, as gru_body.h is: below gru_backward.cu, and below tests/lab/gpu/emulation.h. Primitives in addition to
// those of gru_layout.h:
//   Words (two 64-bit words), load_words_if, store_word_if, mma_16816_bf16, load_half_if, load_word_if, float_from, bf16_of,
//   float_of, store_pair
//
// With dh(t) = gradient of h(t) by way of all later frames and of the output at t, and the factors f of the gates, which do
// not depend on dh and are computed for all frames beforehand:
//   dp(t) = f(t) dh(t), of the three gates, rounded to bf16
//   dh(t - 1) = output gradient at t - 1 + (dh(t) z(t) + U^T dp(t))
//
// Division of work. A block owns 16 hidden units: the columns of U that belong to them, as one tile of 16 rows of U^T. K
// is 3H long: a step is 16 units with their three gates, so a step has as many fragments as in gru_body.h, and runs,
// segments and fragments are those of gru_layout.h. Each gate has sums of its own, which are added in the order r, z, n;
// partial sums of the segments meet in shared memory and are added in ascending order by the unit's thread. bf16, because
// gradients have no bound and no common scale.
//
// How dp reaches the other blocks. A 64-bit word holds the three gates of a unit and, in its last 16 bits, the count of the
// frames that this batch row has published since the workspace was zeroed, modulo 2^16. Words are stored and loaded whole,
// so a word is old or new, and there is no counter, flag or fence. The count's parity chooses one of two buffers, so a
// place holds count c - 2 or c. A lane's 16 bytes are two units that follow each other, from which it takes its B fragments.
//   Overwriting: a block publishes c + 2 after all its warps have read c + 1 of all blocks, and a block publishes c + 1
//   after all its warps have read c. So no block still reads c when c + 2 is written.
//   Epochs: the last frame is awaited too, for the gradient of h(0). Block 0 raises the epochs after that, and a block
//   publishes after it has read them.

#include "gru_layout.h"

constexpr int GATES = 3;
constexpr int FACTORS = 5;                       // f of r, z and the recurrent n; f of the input's n; z
constexpr int STEPS = 2 * MAX_PAIRS;             // of a warp, GATES fragments each
constexpr int LOADS = 2 * STEPS;                 // of a warp: units 0 to 7 of a step, and 8 to 15
constexpr int LOAD_WORDS = 64;                   // 64-bit words: 32 lanes of two
constexpr int TILE_WORDS = SEGMENTS * LOADS * LOAD_WORDS;
constexpr int BUFFER_WORDS = ITEM_TILES * TILE_WORDS;  // one of the two
static_assert(UNITS == 16 && TILES == GATES, "a block has one tile of U^T");

struct BackwardShared {
    Quad fragments[ROOM_FRAGMENTS > 0 ? WARPS * ROOM_FRAGMENTS * 32 : 1];
    float own[ITEM_TILES][UNITS][TILE_ROWS];  // dh(t) z(t) of this block's units
    unsigned epochs[MAX_ROWS];
    int failed;
    alignas(16) float partial[2][SEGMENTS][UNITS][TILE_ROWS];  // by parity of the work item: one barrier an item is enough
};

struct BackwardArguments {
    const Quad *weights;       // U^T in bf16, [block][warp][fragment][lane]
    const half_bits *factors;  // (B, T, FACTORS, H) fp16
    const float *outputs;      // (B, T, H), gradients of the outputs
    half_bits *products;       // (B, T, 3H) bf16: gradients of U h + c, which are those of the inputs of r and z too
    half_bits *candidates;     // (B, T, H) bf16: gradients of the input of n
    float *first;              // (B, H): gradients of h(0)
    unsigned *workspace;
    int frames, rows;
};

struct BackwardSource {  // location of a lane's words of a work item
    const unsigned long long *at;
    unsigned mark;  // in the upper half
    bool exists;    // false: nothing is published for the lane's row, and its column of the product is zero or not used
};

struct Derivatives {  // of one unit, batch row and frame; loaded long before they are used
    half_bits reset, update, candidate, entering, carry;
    unsigned output;
};

// A tile's words of one count: [segment][load][lane][two units].
DEVICE unsigned long long *exchange_of(unsigned *workspace, unsigned count, int tile) {
    return reinterpret_cast<unsigned long long *>(workspace + BUFFERS_AT) + (count & 1u) * BUFFER_WORDS + tile * TILE_WORDS;
}

DEVICE int word_of(const Place &place) {
    const int step = place.unit / 16, inside = place.unit % 16, segment = segment_of(step);
    const int load = segment * LOADS + (step - first_of(segment)) * 2 + inside / 8;
    return load * LOAD_WORDS + (place.column * 4 + inside % 8 / 2) * 2 + inside % 2;
}

// What a work item multiplies: the words of the frame before it in the backward pass; before the last frame there are none.
DEVICE BackwardSource source_of(const BackwardArguments &a, const BackwardShared &shared, const Place &place, int turn, int tile) {
    const int row = tile * TILE_ROWS + place.lane / 4;
    const unsigned count = shared.epochs[row] + turn;
    const unsigned long long *from = exchange_of(a.workspace, count, tile) + (place.warp * LOADS * LOAD_WORDS + place.lane * 2);
    return BackwardSource{from, count << 16, turn > 0 && row < a.rows && place.steps > 0};
}

DEVICE bool present(const BackwardSource &source, const Place &place, int load) {
    return source.exists && (complete(load / 2) || load / 2 < place.steps);
}

DEVICE void issue(const BackwardSource &source, const Place &place, int load, Words &entering) {
    load_words_if(entering, source.at + load * LOAD_WORDS, present(source, place, load));
}

DEVICE unsigned lower(unsigned long long word) { return static_cast<unsigned>(word); }         // gates r and z
DEVICE unsigned upper(unsigned long long word) { return static_cast<unsigned>(word >> 32); }  // gate n and the mark

DEVICE unsigned lower_halves(unsigned first, unsigned second) { return (first & 0xffffu) | second << 16; }
DEVICE unsigned upper_halves(unsigned first, unsigned second) { return first >> 16 | (second & 0xffff0000u); }

// Registers of the B fragments of a step's gates, from the words of two units.
DEVICE void operands(const Words &words, unsigned *registers) {
    registers[0] = lower_halves(lower(words.first), lower(words.second));
    registers[1] = upper_halves(lower(words.first), lower(words.second));
    registers[2] = lower_halves(upper(words.first), upper(words.second));
}

// Waits until all words that were issued carry the mark. False: the bound was reached.
DEVICE bool await(const BackwardSource &source, const Place &place, unsigned *error, Words *entering) {
    return poll<LOADS>(error, [&](int load) {
        const unsigned old = ((upper(entering[load].first) ^ source.mark) | (upper(entering[load].second) ^ source.mark)) >> 16;
        const bool again = present(source, place, load) && old != 0u;
        load_words_if(entering[load], source.at + load * LOAD_WORDS, again);
        return again;
    });
}

// The warp's run of U^T dp for one work item into shared memory. As soon as the words of a step have been used, those of the
// next work item are loaded into their registers.
DEVICE void multiply(const Place &place, const Quad *held, const Quad *stored, Words *entering, const BackwardSource &next,
                     float (*partial)[TILE_ROWS]) {
    float sum[GATES][4];
#pragma unroll
    for (int gate = 0; gate < GATES; ++gate) sum[gate][0] = sum[gate][1] = sum[gate][2] = sum[gate][3] = 0.0f;
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
        unsigned lows[GATES], highs[GATES];
        operands(entering[2 * step], lows);
        operands(entering[2 * step + 1], highs);
#pragma unroll
        for (int gate = 0; gate < GATES; ++gate) {
            const int f = step * GATES + gate;
            mma_16816_bf16(sum[gate], in_register(f) ? held[register_of(f)] : stored[(f - register_of(f)) * 32], lows[gate], highs[gate]);
        }
        issue(next, place, 2 * step, entering[2 * step]);
        issue(next, place, 2 * step + 1, entering[2 * step + 1]);
    }
    if (place.steps == 0) return;
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[0][i] = (sum[0][i] + sum[1][i]) + sum[2][i];
    const int row = place.lane / 4, column = place.lane % 4 * 2;
    store_pair(&partial[row][column], sum[0][0], sum[0][1]);
    store_pair(&partial[row + 8][column], sum[0][2], sum[0][3]);
}

DEVICE void load_derivatives(const BackwardArguments &a, const Place &place, int turn, int tile, Derivatives &in) {
    const int row = tile * TILE_ROWS + place.column;
    const bool exists = row < a.rows && turn < a.frames && place.group < GATE_GROUPS;
    const long at = static_cast<long>(row) * a.frames + (a.frames - 1 - turn);
    const half_bits *factors = a.factors + at * FACTORS * HIDDEN + place.unit;
    load_half_if(in.reset, factors, exists);
    load_half_if(in.update, factors + HIDDEN, exists);
    load_half_if(in.candidate, factors + 2 * HIDDEN, exists);
    load_half_if(in.entering, factors + 3 * HIDDEN, exists);
    load_half_if(in.carry, factors + 4 * HIDDEN, exists);
    load_word_if(in.output, reinterpret_cast<const unsigned *>(a.outputs + at * HIDDEN + place.unit), exists);
}

// Adds the segments in ascending order, computes the gates' gradients and stores them: to the other blocks first. After the
// first frame, stores the gradient of h(0). False: a warp of the block has timed out, and nothing was stored.
DEVICE bool finish_item(const BackwardArguments &a, BackwardShared &shared, const Place &place, const Derivatives &in, int parity,
                        int turn, int tile) {
    const int row = tile * TILE_ROWS + place.column;
    const bool failed = shared.failed != 0, stores = row < a.rows && !failed;
    float &own = shared.own[tile][place.own_unit][place.column];
    float sum = shared.partial[parity][0][place.own_unit][place.column];
#pragma unroll
    for (int s = 1; s < SEGMENTS; ++s) sum = sum + shared.partial[parity][s][place.own_unit][place.column];
    const float carried = turn > 0 ? own + sum : 0.0f;
    if (turn == a.frames) {
        if (stores) a.first[static_cast<long>(row) * HIDDEN + place.unit] = carried;
        return !failed;
    }
    const float gradient = carried + float_from(in.output);
    const half_bits reset = bf16_of(gradient * float_of(in.reset)), update = bf16_of(gradient * float_of(in.update));
    const half_bits candidate = bf16_of(gradient * float_of(in.candidate));
    const unsigned count = shared.epochs[row] + turn + 1;
    const unsigned low = reset | static_cast<unsigned>(update) << 16, high = candidate | count << 16;
    unsigned long long *to = exchange_of(a.workspace, count, tile) + place.word;
    store_word_if(to, static_cast<unsigned long long>(high) << 32 | low, stores);
    if (!stores) return !failed;
    own = gradient * float_of(in.carry);
    const long at = static_cast<long>(row) * a.frames + (a.frames - 1 - turn);
    half_bits *products = a.products + at * GATES * HIDDEN + place.unit;
    products[0] = reset;
    products[HIDDEN] = update;
    products[2 * HIDDEN] = candidate;
    a.candidates[at * HIDDEN + place.unit] = bf16_of(gradient * float_of(in.entering));
    return true;
}

// All frames from the last to the first, and a turn more for the gradient of h(0), once the fragments are held or stored.
DEVICE void backpropagate(const BackwardArguments &a, BackwardShared &shared, const Place &place, const Quad *held, Words *entering) {
    const Quad *stored = shared.fragments + place.warp * SHARED_FRAGMENTS * 32 + place.lane;
    const int tiles = (a.rows + TILE_ROWS - 1) / TILE_ROWS, items = (a.frames + 1) * tiles;
    Derivatives in = {0, 0, 0, 0, 0, 0u};
    load_derivatives(a, place, place.group / tiles, place.group % tiles, in);
    BackwardSource source = {nullptr, 0u, false};
    int turn = 0, tile = 0;
    for (int item = 0; item < items; ++item) {
        const int next_tile = tile + 1 < tiles ? tile + 1 : 0, next_turn = next_tile ? turn : turn + 1;
        if (!await(source, place, a.workspace, entering)) {
            store_flag(a.workspace, 1u);
            shared.failed = 1;
        }
        // With one tile the next words do not exist before this item's gates.
        source = BackwardSource{nullptr, 0u, false};
        if (tiles > 1 && item + 1 < items) source = source_of(a, shared, place, next_turn, next_tile);
        multiply(place, held, stored, entering, source, shared.partial[item % 2][place.warp < SEGMENTS ? place.warp : 0]);
        block_barrier();
        if (place.group == item % GATE_GROUPS) {
            if (!finish_item(a, shared, place, in, item % 2, turn, tile)) return;
            // The next work item of this thread's group.
            const int later = tile + GATE_GROUPS;
            load_derivatives(a, place, turn + later / tiles, later % tiles, in);
        }
        if (tiles == 1 && item + 1 < items) {
            source = source_of(a, shared, place, next_turn, next_tile);
#pragma unroll
            for (int load = 0; load < LOADS; ++load) issue(source, place, load, entering[load]);
        }
        tile = next_tile;
        turn = next_turn;
    }
    block_barrier();
    if (shared.failed) return;
    if (block_index() == 0 && thread_index() < a.rows) {
        store_flag(a.workspace + EPOCHS_AT + thread_index(), shared.epochs[thread_index()] + a.frames);
    }
}

DEVICE void run_backward(const BackwardArguments &a) {
    BackwardShared &shared = *static_cast<BackwardShared *>(shared_memory());
    const Place place = place_of(thread_index(), block_index());
    Quad held[REGISTER_FRAGMENTS];
    Words entering[LOADS];
    const int thread = thread_index();
    if (thread < MAX_ROWS) shared.epochs[thread] = load_flag(a.workspace + EPOCHS_AT + thread);
    if (thread == 0) shared.failed = load_flag(a.workspace) != 0u;
    load_fragments(a.weights, shared.fragments, place, 0, FRAGMENTS, held);
#pragma unroll
    for (int load = 0; load < LOADS; ++load) entering[load] = Words{0u, 0u};
    copies_done();
    block_barrier();
    if (!shared.failed) backpropagate(a, shared, place, held, entering);
}
