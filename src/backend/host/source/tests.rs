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
    let (best, took) = build(&Way::ALL, &source, &options).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert_eq!(took, way, "{what}");
    let mut images = vec![best.image];
    for other in Way::ALL {
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

/// Builds a kernel in the fastest way that it takes, whichever that is, and looks that it gives what the plain way gives.
fn same(what: &str, source: &str) {
    let prefix = "#define ME ((threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x)\n\
                  #define ALL (blockDim.x * blockDim.y * blockDim.z)\n\
                  #define OUT out[blockIdx.x * ALL + ME]\n";
    let source = format!("{prefix}{source}");
    let options = options(what, &[]);
    let made = |ways| build(ways, &source, &options).unwrap_or_else(|e| panic!("{what}: {e}"));
    let ((best, took), (plain, _)) = (made(&Way::ALL), made(&[Way::Plain]));
    for block in [[1, 1, 1], [THREADS as u32, 1, 1], [3, 5, 1]] {
        let right = run(&plain.image, "k", 3, block);
        let touched = right.iter().enumerate().any(|(i, v)| *v != 100 + i as i32);
        assert!(touched, "{what}: the kernel does nothing");
        assert_eq!(
            run(&best.image, "k", 3, block),
            right,
            "{what}, {took:?}, blocks of {block:?}"
        );
    }
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
        let built = build(&Way::ALL, &example(name), &options(name, expressions));
        assert_eq!(built.expect("it compiles").1, way, "{name}");
    }
}

/// A place in memory for each thread costs time: only what changes from barrier to barrier has one.
#[test]
fn the_matrix_product_keeps_one_number_for_each_thread() {
    let text: String = example("matmul.hip")
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.replace("TILE", "16") + "\n")
        .collect();
    let source = Source::new(&text).expect("it is understood");
    let unit = rewrite(&text, &source, Way::Regions, &[]).expect("it is cut");
    let kept: std::collections::HashSet<&str> = unit
        .text
        .split("taskgpu::in(taskgpu_")
        .skip(1)
        .filter_map(|rest| rest.split('_').next())
        .collect();
    assert_eq!(kept, ["sum"].into());
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
        "values that are changed by other names",
        Way::Regions,
        "struct inc { int by; __device__ void operator()(int &x) const { x += by; } }; struct ref { int &r; }; __device__ int one(int) { return 1; }\n\
         extern \"C\" __global__ void k(int n, int *out) { int a = ME, b = ME + 1, c = ME * 2, d[2] = {3, 4}, e = 7, f = one(4), g = 9; int2 h = make_int2(1, 2); inc i = {3};\n\
         { int &r(a); r += 100; int *p = &(b); *p = 5; (c)++; for (int &q : d) q *= 3; i(e); inc{2}(f); ref t{g}; t.r = 6; auto &[x, y] = h; x = 50; y = 60; }\n\
         __syncthreads(); OUT = a + b * 3 + c * 5 + d[0] + d[1] + e * 7 + f * 11 + g * 13 + h.x + h.y; }",
    );
    check(
        "values that functions get from memory",
        Way::Regions,
        "template <class T> __device__ T load(const T *p) { return *p; } namespace a { __device__ int load(const int *p) { return *p; } }\n\
         struct view { int *p; __device__ int get(int i) const { return p[i]; } __device__ int operator()(int i) const { return p[i]; } };\n\
         extern \"C\" __global__ void k(int n, int *out) { int *mine = out + blockIdx.x * ALL; view v = {mine}; int i = ME;\n\
         int x = load<int>(out + i), y = a::load(out + i), z = v.get(i), w = v(i); __syncthreads(); OUT = 1; __syncthreads(); OUT = x + 3 * y + 5 * z + 7 * w; }",
    );
    check(
        "a value from memory that is converted",
        Way::Regions,
        kernel!(
            "int *const p = out + blockIdx.x * ALL + ME; int a = (int)*p; typedef unsigned u; u b = (u)*p + 1; int c = int(*p), d = (n) * 2; __syncthreads(); *p = 3; __syncthreads(); *p = a + b * 3 + c * 5 + d;"
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
fn threads_that_leave_before_a_barrier() {
    check(
        "at the top",
        Way::Regions,
        kernel!("__shared__ int s[64]; s[ME] = 1; if (ME % 3 == 1) return; s[ME] = OUT; __syncthreads(); OUT = s[(ME / 3) * 3];"),
    );
    check(
        "whole blocks, parts of blocks and none",
        Way::Regions,
        kernel!(
            "int i = blockIdx.x * ALL + ME; if (i >= n / 2) return; __shared__ int s[64]; s[ME] = i; __syncthreads();\
             int v = s[0]; for (int k = 1; k < 3; k++) { __syncthreads(); s[ME] += v + k; __syncthreads(); v += s[0]; } OUT = v + s[ME];"
        ),
    );
    check(
        "in loops, switches and branches between barriers",
        Way::Regions,
        kernel!(
            "__shared__ int s[64]; int v = OUT; s[ME] = v; __syncthreads(); for (int i = 0; i < 9; i++) { if (i == 4 && v % 5 == 2) return;\
             switch ((v + i) % 11) { case 0: return; case 1: continue; default: break; } v++; if (v % 13 == 0) break; } s[ME] = v;\
             __syncthreads(); OUT = v + (ME == 0 ? s[0] : 0); while (v % 7) { if (v % 5 == 0) { return; } v++; } OUT += 1000;"
        ),
    );
    check(
        "in a loop with barriers",
        Way::Regions,
        kernel!(
            "__shared__ int s[2][64]; s[0][ME] = s[1][ME] = 0; __syncthreads(); for (int i = 0; i < 8; i++) { if (ME > 2 && (OUT + i) % 5 == 4) return;\
             s[i % 2][ME] = i * 10 + ME; __syncthreads(); OUT += s[i % 2][0] + s[i % 2][1 % ALL]; }"
        ),
    );
    check(
        "what is a return of a lambda or of a class is none",
        Way::Regions,
        kernel!(
            "__shared__ int s[64]; { auto f = [&](int x) { if (x > 120) return x; return x * 2; }; struct P { int v; int get() { return v; } };\
             s[ME] = f(OUT) + P{3}.get(); } __syncthreads(); if (ME == 1) return; __syncthreads();\
             OUT = s[ALL - 1 - ME] + [](int x) -> int { return x; }(4);"
        ),
    );
    check(
        "what only they cannot divide by",
        Way::Regions,
        kernel!(
            "__shared__ int s[64]; int b = blockIdx.x; s[ME] = 3; if (ME == 0 || b == 0) return; int q = 1000 / ME, r = 100 / b; __syncthreads(); OUT = q + r + s[ME];\
             __syncthreads(); for (int i = 0; i < 100 / b && i < 9; i++) { OUT += q + i; __syncthreads(); } if (50 % b == 0) { __syncthreads(); OUT += r; }"
        ),
    );
    check(
        "with variables and arrays of their own, and atomics",
        Way::Regions,
        kernel!(
            "__shared__ int sum, s[64]; int a[3] = {OUT, 2, 3}; volatile int w = ME; if (ME == 0) sum = 0; __syncthreads(); if (a[0] % 4 == 3 && ME) return;\
             atomicAdd(&sum, a[0] + w); a[1] = a[0]; w = w + 1; __syncthreads(); if (a[1] % 5 == 1 && ME) return; atomicMax(&sum, 300); s[ME] = w; __syncthreads();\
             OUT = sum + a[1] + a[2] + s[0];"
        ),
    );
}

#[test]
fn loops_with_barriers_that_are_left() {
    check(
        "by all at once",
        Way::Regions,
        kernel!("__shared__ int s[64]; for (int i = 0;; i++) { s[ME] = i; __syncthreads(); if (s[0] == 4) break; __syncthreads(); } OUT = s[ME];"),
    );
    check(
        "by some, who meet no barrier any more",
        Way::Regions,
        kernel!(
            "__shared__ int s[64]; int v = 0; for (int i = 0; i < 9; i++) { if (ME && (OUT + i) % 7 == 3) break; s[ME] = i; __syncthreads(); v += s[0]; __syncthreads(); }\
             OUT = v;"
        ),
    );
    check(
        "by a condition that differs, with no barrier behind",
        Way::Regions,
        kernel!(
            "__shared__ int s[64]; int v = 0; for (int i = (int)ME - 2; i < 4; i += 2) { if (ME == 0) s[0] = i + 50; __syncthreads(); if (i > 3) v++; } OUT = v + 2;"
        ),
    );
    check(
        "with rounds that are cut short",
        Way::Regions,
        kernel!(
            "__shared__ int s[64]; int v = ME, k = 0; while (k < 12) { k++; s[ME] = v; __syncthreads(); int first = s[0]; __syncthreads();\
             if (first % 2 == 0) { v += 3; continue; } s[ME] = v * 2; __syncthreads(); v = s[ALL - 1 - ME] % 1000 + 1; __syncthreads(); if (first > 900) break; } OUT = v;"
        ),
    );
    check(
        "do, continue and break",
        Way::Regions,
        kernel!(
            "__shared__ int s[64]; int k = 0; do { s[ME] = k + ME; __syncthreads(); int f = s[0]; __syncthreads(); if (f == 2) continue; OUT += s[ALL - 1]; __syncthreads();\
             if (s[0] == 5) break; __syncthreads(); } while (++k < 8); OUT += k * 1000;"
        ),
    );
    check(
        "one in another",
        Way::Regions,
        kernel!(
            "__shared__ int s[64]; int v = OUT; for (int i = 0; i < 4; i++) { for (int j = 0; j < 4; j++) { s[ME] = v + i * j; __syncthreads();\
             int t = s[0]; __syncthreads(); if (t % 3 == 1) continue; if (t % 3 == 2) { v += t; break; } s[ME] = t; __syncthreads(); v += s[ALL - 1]; __syncthreads(); }\
             if (i == 2 && n > 60) break; __syncthreads(); v++; } OUT = v;"
        ),
    );
    check(
        "out of a branch",
        Way::Regions,
        kernel!(
            "__shared__ int s[64]; int v = 1; for (int i = 0; i < 6; i++) { s[ME] = i; __syncthreads(); if (s[0] == 3) { v *= 2; __syncthreads(); v += s[ALL - 1];\
             if (n % 2) break; __syncthreads(); continue; } else v++; __syncthreads(); v += 10; } __syncthreads(); OUT = v;"
        ),
    );
}

#[test]
fn conditions_with_barriers_that_threads_meet_or_not() {
    check(
        "the last to have barriers",
        Way::Regions,
        kernel!(
            "__shared__ int s[64]; int i = blockIdx.x * ALL + ME; if (i < n - 5) { s[ME] = OUT; __syncthreads(); OUT = s[0]; __syncthreads(); OUT++; } else OUT = -i; OUT *= 2;"
        ),
    );
    check(
        "the else-branch",
        Way::Regions,
        kernel!("__shared__ int s[64]; s[ME] = OUT; if (OUT % 3 == 0 && ME) OUT = 7; else { __syncthreads(); OUT = s[0] + 1; }"),
    );
    check(
        "with more inside",
        Way::Regions,
        kernel!(
            "__shared__ int s[64]; s[ME] = ME; __syncthreads(); if (OUT % 3 || ME == 0) { for (int i = 0; i < 3; i++) { __syncthreads(); if (ME == 0) s[0] += i + 1;\
             __syncthreads(); if (i == 1 && OUT % 5 == 1 && ME) return; OUT += s[0]; } OUT *= 2; } OUT++;"
        ),
    );
}

#[test]
fn functions_with_barriers_are_written_out() {
    check(
        "twice, in expressions and declarations",
        Way::Inlined,
        "__shared__ int s[64]; __device__ int turn(int x) { s[ME] = x; __syncthreads(); int y = s[ALL - 1 - ME]; __syncthreads(); return y; }\n\
         extern \"C\" __global__ void k(int n, int *out) { int a = turn(OUT); OUT = turn(a + ME) + n; }",
    );
    check(
        "one in another, without a result, and with one that is not used",
        Way::Inlined,
        "__device__ void both() { __syncthreads(); }\n\
         __device__ int first(int *s, int x) { s[ME] = x; both(); int y = s[0]; both(); return y; }\n\
         extern \"C\" __global__ void k(int n, int *out) { __shared__ int s[64]; first(s, n); if (first(s, OUT) > 3) OUT = first(s, OUT + 1); }",
    );
    check(
        "names that both have",
        Way::Inlined,
        "__device__ int mix(int a, int b, int *s) { int x = a - b; s[ME] = x; __syncthreads(); int y = s[ALL - 1 - ME]; __syncthreads(); a += y; b = a; return a * 3 + b; }\n\
         extern \"C\" __global__ void k(int n, int *out) { __shared__ int s[64]; int a = ME, b = OUT, x = 5, y = 6; int z = mix(b, a, s); b = mix(x, z, s); \
         OUT = a + b * 7 + x + y + z; }",
    );
    check(
        "a name that means another where the kernel stands",
        Way::Fast,
        "__shared__ int s[64]; __device__ int turn(int x) { s[ME] = x; __syncthreads(); return s[ALL - 1 - ME]; }\n\
         extern \"C\" __global__ void k(int n, int *out) { __shared__ int other[64]; int *s = other; s[ME] = 4; OUT = turn(OUT) + s[ME]; }",
    );
    check(
        "several ways out",
        Way::Inlined,
        "__device__ int pick(int x, int *s) { s[ME] = x; __syncthreads(); int y = s[0]; __syncthreads(); if (x % 3 == 0) return y;\n\
         for (int i = 0; i < 5; i++) { if ((x + i) % 7 == 0) return i; } switch (x % 4) { case 0: return 17; default: break; } return -y; }\n\
         extern \"C\" __global__ void k(int n, int *out) { __shared__ int s[64]; int v = pick(OUT, s); __syncthreads(); OUT = pick(v + ME, s) * 1000 + v; }",
    );
    check(
        "leaving before its barrier, all of a block",
        Way::Inlined,
        "__device__ int some(int x, int *s, int go) { if (!go) return 3; s[ME] = x; __syncthreads(); return s[ALL - 1 - ME]; }\n\
         extern \"C\" __global__ void k(int n, int *out) { __shared__ int s[64]; int v = some(OUT, s, blockIdx.x == 1); __syncthreads(); OUT = v + 1; }",
    );
    check(
        "a parameter that is not understood",
        Way::Fast,
        "__device__ void add(int &x, const int &y, int (*unused)[3], int s[], int &e) { s[ME] = x; __syncthreads(); x += s[0] + y; __syncthreads(); e += y; }\n\
         extern \"C\" __global__ void k(int n, int *out) { __shared__ int s[64]; int a = OUT, b[2] = {1, 2}; const int c = ME; add(a, c, 0, s, b[1]); add(a, c, 0, s, b[c & 1]); OUT = a + b[0] + b[1] * 10; }",
    );
    check(
        "references to variables, to elements and to others of the same name",
        Way::Inlined,
        "__device__ void add(int &x, const int &y, int *s, int &e) { s[ME] = x; __syncthreads(); x += s[0] + y; __syncthreads(); e += y; }\n\
         extern \"C\" __global__ void k(int n, int *out) { __shared__ int s[64]; int x = 4, y = OUT, b[2] = {1, 2}; const int c = ME; add(y, x, s, b[1]); add(y, c, s, b[c & 1]); add(x, x, s, y); OUT = x + y + b[0] + b[1] * 10; }",
    );
    check(
        "a reference that would be a conversion",
        Way::Fast,
        "__device__ double half(const double &x, int *s) { s[ME] = 1; __syncthreads(); return x / 2 + s[0]; }\n\
         extern \"C\" __global__ void k(int n, int *out) { __shared__ int s[64]; int a = OUT; OUT = half(a, s) * 10; }",
    );
    check(
        "values that are converted",
        Way::Inlined,
        "__device__ double half(double x, unsigned char y, int *s) { s[ME] = y; __syncthreads(); return x / 2 + s[0]; }\n\
         extern \"C\" __global__ void k(int n, int *out) { __shared__ int s[64]; int a = OUT; int r = half(a, a + 200, s) * 10; __syncthreads(); OUT = r; }",
    );
    check(
        "templates, their own types and sizes",
        Way::Inlined,
        "template <class T, int N = 2> __device__ T sum(T x, T *s) { T y = x / N; s[ME] = y; __syncthreads(); T all = 0; for (int i = 0; i < ALL; i++) all += s[i]; __syncthreads(); return all + N; }\n\
         extern \"C\" __global__ void k(int n, int *out) { __shared__ int s[64]; __shared__ double d[64]; typedef char T; const int N = 3; int v = sum(OUT, s); double w = sum<double, 4>(v + ME, d); OUT = (int)(w * 4) + (T)N; }",
    );
    check(
        "a template in a kernel that is one",
        Way::Inlined,
        "template <class T> __device__ T first(T x, T *s) { s[ME] = x; __syncthreads(); T y = s[0]; __syncthreads(); return y; }\n\
         template <class T> __device__ void body(T *out, int n) { __shared__ T s[64]; T x = OUT; OUT = first(x, s) + n; }\n\
         extern \"C\" __global__ void k(int n, int *out) { body<int>(out, n); }",
    );
    check(
        "shared memory of a function, which keeps what it has",
        Way::Inlined,
        "__device__ int count(int x) { __shared__ int last[64]; static __shared__ int all; int old = last[ME]; __syncthreads(); last[ME] = x; if (ME == 0) all = x; __syncthreads();\n\
         int y = all; __syncthreads(); return x == 0 ? 0 : old + y * 2; }\n\
         extern \"C\" __global__ void k(int n, int *out) { count(0); int v = count(OUT); OUT = count(7) + v; }",
    );
    check(
        "a call that has to wait for others",
        Way::Fast,
        "__device__ int turn(int x, int *s) { s[ME] = x; __syncthreads(); int y = s[ALL - 1 - ME]; __syncthreads(); return y; }\n\
         extern \"C\" __global__ void k(int n, int *out) { __shared__ int s[64]; int i = 0; OUT = n > 1000 ? turn(4, s) : i++ + 4; if (n > 0 && turn(OUT, s) > 100) OUT = i; }",
    );
    check(
        "a call in a branch without brackets, and in loops",
        Way::Inlined,
        "__device__ int turn(int x, int *s) { s[ME] = x; __syncthreads(); int y = s[ALL - 1 - ME]; __syncthreads(); return y; }\n\
         extern \"C\" __global__ void k(int n, int *out) { __shared__ int s[64]; int v = 0; if (n < 5) v = turn(1, s); else if (turn(3, s) == 3) v += turn(OUT, s); else v = turn(9, s);\n\
         for (int i = 0; i < 3; i++) v -= turn(v + i * (int)ME, s); do { v++; __syncthreads(); } while (0); OUT = v; }",
    );
    check(
        "functions that call themselves",
        Way::Fast,
        "__device__ int down(int x, int *s) { s[ME] = x; __syncthreads(); int y = s[ALL - 1 - ME]; __syncthreads(); return x > 0 ? y : 1; }\n\
         __device__ int deep(int n, int *s) { __syncthreads(); if (n == 0) return down(2, s); return 1 + deep(n - 1, s); }\n\
         extern \"C\" __global__ void k(int n, int *out) { __shared__ int s[64]; OUT = deep(3, s); }",
    );
    check(
        "functions and lambdas as arguments, structures, and loops that are left",
        Way::Inlined,
        "struct plus { __device__ int operator()(int a, int b) const { return a + b; } }; struct pair { int a, b; };\n\
         template <class T, class F> __device__ pair fold(T x, T *s, F f) { s[ME] = x; __syncthreads(); int rounds = 0;\n\
         for (int h = 32; h > 0; h /= 2) { if (h >= (int)ALL) continue; T v = s[ME]; if (ME + h < ALL) v = f(v, s[ME + h]); __syncthreads(); s[ME] = v; __syncthreads(); rounds++; }\n\
         T all = s[0]; __syncthreads(); return {all, rounds}; }\n\
         extern \"C\" __global__ void k(int n, int *out) { __shared__ int s[64]; pair p = fold(OUT, s, plus()); OUT = p.a * 10 + p.b; }",
    );
}

#[test]
fn kernels_with_barriers_that_stay_threads() {
    check(
        "a barrier where it is not called by name",
        Way::Plain,
        "struct turner { int *s; __device__ int operator()(int x) { s[ME] = x; __syncthreads(); return s[ALL - 1 - ME]; } };\n\
         extern \"C\" __global__ void k(int n, int *out) { __shared__ int s[64]; turner t = {s}; OUT = t(OUT); }",
    );
    check(
        "a barrier in a class that is a template",
        Way::Plain,
        "template <class T> struct turner { T s[64]; __device__ T turn(T x) { s[ME] = x; __syncthreads(); return s[ALL - 1 - ME]; } };\n\
         extern \"C\" __global__ void k(int n, int *out) { __shared__ turner<int> t; OUT = t.turn(OUT); }",
    );
    check(
        "a barrier in a function that a class calls",
        Way::Plain,
        "__device__ void all() { __syncthreads(); } struct turner { int *s; __device__ turner(int *p) : s(p) { s[ME] = 5; all(); } int get() { return s[ALL - 1 - ME]; } };\n\
         extern \"C\" __global__ void k(int n, int *out) { __shared__ int s[64]; turner t(s); OUT = t.get(); }",
    );
    check(
        "a barrier in a lambda",
        Way::Fast,
        kernel!("__shared__ int s[64]; auto turn = [&](int x) { s[ME] = x; __syncthreads(); return s[ALL - 1 - ME]; }; OUT = turn(OUT);"),
    );
    check(
        "a barrier in a switch, and behind a label",
        Way::Fast,
        kernel!("__shared__ int s[64]; switch (n % 2) { case 0: s[ME] = 3; __syncthreads(); break; default: s[ME] = 4; __syncthreads(); } if (n < 0) goto end; OUT = s[ALL - 1 - ME]; end:;"),
    );
    check(
        "branches that differ, each with barriers",
        Way::Fast,
        kernel!("__shared__ int s[64]; s[ME] = OUT; if (ME < ALL / 2) { __syncthreads(); OUT = s[ALL - 1 - ME]; } else { s[ME] += 1000; __syncthreads(); OUT = 7; }"),
    );
    check(
        "threads that skip a barrier, with another behind",
        Way::Fast,
        kernel!("__shared__ int s[64]; s[ME] = OUT; if (ME < ALL / 2) { __syncthreads(); s[ME] += 5; } __syncthreads(); OUT += 9;"),
    );
    check(
        "a loop that some leave, with a barrier behind",
        Way::Fast,
        kernel!("__shared__ int s[64]; s[ME] = 0; for (int i = 0; i < 5; i++) { if (ME == 3) break; s[ME] += i; __syncthreads(); } __syncthreads(); OUT = s[ME];"),
    );
}

#[test]
fn functions_of_classes_with_barriers_are_written_out() {
    check(
        "of a shared object",
        Way::Inlined,
        "struct turner { int s[64]; int last; __device__ int turn(int x) { s[ME] = x; __syncthreads(); int y = s[ALL - 1 - ME]; __syncthreads(); return y; }\n\
         __device__ int more(int x) { if (ME == 0) last = x; int y = this->turn(x + 1); __syncthreads(); return y + last + plain(2); } int plain(int s) { return s + this->last; } };\n\
         extern \"C\" __global__ void k(int n, int *out) { __shared__ turner t; int last = 4; OUT = t.turn(OUT) + last; int v = t.more(OUT); __syncthreads(); OUT += v; }",
    );
    check(
        "of an object of each thread, and through a pointer",
        Way::Inlined,
        "class counter { int *s, n; public: void begin(int *p) { s = p; n = 0; } int count(int x) { s[ME] = x; __syncthreads(); n += s[0]; __syncthreads(); return n; } };\n\
         extern \"C\" __global__ void k(int n, int *out) { __shared__ int t[64]; counter c; c.begin(t); c.count(OUT); counter *const p = &c; int v = p->count(ME + 2); OUT = v + p->count(1); }"
            .replace("class counter {", "struct counter {")
            .as_str(),
    );
    check(
        "whose class has a name of the kernel's, or of the object",
        Way::Plain,
        "struct turner { int s[64]; __device__ int turn(int x) { int t = x; s[ME] = t; __syncthreads(); return s[ALL - 1 - ME]; } };\n\
         extern \"C\" __global__ void k(int n, int *out) { __shared__ turner t; OUT = t.turn(OUT); }",
    );
    check(
        "of the same name in two classes",
        Way::Plain,
        "struct one { int s[64]; __device__ int turn(int x) { s[ME] = x; __syncthreads(); return s[ALL - 1 - ME]; } };\n\
         struct two { int s[64]; __device__ int turn(int x) { s[ME] = -x; __syncthreads(); return s[ALL - 1 - ME]; } };\n\
         extern \"C\" __global__ void k(int n, int *out) { __shared__ two t; OUT = t.turn(OUT); }",
    );
}

/// A condition that is read from memory, and differs between threads that then are at different barriers.
#[test]
fn barriers_that_are_not_for_all_end_the_process() {
    const HERE: &str = "TASKGPU_TEST_DIFFERENT_BARRIERS";
    let source = "extern \"C\" __global__ void apart(int n, int *out) { out[threadIdx.x] += n; __syncthreads();\
                  if (out[threadIdx.x] % 2) { __syncthreads(); out[threadIdx.x] = 1; } __syncthreads(); out[threadIdx.x]++; }";
    let (made, way) = build(&Way::ALL, source, &options("apart", &[])).expect("it compiles");
    assert_eq!(way, Way::Regions);
    if std::env::var_os(HERE).is_some() {
        run(&made.image, "apart", 1, [4, 1, 1]);
        return;
    }
    // Where all threads agree, nothing is wrong.
    assert_eq!(run(&made.image, "apart", 1, [1, 1, 1]), [2]);
    let output = std::process::Command::new(std::env::current_exe().expect("the path of this program"))
        .args([
            "--exact",
            "--nocapture",
            "backend::host::source::tests::barriers_that_are_not_for_all_end_the_process",
        ])
        .env(HERE, "1")
        .output()
        .expect("it starts");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("taskgpu: kernel apart: a barrier is"), "{text}");
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&output.status),
        Some(libc::SIGABRT)
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
fn conditions_are_asked_of_few_threads() {
    let asked = |body: &str| {
        let text = format!("extern \"C\" __global__ void k(int n, int *out) {{{body}}}");
        let source = Source::new(&text).expect("its brackets match");
        let unit = rewrite(&text, &source, Way::Fast, &[]).expect("it is understood");
        assert!(unit.text.contains("taskgpu_sure"), "{body}");
        ["corners", "axes", "all"].into_iter().find(|who| {
            unit.text
                .contains(&format!("taskgpu_guard_k, taskgpu::ask::{who}>"))
        })
    };
    for body in [
        "int i = threadIdx.x; if (i < n) out[i] = 1;",
        "unsigned long i = blockIdx.x * 64 + threadIdx.x; if (i <= n - 1) out[i] = 1;",
        "int i = threadIdx.x, j = threadIdx.y; if (i < n && j > 2) out[i] = j;",
        "int i = threadIdx.x + 8 * threadIdx.y; if (i < n) out[i] = 1;",
        "int i = threadIdx.x, j = threadIdx.y; int at = i + j; if (at < n) out[i] = 1;",
        "int i = threadIdx.x, j = threadIdx.y; if (i >= n || j >= n) return; out[i] = j;",
        "int i = threadIdx.x, j = threadIdx.y; out[j] = i < n ? 1 : 0; if (j < n) out[i] = 1;",
    ] {
        assert_eq!(asked(body), Some("corners"), "{body}");
    }
    for body in [
        // It may wrap around, or come back.
        "int i = threadIdx.x - 3; if (i < n) out[i] = 1;",
        "int i = threadIdx.x % 5; if (i < n) out[i] = 1;",
        "short i = threadIdx.x; if (i < n) out[i] = 1;",
        // Two that grow.
        "int i = threadIdx.x; if (i * 2 < n) out[i] = 1;",
        "int i = threadIdx.x, j = threadIdx.y; if (i >= n - 1 || (j >= n)) return; out[i] = j;",
    ] {
        assert_eq!(asked(body), Some("axes"), "{body}");
    }
    for body in [
        "int i = threadIdx.x - 8 * threadIdx.y; if (i < n) out[i] = 1;",
        "int i = threadIdx.x, j = threadIdx.y; if (i < n || j < n) out[i] = 1;",
        "int i = threadIdx.x, j = threadIdx.y; if (i < j + n) out[i] = 1;",
        "int i = threadIdx.x, j = threadIdx.z; if (i >= n && j >= n) return; out[i] = 1;",
        // With `||` nothing is taken apart where it might bind less.
        "int i = threadIdx.x, j = threadIdx.y; if (i < n && (j > 1 || j < n)) out[i] = j;",
    ] {
        assert_eq!(asked(body), Some("all"), "{body}");
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
            "bounds below and above, and types",
            "unsigned i = blockIdx.x * ALL + ME; const size_t j = i + 2 * ME; long l = n * threadIdx.x; if (i >= 3 && j <= n + 2 && l < n * 60) OUT = i + j;",
        ),
        ("a bound below", "int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < 2 || i >= n + 2) return; OUT = 7;"),
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
        "numbers that wrap around",
        Way::Regions,
        kernel!(
            "__shared__ int s[64]; __syncthreads(); int h = n * 0 + 2147483640, t = h + threadIdx.x; if (t != n) { long w = t; OUT = w < 0 ? 1 : 2; } __syncthreads();\
             int a = n * 0 + 2147483600, b = a + threadIdx.x, c = b + 7 * blockIdx.x; s[ME] = b; __syncthreads(); int d = a + threadIdx.x * 2;\
             OUT = d < n ? 1 : 2; if (b < n) OUT += 4; if (c < n || d > 1) OUT += 8; int e = n + threadIdx.x; if (e < 2 * n) OUT += e;\
             for (int f = -2; f < 1; f++) { int g = f + threadIdx.x; __syncthreads(); if (g < n) OUT += g; __syncthreads(); }"
        ),
    );
    check(
        "wide numbers",
        Way::Fast,
        "extern \"C\" __global__ void k(int n, int *out) { unsigned long long i = (unsigned long long)blockIdx.x * ALL + ME;\
         if (i < (unsigned long long)n - 5) OUT = 2; }",
    );
}

/// The static shared memory that the table has for each of some kernels, in every way of building them.
fn static_shared(source: &str, kernels: &[&str], options: &CompileOptions, must: &[u64]) {
    for way in Way::ALL {
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
        let (made, _) = build(&Way::ALL, source, &options).expect("it compiles");
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

#[test]
fn arrays_written_by_other_names_keep_what_was_written() {
    same(
        "an array given to a function",
        r#"__device__ void fill(int *p) { p[0] = ME; p[1] = 7; } __device__ int sum(const int *p) { return p[0] + p[1]; }
        extern "C" __global__ void k(int n, int *out) { int d[2] = {0}; fill(d); __syncthreads(); OUT = sum(d); }"#,
    );
    same(
        "a pointer to an array",
        r#"extern "C" __global__ void k(int n, int *out) { int d[2] = {3, 4}; int *p = d; p[0] += ME; __syncthreads(); OUT = p[0]; }"#,
    );
    same(
        "an array as a pointer",
        r#"extern "C" __global__ void k(int n, int *out) { int d[2] = {3, 4}; *(d + 1) = ME; __syncthreads(); OUT = *(d + 1); }"#,
    );
    same(
        "a pointer into a constant table",
        r#"extern "C" __global__ void k(int n, int *out) { __shared__ int s[64]; const int t[4] = {5, 6, 7, 8}; const int *p = t; p += ME & 3; s[ME] = n; __syncthreads(); int x = s[0]; OUT = x; __syncthreads(); OUT = *p + x; }"#,
    );
    same(
        "an array given to a function with barriers",
        r#"__device__ void f(int *p, int *s) { s[ME] = p[0]; __syncthreads(); p[1] = s[0] + ME; __syncthreads(); }
        extern "C" __global__ void k(int n, int *out) { __shared__ int s[64]; int d[2] = {5, 6}; f(d, s); OUT = *(d + 1) * 10 + *d; }"#,
    );
    same(
        "a pointer to objects",
        r#"struct C { int v[3]; };
        extern "C" __global__ void k(int n, int *out) { C c[2] = {{{1, 2, 3}}, {{4, 5, 6}}}; C *p = c; p->v[1] = ME; (p + 1)->v[0] = 9; __syncthreads(); OUT = p[0].v[1] + p[1].v[0] * 100; }"#,
    );
    same(
        "an array cleared by memset",
        r#"extern "C" __global__ void k(int n, int *out) { int d[4] = {1, 2, 3, 4}; memset(d, 0, sizeof(d)); __syncthreads(); OUT = *d + n; }"#,
    );
}

#[test]
fn numbers_changed_by_other_names_keep_their_value() {
    same(
        "a reference to one of two",
        r#"extern "C" __global__ void k(int n, int *out) { int a = 1, b = 2; int &r = n > 2 ? a : b; r = ME + 50; __syncthreads(); OUT = a * 100 + b; }"#,
    );
    same(
        "assigning to one of two",
        r#"extern "C" __global__ void k(int n, int *out) { int a = 1, b = 2; (n > 2 ? a : b) = ME; __syncthreads(); OUT = a * 100 + b; }"#,
    );
    same(
        "a cast to a reference",
        r#"extern "C" __global__ void k(int n, int *out) { int a = 1; static_cast<int &>(a) = ME; __syncthreads(); OUT = a; }"#,
    );
    same(
        "a name for a reference",
        r#"extern "C" __global__ void k(int n, int *out) { typedef int &R; int a = 1; R r = a; r = ME; __syncthreads(); OUT = a; }"#,
    );
    same(
        "a template for references",
        r#"template <class T> __device__ void set(T x) { x = ME; }
        extern "C" __global__ void k(int n, int *out) { int a = 1; set<int &>(a); __syncthreads(); OUT = a; }"#,
    );
    same(
        "a pointer to constants",
        r#"extern "C" __global__ void k(int n, int *out) { int b = 3; int *x[3] = {out, &b, out}; int *const *q = nullptr; q++; __syncthreads(); OUT = (int)(size_t)q; }"#,
    );
    same(
        "an operator in words",
        r#"extern "C" __global__ void k(int n, int *out) { int a = ME; a or_eq 64; __syncthreads(); OUT = a; }"#,
    );
    same(
        "assembly",
        r#"extern "C" __global__ void k(int n, int *out) { int a = 3; __asm volatile("addl $4, %0" : "+r"(a)); __syncthreads(); OUT = a; }"#,
    );
    same(
        "behind a comma",
        r#"extern "C" __global__ void k(int n, int *out) { int a = 1, b = 2; (b, a) = ME; __syncthreads(); OUT = a; }"#,
    );
    same(
        "a step of one of two",
        r#"extern "C" __global__ void k(int n, int *out) { int a = 1, b = 2; ++(n ? a : b); __syncthreads(); OUT = a; }"#,
    );
    same(
        "the address of one of two",
        r#"extern "C" __global__ void k(int n, int *out) { int a = 1, b = 2; int *p = &(n ? a : b); *p = ME; __syncthreads(); OUT = a; }"#,
    );
    same(
        "the address of a constant",
        r#"extern "C" __global__ void k(int n, int *out) { const int c = ME + 5; const int *p = &c; int z = 0; for (int i = 0; i < 3; i++) { __syncthreads(); z += *p; if (z > 1000) p = nullptr; } OUT = z + *p; }"#,
    );
    same(
        "the type of a reference",
        r#"extern "C" __global__ void k(int n, int *out) { int a = 1; decltype((a)) r = a; r = ME; __syncthreads(); OUT = a; }"#,
    );
    same(
        "an operator that takes a reference",
        r#"struct B { int v; }; __device__ void operator<<(int &a, B b) { a = b.v; } __device__ int &operator,(int &a, B b) { a += b.v; return a; }
        extern "C" __global__ void k(int n, int *out) { int a = 1; a << B{(int)ME}; __syncthreads(); OUT = a; }"#,
    );
    same(
        "an address behind a cast",
        r#"extern "C" __global__ void k(int n, int *out) { float f = 2.0f; int *p = (int *)&f; *p = ME; __syncthreads(); OUT = __float_as_int(f); }"#,
    );
    same(
        "an address behind a cast, for a function",
        r#"extern "C" __global__ void k(int n, int *out) { unsigned long long a = 1; atomicAdd((unsigned long long *)&a, 5ull + ME); __syncthreads(); OUT = (int)a; }"#,
    );
}

#[test]
fn what_was_read_from_memory_is_not_read_again() {
    same(
        "of a namespace",
        r#"namespace g { __device__ int v; }
        extern "C" __global__ void k(int n, int *out) { if (ME == 0) g::v = 3; __syncthreads(); int a = g::v; __syncthreads(); if (ME == 0) g::v = 9; __syncthreads(); OUT = a; }"#,
    );
    same(
        "shared, by another name",
        r#"extern "C" __global__ void k(int n, int *out) { __shared__ int v; int *p = (int *)&v; if (!ME) *p = 3; __syncthreads(); int a = v; __syncthreads(); if (!ME) *p = 8; __syncthreads(); OUT = a; }"#,
    );
    same(
        "shared, of the file",
        r#"__shared__ int v;
        __device__ __forceinline__ void setv(int x) { v = x; }
        extern "C" __global__ void k(int n, int *out) { if (!ME) setv(3); __syncthreads(); int a = v; __syncthreads(); if (!ME) setv(9); __syncthreads(); OUT = a; }"#,
    );
    same(
        "of a class",
        r#"struct S { static inline __device__ int v; };
        extern "C" __global__ void k(int n, int *out) { if (ME == 0) S::v = 3; __syncthreads(); int a = S::v; __syncthreads(); if (ME == 0) S::v = 9; __syncthreads(); OUT = a; }"#,
    );
}

#[test]
fn variables_are_declared_in_many_forms() {
    same(
        "a member of a class, defined outside",
        "struct S { static int v; }; namespace a { struct T { static int v; }; } __device__ int S::v = 4; __device__ int a::T::v = 5;\n\
         extern \"C\" __global__ void k(int n, int *out) { OUT = S::v * 10 + a::T::v; }",
    );
    same(
        "of a type without a name",
        "static __device__ struct { int x, y; } q, r = {1, 2}; __device__ union U { int i; float f; } u = {7};\n\
         extern \"C\" __global__ void k(int n, int *out) { if (ME == 0) q.x = 3; OUT = n + r.y + u.i; }",
    );
}

#[test]
fn each_thread_has_its_own_variables() {
    same(
        "behind struct",
        r#"struct P { int x; };
        extern "C" __global__ void k(int n, int *out) { struct P p = {(int)ME}; __syncthreads(); OUT = p.x; }"#,
    );
    same(
        "a union without a name",
        r#"extern "C" __global__ void k(int n, int *out) { union { float f; int i; } u; u.f = ME; __syncthreads(); OUT = u.i; }"#,
    );
    same(
        "behind enum",
        r#"enum color { red, green, blue };
        extern "C" __global__ void k(int n, int *out) { enum color c = red; if (ME % 2) c = blue; __syncthreads(); OUT = c; }"#,
    );
    same(
        "of a type declared with it",
        r#"extern "C" __global__ void k(int n, int *out) { struct P { int x; } p; p.x = ME; __syncthreads(); OUT = p.x; }"#,
    );
}

#[test]
fn inner_names_hide_outer_ones_where_they_are_visible_only() {
    same(
        "a global, in a function",
        r#"__device__ int x = 100; __device__ int f() { int r = 0; { int x = 5; r += x; } __syncthreads(); return r + x; }
        extern "C" __global__ void k(int n, int *out) { int x = 1; int y = f(); OUT = y + x; }"#,
    );
    same(
        "a structured binding",
        r#"extern "C" __global__ void k(int n, int *out) { __shared__ int s[64]; s[ME] = 1; { int2 w = make_int2(ME, 6); auto [n, m] = w; __syncthreads(); OUT = n + s[0]; } }"#,
    );
    same(
        "with an alignment",
        r#"extern "C" __global__ void k(int n, int *out) { { alignas(8) int n = ME; __syncthreads(); OUT = n; } }"#,
    );
    same(
        "in brackets",
        r#"extern "C" __global__ void k(int n, int *out) { { int (n) = ME; __syncthreads(); OUT = n; } }"#,
    );
    same(
        "with an attribute",
        r#"extern "C" __global__ void k(int n, int *out) { { [[maybe_unused]] int n = ME; __syncthreads(); OUT = n; } }"#,
    );
    same(
        "with an attribute of the compiler",
        r#"extern "C" __global__ void k(int n, int *out) { { __attribute__((aligned(16))) int n = ME; __syncthreads(); OUT = n; } }"#,
    );
    same(
        "a global, by a loop",
        r#"__device__ int w = 40; __device__ int f(int *s) { for (int w = 0; w < 2; w++) s[ME] = w; __syncthreads(); int y = s[0] + w; __syncthreads(); return y; }
        extern "C" __global__ void k(int n, int *out) { __shared__ int s[64]; int w = 1; OUT = f(s) + w; }"#,
    );
    same(
        "a constant that another was computed from",
        r#"extern "C" __global__ void k(int n, int *out) { const int W = 4; int b = ME * W; __syncthreads(); { const int W = 100; __syncthreads(); OUT = b + W; __syncthreads(); OUT += b; } }"#,
    );
    same(
        "a type that another was declared with",
        r#"extern "C" __global__ void k(int n, int *out) { using T = unsigned char; T b = ME + 250; for (int j = 0; j < 2; j++) { using T = int; T z = 1000; __syncthreads(); OUT += b + z; __syncthreads(); } }"#,
    );
}

#[test]
fn objects_are_copied_and_destroyed_as_they_say() {
    same(
        "destroyed when a function returns",
        r#"struct D { int *p; __device__ ~D() { *p += 1; } };
        __device__ int f(int *s, int *q) { D d = {q}; s[ME] = 3; __syncthreads(); int y = s[0]; __syncthreads(); return y + *q; }
        extern "C" __global__ void k(int n, int *out) { __shared__ int s[64]; int c = 0; int y = f(s, &c); OUT = y * 10 + c; }"#,
    );
    same(
        "destroyed behind its block",
        r#"struct G { int *p; __device__ ~G() { *p += 5; } };
        extern "C" __global__ void k(int n, int *out) { int c = 1, r; { G g = {&c}; __syncthreads(); r = c; } OUT = r * 10 + c; }"#,
    );
    same(
        "that knows where it is",
        r#"struct C { int a, *p; __device__ C() : a(3), p(&a) {} };
        extern "C" __global__ void k(int n, int *out) { C c; __syncthreads(); *c.p = ME; __syncthreads(); OUT = c.a; }"#,
    );
    same(
        "with an assignment of its own",
        r#"struct C { int v; C() = default; __device__ C(int x) : v(x) {} __device__ C &operator=(const C &o) { v = o.v + 100; return *this; } };
        extern "C" __global__ void k(int n, int *out) { C c(ME); C d = C(3); __syncthreads(); OUT = c.v + d.v * 1000; }"#,
    );
    same(
        "with a member that is not constant",
        r#"struct M { mutable int c; __device__ void hit() const { c++; } };
        extern "C" __global__ void k(int n, int *out) { const M m = {1}; m.hit(); __syncthreads(); m.hit(); OUT = m.c; }"#,
    );
}
