// The recurrence of one GRU layer: its arguments and shared memory, and the exchange of states between blocks.
//
// Included by gru_body.h, which names the primitives and sizes that are defined before.
//
// How h(t) reaches the other blocks. |h| <= 1, so bit 14 of its fp16 bits is always 0 and is free to say which frame a
// word belongs to. A 32-bit word of two units has the same mark in both halves, which tells whether it is old or new;
// there is no counter, flag or fence. Words are in the order of the B fragments, so that a lane's 16 bytes are
// its fragments of two k16 steps. Frame f of a batch row goes to buffer f % 2 with the mark of f / 2 % 2. f counts the
// frames that this row has published since the workspace was zeroed (`epochs`, one a row: a row that a launch does not
// have keeps its count), so a buffer holds frame f - 2 or f, whose marks differ.
//   Overwriting: a block publishes f + 2 after all its warps have read f + 1 of all blocks, and a block publishes f + 1
//   after all its warps have read f. So no block still reads f when f + 2 is written.
//   States: read[b] may be write[b]. A block writes a state row after it has seen h(1) of that row from all blocks, and a
//   block publishes h(1) after it has read h(0). With one frame no block needs h(1): it is published and awaited for this.
//   Epochs: block 0 raises them after it has seen a word of every block, and a block publishes after it has read them.

#include "gru_layout.h"

constexpr int PAIRS = SEGMENTS * MAX_PAIRS;     // of a work item; some of a shorter run are half empty or empty
constexpr int PAIR_WORDS = 128;                       // 32 lanes of four words
constexpr int BUFFER_WORDS = ITEM_TILES * PAIRS * PAIR_WORDS;  // one of the two
constexpr int PREFETCH_BYTES = 16384;                 // of one instruction
constexpr unsigned MARK = 0x40004000u;                // bit 14 of both halves
constexpr float LOG2E = 1.4426950408889634f;

struct SharedLayout {
    Quad fragments[ROOM_FRAGMENTS > 0 ? WARPS * ROOM_FRAGMENTS * 32 : 1];
    float own[ITEM_TILES][UNITS][TILE_ROWS];           // h of this block's units, the rounded value
    float bias[3 * UNITS];
    unsigned epochs[MAX_ROWS];
    int read[MAX_ROWS], write[MAX_ROWS];
    int failed;
    alignas(16) float partial[2][SEGMENTS][GATE_ROWS][TILE_ROWS];  // by parity of the work item: one barrier an item is enough
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
    int bucket;  // B: what read, write, gates and x have; rows may be fewer
    const char *ahead[2];  // weights of later kernels, prefetched to L2 while this one waits for other blocks
    long ahead_bytes[2];   // multiples of 16, as are the addresses
};

DEVICE int word_of(const Place &place) {
    const int step = place.unit / 16, inside = place.unit % 16;
    const int local = step - first_of(segment_of(step));
    const int pair = segment_of(step) * MAX_PAIRS + local / 2;
    return pair * PAIR_WORDS + (place.column * 4 + inside % 8 / 2) * 4 + local % 2 * 2 + inside / 8;
}

DEVICE unsigned mark_of(unsigned frame) { return frame & 2u ? 0u : MARK; }  // a zeroed workspace holds no frame

DEVICE float sigmoid(float x) { return reciprocal(1.0f + exp2_approx(-x * LOG2E)); }
DEVICE float tanh_of(float x) { return 2.0f * sigmoid(2.0f * x) - 1.0f; }

// A tile's words of frame f, in the order of the B fragments: [pair][lane][four words].
DEVICE unsigned *exchange_of(unsigned *workspace, unsigned frame, int tile) {
    return workspace + BUFFERS_AT + (frame & 1u) * BUFFER_WORDS + tile * PAIRS * PAIR_WORDS;
}

struct Source {  // location of a lane's B fragments of a work item
    const unsigned *at;
    unsigned mark;
    bool state;   // a state row, not the exchange; equal in all lanes
    bool exists;  // false: the lane's batch row does not exist, and its column of the product is not used
};

// h(0) in the state row `state`.
DEVICE Source state_source(const Arguments &a, const Place &place, int state, bool exists) {
    const half_bits *from = a.slab + static_cast<long>(state) * HIDDEN + place.first * 16 + place.lane % 4 * 2;
    return Source{reinterpret_cast<const unsigned *>(from), 0u, true, exists && place.steps > 0};
}

// h(frame) of a tile.
DEVICE Source source_of(const Arguments &a, const SharedLayout &shared, const Place &place, int frame, int tile, int rows) {
    const int row = tile * TILE_ROWS + place.lane / 4;
    if (frame == 0) return state_source(a, place, shared.read[row], row < rows);
    const unsigned counted = shared.epochs[row] + frame - 1;
    const unsigned *from = exchange_of(a.workspace, counted, tile) + place.warp * MAX_PAIRS * PAIR_WORDS + place.lane * 4;
    return Source{from, mark_of(counted), false, row < rows && place.steps > 0};
}

// Where a pair lacks a step, the value used instead of h must be finite. The exchange has such words, never written; a
// state row does not.
// Not one function for both sources: a register that either of two loads may fill waits for the one before the other.
template <bool STATE>
DEVICE void issue(const Source &source, const Place &place, int p, Quad &entering) {
    if (!STATE) return load_exchange_if(entering, source.at + p * PAIR_WORDS, source.exists);
    const bool first = source.exists && (complete(2 * p) || 2 * p < place.steps);
    const bool second = source.exists && (complete(2 * p + 1) || 2 * p + 1 < place.steps);
    load_word_if(entering.x, source.at + p * 16, first);
    load_word_if(entering.y, source.at + p * 16 + 4, first);
    load_word_if(entering.z, source.at + p * 16 + 8, second);
    load_word_if(entering.w, source.at + p * 16 + 12, second);
}

DEVICE bool stale(const Quad &q, const Source &source, const Place &place, int p) {
    const unsigned first = (q.x ^ source.mark) | (q.y ^ source.mark), second = (q.z ^ source.mark) | (q.w ^ source.mark);
    const unsigned low = complete(2 * p) || 2 * p < place.steps ? MARK : 0u;
    const unsigned high = complete(2 * p + 1) || 2 * p + 1 < place.steps ? MARK : 0u;
    return source.exists && !source.state && ((first & low) | (second & high)) != 0u;
}

// Waits until all words that were issued carry the mark, and takes it off. False: the bound was reached.
DEVICE bool await(const Source &source, const Place &place, unsigned *error, Quad *entering) {
    const bool arrived = poll<MAX_PAIRS>(error, [&](int p) {
        const bool again = stale(entering[p], source, place, p);
        load_exchange_if(entering[p], source.at + p * PAIR_WORDS, again);
        return again;
    });
    if (!arrived) return false;
#pragma unroll
    for (int p = 0; p < MAX_PAIRS; ++p) {
        entering[p].x ^= source.mark;
        entering[p].y ^= source.mark;
        entering[p].z ^= source.mark;
        entering[p].w ^= source.mark;
    }
    return true;
}
