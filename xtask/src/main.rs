//! The project's chores: `cargo xtask <command>`.

mod abi;
mod bench;
mod consumers;
mod demo;
mod gpu;
mod header;
mod julia;
mod library;
mod licences;
mod package;
mod shim;
mod signatures;
mod symbols;
mod test;
mod tools;

use std::process::ExitCode;

const COMMANDS: &str = "commands:
  build             build the shared and the static library for release, and print where they are
  test              check everything; --only NAME: the C and C++ programs named like that;
                    --only package: the installed package
  demo [FILE]       run the examples on host devices, the second one on FILE
  header            write include/taskgpu.h from src/capi
  header --check    compare it instead, and compile it under every C and C++ standard
  bench             measure, and print the table with its ratios
  gpu [FOLDER]      gather what a machine with an NVIDIA GPU needs to test and measure this build
  julia --check     compare the Julia package's declarations with the header
  abi               compare the interface with the last release of this minor version; --write makes this one it
  licences          write LICENSES-THIRD-PARTY from the crates that are linked in; --check compares it instead
  package [FOLDER]  lay the library out as it is installed, with what CMake and pkg-config need
  symbols           build for release, and compare what the libraries export with the header";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let result = match args[..] {
        ["header", ref rest @ ..] => header::run(rest),
        ["demo", ref rest @ ..] => demo::run(rest),
        ["bench", ref rest @ ..] => bench::run(rest),
        ["build"] => library::build().map(|folder| println!("{}", folder.display())),
        ["test", ref rest @ ..] => test::run(rest),
        ["gpu", ref rest @ ..] => gpu::run(rest),
        ["julia", "--check"] => signatures::run(),
        ["abi", ref rest @ ..] => abi::run(rest),
        ["licences", ref rest @ ..] => licences::run(rest),
        ["package", ref rest @ ..] => package::run(rest),
        ["symbols"] => symbols::run(),
        _ => Err(COMMANDS.to_owned()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("{text}");
            ExitCode::FAILURE
        }
    }
}
