// CUDA threads as fibers of one thread of the host: the primitives of gru_body.h and gru_backward_body.h for g++.
//
// A fiber runs until its warp or block must meet (vote, shuffle, mma, barrier), or until it is interrupted at random before
// an access to memory that blocks share. A seeded scheduler picks the warp that continues; one block or one warp of
// each block may be starved, that is picked `ratio` times more rarely, or one block never started.
// mma follows the fragment layouts of the PTX manual (m16n8k16) and sums its 16 products exactly before it rounds.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>
#include <vector>

#define DEVICE static inline

typedef unsigned short half_bits;
struct alignas(16) Quad {
    unsigned x, y, z, w;
};

struct alignas(16) Words {
    unsigned long long first, second;
};

extern "C" void fiber_switch(void **saved, void *next);
asm(R"(
.text
.hidden fiber_switch
.globl fiber_switch
fiber_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");

namespace emulation {

constexpr int STACK = 48 * 1024;
enum Meeting { NONE, ANY, SHUFFLE, MMA, BARRIER, LEFT };

struct Schedule {
    unsigned seed;
    int starved_block, starved_warp, ratio;  // -1: none
    int absent_block;                        // never runs
    long bound;                              // turns of warps before the run counts as hung
};

struct Fiber {
    void *stack_pointer;
    Meeting at;
    unsigned word, result;  // of a vote or shuffle
    Quad a;
    unsigned low, high;
    float *sum;
    bool bf16;  // operands of mma; else fp16
};

struct Machine {
    std::vector<Fiber> fibers;
    std::vector<std::vector<char>> shared;
    void (*entry)(void *);
    void *argument;
    void *host;
    int current, threads;
    long clock;
    struct Range {
        const char *from;
        long bytes;
    };
    std::vector<Range> prefetched;
    uint64_t random;
    float halves[65536];
};
static Machine machine;

static uint32_t draw() {  // xorshift64*
    machine.random ^= machine.random >> 12;
    machine.random ^= machine.random << 25;
    machine.random ^= machine.random >> 27;
    return static_cast<uint32_t>(machine.random * 2685821657736338717ull >> 32);
}

static Fiber &current() { return machine.fibers[machine.current]; }

static void leave_to_host() { fiber_switch(&current().stack_pointer, machine.host); }

static void meet(Meeting at) {
    current().at = at;
    leave_to_host();
}

static void interrupt() {
    if (draw() % 16 == 0) leave_to_host();
}

static void start() {
    machine.entry(machine.argument);
    meet(LEFT);
    std::abort();
}

static float operand(const Fiber &lane, unsigned bits) {
    if (!lane.bf16) return machine.halves[bits & 0xffff];
    const uint32_t word = bits << 16;
    float value;
    std::memcpy(&value, &word, 4);
    return value;
}

static void multiply(Fiber *lanes) {
    float a[16][16], b[16][8];
    for (int lane = 0; lane < 32; ++lane) {
        const int group = lane / 4, inside = lane % 4 * 2;
        const unsigned words[4] = {lanes[lane].a.x, lanes[lane].a.y, lanes[lane].a.z, lanes[lane].a.w};
        for (int r = 0; r < 4; ++r) {
            for (int half = 0; half < 2; ++half) {
                a[group + r % 2 * 8][inside + r / 2 * 8 + half] = operand(lanes[lane], words[r] >> 16 * half);
            }
        }
        for (int half = 0; half < 2; ++half) {
            b[inside + half][group] = operand(lanes[lane], lanes[lane].low >> 16 * half);
            b[inside + 8 + half][group] = operand(lanes[lane], lanes[lane].high >> 16 * half);
        }
    }
    for (int lane = 0; lane < 32; ++lane) {
        for (int i = 0; i < 4; ++i) {
            const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
            double sum = lanes[lane].sum[i];
            for (int k = 0; k < 16; ++k) sum += static_cast<double>(a[row][k]) * b[k][column];
            lanes[lane].sum[i] = static_cast<float>(sum);
        }
    }
}

// Lets a warp go on whose lanes have all met; false if they met at different places.
static bool resolve(Fiber *lanes) {
    const Meeting at = lanes[0].at;
    for (int lane = 1; lane < 32; ++lane) {
        if (lanes[lane].at != at) return false;
    }
    unsigned any = 0;
    for (int lane = 0; lane < 32; ++lane) any |= lanes[lane].word;
    if (at == MMA) multiply(lanes);
    for (int lane = 0; lane < 32; ++lane) {
        lanes[lane].result = at == SHUFFLE ? lanes[lane ^ lanes[lane].low].word : any;
        lanes[lane].at = NONE;
    }
    return true;
}

static void run_warp(Fiber *lanes) {
    for (int lane = 0; lane < 32; ++lane) {
        if (lanes[lane].at != NONE) continue;
        machine.current = static_cast<int>(&lanes[lane] - machine.fibers.data());
        fiber_switch(&machine.host, lanes[lane].stack_pointer);
    }
}

enum Outcome { DONE = 0, HUNG = 2, DIVERGED = 3, WAITS = 4 };

// One turn of a warp: its lanes run; then warp and block go on if all have met. WAITS: nothing to do before others come.
static Outcome turn(int block, int warp) {
    Fiber *threads = &machine.fibers[static_cast<size_t>(block) * machine.threads], *lanes = threads + warp * 32;
    bool ready = false;
    for (int lane = 0; lane < 32; ++lane) ready |= lanes[lane].at == NONE;
    if (!ready) return WAITS;
    run_warp(lanes);
    bool met = true, barrier = true;
    for (int lane = 0; lane < 32; ++lane) met &= lanes[lane].at != NONE && lanes[lane].at != BARRIER && lanes[lane].at != LEFT;
    if (met && !resolve(lanes)) return DIVERGED;
    for (int thread = 0; thread < machine.threads; ++thread) barrier &= threads[thread].at == BARRIER || threads[thread].at == LEFT;
    for (int thread = 0; barrier && thread < machine.threads; ++thread) {
        if (threads[thread].at == BARRIER) threads[thread].at = NONE;
    }
    return DONE;
}

static bool picked(const Schedule &schedule, int block, int warp) {
    if (block == schedule.absent_block) return false;
    const bool starved = block == schedule.starved_block || warp == schedule.starved_warp;
    return !starved || draw() % schedule.ratio == 0;
}

static Outcome run(int blocks, int threads, size_t shared_bytes, void (*entry)(void *), void *argument, const Schedule &schedule) {
    const size_t count = static_cast<size_t>(blocks) * threads;
    char *stacks = static_cast<char *>(mmap(nullptr, count * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (stacks == MAP_FAILED) std::abort();
    machine.fibers.assign(count, Fiber{});
    machine.shared.assign(blocks, std::vector<char>(shared_bytes + 16, static_cast<char>(0x7f)));  // not zero, as on a device
    machine.entry = entry;
    machine.argument = argument;
    machine.threads = threads;
    machine.prefetched.clear();
    machine.random = 0x9e3779b97f4a7c15ull * (schedule.seed + 1);
    for (int bits = 0; bits < 65536; ++bits) {
        const uint16_t word = static_cast<uint16_t>(bits);
        _Float16 half;
        std::memcpy(&half, &word, 2);
        machine.halves[bits] = static_cast<float>(half);
    }
    for (size_t i = 0; i < count; ++i) {
        void **top = reinterpret_cast<void **>(stacks + (i + 1) * STACK) - 2;
        *top = reinterpret_cast<void *>(start);  // at an address that is a multiple of 16, as the ABI wants at a call
        machine.fibers[i].stack_pointer = top - 6;
    }
    const int warps = threads / 32;
    Outcome outcome = HUNG;
    for (long turns = 0; turns < schedule.bound; ++turns) {
        const int block = static_cast<int>(draw() % blocks), warp = static_cast<int>(draw() % warps);
        if (!picked(schedule, block, warp)) continue;
        const Outcome now = turn(block, warp);
        if (now == DIVERGED) {
            outcome = DIVERGED;
            break;
        }
        if (turns % 64 != 0) continue;
        bool left = true;
        for (size_t i = 0; i < count && left; ++i) {
            left = machine.fibers[i].at == LEFT || static_cast<int>(i / threads) == schedule.absent_block;
        }
        if (left) {
            outcome = DONE;
            break;
        }
    }
    munmap(stacks, count * STACK);
    return outcome;
}

}  // namespace emulation

DEVICE int thread_index() { return emulation::machine.current % emulation::machine.threads; }
DEVICE int block_index() { return emulation::machine.current / emulation::machine.threads; }
DEVICE void *shared_memory() {
    const uintptr_t at = reinterpret_cast<uintptr_t>(emulation::machine.shared[block_index()].data());
    return reinterpret_cast<void *>((at + 15) / 16 * 16);
}
DEVICE void block_barrier() { emulation::meet(emulation::BARRIER); }
DEVICE bool warp_any(bool value) {
    emulation::current().word = value;
    emulation::meet(emulation::ANY);
    return emulation::current().result != 0;
}
DEVICE unsigned shuffle_xor(unsigned value, int mask) {
    emulation::current().word = value;
    emulation::current().low = static_cast<unsigned>(mask);
    emulation::meet(emulation::SHUFFLE);
    return emulation::current().result;
}
DEVICE void mma_of(float *sum, const Quad &a, unsigned low, unsigned high, bool bf16) {
    emulation::Fiber &fiber = emulation::current();
    fiber.sum = sum;
    fiber.a = a;
    fiber.low = low;
    fiber.high = high;
    fiber.bf16 = bf16;
    emulation::meet(emulation::MMA);
}
DEVICE void mma_16816(float *sum, const Quad &a, unsigned low, unsigned high) { mma_of(sum, a, low, high, false); }
DEVICE void mma_16816_bf16(float *sum, const Quad &a, unsigned low, unsigned high) { mma_of(sum, a, low, high, true); }
DEVICE Quad load_weights(const Quad *from) { return *from; }
DEVICE void copy_weights(Quad *to, const Quad *from) { *to = *from; }
DEVICE void copies_done() {}
DEVICE int load_int(const int *from) { return *from; }
DEVICE void load_word_if(unsigned &word, const unsigned *from, bool condition) {
    if (condition) word = *from;
}
DEVICE void load_half_if(half_bits &half, const half_bits *from, bool condition) {
    if (condition) half = *from;
}
DEVICE void load_exchange_if(Quad &q, const unsigned *from, bool condition) {  // each word whole, but not the four together
    if (!condition) return;
    q.x = from[0];
    q.y = from[1];
    emulation::interrupt();
    q.z = from[2];
    q.w = from[3];
}
DEVICE void store_exchange_if(unsigned *to, unsigned word, bool condition) {
    if (!condition) return;
    emulation::interrupt();
    *to = word;
}
DEVICE void load_words_if(Words &words, const unsigned long long *from, bool condition) {  // each whole, but not both together
    if (!condition) return;
    words.first = from[0];
    emulation::interrupt();
    words.second = from[1];
}
DEVICE void store_word_if(unsigned long long *to, unsigned long long word, bool condition) {
    if (!condition) return;
    emulation::interrupt();
    *to = word;
}
DEVICE unsigned load_flag(const unsigned *from) { return *from; }
DEVICE void store_flag(unsigned *to, unsigned word) { *to = word; }
DEVICE void store_pair(float *to, float first, float second) {
    to[0] = first;
    to[1] = second;
}
DEVICE unsigned cycles() { return static_cast<unsigned>(emulation::machine.clock += 100); }
DEVICE void prefetch(const char *from, int bytes) { emulation::machine.prefetched.push_back({from, bytes}); }
DEVICE void previous_kernel_done() {}
DEVICE float exp2_approx(float x) { return __builtin_exp2f(x); }
DEVICE float reciprocal(float x) { return 1.0f / x; }
DEVICE float float_of(half_bits half) { return emulation::machine.halves[half]; }
DEVICE half_bits half_of(float value) {
    const _Float16 half = static_cast<_Float16>(value);
    half_bits bits;
    std::memcpy(&bits, &half, 2);
    return bits;
}
DEVICE float float_from(unsigned word) {
    float value;
    std::memcpy(&value, &word, 4);
    return value;
}
DEVICE half_bits bf16_of(float value) {  // to nearest, ties to even
    uint32_t word;
    std::memcpy(&word, &value, 4);
    if (value != value) return 0x7fff;
    return static_cast<half_bits>((word + 0x7fffu + (word >> 16 & 1u)) >> 16);
}
