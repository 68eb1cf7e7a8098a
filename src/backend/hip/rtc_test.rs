//! The vendor's real compiler, which needs no device. Where it is not installed, the tests say so and do nothing;
//! `cargo xtask test` installs it.

use super::api::Api;
use super::image::inspect;
use super::rtc::Compiler;
use crate::backend::cache::Compiled;
use crate::backend::image::le;
use crate::backend::{CompileOptions, Status};

fn compiler() -> Option<Compiler> {
    let found = Api::load().and_then(|api| {
        let mut version = 0;
        // SAFETY: `version` is writable.
        unsafe { (api.hipRuntimeGetVersion)(&mut version) };
        Compiler::load(&api, version)
    });
    match found {
        Ok(found) => Some(found),
        Err(e) => {
            eprintln!("SKIPPED, no HIP run-time compiler: {e}");
            None
        }
    }
}

/// The names that a code object's dynamic symbol table has.
fn symbols(image: &[u8]) -> Vec<String> {
    const DYNSYM: u64 = 11;
    let field = |at: u64, bytes| le(image, at as usize, bytes).expect("inside the image");
    let section = |i: u64| field(40, 8) + i * field(58, 2);
    let mut names = Vec::new();
    for i in 0..field(60, 2) {
        let at = section(i);
        if field(at + 4, 4) != DYNSYM {
            continue;
        }
        let texts = field(section(field(at + 40, 4)) + 24, 8);
        for entry in 1..field(at + 32, 8) / 24 {
            let name = (texts + field(field(at + 24, 8) + entry * 24, 4)) as usize;
            let end = image[name..].iter().position(|b| *b == 0).expect("a name's end");
            names.push(String::from_utf8_lossy(&image[name..name + end]).into_owned());
        }
    }
    names
}

const SOURCE: &str = "#include <hip/hip_runtime.h>\n\
    template <class T> __global__ void scale(T *p, T by) { p[blockIdx.x * blockDim.x + threadIdx.x] *= by; }\n\
    extern \"C\" __global__ void plain(int *p) { *p = 7; }\n";

fn with_names(names: &[&str]) -> CompileOptions {
    CompileOptions {
        name_expressions: names.iter().map(|name| (*name).into()).collect(),
        ..Default::default()
    }
}

fn check(compiled: &Compiled, target: &str) {
    inspect(&compiled.image).expect("a code object");
    let names = symbols(&compiled.image);
    assert_eq!(compiled.names.len(), 2);
    for kernel in compiled
        .names
        .iter()
        .map(|(_, symbol)| symbol.as_str())
        .chain(["plain"])
    {
        assert!(names.iter().any(|name| name == kernel), "{kernel}: {names:?}");
        assert!(
            names.contains(&format!("{kernel}.kd")),
            "{kernel} is a kernel: {names:?}"
        );
    }
    assert!(compiled.names[0].1.starts_with("_Z") && compiled.names[0].1 != compiled.names[1].1);
    let marked = format!("amdgcn-amd-amdhsa--{target}");
    assert!(
        compiled
            .image
            .windows(marked.len())
            .any(|w| w == marked.as_bytes()),
        "made for {target}"
    );
}

#[test]
fn source_becomes_a_code_object_for_each_target_and_kernels_have_their_names() {
    let Some(compiler) = compiler() else { return };
    let options = with_names(&["scale<float>", "scale<double>"]);
    for target in ["gfx906", "gfx908", "gfx90a", "gfx1030", "gfx90a:sramecc+:xnack-"] {
        let compiled = compiler.compile(SOURCE, target, &options).expect("compiles");
        check(&compiled, target);
        for cut in [64, compiled.image.len() / 2, compiled.image.len() - 1] {
            assert!(inspect(&compiled.image[..cut]).is_err(), "cut at {cut}");
        }
    }
}

/// The kernels of examples/kernels.
const EXAMPLES: [(&str, &str); 6] = [
    ("saxpy", include_str!("../../../examples/kernels/saxpy.hip")),
    ("matmul", include_str!("../../../examples/kernels/matmul.hip")),
    ("reduce", include_str!("../../../examples/kernels/reduce.hip")),
    (
        "histogram",
        include_str!("../../../examples/kernels/histogram.hip"),
    ),
    ("stencil", include_str!("../../../examples/kernels/stencil.hip")),
    (
        "mandelbrot",
        include_str!("../../../examples/kernels/mandelbrot.hip"),
    ),
];

#[test]
fn the_example_kernels_compile_for_every_kind_of_device() {
    let Some(compiler) = compiler() else { return };
    for (kernel, source) in EXAMPLES {
        for target in ["gfx906", "gfx90a", "gfx1030"] {
            let asked: &[&str] = if kernel == "reduce" {
                &["reduce<float>"]
            } else {
                &[]
            };
            let compiled = compiler
                .compile(source, target, &with_names(asked))
                .unwrap_or_else(|e| panic!("{kernel} for {target}: {e}"));
            inspect(&compiled.image).expect("a code object");
            let names = symbols(&compiled.image);
            // The template's instance has a name of the compiler's.
            let symbol = compiled.names.first().map_or(kernel, |(_, symbol)| symbol);
            for name in [symbol.to_owned(), format!("{symbol}.kd")] {
                assert!(names.contains(&name), "{name} for {target}: {names:?}");
            }
        }
    }
}

#[test]
fn the_callers_own_target_goes_before_the_devices() {
    let Some(compiler) = compiler() else { return };
    for option in ["--offload-arch=gfx908", "--gpu-architecture=gfx908"] {
        let options = CompileOptions {
            options: vec![option.into(), "-DUNUSED=1".into()],
            ..with_names(&["scale<float>", "scale<int>"])
        };
        let compiled = compiler.compile(SOURCE, "gfx90a", &options).expect("compiles");
        check(&compiled, "gfx908");
    }
}

/// Each of these would end the process, were it handed to the compiler of ROCm 5.2.
#[test]
fn a_target_that_the_compiler_does_not_know_is_refused_before_it_sees_it() {
    let Some(compiler) = compiler() else { return };
    for target in [
        "nonsense",
        "",
        "gfx",
        "gfx90a:foo+",
        "gfx90a:xnack",
        "gfx1030:xnack+",
        "gfx90a,gfx908",
        "sm_90",
    ] {
        let e = compiler
            .compile(SOURCE, target, &CompileOptions::default())
            .expect_err("an unknown target");
        assert_eq!(e.status(), Status::NotSupported, "{target}: {e}");
        assert!(e.to_string().contains(&format!("{target:?}")), "{e}");
        for flag in ["--offload-arch=", "--gpu-architecture="] {
            let options = CompileOptions {
                options: vec![format!("{flag}{target}")],
                ..Default::default()
            };
            let e = compiler
                .compile(SOURCE, "gfx90a", &options)
                .expect_err("an unknown target");
            assert_eq!(e.status(), Status::NotSupported, "{flag}{target}: {e}");
        }
    }
}

#[test]
fn a_broken_source_gives_the_whole_log_under_the_callers_name() {
    let Some(compiler) = compiler() else { return };
    let mut source = String::new();
    for i in 0..12 {
        source.push_str(&format!(
            "extern \"C\" __global__ void k{i}() {{ undeclared_{i} = 1; }}\n"
        ));
    }
    let options = CompileOptions {
        name: "broken \"one\".hip".into(),
        ..Default::default()
    };
    let e = compiler
        .compile(&source, "gfx90a", &options)
        .expect_err("does not compile");
    assert_eq!(e.status(), Status::CompileFailed);
    let text = e.to_string();
    for word in ["one\".hip:1:", "undeclared_0", "one\".hip:12:", "undeclared_11"] {
        assert!(text.contains(word), "{word} is not in {text}");
    }
    assert_eq!(e.detail().native.as_ref().map(|n| n.code), Some(6));
}

#[test]
fn bad_options_and_names_are_refused_with_words() {
    let Some(compiler) = compiler() else { return };
    let bad = CompileOptions {
        options: vec!["--no-such-option".into()],
        ..Default::default()
    };
    let e = compiler.compile("", "gfx90a", &bad).expect_err("no such option");
    assert!(e.to_string().contains("no-such-option"), "{e}");
    let e = compiler
        .compile("", "gfx90a", &with_names(&["nothing<int>"]))
        .expect_err("no such template");
    assert_eq!(e.status(), Status::CompileFailed);
    assert!(e.to_string().contains("nothing"), "{e}");
    let e = compiler
        .compile("a\0b", "gfx90a", &CompileOptions::default())
        .expect_err("NUL");
    assert_eq!(e.status(), Status::InvalidArgument);
    compiler
        .compile("", "gfx90a", &CompileOptions::default())
        .expect("an empty source is one without kernels");
}

#[test]
fn several_threads_may_compile() {
    let Some(compiler) = compiler() else { return };
    std::thread::scope(|scope| {
        for target in ["gfx906", "gfx908", "gfx90a", "gfx1030"] {
            let compiler = &compiler;
            scope.spawn(move || {
                let options = with_names(&["scale<float>", "scale<int>"]);
                check(
                    &compiler.compile(SOURCE, target, &options).expect("compiles"),
                    target,
                );
            });
        }
    });
}
