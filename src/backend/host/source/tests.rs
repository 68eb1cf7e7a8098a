//! Every way of building a module must give the same answers.

use super::super::module;
use super::super::threads::RUNTIME;
use super::*;
use crate::backend::HostBlock;
use std::ffi::c_void;

/// Most threads of a block in these tests.
const THREADS: usize = 64;

fn example(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("examples/kernels")
        .join(name);
    std::fs::read_to_string(path).expect("the examples are there")
}

fn options(name: &str, expressions: &[&str]) -> CompileOptions {
    CompileOptions {
        name: name.into(),
        name_expressions: expressions.iter().map(|e| (*e).to_owned()).collect(),
        ..Default::default()
    }
}

fn all_ways() -> [Way; 3] {
    [Way::Regions, Way::Fast, Way::Plain]
}

/// Runs `kernel(n, out)` for some blocks on this thread. `out` has a number for each thread, 100 + its index at first.
fn run(image: &[u8], kernel: &str, grid: u32, block: [u32; 3]) -> Vec<i32> {
    let raw = module::load(image).expect("it loads");
    let function = module::function_of(module::function(raw, kernel).expect("it has the kernel"));
    assert_eq!(function.kernel.arg_sizes(), [4, 8]);
    let threads: u32 = block.iter().product();
    let mut out: Vec<i32> = (0..(grid * threads) as i32).map(|i| 100 + i).collect();
    let mut shared = vec![0u64; 8192];
    let mut n = out.len() as i32;
    let mut start = out.as_mut_ptr();
    let args = [(&raw mut n).cast::<c_void>(), (&raw mut start).cast::<c_void>()];
    for index in 0..grid {
        let block = HostBlock {
            index: [index, 0, 0],
            grid: [grid, 1, 1],
            block,
            device: 0,
            shared: shared.as_mut_ptr().cast(),
            shared_bytes: 65536,
        };
        let data = (&raw const RUNTIME).cast::<c_void>().cast_mut();
        // SAFETY: the kernel takes an int and a pointer to as many ints as there are threads.
        unsafe { function.kernel.function()(&block, args.as_ptr(), data) };
    }
    module::destroy(raw);
    out
}

/// Builds a kernel in every way, looks that the fastest is the one expected, and that all give the same.
fn check(what: &str, way: Way, source: &str) {
    let prefix = "#define ME ((threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x)\n\
                  #define ALL (blockDim.x * blockDim.y * blockDim.z)\n\
                  #define OUT out[blockIdx.x * ALL + ME]\n";
    let source = format!("{prefix}{source}");
    let options = options(what, &[]);
    let (best, took) = build(&all_ways(), &source, &options).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert_eq!(took, way, "{what}");
    let mut images = vec![best.image];
    for other in all_ways() {
        if other != way {
            if let Ok((made, _)) = build(&[other], &source, &options) {
                images.push(made.image);
            }
        }
    }
    // The plain way always works.
    assert!(images.len() >= 2 || way == Way::Plain, "{what}");
    let mut touched = false;
    for block in [[1, 1, 1], [7, 1, 1], [THREADS as u32, 1, 1], [8, 4, 2], [3, 5, 1]] {
        let first = run(&images[0], "k", 3, block);
        touched |= first.iter().enumerate().any(|(i, v)| *v != 100 + i as i32);
        for image in &images[1..] {
            assert_eq!(run(image, "k", 3, block), first, "{what}, blocks of {block:?}");
        }
    }
    assert!(touched, "{what}: the kernel does nothing");
}

macro_rules! kernel {
    ($body:literal) => {
        concat!("extern \"C\" __global__ void k(int n, int *out) {", $body, "}")
    };
}

#[test]
fn the_examples_take_the_fastest_way() {
    for (name, expressions, way) in [
        ("saxpy.hip", &[][..], Way::Fast),
        ("matmul.hip", &[], Way::Regions),
        ("reduce.hip", &["reduce<double>"], Way::Regions),
        ("histogram.hip", &[], Way::Regions),
        ("stencil.hip", &[], Way::Fast),
        ("mandelbrot.hip", &[], Way::Fast),
    ] {
        let built = build(&all_ways(), &example(name), &options(name, expressions));
        assert_eq!(built.expect("it compiles").1, way, "{name}");
    }
}

#[test]
fn kernels_without_barriers() {
    check(
        "a plain one",
        Way::Fast,
        kernel!("if (OUT % 2) return; OUT = OUT * n + threadIdx.y;"),
    );
    check(
        "functions that need the indices",
        Way::Fast,
        "__device__ int me() { return ME; }\n\
         template <class T> __device__ T twice(T x) { return x + me() * T(2); }\n\
         namespace a { __device__ int deep(int n) { return n == 0 ? me() : 1 + deep(n - 1); } }\n\
         extern \"C\" __global__ void k(int n, int *out) { OUT = twice<int>(n) + a::deep(3) + me(); }",
    );
    check(
        "a class that needs them",
        Way::Plain,
        "struct where { int x; __device__ where() : x(ME) {} int get() const { return x + blockIdx.x; } };\n\
         extern \"C\" __global__ void k(int n, int *out) { where w; OUT = w.get() * 3; }",
    );
    check(
        "a parameter as a variable of each thread",
        Way::Fast,
        kernel!("while (n > 5) { n /= 2; OUT += n; } out += blockIdx.x * ALL; out[ME] += n;"),
    );
    check(
        "an array of each thread",
        Way::Fast,
        kernel!(
            "int v[8]; for (int i = 0; i < 8; i++) v[i] = OUT + i; int m = OUT & 7; v[m] += 5; v[(m + 3) & 7] *= 2;\
             int s = 0; for (int i = 0; i < 8; i++) s = s * 3 + v[i]; OUT = s;"
        ),
    );
    check(
        "atomics",
        Way::Fast,
        kernel!(
            "__shared__ int sum; if (ME == 0) sum = 0; atomicAdd(&sum, ME + 1); atomicMax(&out[blockIdx.x * ALL], (int)ME);\
             if (ME == ALL - 1) OUT = sum;"
        ),
    );
}

#[test]
fn kernels_with_barriers_at_the_top() {
    check(
        "a reversal",
        Way::Regions,
        kernel!("__shared__ int s[64]; s[ME] = OUT; __syncthreads(); OUT = s[ALL - 1 - ME];"),
    );
    check(
        "variables that live across",
        Way::Regions,
        kernel!(
            "__shared__ int s[64]; int a = OUT, *p = out + ME, c[3] = {1, 2}; const int me = ME; unsigned x = 7; auto y = a * 2;\
             int4 v = make_int4(a, 1, 2, 3); s[me] = a; __syncthreads();\
             a += s[(me + 1) % ALL]; p = &OUT; c[2] = a; x -= me; v.x += 2; v.w = x; y++; __syncthreads();\
             *p = a + c[0] + c[1] * c[2] + x + v.x + v.w + y;"
        ),
    );
    check(
        "names that mean another in an inner scope",
        Way::Regions,
        kernel!(
            "__shared__ int s[64]; int i = OUT; s[ME] = i; __syncthreads(); { int i = s[0]; i++; __syncthreads(); s[ME] = i; }\
             __syncthreads(); for (int i = 0; i < 2; i++) { int n = i; __syncthreads(); if (ME == 0) s[0] += n; } OUT = i + s[ME] + n;"
        ),
    );
    check(
        "parameters that change",
        Way::Regions,
        kernel!(
            "__shared__ int s[64]; out += blockIdx.x * ALL; n += ME; s[ME] = n; __syncthreads(); n += s[0]; out[ME] = n;"
        ),
    );
    check(
        "a parameter whose member changes",
        Way::Regions,
        "struct P { int n; }; extern \"C\" __global__ void k(P p, int *out) { p.n += ME; __syncthreads(); OUT = p.n; }",
    );
    check(
        "a value that is computed again must not have changed",
        Way::Regions,
        kernel!(
            "__shared__ int s[64]; int a = ME; int b = a * 2; s[ME] = b; __syncthreads(); a = 5; __syncthreads();\
             OUT = a + b + s[0]; { int *q = &a; *q = 3; } __syncthreads(); OUT += a * 7 + b;"
        ),
    );
    check(
        "a value from memory that changes",
        Way::Regions,
        kernel!("int a = OUT; __syncthreads(); OUT = 5; __syncthreads(); OUT += a;"),
    );
    check(
        "the last to be done by some threads only",
        Way::Regions,
        kernel!("__shared__ int s; if (ME == 0) s = OUT; __syncthreads(); if (ME % 2) return; OUT = s; if (ME == 4) return; OUT++;"),
    );
}

#[test]
fn kernels_with_barriers_in_loops_and_branches() {
    check(
        "a tree",
        Way::Regions,
        kernel!(
            "__shared__ int s[64]; s[ME] = OUT; __syncthreads();\
             for (unsigned h = 32; h > 0; h >>= 1) { if (ME < h && ME + h < ALL) s[ME] += s[ME + h]; __syncthreads(); } OUT = s[0];"
        ),
    );
    check(
        "a scan",
        Way::Regions,
        kernel!(
            "__shared__ int s[2][64]; int now = 0; s[0][ME] = OUT; __syncthreads();\
             for (int d = 1; d < ALL; d *= 2) { int v = s[now][ME]; if (ME >= d) v += s[now][ME - d];\
             s[1 - now][ME] = v; now = 1 - now; __syncthreads(); } OUT = s[now][ME];"
        ),
    );
    check(
        "a sort",
        Way::Regions,
        kernel!(
            "__shared__ int s[64]; s[ME] = ALL == 64 ? OUT * 37 % 101 : 0; __syncthreads(); if (ALL == 64) {\
             for (unsigned k = 2; k <= 64; k <<= 1) for (unsigned j = k >> 1; j > 0; j >>= 1) {\
             unsigned other = ME ^ j; if (other > ME && (s[ME] > s[other]) == ((ME & k) == 0)) { int t = s[ME]; s[ME] = s[other]; s[other] = t; }\
             __syncthreads(); } } OUT = s[ME] + 1;"
        ),
    );
    check(
        "loops whose variables threads change",
        Way::Regions,
        kernel!(
            "__shared__ int s[64]; int sum = 0; for (int i = 0, j = 9; i < 6; i++, j--) { s[ME] = i * j + ME; __syncthreads();\
             sum += s[(ME + i) % ALL]; i += s[0] == 0; __syncthreads(); } OUT = sum;"
        ),
    );
    check(
        "while and do",
        Way::Regions,
        kernel!(
            "__shared__ int go, s[64]; int rounds = 0; if (ME == 0) go = 4; s[ME] = ME; __syncthreads();\
             while (go) { rounds += go; __syncthreads(); if (ME == 0) go--; __syncthreads(); }\
             do { s[ME]++; __syncthreads(); rounds++; } while (rounds < 15); OUT = rounds * 1000 + s[ALL - 1];"
        ),
    );
    check(
        "branches that all threads take",
        Way::Regions,
        kernel!(
            "__shared__ int s[64]; s[ME] = OUT; int big = n > 50; if (big) { __syncthreads(); OUT = s[0]; } else if (n > 20) {\
             int t = s[ME]; __syncthreads(); s[ALL - 1 - ME] = t; __syncthreads(); OUT = s[ME]; } else OUT = 1; __syncthreads(); OUT += big;"
        ),
    );
    check(
        "a switch between barriers",
        Way::Regions,
        kernel!(
            "__shared__ int s[64]; for (int r = 0; r < 3; r++) { switch (ME % 3) { case 0: s[ME] = r; break; case 1: { s[ME] = ME; break; }\
             default: s[ME] = -1; } __syncthreads(); OUT += s[(ME + 1) % ALL]; __syncthreads(); }"
        ),
    );
    check(
        "dynamic shared memory",
        Way::Regions,
        kernel!("extern __shared__ int s[]; int *t = s + ALL; s[ME] = OUT; __syncthreads(); t[ME] = s[0]; __syncthreads(); OUT = t[ALL - 1];"),
    );
    check(
        "functions that take a reference",
        Way::Regions,
        "__device__ void bump(int &x) { x += 3; }\n\
         extern \"C\" __global__ void k(int n, int *out) { __shared__ int s[64]; int a = ME; s[ME] = a; __syncthreads(); bump(a);\n\
         __syncthreads(); OUT = a + s[0] + n; }",
    );
}

#[test]
fn kernels_with_barriers_that_stay_threads() {
    check(
        "threads that leave early",
        Way::Fast,
        kernel!("__shared__ int s[64]; s[ME] = 1; if (ME % 3 == 1) return; s[ME] = OUT; __syncthreads(); OUT = s[(ME / 3) * 3];"),
    );
    check(
        "a loop that is left between barriers",
        Way::Fast,
        kernel!("__shared__ int s[64]; for (int i = 0;; i++) { s[ME] = i; __syncthreads(); if (s[0] == 4) break; __syncthreads(); } OUT = s[ME];"),
    );
    check(
        "a barrier inside a function",
        Way::Fast,
        "__shared__ int s[64]; __device__ int turn(int x) { s[ME] = x; __syncthreads(); int y = s[ALL - 1 - ME]; __syncthreads(); return y; }\n\
         extern \"C\" __global__ void k(int n, int *out) { int a = turn(OUT); OUT = turn(a + ME) + n; }",
    );
    check(
        "a barrier inside a class",
        Way::Plain,
        "struct turner { int s[64]; __device__ int turn(int x) { s[ME] = x; __syncthreads(); return s[ALL - 1 - ME]; } };\n\
         extern \"C\" __global__ void k(int n, int *out) { __shared__ turner t; OUT = t.turn(OUT); }",
    );
}

/// Whether a kernel `k(n, out)` gets copies that run without its conditions, in the first way that takes it.
fn is_guarded(way: Way, body: &str) -> bool {
    let text = format!("extern \"C\" __global__ void k(int n, int *out) {{{body}}}");
    let source = Source::new(&text).expect("its brackets match");
    let unit = rewrite(&text, &source, way, &[]).expect("it is understood");
    assert_eq!(unit.regions, way == Way::Regions, "{body}");
    unit.text.contains("taskgpu_sure")
}

#[test]
fn conditions_that_most_blocks_meet_are_asked_once() {
    for body in [
        "int i = blockIdx.x * 64 + threadIdx.x; if (i < n) out[i] = 1;",
        "int i = blockIdx.x * 64 + threadIdx.x; if (i >= n) return; out[i] = 1;",
        "int i = blockIdx.x * 64 + threadIdx.x; if (i >= n || i < 2) { return; } out[i] = 1;",
        "int i = blockIdx.x * 64 + threadIdx.x; out[0] = 3; out[1] = i < n && i > 1 ? out[i] : 0;",
    ] {
        assert!(is_guarded(Way::Fast, body), "{body}");
        assert!(!is_guarded(Way::Plain, body), "{body}");
        let waits = format!("out[0] = 1; __syncthreads(); {body}");
        assert!(is_guarded(Way::Regions, &waits), "{waits}");
    }
}

#[test]
fn conditions_that_may_change_are_asked_by_each_thread() {
    for body in [
        // From memory.
        "int i = blockIdx.x * 64 + threadIdx.x; if (i < out[0]) out[i] = 1;",
        "int i = out[threadIdx.x]; if (i < n) out[i] = 1;",
        // Of what changes.
        "int i = threadIdx.x; i += 2; if (i < n) out[i] = 1;",
        "int i = threadIdx.x; n--; if (i < n) out[i] = 1;",
        "int i = threadIdx.x; int *p = &i; *p = 9; if (i < n) out[i] = 1;",
        "int i = threadIdx.x; if (i++ < n) out[i] = 1;",
        // Of what is not known here.
        "int i = threadIdx.x; if (f(i) < n) out[i] = 1;",
        "int i = threadIdx.x; if (i < n + other) out[i] = 1;",
        // Not computed by every thread.
        "int i = threadIdx.x; if (out[0]) return; if (i < n) out[i] = 1;",
        "int i = threadIdx.x; if (out[0]) { if (i < n) out[i] = 1; }",
        // Met by few threads.
        "int i = threadIdx.x; if (i == n) out[i] = 1;",
        "int i = threadIdx.x; if (i < 5) out[i] = n;",
        // The same for all.
        "if (blockIdx.x < n) out[threadIdx.x] = 1;",
        // A second copy would have another variable.
        "int i = threadIdx.x; if (i < n) { __shared__ int s; s = 1; out[i] = s; }",
    ] {
        assert!(!is_guarded(Way::Fast, body), "{body}");
        let waits = format!("out[0] = 1; __syncthreads(); {body}");
        assert!(!is_guarded(Way::Regions, &waits), "{waits}");
    }
}

#[test]
fn conditions_of_one_axis_are_asked_along_it() {
    let asked = |body: &str| {
        let text = format!("extern \"C\" __global__ void k(int n, int *out) {{{body}}}");
        let source = Source::new(&text).expect("its brackets match");
        let unit = rewrite(&text, &source, Way::Fast, &[]).expect("it is understood");
        assert!(unit.text.contains("taskgpu_sure"), "{body}");
        unit.text.contains("taskgpu_guard_k, true>")
    };
    for body in [
        "int i = threadIdx.x; if (i < n) out[i] = 1;",
        "int i = threadIdx.x, j = threadIdx.y; if (i < n && (j > 1 || j < n)) out[i] = j;",
        "int i = threadIdx.x, j = threadIdx.y; if (i >= n || j >= n) return; out[i] = j;",
        "int i = threadIdx.x, j = threadIdx.y; out[j] = i < n ? 1 : 0; if (j < n) out[i] = 1;",
    ] {
        // With `||` nothing is taken apart where it might bind less.
        assert_eq!(asked(body), !body.contains("(j > 1"), "{body}");
    }
    for body in [
        "int i = threadIdx.x + 8 * threadIdx.y; if (i < n) out[i] = 1;",
        "int i = threadIdx.x, j = threadIdx.y; int at = i + j; if (at < n) out[i] = 1;",
        "int i = threadIdx.x, j = threadIdx.y; if (i < n || j < n) out[i] = 1;",
        "int i = threadIdx.x, j = threadIdx.z; if (i >= n && j >= n) return; out[i] = 1;",
    ] {
        assert!(!asked(body), "{body}");
    }
}

#[test]
fn kernels_with_guards_give_the_same_in_every_way() {
    // Of three blocks, one or two are inside, and one is partly outside or wholly.
    for (what, body) in [
        ("a branch", "int i = blockIdx.x * ALL + ME; if (i < n - 5) OUT = i * 3;"),
        ("a branch with another", "int i = blockIdx.x * ALL + ME; if (i < n - 5) OUT = i * 3; else OUT = -i;"),
        ("leaving", "int i = blockIdx.x * ALL + ME; if (i >= n - 5) return; OUT = i * 3; if (i < 4) return; OUT += 1;"),
        (
            "two axes",
            "int i = blockIdx.x * blockDim.x + threadIdx.x, j = threadIdx.y; if (i < n / (int)ALL * 2 && j * 9 < n) OUT = i;",
        ),
        (
            "leaving along two axes",
            "int i = blockIdx.x * blockDim.x + threadIdx.x, j = threadIdx.y; if (i * 2 >= n || j * 40 >= n) return; OUT = i;",
        ),
        (
            "a choice, and two conditions",
            "int i = blockIdx.x * ALL + ME; OUT = i < n - 5 ? i * 3 : 7; if (i >= 2 && i < n - ALL) OUT += 1;",
        ),
    ] {
        let source = |body: &str| format!("extern \"C\" __global__ void k(int n, int *out) {{ {body} }}");
        check(what, Way::Fast, &source(body));
        let waits = format!("__shared__ int s[64]; s[ME] = OUT; __syncthreads(); OUT = s[ALL - 1 - ME]; {body}");
        check(what, Way::Regions, &source(&waits));
    }
    check(
        "wide numbers",
        Way::Fast,
        "extern \"C\" __global__ void k(int n, int *out) { unsigned long long i = (unsigned long long)blockIdx.x * ALL + ME;\
         if (i < (unsigned long long)n - 5) OUT = 2; }",
    );
}

/// The static shared memory that the table has for each of some kernels, in every way of building them.
fn static_shared(source: &str, kernels: &[&str], options: &CompileOptions, must: &[u64]) {
    for way in all_ways() {
        let made = match build(&[way], source, options) {
            Ok((made, _)) => made,
            Err(why) if way == Way::Plain => panic!("the plain way always works: {why}"),
            Err(_) => continue,
        };
        let raw = module::load(&made.image).expect("it loads");
        let bytes = |name: &&str| {
            let function = module::function(raw, name).expect("it has the kernel");
            module::function_of(function).static_shared_bytes
        };
        let seen: Vec<u64> = kernels.iter().map(bytes).collect();
        assert_eq!(seen, must, "{way:?} {kernels:?}");
        module::destroy(raw);
    }
}

#[test]
fn a_kernel_knows_its_static_shared_memory_and_no_others() {
    static_shared(
        "__shared__ short common[3];\n\
         template <int N> __device__ __noinline__ int turn(int x) {\n\
             __shared__ int s[N]; s[threadIdx.x % N] = x; __syncthreads(); return s[(threadIdx.x + 1) % N];\n\
         }\n\
         __device__ __noinline__ int deep(int x) { return x > 99 ? deep(x - 1) : turn<40>(x); }\n\
         extern \"C\" __global__ void none(int *out) { extern __shared__ int d[]; d[threadIdx.x] = 1; *out = d[0]; }\n\
         extern \"C\" __global__ void one(int *out) {\n\
             const int size = 16; __shared__ float tile[size][size + 1]; { __shared__ double last; last = *out; *out += last; }\n\
             tile[*out % size][2] = 1; __syncthreads(); *out += tile[2][*out % size];\n\
         }\n\
         extern \"C\" __global__ void called(int *out) { *out = turn<50>(*out) + deep(*out); }\n\
         extern \"C\" __global__ void outside(int *out) { common[*out & 1] = 4; *out = common[out[1] & 1]; }\n\
         template <class T, int N> __global__ void made(T *out) {\n\
             __shared__ T s[N]; s[threadIdx.x] = *out; __syncthreads(); *out = s[threadIdx.x + 1];\n\
         }\n",
        &["none", "one", "called", "outside", "made<double, 8>", "made<char, 100>"],
        &options("sizes", &["made<double, 8>", "made<char, 100>"]),
        &[0, 16 * 17 * 4 + 8, 90 * 4, 6, 64, 100],
    );
    static_shared(
        "struct sums { double s[20]; __device__ void add(int x) { s[threadIdx.x] += x; __syncthreads(); } };\n\
         extern \"C\" __global__ void k(int *out) { __shared__ sums all; all.add(*out); *out = all.s[1]; }\n",
        &["k"],
        &options("a class", &[]),
        &[160],
    );
}

#[test]
fn options_that_strip_modules_do_no_harm() {
    let stripped = CompileOptions {
        options: vec![
            "-s".into(),
            "-Wl,-s".into(),
            "-Wl,--strip-all".into(),
            "-g".into(),
        ],
        ..options("stripped", &[])
    };
    let source =
        "extern \"C\" __global__ void k(int *out) { __shared__ int s[5]; s[*out] = 1; *out = s[2]; }\n";
    static_shared(source, &["k"], &stripped, &[20]);
}

#[test]
fn a_header_that_changes_is_seen_wherever_it_lies() {
    let folder = std::env::temp_dir().join(format!("taskgpu 'header' \"test\" {}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let header = folder.join("value.h");
    let options = CompileOptions {
        options: vec![format!("-I{}", folder.display())],
        ..options("header", &[])
    };
    let source = "#include \"value.h\"\nextern \"C\" __global__ void k(int n, int *out) { *out = VALUE; }\n";
    for value in [7, 123] {
        std::fs::write(&header, format!("#define VALUE {value}\n")).expect("the header is written");
        let (made, _) = build(&all_ways(), source, &options).expect("it compiles");
        assert_eq!(run(&made.image, "k", 1, [1, 1, 1]), [value]);
        assert_eq!(made.files, [File::now(&header.to_string_lossy())]);
        assert!(made.is_fresh());
        std::fs::write(&header, "#define VALUE 1 // and more\n").expect("the header is written");
        assert!(!made.is_fresh());
    }
    std::fs::remove_dir_all(&folder).expect("the folder goes");
}

#[test]
fn a_nul_in_a_source_or_an_option_is_refused() {
    let e = make("int x;\n\0int y;\n", &CompileOptions::default()).expect_err("a NUL");
    assert_eq!(e.status(), Status::InvalidArgument);
    assert!(e.to_string().contains("NUL character at byte 7"), "{e}");
    let options = CompileOptions {
        options: vec!["-DA=\0".into()],
        ..Default::default()
    };
    let e = make("int x;", &options).expect_err("a NUL");
    assert_eq!(e.status(), Status::InvalidArgument);
    assert!(e.to_string().contains("NUL"), "{e}");
}
