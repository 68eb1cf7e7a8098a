//! `cargo xtask bench`: builds the library for release and the C programs in `benches/`, runs them, prints the table.
//!
//! A missed figure is printed, it fails nothing; docs/performance.md says how each row is measured.

use crate::{library, shim};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const USAGE: &str = "cargo xtask bench [--quick] [--row NAME]... [--instructions] [--write] [--list]
  --quick         fewer repetitions
  --row NAME      only this row (again for more); --list names them
  --instructions  instructions per call under valgrind, instead of times; what the library costs above HIP too
  --write         put the table into docs/performance.md";
const DOCUMENT: &str = "docs/performance.md";
const SIZE_ROW: &str = "size";
const SIZE_LIMIT: f64 = 1.5;

/// The parts of the bench program; saxpy.c, ahead.c and what starts on its own are built apart.
const SOURCES: [&str; 8] = [
    "main.c",
    "common.c",
    "loops.c",
    "calls.c",
    "launch.c",
    "source.c",
    "wait.c",
    "threads.c",
];

/// Runs the benches that `args` ask for.
pub fn run<S: AsRef<str>>(args: &[S]) -> Result<(), String> {
    let (mut quick, mut instructions, mut write, mut list) = (false, false, false, false);
    let mut rows: Vec<String> = Vec::new();
    let mut args = args.iter().map(AsRef::as_ref);
    while let Some(arg) = args.next() {
        match arg {
            "--quick" => quick = true,
            "--instructions" => instructions = true,
            "--write" => write = true,
            "--list" => list = true,
            "--row" => rows.push(
                args.next()
                    .ok_or("--row wants a name; --list has them")?
                    .to_owned(),
            ),
            "--help" => return say(USAGE),
            other => return Err(format!("bench: {other} is no option\n{USAGE}")),
        }
    }
    if write && (quick || !rows.is_empty()) {
        return Err("bench --write wants the whole table: neither --quick nor --row".to_owned());
    }
    if instructions && (quick || !rows.is_empty()) {
        return Err("bench --instructions counts everything: neither --quick nor --row".to_owned());
    }

    let built = Built::new()?;
    let mut known = lines(&output(&mut built.bench(&["--list"]))?);
    known.push(SIZE_ROW.to_owned());
    if list {
        return say(&known.join("\n"));
    }
    if let Some(unknown) = rows.iter().find(|row| !known.contains(row)) {
        return Err(format!(
            "bench: no row named {unknown}; there are: {}",
            known.join(", ")
        ));
    }
    if instructions {
        return built.count_instructions(write);
    }
    built.measure(if rows.is_empty() { &known } else { &rows }, quick, write)
}

/// Where everything was built.
struct Built {
    root: PathBuf,
    directory: PathBuf,
    library: PathBuf,
}

impl Built {
    fn new() -> Result<Built, String> {
        let root = library::root();
        let folder = library::build()?;
        let directory = folder.join("../bench");
        fs::create_dir_all(&directory).map_err(|e| format!("{}: {e}", directory.display()))?;

        let built = Built {
            library: directory.join(library::soname()),
            root,
            directory,
        };
        let from = folder.join("libtaskgpu.so");
        fs::copy(&from, &built.library).map_err(|e| format!("{}: {e}", from.display()))?;

        let taskgpu = built.library.as_os_str().to_owned();
        let floor = built.directory.join("libfloor.so").into_os_string();
        built.cc(
            &["-O2", "-fPIC", "-shared", "-Wl,-soname,libfloor.so"],
            &["floor.c"],
            &[],
            "libfloor.so",
        )?;
        built.cc(&["-O3", "-fopenmp", "-c"], &["saxpy.c"], &[], "saxpy.o")?;
        built.cc(&["-O2", "-c"], &["startup.c"], &[], "startup.o")?;
        built.cc(
            &["-O3", "-march=native", "-fopenmp", "-c"],
            &["ahead.c"],
            &[],
            "ahead.o",
        )?;
        let objects =
            ["saxpy.o", "startup.o", "ahead.o"].map(|name| built.directory.join(name).into_os_string());
        let with = [&objects[0], &objects[1], &objects[2], &taskgpu, &floor];
        let kernels = format!("-DKERNELS=\"{}\"", built.root.join("examples/kernels").display());
        built.cc(
            &["-O2", "-g", "-fopenmp", "-Wl,-rpath,$ORIGIN", "-lm", &kernels],
            &SOURCES,
            &with,
            "bench",
        )?;
        built.cc(
            &["-O2", "-DWITH_TASKGPU", "-Wl,-rpath,$ORIGIN"],
            &["probe.c"],
            &[&taskgpu],
            "probe",
        )?;
        built.cc(&["-O2"], &["probe.c"], &[], "probe-without")?;
        built.cc(
            &["-O2", "-Wl,-rpath,$ORIGIN", "-ldl"],
            &["hip.c"],
            &[&taskgpu],
            "hip",
        )?;
        Ok(built)
    }

    fn cc(
        &self,
        flags: &[&str],
        sources: &[&str],
        with: &[&std::ffi::OsString],
        out: &str,
    ) -> Result<(), String> {
        let mut cc = Command::new("cc");
        cc.args(["-std=gnu11", "-Wall", "-Wextra", "-pthread", "-I"])
            .arg(self.root.join("include"));
        cc.args(sources.iter().map(|name| self.root.join("benches").join(name)));
        // Libraries last: an object's needs are looked up in what follows it.
        cc.args(with).args(flags).arg("-o").arg(self.directory.join(out));
        done(&mut cc)
    }

    /// The bench program, with no setting from outside but host devices.
    fn bench(&self, args: &[&str]) -> Command {
        let mut command = Command::new(self.directory.join("bench"));
        command.args(args);
        self.environment(&mut command);
        command
    }

    fn environment(&self, command: &mut Command) {
        for (name, _) in std::env::vars_os() {
            let outside = name.to_string_lossy();
            if outside.starts_with("TASKGPU_") || outside.starts_with("OMP_") || outside.starts_with("GOMP_")
            {
                command.env_remove(&name);
            }
        }
        command.env("TASKGPU_BACKENDS", "host");
    }

    fn measure(&self, rows: &[String], quick: bool, write: bool) -> Result<(), String> {
        let before = Load::now();
        let mut results = Vec::new();
        let mut failures = Vec::new();
        for name in rows {
            eprintln!("bench: {name}");
            let printed = if name == SIZE_ROW {
                self.size()
            } else if quick {
                output(&mut self.bench(&[name, "--quick"]))
            } else {
                output(&mut self.bench(&[name]))
            };
            match printed {
                Ok(printed) => results.extend(lines(&printed).iter().map(|line| Row::parse(line))),
                Err(why) => {
                    results.push(Row::failed(name));
                    failures.push(format!("row {name}: {why}"));
                }
            }
        }
        let machine = format!("{}{}", self.machine(), Load::report(&before, &Load::now()));
        println!("{machine}\n{}", for_terminal(&results));
        if write && failures.is_empty() {
            self.put("bench", &format!("{machine}\n{}", for_document(&results)))?;
        }
        if failures.is_empty() {
            Ok(())
        } else {
            Err(failures.join("\n"))
        }
    }

    /// The stripped size is no program's to measure.
    fn size(&self) -> Result<String, String> {
        let stripped = self.directory.join("stripped.so");
        done(Command::new("strip").arg("-o").arg(&stripped).arg(&self.library))?;
        let bytes = fs::metadata(&stripped)
            .map_err(|e| format!("{}: {e}", stripped.display()))?
            .len();
        let mib = bytes as f64 / f64::from(1 << 20);
        let verdict = if mib <= SIZE_LIMIT {
            "ok".to_owned()
        } else {
            format!("MISSED by {:.2}x", mib / SIZE_LIMIT)
        };
        Ok(format!("shared library, stripped\t{mib:.2} MiB\t\t\tat most {SIZE_LIMIT} MiB\t{verdict}\t\t{bytes} bytes\n"))
    }

    fn count_instructions(&self, write: bool) -> Result<(), String> {
        if Command::new("valgrind").arg("--version").output().is_err() {
            return Err(
                "bench --instructions needs valgrind with callgrind: install the package `valgrind` \
                        (Debian, Ubuntu, Fedora, Arch: the same name)"
                    .to_owned(),
            );
        }
        let mut table = String::from("| what | instructions | floors |\n|---|---|---|\n");
        let mut floor = None;
        for line in lines(&output(&mut self.bench(&["--loops"]))?) {
            let (name, what) = line
                .split_once('\t')
                .ok_or("bench --loops: a line without a tab")?;
            eprintln!("bench: instructions of {name}");
            let each = self.instructions(name, |n| self.bench(&["--instructions", name, n]))?;
            let floor = *floor.get_or_insert(each);
            let _ = writeln!(table, "| {what} | {each:.1} | {:.1} |", each / floor);
        }
        let heading = format!(
            "{}{}\n\n",
            self.machine(),
            first_line(Command::new("valgrind").arg("--version"))
        );
        println!("{heading}{table}");
        let above_hip = self.above_hip(&shim::build()?)?;
        println!("{above_hip}");
        if write {
            self.put("instructions", &format!("{heading}{table}"))?;
            self.put("hip", &format!("{heading}{above_hip}"))?;
        }
        Ok(())
    }

    /// What calls cost on a HIP device whose runtime does nothing.
    fn above_hip(&self, rocm: &Path) -> Result<String, String> {
        let hip = |args: &[&str]| {
            let mut command = Command::new(self.directory.join("hip"));
            self.environment(command.args(args));
            command
                .env("TASKGPU_BACKENDS", "hip")
                .env("TASKGPU_TEST_HIP_SHIM", "1")
                .env("HIP_SHIM_EMPTY", "1")
                .env("ROCM_PATH", rocm);
            command
        };
        let times = lines(&output(&mut hip(&["--times"]))?);
        let mut table = String::from("| what | instructions | time |\n|---|---|---|\n");
        for (line, time) in lines(&output(&mut hip(&["--loops"]))?).iter().zip(times) {
            let (name, what) = line.split_once('\t').ok_or("hip --loops: a line without a tab")?;
            let (_, time) = time.split_once('\t').ok_or("hip --times: a line without a tab")?;
            eprintln!("bench: instructions of {name} on HIP");
            let each = self.instructions(&format!("hip-{name}"), |n| hip(&[name, n]))?;
            let _ = writeln!(table, "| {what} | {each:.1} | {time} ns |");
        }
        Ok(table)
    }

    /// Instructions of one round of a loop, which `run` runs as many times as it is told.
    fn instructions(&self, name: &str, run: impl Fn(&str) -> Command) -> Result<f64, String> {
        // Two lengths: what the start, the first calls and the loop's frame take falls out.
        let (few, many) = (1000u32, 3000u32);
        let count = |n: u32| self.callgrind(name, run(&n.to_string()));
        Ok((count(many)? - count(few)?) / f64::from(many - few))
    }

    /// Instructions inside the functions named loop_*, by the thread that is in them.
    fn callgrind(&self, name: &str, command: Command) -> Result<f64, String> {
        let file = self.directory.join(format!("callgrind.{name}"));
        let mut valgrind = Command::new("valgrind");
        valgrind.args(["-q", "--tool=callgrind", "--toggle-collect=loop_*"]);
        valgrind.arg(format!("--callgrind-out-file={}", file.display()));
        valgrind.arg(command.get_program()).args(command.get_args());
        self.environment(&mut valgrind);
        for (name, value) in command.get_envs() {
            if let Some(value) = value {
                valgrind.env(name, value);
            }
        }
        output(&mut valgrind)?;
        let counts = fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
        let total = counts.lines().find_map(|line| line.strip_prefix("totals:"));
        total
            .and_then(|n| n.trim().parse().ok())
            .ok_or(format!("{}: no totals", file.display()))
    }

    fn machine(&self) -> String {
        let cpu = field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown CPU".to_owned());
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let hypervisor = fs::read_to_string("/proc/cpuinfo").is_ok_and(|all| all.contains(" hypervisor"));
        let mut text = format!("- Machine: {cpu}, {cores} cores");
        text.push_str(if hypervisor { ", a virtual machine" } else { "" });
        let _ = writeln!(text, "; Linux {}", kernel.trim());
        let cc = first_line(Command::new("cc").arg("--version"));
        let rustc = first_line(Command::new("rustc").arg("--version"));
        let _ = writeln!(text, "- Compilers: {cc}; {rustc}");
        let commit = first_line(
            Command::new("git")
                .args(["describe", "--always", "--dirty"])
                .current_dir(&self.root),
        );
        let _ = writeln!(
            text,
            "- taskgpu {}",
            if commit.is_empty() {
                "without a commit".to_owned()
            } else {
                commit
            }
        );
        text
    }

    /// Replaces what stands between a pair of markers in the document.
    fn put(&self, marker: &str, content: &str) -> Result<(), String> {
        let path = self.root.join(DOCUMENT);
        let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let (begin, end) = (
            format!("<!-- {marker}:begin -->"),
            format!("<!-- {marker}:end -->"),
        );
        let missing = || format!("{DOCUMENT}: no {begin} with {end} after it");
        let from = text.find(&begin).ok_or_else(missing)? + begin.len();
        let to = from + text[from..].find(&end).ok_or_else(missing)?;
        let new = format!("{}\n{}\n{}", &text[..from], content.trim_end(), &text[to..]);
        fs::write(&path, new).map_err(|e| format!("{}: {e}", path.display()))?;
        say(&format!("written to {DOCUMENT}"))
    }
}

/// One line of the table; the cells in the order in which the programs print them.
struct Row([String; 8]);

impl Row {
    fn parse(line: &str) -> Row {
        let mut cells = line.split('\t');
        Row(std::array::from_fn(|_| {
            cells.next().unwrap_or_default().to_owned()
        }))
    }
    fn failed(name: &str) -> Row {
        let mut row = Row::parse(name);
        row.0[5] = "FAILED".to_owned();
        row
    }
}

const HEADINGS: [&str; 6] = ["what (reference)", "ours", "reference", "ratio", "reach", ""];

/// Columns for the eye, with spread and note on a line of their own.
fn for_terminal(rows: &[Row]) -> String {
    let width = |column: usize| {
        let longest = rows
            .iter()
            .map(|row| row.0[column].chars().count())
            .max()
            .unwrap_or(0);
        longest.max(HEADINGS[column].len())
    };
    let widths: [usize; 6] = std::array::from_fn(width);
    let mut text = String::new();
    let mut line = |cells: &[&str]| {
        let padded: Vec<String> = cells
            .iter()
            .zip(widths)
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        let _ = writeln!(text, "{}", padded.join("  ").trim_end());
    };
    line(&HEADINGS);
    for row in rows {
        let cells: Vec<&str> = row.0[..6].iter().map(String::as_str).collect();
        line(&cells);
        for (label, cell) in [("min / median / p90: ", &row.0[6]), ("", &row.0[7])] {
            if !cell.is_empty() {
                line(&[&format!("    {label}{cell}")]);
            }
        }
    }
    text
}

fn for_document(rows: &[Row]) -> String {
    let mut text = String::from(
        "| what (reference) | ours | reference | ratio | reach | | min / median / p90 |\n|---|---|---|---|---|---|---|\n",
    );
    for Row(cells) in rows {
        let note = if cells[7].is_empty() {
            String::new()
        } else {
            format!(" ({})", cells[7])
        };
        let verdict = if cells[5].starts_with("MISSED") {
            format!("**{}**", cells[5])
        } else {
            cells[5].clone()
        };
        let _ = writeln!(
            text,
            "| {}{note} | {} | {} | {} | {} | {verdict} | {} |",
            cells[0], cells[1], cells[2], cells[3], cells[4], cells[6]
        );
    }
    text
}

/// What the machine did meanwhile: a figure from a busy machine says little.
struct Load {
    /// Ticks of all cores: busy, stolen by the hypervisor, all.
    busy: f64,
    stolen: f64,
    all: f64,
    /// Ticks of ended children of ours.
    ours: f64,
}

impl Load {
    fn now() -> Option<Load> {
        let stat = fs::read_to_string("/proc/stat").ok()?;
        let line = stat.lines().next()?.strip_prefix("cpu")?;
        // user nice system idle iowait irq softirq steal; guest time is part of user time.
        let ticks: Vec<f64> = line
            .split_whitespace()
            .take(8)
            .filter_map(|n| n.parse().ok())
            .collect();
        let own = fs::read_to_string("/proc/self/stat").ok()?;
        let after_name: Vec<&str> = own.rsplit_once(')')?.1.split_whitespace().collect();
        let ended = |at: usize| after_name.get(at).and_then(|n| n.parse::<f64>().ok());
        let all: f64 = ticks.iter().sum();
        let idle = ticks.get(3)? + ticks.get(4)?;
        let stolen = *ticks.get(7)?;
        Some(Load {
            busy: all - idle - stolen,
            stolen,
            all,
            ours: ended(13)? + ended(14)?,
        })
    }

    fn report(before: &Option<Load>, after: &Option<Load>) -> String {
        let (Some(before), Some(after)) = (before, after) else {
            return String::new();
        };
        let all = after.all - before.all;
        if all <= 0.0 {
            return String::new();
        }
        let others = ((after.busy - before.busy) - (after.ours - before.ours)).max(0.0) / all * 100.0;
        let stolen = (after.stolen - before.stolen) / all * 100.0;
        let judgement = if others + stolen > 5.0 {
            ": NOT a quiet machine, read the figures with care"
        } else {
            ""
        };
        format!("- Meanwhile others used {others:.1} % of its cores and the hypervisor took {stolen:.1} %{judgement}\n")
    }
}

/// The first `name = value` or `name : value` line of a file.
fn field(path: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    text.lines().find_map(|line| {
        let rest = line.strip_prefix(name)?.trim_start();
        Some(rest.strip_prefix([':', '='])?.trim().to_owned())
    })
}

fn lines(text: &str) -> Vec<String> {
    text.lines().map(str::to_owned).collect()
}

fn first_line(command: &mut Command) -> String {
    let out = command
        .output()
        .map(|out| String::from_utf8_lossy(&out.stdout).into_owned())
        .unwrap_or_default();
    out.lines().next().unwrap_or_default().to_owned()
}

fn say(text: &str) -> Result<(), String> {
    println!("{text}");
    Ok(())
}

fn done(command: &mut Command) -> Result<(), String> {
    let status = command
        .status()
        .map_err(|e| format!("{}: {e}", command.get_program().to_string_lossy()))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("{command:?}: {status}"))
    }
}

fn output(command: &mut Command) -> Result<String, String> {
    let out = command
        .output()
        .map_err(|e| format!("{}: {e}", command.get_program().to_string_lossy()))?;
    if out.status.success() {
        Ok(String::from_utf8_lossy(&out.stdout).into_owned())
    } else {
        Err(format!(
            "{}\n{}",
            out.status,
            String::from_utf8_lossy(&out.stderr).trim_end()
        ))
    }
}
