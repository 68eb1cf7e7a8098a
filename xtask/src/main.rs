//! The project's chores: `cargo xtask <command>`.

mod header;
mod symbols;

use std::process::ExitCode;

const COMMANDS: &str = "commands:
  header            write include/taskgpu.h from src/capi
  header --check    compare it instead, and compile it under every C and C++ standard
  symbols           build for release, and compare what the libraries export with the header";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let result = match args[..] {
        ["header", ref rest @ ..] => header::run(rest),
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
