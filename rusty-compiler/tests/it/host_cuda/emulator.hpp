// CUDA's cubes on one thread of the host, as far as the compiler's kernels go, as texts see them: put before each, so little more than
// declarations, and nothing of the standard library. What they do is in `emulator.cpp`.
#include <stddef.h>
#include <stdint.h>

namespace host {

struct Three { unsigned x, y, z; };

// Of this library alone, as one of several that may run at once.
extern const Three *place;
extern Three group, groups, dims;
extern char *shared;

template <size_t AT, typename T> struct Argument {
    static T of(void *const *, const void *info) { return *static_cast<const T *>(info); }
};
template <size_t AT, typename T> struct Argument<AT, T *> {
    static T *of(void *const *buffers, const void *) { return static_cast<T *>(buffers[AT]); }
};

template <size_t... AT> struct Places {};
template <size_t COUNT, size_t... AT> struct First : First<COUNT - 1, COUNT - 1, AT...> {};
template <size_t... AT> struct First<0, AT...> { using These = Places<AT...>; };

// Calls a kernel with the buffers that its pointers stand for and the info block.
template <typename... A, size_t... AT>
void call(void (*kernel)(A...), void *const *buffers, const void *info, Places<AT...>) {
    kernel(Argument<AT, A>::of(buffers, info)...);
}

template <typename... A> void call(void (*kernel)(A...), void *const *buffers, const void *info) {
    call(kernel, buffers, info, typename First<sizeof...(A)>::These());
}

// Runs all cubes of a launch in the order of their numbers.
void launch(void (*kernel)(), const unsigned *grid, const unsigned *units_of, unsigned shared_bytes);

template <typename To, typename From> To bits(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    __builtin_memcpy(&to, &from, sizeof to);
    return to;
}

// Numbers of places in a text say which units are at the same one.
void sync_cube();
void sync_plane(int site);
uint32_t shuffle_xor_bits(int site, uint32_t value, uint32_t mask);

template <typename T> T shuffle_xor(int site, T value, uint32_t mask) {
    return bits<T>(shuffle_xor_bits(site, bits<uint32_t>(value), mask));
}

template <bool F16>
void product(int site, float &d0, float &d1, float &d2, float &d3, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
             uint32_t b0, uint32_t b1, float c0, float c1, float c2, float c3);

template <bool TURNED>
void matrices(int site, uint32_t &d0, uint32_t &d1, uint32_t &d2, uint32_t &d3, uint32_t address);

void start_copy(int, uint32_t to, const void *from);
void close_copies(int);
void await_copies(int, size_t but);

void pack_bf16(int, uint32_t &d, float high, float low);
void pack_f16(int, uint32_t &d, float high, float low);
void pack_finite_f16(int, uint32_t &d, float high, float low);
void half_to_float(int, float &d, uint32_t half);
void power_of_two(int, float &d, float exponent);
void load(int, uint32_t &a, const void *from);
void load(int, uint32_t &a, uint32_t &b, const void *from);
void load(int, uint32_t &a, uint32_t &b, uint32_t &c, uint32_t &d, const void *from);
void add_atomic(int, uint32_t &d, void *at, uint32_t value);
int32_t four(const void *a, const void *b, bool is_signed);
inline void prefetch(int, const void *) {}
inline void nap(int) {}
// Launches run one after the other.
inline void await_earlier(int, const void *, const void *, const void *) {}

} // namespace host

#define threadIdx (*host::place)
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
#define __syncthreads() host::sync_cube()
#define __syncwarp() host::sync_plane(__LINE__)
#define __threadfence()
#define __cvta_generic_to_shared(place) uint32_t(reinterpret_cast<const char *>(place) - host::shared)

namespace kernel {
inline float fabs(float x) { return __builtin_fabsf(x); }
inline float rsqrt(float x) { return 1.0f / __builtin_sqrtf(x); }
inline float exp(float x) { return __builtin_expf(x); }
inline float rint(float x) { return __builtin_rintf(x); }
inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline float min(float a, float b) { return __builtin_fminf(a, b); }
inline float max(float a, float b) { return __builtin_fmaxf(a, b); }
inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
inline unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }
inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline int __dp4a(int a, int b, int c) { return c + host::four(&a, &b, true); }
inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) { return c + unsigned(host::four(&a, &b, false)); }
inline unsigned atomicExch(unsigned *at, unsigned value) {
    const unsigned before = *at;
    *at = value;
    return before;
}
} // namespace kernel
