//! Components that exceed each limit: the code that it ends with, the message that names the flag, what it costs the host.

use anyhow::{Context, Result, bail};
use dchost_tests::{Cluster, Outcome, PATIENCE, Process, Run, Signal};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What dchost itself, the compiler and the guest's own memory take in these runs, generously.
const BASE_BYTES: u64 = 150 << 20;

/// One limit: a guest that runs well without it, and what it meets with it.
struct Case {
    /// The flag with its value, as two arguments.
    flag: [&'static str; 2],
    /// The same by the environment.
    twin: (&'static str, &'static str),
    /// What the guest `exceeds` uses, and how much.
    guest: [&'static str; 2],
    /// The exit code under the limit.
    code: i32,
    /// What is told; the whole of it, since the flags in use are logged in every run.
    told: &'static str,
}

const CASES: [Case; 14] = [
    Case {
        flag: ["--max-memory", "32MiB"],
        twin: ("DCHOST_MAX_MEMORY", "32MiB"),
        guest: ["memory", "64"],
        code: 4,
        told: "memory limit 32 MiB reached",
    },
    Case {
        flag: ["-W", "cpu-timeout=200ms"],
        twin: ("DCHOST_CPU_TIMEOUT", "200ms"),
        guest: ["cpu", "3000"],
        code: 4,
        told: "cpu limit 200ms reached (-W cpu-timeout)",
    },
    Case {
        flag: ["--timeout", "500ms"],
        twin: ("DCHOST_TIMEOUT", "500ms"),
        guest: ["sleep", "5000"],
        code: 124,
        told: "the wall clock `--timeout 500ms` has passed",
    },
    Case {
        flag: ["-W", "fuel=1000000"],
        twin: ("DCHOST_FUEL", "1000000"),
        guest: ["cpu", "500"],
        code: 4,
        told: "fuel limit 1000000 reached (-W fuel)",
    },
    Case {
        flag: ["-W", "max-wasm-stack=64KiB"],
        twin: ("DCHOST_MAX_WASM_STACK", "64KiB"),
        guest: ["stack", "4000"],
        code: 3,
        told: "guest stack exhausted (endless recursion, or raise `-W max-wasm-stack`)",
    },
    Case {
        flag: ["--max-tensor", "1MiB"],
        twin: ("DCHOST_MAX_TENSOR", "1MiB"),
        guest: ["tensor", "2097152"],
        code: 4,
        told: "one host call passed tensors of 2 MiB, above 1 MiB (--max-tensor)",
    },
    // An answer is refused before it is made, and the guest may ask for less.
    Case {
        flag: ["--max-tensor", "1MiB"],
        twin: ("DCHOST_MAX_TENSOR", "1MiB"),
        guest: ["answer", "2097152"],
        code: 1,
        told: "the values of this call have 2 MiB, above 1 MiB (--max-tensor): ask for fewer at once",
    },
    Case {
        flag: ["-W", "max-handles=100"],
        twin: ("DCHOST_MAX_HANDLES", "100"),
        guest: ["handles", "200"],
        code: 4,
        told: "too many handles, limit 100 reached (-W max-handles)",
    },
    Case {
        flag: ["--max-module-size", "10KiB"],
        twin: ("DCHOST_MAX_MODULE_SIZE", "10KiB"),
        guest: ["cpu", "0"],
        code: 2,
        told: "above 10 KiB (--max-module-size)",
    },
    Case {
        flag: ["-W", "max-output=10KiB"],
        twin: ("DCHOST_MAX_OUTPUT", "10KiB"),
        guest: ["lines", "100000"],
        code: 0,
        told: "bytes of output above 10 KiB (-W max-output); the last lines follow]",
    },
    Case {
        flag: ["-W", "max-output-line=100"],
        twin: ("DCHOST_MAX_OUTPUT_LINE", "100"),
        guest: ["unbroken", "1000"],
        code: 0,
        told: "[dchost dropped 900 bytes of lines above 100 bytes (-W max-output-line)]",
    },
    Case {
        flag: ["-W", "max-output-rate=10KiB"],
        twin: ("DCHOST_MAX_OUTPUT_RATE", "10KiB"),
        guest: ["lines", "200000"],
        code: 0,
        told: "bytes of output above 10 KiB in a second (-W max-output-rate); the last lines follow]",
    },
    Case {
        flag: ["--max-variable-bytes", "1MiB"],
        twin: ("DCHOST_MAX_VARIABLE_BYTES", "1MiB"),
        guest: ["tensor", "2097152"],
        code: 1,
        told: "`--max-variable-bytes` is `1048576`; raise it",
    },
    Case {
        flag: ["-W", "max-ops=3"],
        twin: ("DCHOST_MAX_OPS", "3"),
        guest: ["calls", "4"],
        code: 1,
        told: "3 calls are in flight, the most that is allowed (-W max-ops): `get` or drop some first",
    },
];

fn exceeds(args: [&str; 2]) -> Result<Run> {
    Ok(Run::guest("exceeds")?.guest_args(args))
}

/// Aim: each limit holds, is told by its flag, and is wired to its own flag and variable. Method: a guest that runs well
/// without the limit meets it by the flag, and again by the variable.
#[test]
fn each_limit_holds_by_its_flag_and_by_its_variable() -> Result<()> {
    for Case { flag, twin, guest, code, told } in CASES {
        let free = exceeds(guest)?.output()?;
        assert_eq!(free.code, 0, "{guest:?} without a limit: {}", free.output);
        assert!(!free.output.contains("dropped"), "{guest:?} without a limit: {}", free.output);
        for run in [exceeds(guest)?.args(flag), exceeds(guest)?.env(twin.0, twin.1)] {
            let outcome = run.output()?;
            assert_eq!(outcome.code, code, "{flag:?} {twin:?}: {}", outcome.output);
            assert!(outcome.output.contains(told), "no `{told}` for {flag:?} {twin:?}:\n{}", outcome.output);
            assert_sound(&outcome);
        }
    }
    Ok(())
}

#[track_caller]
fn assert_sound(outcome: &Outcome) {
    for sign in ["panicked at", "a bug in dchost"] {
        assert!(!outcome.output.contains(sign), "{}", outcome.output);
    }
}

#[test]
fn the_page_of_limits_names_each_flag_and_variable() -> Result<()> {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/limits.md")).context("read it")?;
    for Case { flag, twin, .. } in CASES {
        let name = if flag[0] == "-W" {
            format!("-W {}", flag[1].split('=').next().unwrap_or_default())
        } else {
            flag[0].into()
        };
        let row =
            page.lines().find(|line| line.contains(&format!("`{name}`"))).with_context(|| format!("no {name}"))?;
        assert!(row.contains(&format!("`{}`", twin.0)), "{row}");
    }
    Ok(())
}

#[test]
fn every_limit_may_be_given_in_the_file() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("limits.toml");
    let text = "max-output = \"10KiB\"\nmax-output-line = \"50\"\nmax-output-rate = \"1KiB\"\nmax-ops = \"3\"\n";
    std::fs::write(&file, text)?;
    let run = |guest| -> Result<Outcome> { exceeds(guest)?.args(["--config".as_ref(), file.as_os_str()]).output() };
    assert!(run(["unbroken", "100"])?.output.contains("(-W max-output-line)"));
    assert!(run(["lines", "5000"])?.output.contains("(-W max-output-rate)"));
    assert!(run(["calls", "4"])?.output.contains("(-W max-ops)"));
    Ok(())
}

#[test]
fn a_long_compilation_is_2_and_can_be_interrupted() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let path = many_functions(dir.path(), 100_000)?;
    let run = || Run::new("local").args(["--no-cache", "--module"]).args([path.as_os_str()]);
    let limited = [run().args(["--compile-timeout", "300ms"]), run().env("DCHOST_COMPILE_TIMEOUT", "300ms")];
    for run in limited {
        let outcome = run.output()?;
        assert_eq!(outcome.code, 2, "{}", outcome.output);
        assert!(outcome.output.contains("did not compile within 300ms (--compile-timeout)"), "{}", outcome.output);
    }
    // The clock and signals end the process although its thread still compiles.
    let outcome = run().args(["--timeout", "500ms"]).output()?;
    assert_eq!(outcome.code, 124, "{}", outcome.output);
    assert!(outcome.time < Duration::from_secs(10), "{:?}", outcome.time);
    let process = run().start()?;
    wait_for_thread(&process, "dchost-compile")?;
    process.signal(Signal::INT);
    assert_eq!(process.wait(Duration::from_secs(10))?.code, 130, "{}", process.report());
    Ok(())
}

/// Aim: what a hostile component costs while it is compiled is bounded. Method: the worst that the caps let through, and
/// what they don't.
#[test]
fn hostile_components_cost_little_to_compile() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let body = |name: &str, piece: &str, count: usize, tail: &str| {
        let (open, close) = if name == "nested" {
            ("block ".repeat(count), "end ".repeat(count))
        } else {
            (piece.repeat(count), String::new())
        };
        component(dir.path(), name, &format!("(core module (func (local i32) {open} {tail} {close}))"))
    };
    let cases = [
        (
            "a large function",
            body("large", "local.get 0 i32.const 7 i32.mul local.set 0 ", 800_000, "")?,
            Some("has a function of"),
        ),
        ("a function below the cap", body("fits", "local.get 0 i32.const 7 i32.mul local.set 0 ", 280_000, "")?, None),
        // Each local meets itself at the head of each loop: far more values than bytes.
        ("loops of many variables", loops(dir.path(), 4000, 10_000)?, None),
        ("deep nesting", body("nested", "", 500_000, "")?, None),
        ("many functions", many_functions(dir.path(), 250_001)?, Some("has more than 250000 functions")),
    ];
    for (what, path, told) in cases {
        let run = Run::new("local").args(["--no-cache", "--compile-timeout", "4s", "--module"]);
        let outcome = run.args([path.as_os_str()]).output()?;
        println!("{what}: {} MiB, {:?}", outcome.peak_memory_bytes >> 20, outcome.time);
        // No entry: refused in any case.
        assert_eq!(outcome.code, 2, "{what}: {}", outcome.output);
        if let Some(told) = told {
            assert!(outcome.output.contains(told), "{what}: {}", outcome.output);
        }
        // The compiler's own cap, and what it grows by between two looks.
        assert!(outcome.peak_memory_bytes < 2400 << 20, "{what}: {} MiB", outcome.peak_memory_bytes >> 20);
        assert_sound(&outcome);
    }
    Ok(())
}

#[test]
fn floods_of_output_are_cut_told_and_cost_no_memory() -> Result<()> {
    // 10 million lines, and 1 GiB without a newline. Which of both budgets the lines meet depends on the machine's speed.
    let cases = [
        (["lines", "110000000"], "; the last lines follow]"),
        (
            ["unbroken", "1073741824"],
            "[dchost dropped 1073676288 bytes of lines above 65536 bytes (-W max-output-line)]",
        ),
    ];
    for (guest, told) in cases {
        let outcome = exceeds(guest)?.args(["-W", "max-output=2MiB"]).output()?;
        assert_eq!(outcome.code, 0, "{guest:?}");
        let end = outcome.stderr.lines().rev().take(3).collect::<Vec<_>>().join("\n");
        assert!(outcome.stderr.contains(told), "{guest:?}: {end}");
        let last = outcome.stdout.lines().last();
        assert_eq!(last, Some(&*format!("the end of {}", guest[0])), "{guest:?}: the last words are shown");
        assert!(outcome.peak_memory_bytes < BASE_BYTES, "{guest:?}: {} MiB", outcome.peak_memory_bytes >> 20);
    }
    Ok(())
}

/// Aim: an output limit bounds what is written, however little the guest wrote for it. Method: 16 million newlines, as text and
/// as JSON, whose lines are longest.
#[test]
fn newlines_alone_make_no_more_output_than_the_limit() -> Result<()> {
    const LIMIT: usize = 1 << 20;
    for format in ["text", "json"] {
        let run = exceeds(["newlines", "16777216"])?.args(["-W", "max-output=1MiB", "--log-format", format]);
        let outcome = run.output()?;
        assert_eq!(outcome.code, 0, "{:.2000}", outcome.stderr);
        assert!(outcome.stderr.contains("(-W max-output)"), "{:.2000}", outcome.stderr);
        let written = outcome.stdout.len();
        println!("{format}: {written} bytes in {} lines", outcome.stdout.lines().count());
        assert!(written < 3 * LIMIT, "{format}: {written} bytes");
        assert!(outcome.stdout.contains("the end of newlines"), "the last words are shown");
    }
    Ok(())
}

/// Aim: what a guest passes is measured before it is copied. Method: large strings where small ones belong.
#[test]
fn large_arguments_cost_the_host_nothing() -> Result<()> {
    const BYTES: u64 = 200 << 20;
    let bytes = BYTES.to_string();
    for (what, code, told) in
        [("log", 0, "(-W max-output-line)"), ("name", 1, "of a variable has 209715200 bytes, at most 256 are allowed")]
    {
        let outcome = exceeds([what, &bytes])?.output()?;
        assert_eq!(outcome.code, code, "{what}: {:.2000}", outcome.output);
        assert!(outcome.output.contains(told), "{what}: {:.2000}", outcome.output);
        // The guest has it once itself.
        let host_bytes = outcome.peak_memory_bytes.saturating_sub(BYTES);
        assert!(host_bytes < BASE_BYTES, "{what}: {} MiB", host_bytes >> 20);
    }
    Ok(())
}

/// Aim: strings in UTF-16, which are converted before they are measured, cost at most twice their bytes, for the time of
/// the call. Method: those that grow most, three bytes from two.
#[test]
fn a_large_message_in_utf16_costs_at_most_twice_its_bytes() -> Result<()> {
    const BYTES: u64 = 128 << 20;
    let dir = tempfile::tempdir()?;
    let text = format!(
        r#"(import "dchost:worker/log@0.1.0" (instance $log
             (type $level' (enum "trace" "debug" "info" "warn" "error"))
             (export "level" (type $level (eq $level')))
             (export "write" (func (param "level" $level) (param "message" string)))))
           (core module $libc (memory (export "memory") {pages}))
           (core instance $libc (instantiate $libc))
           (core func $write (canon lower (func $log "write") string-encoding=utf16 (memory (core memory $libc "memory"))))
           (core module $main
             (import "libc" "memory" (memory 1)) (import "log" "write" (func $write (param i32 i32 i32)))
             (func (export "run") (result i32)
               (memory.fill (i32.const 64) (i32.const 0x40) (i32.const {BYTES}))
               (call $write (i32.const 2) (i32.const 64) (i32.const {units}))
               (call $write (i32.const 2) (i32.const 64) (i32.const {units}))
               (i32.const 0)))
           (core instance $host (export "write" (func $write)))
           (core instance $main (instantiate $main (with "libc" (instance $libc)) (with "log" (instance $host))))
           (func $run (result (result (error string)))
             (canon lift (core func $main "run") (memory (core memory $libc "memory"))))
           (instance $entry (export "run" (func $run)))
           (export "dchost:worker/entry@0.1.0" (instance $entry))"#,
        pages = (BYTES >> 16) + 1,
        units = BYTES / 2,
    );
    let path = component(dir.path(), "utf16", &text)?;
    let outcome = Run::new("local").args(["--module".as_ref(), path.as_os_str()]).output()?;
    assert_eq!(outcome.code, 0, "{:.2000}", outcome.output);
    assert!(outcome.output.contains("(-W max-output-line)"), "{:.2000}", outcome.output);
    let host_bytes = outcome.peak_memory_bytes.saturating_sub(BYTES);
    println!("{} MiB beside the guest's {} MiB", host_bytes >> 20, BYTES >> 20);
    assert!(host_bytes < 2 * BYTES + BASE_BYTES, "{} MiB", host_bytes >> 20);
    Ok(())
}

#[test]
fn waits_are_not_cpu_time() -> Result<()> {
    let flags = ["-W", "cpu-timeout=500ms"];
    let outcome = exceeds(["sleep", "2000"])?.args(flags).output()?;
    assert_eq!(outcome.code, 0, "{}", outcome.output);
    let cluster =
        Cluster::builder().workers(2).guest("exceeds").flags(flags).guest_args(["barrier", "2000"]).start()?;
    cluster.wait_all(PATIENCE)?.expect_codes([("worker:0", 0), ("worker:1", 0)]);
    Ok(())
}

#[test]
fn declared_sizes_above_a_limit_are_2() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let memories = |pages: u32, count: usize| {
        let modules = "(core module $m (memory PAGES)) ".replace("PAGES", &pages.to_string());
        let text = modules + &"(core instance (instantiate $m)) ".repeat(count) + ENTRY;
        component(dir.path(), &format!("m{pages}-{count}"), &text)
    };
    let run =
        |path: PathBuf| Run::new("local").args(["--max-memory", "64MiB", "--module"]).args([path.as_os_str()]).output();
    for (path, told) in [
        (memories(2000, 1)?, "declares a memory of 125 MiB, above 64 MiB (--max-memory)"),
        // Each is small enough, their sum isn't.
        (memories(500, 3)?, "above the limit of 64 MiB (--max-memory)"),
        (memories(0, 9)?, "the component has more than 8 memories"),
    ] {
        let outcome = run(path)?;
        assert_eq!(outcome.code, 2, "{}", outcome.output);
        assert!(outcome.output.contains(told), "no `{told}` in:\n{}", outcome.output);
    }
    Ok(())
}

/// The smallest `run`.
const ENTRY: &str = r#"
    (core module $main (memory (export "memory") 0) (func (export "run") (result i32) (i32.const 0)))
    (core instance $main (instantiate $main))
    (func $run (result (result (error string))) (canon lift (core func $main "run") (memory (core memory $main "memory"))))
    (instance $entry (export "run" (func $run)))
    (export "dchost:worker/entry@0.1.0" (instance $entry))"#;

/// Waits until the process has a thread of this name: that it does a thing which it doesn't tell of.
fn wait_for_thread(process: &Process, name: &str) -> Result<()> {
    let began = Instant::now();
    let tasks = format!("/proc/{}/task", process.pid());
    while began.elapsed() < PATIENCE {
        for task in std::fs::read_dir(&tasks).context("list threads")? {
            if std::fs::read_to_string(task?.path().join("comm")).is_ok_and(|comm| comm.trim_end() == name) {
                return Ok(());
            }
        }
        std::thread::yield_now();
    }
    bail!("no thread `{name}`:\n{}", process.report())
}

fn component(dir: &Path, name: &str, text: &str) -> Result<PathBuf> {
    let path = dir.join(format!("{name}.wasm"));
    let bytes = wat::parse_str(format!("(component {text})")).with_context(|| format!("encode {name}"))?;
    std::fs::write(&path, bytes).context("write a component")?;
    Ok(path)
}

/// A function of nested loops, each of which changes all variables.
fn loops(dir: &Path, depth: usize, locals: usize) -> Result<PathBuf> {
    let (mut changes, types) = (String::new(), "i32 ".repeat(locals));
    for local in 0..locals {
        write!(changes, "local.get {local} i32.const 1 i32.add local.set {local} ")?;
    }
    let text = format!(
        "(core module (func (param i32) (local {types}) {} {changes} {}))",
        "loop ".repeat(depth),
        "local.get 0 br_if 0 end ".repeat(depth)
    );
    component(dir, "loops", &text)
}

fn many_functions(dir: &Path, count: usize) -> Result<PathBuf> {
    let mut functions = String::new();
    for index in 0..count {
        write!(functions, "(func (result i32) (i32.const {index}))")?;
    }
    component(dir, &format!("functions{count}"), &format!("(core module {functions})"))
}
