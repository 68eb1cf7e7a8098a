/* What kernel source finds when it is compiled for host devices. Included before it, preprocessed with it. */
#include <assert.h>
#include <float.h>
#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define __TASKGPU_HOST__ 1
#define __HIPCC__ 1
#define __HIPCC_RTC__ 1

/* Seen by #ifdef, and taken out later by whoever reads the preprocessed text. */
#define __global__ __global__
#define __device__ __device__
#define __host__ __host__
#define __shared__ __shared__
#define __constant__ __constant__
#define __managed__ __managed__
#define __forceinline__ __forceinline__
#define __launch_bounds__ __launch_bounds__
#define __grid_constant__ __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
#define HIP_DYNAMIC_SHARED(type, name) extern __shared__ type name[];
#define HIP_KERNEL_NAME(...) __VA_ARGS__
#define HIP_SYMBOL(x) x
#define hipThreadIdx_x threadIdx.x
#define hipThreadIdx_y threadIdx.y
#define hipThreadIdx_z threadIdx.z
#define hipBlockIdx_x blockIdx.x
#define hipBlockIdx_y blockIdx.y
#define hipBlockIdx_z blockIdx.z
#define hipBlockDim_x blockDim.x
#define hipBlockDim_y blockDim.y
#define hipBlockDim_z blockDim.z
#define hipGridDim_x gridDim.x
#define hipGridDim_y gridDim.y
#define hipGridDim_z gridDim.z

#define TASKGPU_INLINE static inline __attribute__((always_inline))
#if defined(__has_attribute)
#if __has_attribute(unavailable)
#define TASKGPU_UNAVAILABLE(text) __attribute__((unavailable(text)))
#endif
#endif
#ifndef TASKGPU_UNAVAILABLE
#define TASKGPU_UNAVAILABLE(text) __attribute__((error(text)))
#endif

/* ---- vectors */
#define TASKGPU_VECTORS(type, base)                                                                        \
    struct type##1 { base x; };                                                                            \
    struct __attribute__((aligned(2 * sizeof(base)))) type##2 { base x, y; };                              \
    struct type##3 { base x, y, z; };                                                                      \
    struct __attribute__((aligned(4 * sizeof(base) > 16 ? 16 : 4 * sizeof(base)))) type##4 { base x, y, z, w; }; \
    TASKGPU_INLINE type##1 make_##type##1(base x) { return {x}; }                                          \
    TASKGPU_INLINE type##2 make_##type##2(base x, base y) { return {x, y}; }                               \
    TASKGPU_INLINE type##3 make_##type##3(base x, base y, base z) { return {x, y, z}; }                    \
    TASKGPU_INLINE type##4 make_##type##4(base x, base y, base z, base w) { return {x, y, z, w}; }
TASKGPU_VECTORS(char, signed char)
TASKGPU_VECTORS(uchar, unsigned char)
TASKGPU_VECTORS(short, short)
TASKGPU_VECTORS(ushort, unsigned short)
TASKGPU_VECTORS(int, int)
TASKGPU_VECTORS(uint, unsigned)
TASKGPU_VECTORS(long, long)
TASKGPU_VECTORS(ulong, unsigned long)
TASKGPU_VECTORS(longlong, long long)
TASKGPU_VECTORS(ulonglong, unsigned long long)
TASKGPU_VECTORS(float, float)
TASKGPU_VECTORS(double, double)

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
    constexpr operator uint3() const { return uint3{x, y, z}; }
};

/* ---- the library's side */
namespace taskgpu {
struct block { /* tgpu_host_block */
    unsigned index[3], grid[3], size[3];
    int device;
    void *shared;
    unsigned long long shared_bytes;
};
struct runtime {
    /* Calls thread(job, i, self) for each i below count, as threads that can wait for each other. */
    void (*run)(unsigned count, void (*thread)(void *job, unsigned at, void *self), void *job);
    /* Called by one of them: returns when all of them that have not ended have called it. */
    void (*barrier)(void *self);
};
typedef void function(const block *, void *const *args, const runtime *);
struct entry { /* tgpu_host_entry */
    const char *name;
    function *run;
    const size_t *arg_sizes;
    size_t arg_count;
    unsigned max_threads;
    unsigned static_shared_bytes; /* written into the linked module: what the kernel uses in the end */
};
struct variable { /* tgpu_host_variable */
    const char *name;
    void *address;
    unsigned long long bytes;
};
struct image { /* tgpu_host_image */
    unsigned version, reserved;
    const entry *entries;
    size_t entry_count;
    const variable *variables;
    size_t variable_count;
};

/* Where the indices are, in a module that is built the plain way. */
struct indices {
    uint3 threadIdx, blockIdx;
    dim3 blockDim, gridDim;
};
static thread_local indices at;
static thread_local const runtime *here;
static thread_local void *self;
static thread_local void *shared;
static constexpr unsigned most = 1024;

template <class T> TASKGPU_INLINE T *dynamic_shared() { return (T *)__builtin_assume_aligned(taskgpu::shared, 64); }

/* What __launch_bounds__ says, as a parameter of a kernel. */
template <int N> struct bounds {
    static constexpr unsigned max_threads = N > 0 && N < (int)most ? N : most;
};

/* As a parameter of a kernel: whether the conditions are known to hold that keep threads inside their arrays. */
struct sure {
    bool yes;
};

template <size_t... I> struct list {};
template <size_t N, size_t... I> struct list_to : list_to<N - 1, N - 1, I...> {};
template <size_t... I> struct list_to<0, I...> { typedef list<I...> type; };

template <class... A> struct arguments {
    static constexpr size_t count = sizeof...(A);
    static constexpr size_t sizes[sizeof...(A) + 1] = {sizeof(A)..., 0};
    template <class F> TASKGPU_INLINE void give(void *const *args, F f) {
        give(args, f, typename list_to<sizeof...(A)>::type());
    }
    template <class F, size_t... I> TASKGPU_INLINE void give(void *const *args, F f, list<I...>) {
        f(*(A *)args[I]...);
    }
};

/* A kernel as it is called for one thread. */
template <auto K, class F = decltype(K)> struct kernel;
template <auto K, int N, class... A> struct kernel<K, void (*)(uint3, uint3, dim3, dim3, bounds<N>, A...)> {
    typedef arguments<A...> parameters;
    typedef bounds<N> limits;
    TASKGPU_INLINE void thread(uint3 i, const indices &in, A... a) {
        K(i, in.blockIdx, in.blockDim, in.gridDim, bounds<N>(), a...);
    }
};
template <auto K, int N, class... A> struct kernel<K, void (*)(bounds<N>, A...)> {
    typedef arguments<A...> parameters;
    typedef bounds<N> limits;
    TASKGPU_INLINE void thread(uint3 i, const indices &in, A... a) {
        at = in;
        at.threadIdx = i;
        K(bounds<N>(), a...);
    }
};
template <auto K, int N, class... A> struct kernel<K, void (*)(uint3, uint3, dim3, dim3, bounds<N>, sure, A...)> {
    typedef arguments<A...> parameters;
    typedef bounds<N> limits;
    TASKGPU_INLINE void thread(sure known, uint3 i, const indices &in, A... a) {
        K(i, in.blockIdx, in.blockDim, in.gridDim, bounds<N>(), known, a...);
    }
};

/* A kernel as it is called for a whole block. */
template <auto K, int N, class... A> struct kernel<K, void (*)(const indices &, bounds<N>, A...)> {
    typedef arguments<A...> parameters;
    typedef bounds<N> limits;
    TASKGPU_INLINE void whole(const indices &in, A... a) { K(in, bounds<N>(), a...); }
};

TASKGPU_INLINE indices enter(const block *b) {
    if (b->shared_bytes) shared = b->shared;
    indices in;
    in.blockIdx = uint3{b->index[0], b->index[1], b->index[2]};
    in.blockDim = dim3(b->size[0], b->size[1], b->size[2]);
    in.gridDim = dim3(b->grid[0], b->grid[1], b->grid[2]);
    in.threadIdx = uint3{0, 0, 0};
    return in;
}

template <class F> TASKGPU_INLINE void for_threads(const dim3 &n, F f) {
    if (n.x - 1 >= most || n.y - 1 >= most || n.z - 1 >= most) __builtin_unreachable();
    for (unsigned z = 0; z < n.z; z++)
        for (unsigned y = 0; y < n.y; y++)
            for (unsigned x = 0; x < n.x; x++) f(uint3{x, y, z});
}

/* Whether something holds for all threads. The last is asked first: it is the one that is most often outside. */
template <class F> TASKGPU_INLINE bool for_all(const dim3 &n, F f) {
    if (n.x - 1 >= most || n.y - 1 >= most || n.z - 1 >= most) __builtin_unreachable();
    if (!f(uint3{n.x - 1, n.y - 1, n.z - 1})) return false;
    for (unsigned z = 0; z < n.z; z++) {
        for (unsigned y = 0; y < n.y; y++) {
            unsigned outside = 0;
            for (unsigned x = 0; x < n.x; x++) outside |= !f(uint3{x, y, z});
            if (outside) return false;
        }
    }
    return true;
}
/* The same of conditions each of which looks at one of x, y and z. */
template <class F> TASKGPU_INLINE bool for_axes(const dim3 &n, F f) {
    if (n.x - 1 >= most || n.y - 1 >= most || n.z - 1 >= most) __builtin_unreachable();
    if (!f(uint3{n.x - 1, n.y - 1, n.z - 1})) return false;
    unsigned outside = 0;
    for (unsigned x = 0; x < n.x; x++) outside |= !f(uint3{x, 0, 0});
    for (unsigned y = 0; y < n.y; y++) outside |= !f(uint3{0, y, 0});
    for (unsigned z = 0; z < n.z; z++) outside |= !f(uint3{0, 0, z});
    return !outside;
}

/* Whether something holds for the last thread of a block. */
template <class F> TASKGPU_INLINE bool for_last(const dim3 &n, F f) { return f(uint3{n.x - 1, n.y - 1, n.z - 1}); }
/* Whether something holds for all threads, and who has to be asked. See regions.rs. */
enum class ask { corners, axes, all };
template <ask Whom, class F> TASKGPU_INLINE bool holds(const dim3 &n, F f) {
    if constexpr (Whom == ask::corners) return for_last(n, f) && f(uint3{0, 0, 0});
    else if constexpr (Whom == ask::axes) return for_axes(n, f);
    else return for_all(n, f);
}

/* Compilers make vectors of a loop over threads if they know that blockIdx.x * blockDim.x + threadIdx.x does not overflow. */
static constexpr unsigned narrow = 0x7ffff000u;
TASKGPU_INLINE bool is_narrow(const indices &in) {
    return (in.blockIdx.x + 1ull) * in.blockDim.x < narrow;
}

/* A kernel without barriers: a loop over the threads of the block. */
template <auto K> struct loop : kernel<K> {
    template <class... A> static __attribute__((cold, noinline)) void wide(const indices &in, A... a) {
        for_threads(in.blockDim, [&](uint3 i) __attribute__((always_inline)) { kernel<K>::thread(i, in, a...); });
    }
    static __attribute__((flatten)) void run(const block *b, void *const *args, const runtime *) {
        const indices in = enter(b);
        kernel<K>::parameters::give(args, [&](auto... a) __attribute__((always_inline)) {
            if (!is_narrow(in)) return wide(in, a...);
            if (in.blockIdx.x * in.blockDim.x >= narrow) __builtin_unreachable();
            for_threads(in.blockDim, [&](uint3 i) __attribute__((always_inline)) { kernel<K>::thread(i, in, a...); });
        });
    }
};

/* The same with a guard: where it holds for all threads of a block, they run without looking at their conditions. Vectors
   with some lanes left out cost several times as much. */
template <auto K, auto G, ask Whom> struct guarded_loop : kernel<K> {
    template <class... A> static __attribute__((cold, noinline)) void wide(const indices &in, A... a) {
        for_threads(in.blockDim, [&](uint3 i) __attribute__((always_inline)) { kernel<K>::thread({false}, i, in, a...); });
    }
    static __attribute__((flatten)) void run(const block *b, void *const *args, const runtime *) {
        const indices in = enter(b);
        kernel<K>::parameters::give(args, [&](auto... a) __attribute__((always_inline)) {
            if (!is_narrow(in)) return wide(in, a...);
            if (in.blockIdx.x * in.blockDim.x >= narrow) __builtin_unreachable();
            const auto guard = [&](uint3 i) __attribute__((always_inline)) {
                return G(i, in.blockIdx, in.blockDim, in.gridDim, a...);
            };
            if (holds<Whom>(in.blockDim, guard))
                for_threads(in.blockDim, [&](uint3 i) __attribute__((always_inline)) { kernel<K>::thread({true}, i, in, a...); });
            else
                for_threads(in.blockDim, [&](uint3 i) __attribute__((always_inline)) { kernel<K>::thread({false}, i, in, a...); });
        });
    }
};

/* A kernel with barriers that was cut into loops between them. */
template <auto K> struct regions : kernel<K> {
    template <class... A> static __attribute__((cold, noinline)) void wide(const indices &in, A... a) {
        kernel<K>::whole(in, a...);
    }
    static __attribute__((flatten)) void run(const block *b, void *const *args, const runtime *) {
        const indices in = enter(b);
        kernel<K>::parameters::give(args, [&](auto... a) __attribute__((always_inline)) {
            if (!is_narrow(in)) return wide(in, a...);
            if (in.blockIdx.x * in.blockDim.x >= narrow) __builtin_unreachable();
            kernel<K>::whole(in, a...);
        });
    }
};
/* The threads of one region, and the place of each among its variables. */
template <class F> TASKGPU_INLINE void for_lanes(const dim3 &n, F f) {
    if (n.x - 1 >= most || n.y - 1 >= most || n.z - 1 >= most) __builtin_unreachable();
    size_t row = 0;
    for (unsigned z = 0; z < n.z; z++)
        for (unsigned y = 0; y < n.y; y++, row += n.x)
            for (unsigned x = 0; x < n.x; x++) f(uint3{x, y, z}, row + x);
}
/* Which threads of a block are off, where they take ways of their own past barriers. See masks.rs. */
struct mask {
    const unsigned lanes;
    bool some = false, all = false; /* of the threads are off */
    unsigned char off[most], met[most];

    __attribute__((always_inline)) mask(const dim3 &n) : lanes(n.x * n.y * n.z) {
        if (lanes - 1 >= most) __builtin_unreachable();
        for (unsigned i = 0; i < lanes; i++) off[i] = 0;
    }
    void leave(size_t lane, unsigned char why) { off[lane] = why; }
    /* To be called when threads may have left. */
    void look() {
        unsigned char any = 0, every = 1;
        for (unsigned i = 0; i < lanes; i++) {
            any |= off[i];
            every &= off[i] != 0;
        }
        some = any, all = every;
    }
    /* Those that run and have not met a condition are off from now on. Answers whether some still run. */
    bool go(unsigned char why) {
        for (unsigned i = 0; i < lanes; i++) off[i] = off[i] || met[i] ? off[i] : why;
        look();
        return !all;
    }
    /* Those that were off are on, and those that were on are off. Answers whether some run. */
    bool turn(unsigned char why, unsigned char new_why) {
        for (unsigned i = 0; i < lanes; i++) off[i] = off[i] == why ? 0 : off[i] ? off[i] : new_why;
        look();
        return !all;
    }
    void back(unsigned char why) {
        if (!some) return;
        for (unsigned i = 0; i < lanes; i++) off[i] = off[i] == why ? 0 : off[i];
        look();
    }
    /* At a barrier. */
    void meet(const char *kernel) {
        if (some && !all) wait(kernel);
    }
    __attribute__((cold, noinline)) void wait(const char *kernel) {
        for (unsigned i = 0; i < lanes; i++) {
            if (!(off[i] & 0x80)) continue;
            fprintf(stderr,
                    "taskgpu: kernel %s: a barrier is in the way of some threads of a block and not of others: the condition of "
                    "an if or a loop with __syncthreads() inside differs between them\n",
                    kernel);
            abort();
        }
    }
};
template <class T> struct value_ { typedef T type; };
template <class T> struct value_<const T> { typedef T type; };
template <class T> struct value_<T &> : value_<T> {};
template <class T> using value = typename value_<T>::type;
template <class T> T decayed(T);
/* Sizes that are known only if an argument is what a parameter is, with no conversion between: of a reference, and of a
   pointer for which an array is given. */
template <class T, class U> struct bound;
template <class T> struct bound<T, T &> {};
template <class T> struct bound<const T, T &> {};
template <class P, class U> struct decays;
template <class T, size_t N> struct decays<T *, T (&)[N]> {};
template <class T, size_t N> struct decays<const T *, T (&)[N]> {};
template <class T> struct decays<T *, T *const &> {}; /* what dynamic shared memory is */
template <class T> struct decays<const T *, T *const &> {};
template <class T> TASKGPU_INLINE void assign(T &to, const T &from) { to = from; }
template <class T, size_t N> TASKGPU_INLINE void assign(T (&to)[N], const T (&from)[N]) {
    for (size_t i = 0; i < N; i++) assign(to[i], from[i]);
}
/* A place for the variable of a thread, in which nothing is made before its declaration is reached. */
template <class T, bool = __has_trivial_constructor(T)> struct lane_ { typedef T type; };
template <class T> union unmade {
    T made;
    unmade() {}
};
template <class T> struct lane_<T, false> { typedef unmade<T> type; };
template <class T> using lane = typename lane_<value<T>>::type;
template <class T> TASKGPU_INLINE T &in(T &lane) { return lane; }
template <class T> TASKGPU_INLINE T &in(unmade<T> &lane) { return lane.made; }
/* Whether something can be kept in a lane, and left there. */
template <class T> constexpr bool plain = __is_trivially_copyable(value<T>);
/* Of all lanes of a kernel; they are on the stack of a worker, which has 8 MiB. */
static constexpr size_t most_bytes = 3 << 20;

/* A kernel with barriers: threads that wait for each other. */
template <auto K> struct threads : kernel<K> {
    struct job {
        indices in;
        void *const *args;
    };
    static __attribute__((flatten)) void thread(void *p, unsigned n, void *me) {
        const job *j = (const job *)p;
        const dim3 &size = j->in.blockDim;
        self = me;
        kernel<K>::parameters::give(j->args, [&](auto... a) __attribute__((always_inline)) {
            kernel<K>::thread(uint3{n % size.x, n / size.x % size.y, n / size.x / size.y}, j->in, a...);
        });
    }
    static void run(const block *b, void *const *args, const runtime *r) {
        here = r;
        job j = {enter(b), args};
        r->run(b->size[0] * b->size[1] * b->size[2], thread, &j);
    }
};

template <class K> constexpr entry entry_of(const char *name) {
    return {name, K::run, K::parameters::sizes, K::parameters::count, K::limits::max_threads, 0};
}
}  // namespace taskgpu

static __attribute__((unused)) void __syncthreads() {
    void *me = taskgpu::self;
    const uint3 i = taskgpu::at.threadIdx;
    taskgpu::here->barrier(me);
    taskgpu::self = me;
    taskgpu::at.threadIdx = i;
}
TASKGPU_INLINE void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
TASKGPU_INLINE void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
TASKGPU_INLINE void __threadfence_block() { __atomic_signal_fence(__ATOMIC_SEQ_CST); }

/* ---- atomics */
namespace taskgpu {
template <class T> struct same { typedef T type; };
template <class T> constexpr bool is_whole = T(0.5) == T(0);
template <class T> constexpr void atomic_type() {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "atomic functions take types of 4 or 8 bytes");
}
template <class T, class F> TASKGPU_INLINE T update(T *p, F f) {
    atomic_type<T>();
    T old, next;
    __atomic_load(p, &old, __ATOMIC_RELAXED);
    do {
        next = f(old);
    } while (!__atomic_compare_exchange(p, &old, &next, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return old;
}
}  // namespace taskgpu
#define TASKGPU_ATOMIC(name, body)                                                                      \
    template <class T> TASKGPU_INLINE T name(T *p, typename taskgpu::same<T>::type v) { body }          \
    template <class T> TASKGPU_INLINE T name##_block(T *p, typename taskgpu::same<T>::type v) { body }  \
    template <class T> TASKGPU_INLINE T name##_system(T *p, typename taskgpu::same<T>::type v) { body }
TASKGPU_ATOMIC(atomicAdd, if constexpr (taskgpu::is_whole<T>) {
    taskgpu::atomic_type<T>();
    return __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
} else return taskgpu::update(p, [&](T old) { return old + v; });)
TASKGPU_ATOMIC(atomicSub, if constexpr (taskgpu::is_whole<T>) {
    taskgpu::atomic_type<T>();
    return __atomic_fetch_sub(p, v, __ATOMIC_RELAXED);
} else return taskgpu::update(p, [&](T old) { return old - v; });)
TASKGPU_ATOMIC(atomicMin, return taskgpu::update(p, [&](T old) { return v < old ? v : old; });)
TASKGPU_ATOMIC(atomicMax, return taskgpu::update(p, [&](T old) { return v > old ? v : old; });)
TASKGPU_ATOMIC(atomicAnd, taskgpu::atomic_type<T>(); return __atomic_fetch_and(p, v, __ATOMIC_RELAXED);)
TASKGPU_ATOMIC(atomicOr, taskgpu::atomic_type<T>(); return __atomic_fetch_or(p, v, __ATOMIC_RELAXED);)
TASKGPU_ATOMIC(atomicXor, taskgpu::atomic_type<T>(); return __atomic_fetch_xor(p, v, __ATOMIC_RELAXED);)
TASKGPU_ATOMIC(atomicExch, taskgpu::atomic_type<T>(); T old; __atomic_exchange(p, &v, &old, __ATOMIC_RELAXED); return old;)
TASKGPU_ATOMIC(atomicInc, return taskgpu::update(p, [&](T old) { return old >= v ? T(0) : T(old + 1); });)
TASKGPU_ATOMIC(atomicDec, return taskgpu::update(p, [&](T old) { return old == 0 || old > v ? v : T(old - 1); });)
template <class T>
TASKGPU_INLINE T atomicCAS(T *p, typename taskgpu::same<T>::type old, typename taskgpu::same<T>::type next) {
    taskgpu::atomic_type<T>();
    __atomic_compare_exchange(p, &old, &next, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return old;
}
#define unsafeAtomicAdd atomicAdd

/* ---- mathematics: what math.h lacks. glibc has declarations with the names of some of these. */
#define __expf(x) expf(x)
#define __exp10f(x) exp10f(x)
#define __logf(x) logf(x)
#define __log2f(x) log2f(x)
#define __log10f(x) log10f(x)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)
#define __tanf(x) tanf(x)
#define __powf(x, y) powf(x, y)
#define __sincosf(x, s, c) sincosf(x, s, c)
TASKGPU_INLINE float rsqrtf(float x) { return 1.0f / sqrtf(x); }
TASKGPU_INLINE double rsqrt(double x) { return 1.0 / sqrt(x); }
TASKGPU_INLINE float rsqrt(float x) { return rsqrtf(x); }
TASKGPU_INLINE float rcbrtf(float x) { return 1.0f / cbrtf(x); }
TASKGPU_INLINE double rcbrt(double x) { return 1.0 / cbrt(x); }
TASKGPU_INLINE double sinpi(double x) { return sin(x * M_PI); }
TASKGPU_INLINE float sinpif(float x) { return (float)sin(x * M_PI); }
TASKGPU_INLINE double cospi(double x) { return cos(x * M_PI); }
TASKGPU_INLINE float cospif(float x) { return (float)cos(x * M_PI); }
TASKGPU_INLINE float fdividef(float x, float y) { return x / y; }
TASKGPU_INLINE float __fdividef(float x, float y) { return x / y; }
TASKGPU_INLINE float norm3df(float x, float y, float z) { return (float)sqrt((double)x * x + (double)y * y + (double)z * z); }
TASKGPU_INLINE double norm3d(double x, double y, double z) { return hypot(hypot(x, y), z); }
TASKGPU_INLINE float rhypotf(float x, float y) { return 1.0f / hypotf(x, y); }
TASKGPU_INLINE double rhypot(double x, double y) { return 1.0 / hypot(x, y); }
TASKGPU_INLINE float normcdff(float x) { return (float)(0.5 * erfc(-x * M_SQRT1_2)); }
TASKGPU_INLINE double normcdf(double x) { return 0.5 * erfc(-x * M_SQRT1_2); }
TASKGPU_INLINE float __saturatef(float x) { return x > 0 ? x < 1 ? x : 1 : 0; }
TASKGPU_INLINE float __frsqrt_rn(float x) { return 1.0f / sqrtf(x); }
TASKGPU_INLINE float __fsqrt_rn(float x) { return sqrtf(x); }
TASKGPU_INLINE float __frcp_rn(float x) { return 1.0f / x; }
TASKGPU_INLINE float __fmaf_rn(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
TASKGPU_INLINE double __fma_rn(double x, double y, double z) { return __builtin_fma(x, y, z); }
#define TASKGPU_ROUNDED(name, type, operation) \
    static inline __attribute__((always_inline, optimize("fp-contract=off"))) type name(type x, type y) { return x operation y; }
TASKGPU_ROUNDED(__fadd_rn, float, +)
TASKGPU_ROUNDED(__fsub_rn, float, -)
TASKGPU_ROUNDED(__fmul_rn, float, *)
TASKGPU_ROUNDED(__fdiv_rn, float, /)
TASKGPU_ROUNDED(__dadd_rn, double, +)
TASKGPU_ROUNDED(__dsub_rn, double, -)
TASKGPU_ROUNDED(__dmul_rn, double, *)
TASKGPU_ROUNDED(__ddiv_rn, double, /)

template <class A, class B> TASKGPU_INLINE auto min(A a, B b) -> decltype(a + b) {
    decltype(a + b) x = a, y = b;
    return y < x ? y : x;
}
template <class A, class B> TASKGPU_INLINE auto max(A a, B b) -> decltype(a + b) {
    decltype(a + b) x = a, y = b;
    return x < y ? y : x;
}

/* ---- bits */
namespace taskgpu {
template <class To, class From> TASKGPU_INLINE To bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "");
    To to;
    __builtin_memcpy(&to, &from, sizeof to);
    return to;
}
}  // namespace taskgpu
TASKGPU_INLINE int __float_as_int(float x) { return taskgpu::bits<int>(x); }
TASKGPU_INLINE unsigned __float_as_uint(float x) { return taskgpu::bits<unsigned>(x); }
TASKGPU_INLINE float __int_as_float(int x) { return taskgpu::bits<float>(x); }
TASKGPU_INLINE float __uint_as_float(unsigned x) { return taskgpu::bits<float>(x); }
TASKGPU_INLINE long long __double_as_longlong(double x) { return taskgpu::bits<long long>(x); }
TASKGPU_INLINE double __longlong_as_double(long long x) { return taskgpu::bits<double>(x); }
TASKGPU_INLINE float __int2float_rn(int x) { return (float)x; }
TASKGPU_INLINE float __uint2float_rn(unsigned x) { return (float)x; }
TASKGPU_INLINE int __float2int_rz(float x) { return (int)x; }
TASKGPU_INLINE int __float2int_rn(float x) { return (int)rintf(x); }
TASKGPU_INLINE int __float2int_rd(float x) { return (int)floorf(x); }
TASKGPU_INLINE int __float2int_ru(float x) { return (int)ceilf(x); }
TASKGPU_INLINE unsigned __float2uint_rz(float x) { return (unsigned)x; }
TASKGPU_INLINE unsigned __float2uint_rn(float x) { return (unsigned)rintf(x); }
TASKGPU_INLINE int __double2int_rz(double x) { return (int)x; }
TASKGPU_INLINE int __double2int_rn(double x) { return (int)rint(x); }
TASKGPU_INLINE float __double2float_rn(double x) { return (float)x; }
TASKGPU_INLINE int __popc(unsigned x) { return __builtin_popcount(x); }
TASKGPU_INLINE int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
TASKGPU_INLINE int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
TASKGPU_INLINE int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
TASKGPU_INLINE int __ffs(int x) { return __builtin_ffs(x); }
TASKGPU_INLINE int __ffsll(long long x) { return __builtin_ffsll(x); }
TASKGPU_INLINE unsigned __brev(unsigned x) {
    unsigned y = 0;
    for (int i = 0; i < 32; i++) y |= (x >> i & 1) << (31 - i);
    return y;
}
TASKGPU_INLINE unsigned long long __brevll(unsigned long long x) {
    return (unsigned long long)__brev((unsigned)x) << 32 | __brev((unsigned)(x >> 32));
}
TASKGPU_INLINE int __mul24(int x, int y) { return x * y; }
TASKGPU_INLINE unsigned __umul24(unsigned x, unsigned y) { return x * y; }
TASKGPU_INLINE int __mulhi(int x, int y) { return (int)((long long)x * y >> 32); }
TASKGPU_INLINE unsigned __umulhi(unsigned x, unsigned y) { return (unsigned)((unsigned long long)x * y >> 32); }
TASKGPU_INLINE long long __mul64hi(long long x, long long y) { return (long long)((__int128)x * y >> 64); }
TASKGPU_INLINE unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
    return (unsigned long long)((unsigned __int128)x * y >> 64);
}
TASKGPU_INLINE unsigned __funnelshift_l(unsigned low, unsigned high, unsigned n) {
    return (unsigned)((((unsigned long long)high << 32 | low) << (n & 31)) >> 32);
}
TASKGPU_INLINE unsigned __funnelshift_r(unsigned low, unsigned high, unsigned n) {
    return (unsigned)(((unsigned long long)high << 32 | low) >> (n & 31));
}
template <class T> TASKGPU_INLINE T __ldg(const T *p) { return *p; }
TASKGPU_INLINE void __trap() { __builtin_trap(); }
static constexpr int warpSize = 1;

/* ---- what host devices do not have: an error that names it, where it is used */
#define TASKGPU_LACKS(name, what)                                                                                    \
    template <class T = int, class... A> TASKGPU_UNAVAILABLE(what " are not supported on host devices") T name(A...);
#define TASKGPU_SHUFFLE(name) TASKGPU_LACKS(name, "warp shuffles")
#define TASKGPU_VOTE(name) TASKGPU_LACKS(name, "warp votes and warp synchronization")
#define TASKGPU_TEXTURE(name) TASKGPU_LACKS(name, "textures and surfaces")
TASKGPU_SHUFFLE(__shfl) TASKGPU_SHUFFLE(__shfl_up) TASKGPU_SHUFFLE(__shfl_down) TASKGPU_SHUFFLE(__shfl_xor)
TASKGPU_SHUFFLE(__shfl_sync) TASKGPU_SHUFFLE(__shfl_up_sync) TASKGPU_SHUFFLE(__shfl_down_sync)
TASKGPU_SHUFFLE(__shfl_xor_sync)
TASKGPU_VOTE(__all) TASKGPU_VOTE(__any) TASKGPU_VOTE(__ballot) TASKGPU_VOTE(__all_sync) TASKGPU_VOTE(__any_sync)
TASKGPU_VOTE(__ballot_sync) TASKGPU_VOTE(__activemask) TASKGPU_VOTE(__match_any_sync) TASKGPU_VOTE(__match_all_sync)
TASKGPU_VOTE(__syncwarp) TASKGPU_VOTE(__reduce_add_sync) TASKGPU_VOTE(__reduce_min_sync) TASKGPU_VOTE(__reduce_max_sync)
TASKGPU_LACKS(__syncthreads_count, "barriers that count") TASKGPU_LACKS(__syncthreads_and, "barriers that count")
TASKGPU_LACKS(__syncthreads_or, "barriers that count")
TASKGPU_TEXTURE(tex1D) TASKGPU_TEXTURE(tex2D) TASKGPU_TEXTURE(tex3D) TASKGPU_TEXTURE(tex1Dfetch)
TASKGPU_TEXTURE(tex1DLayered) TASKGPU_TEXTURE(tex2DLayered) TASKGPU_TEXTURE(tex2DLod) TASKGPU_TEXTURE(texCubemap)
TASKGPU_TEXTURE(surf1Dread) TASKGPU_TEXTURE(surf2Dread) TASKGPU_TEXTURE(surf3Dread) TASKGPU_TEXTURE(surf1Dwrite)
TASKGPU_TEXTURE(surf2Dwrite) TASKGPU_TEXTURE(surf3Dwrite)
#define TASKGPU_TEXTURE_TYPE(name) \
    typedef unsigned long long name TASKGPU_UNAVAILABLE("textures and surfaces are not supported on host devices");
TASKGPU_TEXTURE_TYPE(hipTextureObject_t) TASKGPU_TEXTURE_TYPE(cudaTextureObject_t)
TASKGPU_TEXTURE_TYPE(hipSurfaceObject_t) TASKGPU_TEXTURE_TYPE(cudaSurfaceObject_t)
#define TASKGPU_LACKS_TYPE(name, what) struct TASKGPU_UNAVAILABLE(what " are not supported on host devices") name {};
TASKGPU_LACKS_TYPE(__half, "half-precision numbers") TASKGPU_LACKS_TYPE(__half2, "half-precision numbers")
TASKGPU_LACKS_TYPE(__nv_bfloat16, "bfloat16 numbers") TASKGPU_LACKS_TYPE(__hip_bfloat16, "bfloat16 numbers")
TASKGPU_LACKS(__float2half, "half-precision numbers") TASKGPU_LACKS(__half2float, "half-precision numbers")
TASKGPU_LACKS(__lane_id, "lanes of a warp") TASKGPU_LACKS(__nanosleep, "waits inside kernels")
TASKGPU_LACKS(clock, "clocks of the device")
TASKGPU_LACKS(clock64, "clocks of the device") TASKGPU_LACKS(wall_clock64, "clocks of the device")
