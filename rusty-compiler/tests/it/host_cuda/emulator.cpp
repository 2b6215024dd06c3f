// What texts see of CUDA by `emulator.hpp`, which is put before this: compiled once for all of them. Units are fibers, which meet at
// barriers and at what planes do together. Copies that are asynchronous are made as late as the waits for them allow, so that a wait that is missing shows.
//
// Fragments lie as the PTX ISA says ("Matrix Fragments for mma.m16n8k16", "ldmatrix"). Limits: cubes run one after the other, so
// races between them do not show, and units between two barriers in order, so that those of a cube show only at barriers that lack.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <sys/mman.h>
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

[[noreturn]] static void fail(const char *what) {
    fprintf(stderr, "host CUDA: %s\n", what);
    abort();
}

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

const Three *place = nullptr;
Three group, groups, dims;
char *shared = nullptr;

static std::vector<Unit> units;
static char *stacks = nullptr;
static Unit *own = nullptr;
static void *scheduler = nullptr;
static void (*body)() = nullptr;

static void block(State state, Together *op = nullptr) {
    own->state = state;
    own->op = op;
    rusty_switch(&own->at, scheduler);
}

static void together(Together &op, int site) {
    op.site = site;
    block(State::Plane, &op);
}

static void enter() {
    body();
    block(State::Done);
}

static void run_plane(size_t first) {
    const size_t end = std::min(first + PLANE, units.size());
    for (;;) {
        for (size_t u = first; u < end; u++) {
            while (units[u].state == State::Ready) {
                own = &units[u];
                place = &own->place;
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

static void run_cube() {
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

void launch(void (*kernel)(), const unsigned *grid, const unsigned *units_of, unsigned shared_bytes) {
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

static float of_bf16(uint32_t half) { return bits<float>(half << 16); }
static float of_f16(uint32_t half) { return float(bits<_Float16>(uint16_t(half))); }
static uint32_t to_f16(float value) { return bits<uint16_t>(_Float16(value)); }
static uint32_t to_bf16(float value) {
    const uint32_t word = bits<uint32_t>(value);
    if (value != value) return 0x7fff;
    return (word + 0x7fff + (word >> 16 & 1)) >> 16;
}
static float finite_f16(float value) { return value != value ? value : std::fmin(std::fmax(value, -65504.0f), 65504.0f); }

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

uint32_t shuffle_xor_bits(int site, uint32_t value, uint32_t mask) {
    Shuffle op;
    op.value = value;
    op.mask = mask;
    together(op, site);
    return op.value;
}

struct Nothing : Together {
    void run(Together *const (&)[PLANE]) override {}
};

void sync_cube() { block(State::Cube); }

void sync_plane(int site) {
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

template void product<false>(int, float &, float &, float &, float &, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t,
                             float, float, float, float);
template void product<true>(int, float &, float &, float &, float &, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t,
                            float, float, float, float);

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

template void matrices<false>(int, uint32_t &, uint32_t &, uint32_t &, uint32_t &, uint32_t);
template void matrices<true>(int, uint32_t &, uint32_t &, uint32_t &, uint32_t &, uint32_t);

void start_copy(int, uint32_t to, const void *from) {
    if (to % 16 || reinterpret_cast<uintptr_t>(from) % 16) fail("a copy that is not aligned");
    own->open.push_back({shared + to, static_cast<const char *>(from)});
}
void close_copies(int) {
    own->closed.push_back(std::move(own->open));
    own->open.clear();
}
void await_copies(int, size_t but) {
    while (own->closed.size() > but) {
        for (const Copy &copy : own->closed.front()) memcpy(copy.to, copy.from, 16);
        own->closed.pop_front();
    }
}

void pack_bf16(int, uint32_t &d, float high, float low) { d = to_bf16(high) << 16 | to_bf16(low); }
void pack_f16(int, uint32_t &d, float high, float low) { d = to_f16(high) << 16 | to_f16(low); }
void pack_finite_f16(int, uint32_t &d, float high, float low) {
    pack_f16(0, d, finite_f16(high), finite_f16(low));
}
void half_to_float(int, float &d, uint32_t half) { d = of_f16(half & 0xffff); }
void power_of_two(int, float &d, float exponent) { d = exp2f(exponent); }
void load(int, uint32_t &a, const void *from) { memcpy(&a, from, 4); }
void load(int, uint32_t &a, uint32_t &b, const void *from) {
    if (reinterpret_cast<uintptr_t>(from) % 8) fail("two words that are not aligned");
    memcpy(&a, from, 4), memcpy(&b, static_cast<const char *>(from) + 4, 4);
}
void load(int, uint32_t &a, uint32_t &b, uint32_t &c, uint32_t &d, const void *from) {
    if (reinterpret_cast<uintptr_t>(from) % 16) fail("four words that are not aligned");
    load(0, a, b, from), load(0, c, d, static_cast<const char *>(from) + 8);
}
void add_atomic(int, uint32_t &d, void *at, uint32_t value) {
    auto *word = static_cast<uint32_t *>(at);
    d = *word;
    *word += value;
}

int32_t four(const void *a, const void *b, bool is_signed) {
    int32_t sum = 0;
    for (unsigned i = 0; i < 4; i++)
        sum += is_signed ? static_cast<const int8_t *>(a)[i] * static_cast<const int8_t *>(b)[i]
                         : static_cast<const uint8_t *>(a)[i] * static_cast<const uint8_t *>(b)[i];
    return sum;
}

} // namespace host
