//! The project's chores: `cargo xtask <command>`.

mod header;

use std::process::ExitCode;

const COMMANDS: &str = "commands:
  header            write include/taskgpu.h from src/capi
  header --check    compare it instead, and compile it under every C and C++ standard";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let result = match args[..] {
        ["header", ref rest @ ..] => header::run(rest),
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
