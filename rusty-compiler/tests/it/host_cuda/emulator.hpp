// CUDA's cubes on one thread of the host, as far as the compiler's kernels go: units are fibers, which meet at barriers and at what
// planes do together. Copies that are asynchronous are made as late as the waits for them allow, so that a wait that is missing shows.
//
// Fragments lie as the PTX ISA says ("Matrix Fragments for mma.m16n8k16", "ldmatrix"). Limits: cubes run one after the other, so
// races between them do not show, and units between two barriers in order, so that those of a cube show only at barriers that lack.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <sys/mman.h>
#include <tuple>
#include <utility>
#include <vector>

// Leaves one stack for another: the registers that calls keep (System V ABI, x86-64) and the place to go on from lie on it.
extern "C" void rusty_switch(void **from, void *to);
asm(R"(
.text
.hidden rusty_switch
rusty_switch:
    push %rbp
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp, (%rdi)
    mov %rsi, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    ret
)");

namespace host {

constexpr unsigned PLANE = 32;
constexpr size_t STACK = 256 << 10;

[[noreturn]] inline void fail(const char *what) {
    fprintf(stderr, "host CUDA: %s\n", what);
    abort();
}

struct Three { unsigned x, y, z; };

// What the units of a plane do together; `run` is told those that have come to the same place.
struct Together {
    int site;
    virtual void run(Together *const (&units)[PLANE]) = 0;
    virtual ~Together() = default;
};

struct Copy { char *to; const char *from; };

enum class State { Ready, Plane, Cube, Done };

struct Unit {
    void *at = nullptr;
    State state = State::Done;
    Together *op = nullptr;
    Three place;
    std::vector<Copy> open;
    std::deque<std::vector<Copy>> closed;
};

// Of this library alone, as one of several that may run at once.
static std::vector<Unit> units;
static char *stacks = nullptr;
static Unit *own = nullptr;
static void *scheduler = nullptr;
static Three group, groups, dims;
static char *shared = nullptr;
static void (*body)() = nullptr;

inline void block(State state, Together *op = nullptr) {
    own->state = state;
    own->op = op;
    rusty_switch(&own->at, scheduler);
}

inline void together(Together &op, int site) {
    op.site = site;
    block(State::Plane, &op);
}

inline void enter() {
    body();
    block(State::Done);
}

inline void run_plane(size_t first) {
    const size_t end = std::min(first + PLANE, units.size());
    for (;;) {
        for (size_t u = first; u < end; u++) {
            while (units[u].state == State::Ready) {
                own = &units[u];
                rusty_switch(&scheduler, own->at);
            }
        }
        Together *some[PLANE] = {};
        Together *leader = nullptr;
        for (size_t u = first; u < end; u++) {
            if (units[u].state != State::Plane) continue;
            if (!leader) leader = units[u].op;
            if (units[u].op->site == leader->site) some[u - first] = units[u].op;
        }
        if (!leader) return;
        leader->run(some);
        for (size_t u = first; u < end; u++)
            if (some[u - first]) units[u].state = State::Ready;
    }
}

inline void run_cube() {
    for (size_t u = 0; u < units.size(); u++) {
        Unit &unit = units[u];
        unit.place = {unsigned(u) % dims.x, unsigned(u) / dims.x % dims.y, unsigned(u) / dims.x / dims.y};
        unit.open.clear();
        unit.closed.clear();
        unit.state = State::Ready;
        // Six registers, where to begin, and room as behind a call.
        void **top = reinterpret_cast<void **>(stacks + (u + 1) * STACK) - 8;
        top[6] = reinterpret_cast<void *>(enter);
        unit.at = top;
    }
    for (bool more = true; more;) {
        for (size_t first = 0; first < units.size(); first += PLANE) run_plane(first);
        more = false;
        for (Unit &unit : units)
            if (unit.state == State::Cube) {
                unit.state = State::Ready;
                more = true;
            }
    }
}

template <typename... A, size_t... I>
void call(void (*kernel)(A...), void *const *buffers, const void *info, std::index_sequence<I...>) {
    auto argument = [&](auto *type, size_t i) -> std::remove_pointer_t<decltype(type)> {
        using T = std::remove_pointer_t<decltype(type)>;
        if constexpr (std::is_pointer_v<T>) return static_cast<T>(buffers[i]);
        else return *static_cast<const T *>(info);
    };
    kernel(argument(static_cast<std::decay_t<A> *>(nullptr), I)...);
}

template <typename... A>
void call(void (*kernel)(A...), void *const *buffers, const void *info) {
    call(kernel, buffers, info, std::index_sequence_for<A...>{});
}

// Runs all cubes of a launch in the order of their numbers.
inline void launch(void (*kernel)(), const unsigned *grid, const unsigned *units_of, unsigned shared_bytes) {
    body = kernel;
    groups = {grid[0], grid[1], grid[2]};
    dims = {units_of[0], units_of[1], units_of[2]};
    units.resize(size_t(dims.x) * dims.y * dims.z);
    const size_t size = units.size() * STACK;
    void *const mapped = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) fail("no memory for stacks");
    stacks = static_cast<char *>(mapped);
    std::vector<char> memory(shared_bytes + 256);
    shared = memory.data() + (256 - reinterpret_cast<uintptr_t>(memory.data()) % 256) % 256;
    for (unsigned z = 0; z < groups.z; z++)
        for (unsigned y = 0; y < groups.y; y++)
            for (unsigned x = 0; x < groups.x; x++) {
                // Nothing may rely on what a cube before left.
                memset(shared, 0xff, shared_bytes);
                group = {x, y, z};
                run_cube();
            }
    munmap(mapped, size);
}

template <typename To, typename From> To bits(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}

inline float of_bf16(uint32_t half) { return bits<float>(half << 16); }
inline float of_f16(uint32_t half) { return float(bits<_Float16>(uint16_t(half))); }
inline uint32_t to_f16(float value) { return bits<uint16_t>(_Float16(value)); }
inline uint32_t to_bf16(float value) {
    const uint32_t word = bits<uint32_t>(value);
    if (value != value) return 0x7fff;
    return (word + 0x7fff + (word >> 16 & 1)) >> 16;
}
inline float finite_f16(float value) { return value != value ? value : std::fmin(std::fmax(value, -65504.0f), 65504.0f); }

struct Shuffle : Together {
    uint32_t value, mask;
    void run(Together *const (&lanes)[PLANE]) override {
        uint32_t values[PLANE] = {};
        for (unsigned i = 0; i < PLANE; i++)
            if (lanes[i]) values[i] = static_cast<Shuffle *>(lanes[i])->value;
        for (unsigned i = 0; i < PLANE; i++)
            if (lanes[i]) {
                auto *lane = static_cast<Shuffle *>(lanes[i]);
                const unsigned other = i ^ lane->mask;
                if (!lanes[other]) fail("a shuffle with a unit that is not there");
                lane->value = values[other];
            }
    }
};

template <typename T> T shuffle_xor(int site, T value, uint32_t mask) {
    Shuffle op;
    op.value = bits<uint32_t>(value);
    op.mask = mask;
    together(op, site);
    return bits<T>(op.value);
}

struct Nothing : Together {
    void run(Together *const (&)[PLANE]) override {}
};

inline void sync_plane(int site) {
    Nothing op;
    together(op, site);
}

template <bool F16> struct Product : Together {
    uint32_t a[4], b[2];
    float c[4];
    static float value(uint32_t word, unsigned side) {
        const uint32_t half = side ? word >> 16 : word & 0xffff;
        return F16 ? of_f16(half) : of_bf16(half);
    }
    void run(Together *const (&lanes)[PLANE]) override {
        float left[16][16], right[16][8];
        for (unsigned i = 0; i < PLANE; i++) {
            if (!lanes[i]) fail("a product without all units of a plane");
            auto *lane = static_cast<Product *>(lanes[i]);
            const unsigned g = i / 4, t = i % 4;
            for (unsigned side = 0; side < 2; side++) {
                for (unsigned w = 0; w < 4; w++) left[g + w % 2 * 8][2 * t + side + w / 2 * 8] = value(lane->a[w], side);
                for (unsigned w = 0; w < 2; w++) right[2 * t + side + w * 8][g] = value(lane->b[w], side);
            }
        }
        for (unsigned i = 0; i < PLANE; i++) {
            auto *lane = static_cast<Product *>(lanes[i]);
            for (unsigned w = 0; w < 4; w++) {
                const unsigned row = i / 4 + w / 2 * 8, column = i % 4 * 2 + w % 2;
                float sum = 0;
                for (unsigned k = 0; k < 16; k++) sum += left[row][k] * right[k][column];
                lane->c[w] += sum;
            }
        }
    }
};

template <bool F16>
void product(int site, float &d0, float &d1, float &d2, float &d3, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
             uint32_t b0, uint32_t b1, float c0, float c1, float c2, float c3) {
    Product<F16> op;
    op.a[0] = a0, op.a[1] = a1, op.a[2] = a2, op.a[3] = a3, op.b[0] = b0, op.b[1] = b1;
    op.c[0] = c0, op.c[1] = c1, op.c[2] = c2, op.c[3] = c3;
    together(op, site);
    d0 = op.c[0], d1 = op.c[1], d2 = op.c[2], d3 = op.c[3];
}

template <bool TURNED> struct Matrices : Together {
    uint32_t address, words[4];
    void run(Together *const (&lanes)[PLANE]) override {
        for (unsigned i = 0; i < PLANE; i++) {
            if (!lanes[i]) fail("matrices for some units of a plane");
            auto *lane = static_cast<Matrices *>(lanes[i]);
            if (lane->address % 16) fail("a row of a matrix that is not aligned");
            const unsigned g = i / 4, t = i % 4;
            for (unsigned m = 0; m < 4; m++) {
                auto row = [&](unsigned r) { return shared + static_cast<Matrices *>(lanes[8 * m + r])->address; };
                if (TURNED) {
                    uint16_t halves[2];
                    for (unsigned side = 0; side < 2; side++) memcpy(&halves[side], row(2 * t + side) + 2 * g, 2);
                    lane->words[m] = halves[0] | uint32_t(halves[1]) << 16;
                } else {
                    memcpy(&lane->words[m], row(g) + 4 * t, 4);
                }
            }
        }
    }
};

template <bool TURNED>
void matrices(int site, uint32_t &d0, uint32_t &d1, uint32_t &d2, uint32_t &d3, uint32_t address) {
    Matrices<TURNED> op;
    op.address = address;
    together(op, site);
    d0 = op.words[0], d1 = op.words[1], d2 = op.words[2], d3 = op.words[3];
}

inline void start_copy(int, uint32_t to, const void *from) {
    if (to % 16 || reinterpret_cast<uintptr_t>(from) % 16) fail("a copy that is not aligned");
    own->open.push_back({shared + to, static_cast<const char *>(from)});
}
inline void close_copies(int) {
    own->closed.push_back(std::move(own->open));
    own->open.clear();
}
inline void await_copies(int, size_t but) {
    while (own->closed.size() > but) {
        for (const Copy &copy : own->closed.front()) memcpy(copy.to, copy.from, 16);
        own->closed.pop_front();
    }
}

inline void pack_bf16(int, uint32_t &d, float high, float low) { d = to_bf16(high) << 16 | to_bf16(low); }
inline void pack_f16(int, uint32_t &d, float high, float low) { d = to_f16(high) << 16 | to_f16(low); }
inline void pack_finite_f16(int, uint32_t &d, float high, float low) {
    pack_f16(0, d, finite_f16(high), finite_f16(low));
}
inline void half_to_float(int, float &d, uint32_t half) { d = of_f16(half & 0xffff); }
inline void power_of_two(int, float &d, float exponent) { d = exp2f(exponent); }
inline void prefetch(int, const void *) {}
inline void load(int, uint32_t &a, const void *from) { memcpy(&a, from, 4); }
inline void load(int, uint32_t &a, uint32_t &b, const void *from) {
    if (reinterpret_cast<uintptr_t>(from) % 8) fail("two words that are not aligned");
    memcpy(&a, from, 4), memcpy(&b, static_cast<const char *>(from) + 4, 4);
}
inline void load(int, uint32_t &a, uint32_t &b, uint32_t &c, uint32_t &d, const void *from) {
    if (reinterpret_cast<uintptr_t>(from) % 16) fail("four words that are not aligned");
    load(0, a, b, from), load(0, c, d, static_cast<const char *>(from) + 8);
}
inline void nap(int) {}
// Launches run one after the other.
inline void await_earlier(int, const void *, const void *, const void *) {}
inline void add_atomic(int, uint32_t &d, void *at, uint32_t value) {
    auto *word = static_cast<uint32_t *>(at);
    d = *word;
    *word += value;
}

inline int32_t four(const void *a, const void *b, bool is_signed) {
    int32_t sum = 0;
    for (unsigned i = 0; i < 4; i++)
        sum += is_signed ? static_cast<const int8_t *>(a)[i] * static_cast<const int8_t *>(b)[i]
                         : static_cast<const uint8_t *>(a)[i] * static_cast<const uint8_t *>(b)[i];
    return sum;
}

} // namespace host

#define threadIdx (host::own->place)
#define blockIdx (host::group)
#define gridDim (host::groups)
#define blockDim (host::dims)
#define __device__
#define __host__
#define __global__
#define __restrict__
#define __grid_constant__
#define __launch_bounds__(units)
#define __activemask() 0xffffffffu
#define __shfl_xor_sync(mask, value, other) host::shuffle_xor(__LINE__, value, other)
#define __syncthreads() host::block(host::State::Cube)
#define __syncwarp() host::sync_plane(__LINE__)
#define __threadfence()
#define __cvta_generic_to_shared(place) uint32_t(reinterpret_cast<const char *>(place) - host::shared)

namespace kernel {
using std::fabs;
inline float rsqrt(float x) { return 1.0f / std::sqrt(x); }
inline float exp(float x) { return std::exp(x); }
inline float fma(float a, float b, float c) { return std::fma(a, b, c); }
inline float min(float a, float b) { return std::fmin(a, b); }
inline float max(float a, float b) { return std::fmax(a, b); }
inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
inline unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }
inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline int __dp4a(int a, int b, int c) { return c + host::four(&a, &b, true); }
inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) { return c + unsigned(host::four(&a, &b, false)); }
inline unsigned atomicExch(unsigned *at, unsigned value) { return std::exchange(*at, value); }
} // namespace kernel
