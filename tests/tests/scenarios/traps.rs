//! How the end of a component is told: traps with their causes, exits, errors, and the dumps that traps leave.

use anyhow::{Context, Result};
use dchost_tests::{Cluster, Outcome, PATIENCE, Run, Signal, guest_with_debug_info};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How often `what` stands in `text`.
fn count(text: &str, what: &str) -> usize {
    text.matches(what).count()
}

/// A component of a core module that exports `memory`, `realloc` and `run`, and may call `host`'s one function.
fn component(dir: &Path, import: Option<[&str; 3]>, body: &str) -> Result<PathBuf> {
    let [declared, lowered, core] = import.unwrap_or_default();
    let with = if import.is_some() { r#"(with "host" (instance (export "call" (func $call))))"# } else { "" };
    let text = format!(
        r#"(component
        {declared}
        (core module $libc (memory (export "memory") 1)
            (func (export "realloc") (param i32 i32 i32 i32) (result i32) (i32.const 4096)))
        (core instance $libc (instantiate $libc))
        {lowered}
        (core module $main {core} {body})
        (core instance $main (instantiate $main {with}))
        (func $run (result (result (error string)))
            (canon lift (core func $main "run") (memory (core memory $libc "memory"))))
        (instance $entry (export "run" (func $run)))
        (export "dchost:worker/entry@0.1.0" (instance $entry)))"#
    );
    let path = dir.join("component.wasm");
    let bytes = wat::parse_str(&text).with_context(|| format!("encode {text:.3000}"))?;
    std::fs::write(&path, bytes).context("write a component")?;
    Ok(path)
}

fn run(path: &Path) -> Result<Outcome> {
    Run::new("local").args(["--module".as_ref(), path.as_os_str()]).output()
}

#[test]
fn a_panic_is_one_block_with_its_text_kind_and_frames() -> Result<()> {
    let outcome = Run::guest("panics")?.output()?;
    assert_eq!(outcome.code, 3, "{}", outcome.output);
    assert_eq!(count(&outcome.stderr, "unreachable code reached"), 1, "the kind is told once: {}", outcome.output);
    let block = outcome.stderr.split_once("the guest trapped: ").context("no block")?.1;
    let mut from = 0;
    for part in [
        "unreachable code reached (a panic or an abort)",
        "the guest's last words on stderr:",
        "loss is NaN",
        "frames, innermost first:",
        "of the runtime",
        "check_loss",
        "hint: build the component with",
    ] {
        let at =
            block[from..].find(part).with_context(|| format!("no `{part}` in its place in:\n{}", outcome.output))?;
        from += at;
    }
    // A cluster's task is named, and its peers are told of it in one line.
    let outcomes = Cluster::builder().workers(2).guest("panics").start()?.wait_all(PATIENCE)?;
    assert!(outcomes["worker:0"].output.contains("worker:0"), "{}", outcomes.report());
    assert!(["worker:0", "worker:1"].iter().any(|task| outcomes[*task].code == 3), "{}", outcomes.report());
    Ok(())
}

#[test]
fn debug_information_gives_files_and_lines_and_no_hint() -> Result<()> {
    let outcome = run(&guest_with_debug_info()?)?;
    assert_eq!(outcome.code, 3, "{}", outcome.output);
    assert!(outcome.output.contains("examples/panics.rs:14"), "{}", outcome.output);
    assert_eq!(count(&outcome.output, "hint:"), 0, "{}", outcome.output);
    Ok(())
}

#[test]
fn no_names_at_all_are_told_with_how_to_build() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let outcome = run(&component(dir.path(), None, r#"(func (export "run") (result i32) (unreachable))"#)?)?;
    assert_eq!(outcome.code, 3, "{}", outcome.output);
    assert!(outcome.output.contains("<no name>"), "{}", outcome.output);
    assert!(
        outcome.output.contains("hint: the component is stripped: build it with `strip = false`"),
        "{}",
        outcome.output
    );
    Ok(())
}

#[test]
fn endless_recursion_is_told_as_the_stack_that_ended() -> Result<()> {
    let shadow = Run::guest("recurses")?.guest_args(["shadow"]).output()?;
    assert_eq!(shadow.code, 3, "{}", shadow.output);
    assert!(shadow.output.contains("guest stack exhausted"), "{}", shadow.output);
    assert!(shadow.output.contains("-C link-arg=-zstack-size=BYTES"), "{}", shadow.output);
    let dir = tempfile::tempdir()?;
    let body = r#"(func $even (call $odd)) (func $odd (call $even)) (func (export "run") (result i32) (call $even) (i32.const 0))"#;
    let wasm = run(&component(dir.path(), None, body)?)?;
    assert_eq!(wasm.code, 3, "{}", wasm.output);
    assert!(wasm.output.contains("raise `-W max-wasm-stack`"), "{}", wasm.output);
    for outcome in [shadow, wasm] {
        assert!(outcome.output.contains("times more"), "{}", outcome.output);
        assert!(outcome.output.lines().count() < 30, "{}", outcome.output);
    }
    Ok(())
}

/// Names are the component's own: terminal escapes, forged lines, texts that a limit would be told by, and huge ones.
#[test]
fn hostile_names_of_functions_are_shown_short_and_escaped() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let huge = "a".repeat(99_000);
    // A C++ name in 230 bytes, each of whose types holds the one before it twice: demangled it has 136 MiB, in each frame.
    let mut doubling = "_Z1f1pIiiE".to_owned();
    for index in 0..22 {
        let earlier = format!("S{}_", base36(index));
        doubling.push_str(&format!("S_I{earlier}{earlier}E"));
    }
    for (name, shown) in [
        (doubling.as_str(), "_Z1f1pIiiES_I"),
        (r"\1b]0;owned\07\1b[2Jerror: all is well", r"\u{1b}]0;owned"),
        (r"f\0aworker:1 exited with 0", r"f\nworker:1"),
        ("handle limit exceeded", "handle limit exceeded"),
        ("fuel allocated for hostcalls has been exhausted", "fuel allocated"),
        (huge.as_str(), &huge[..200]),
    ] {
        let body = format!(
            r#"(func $f (@name "{name}") (param i32)
                (if (i32.eqz (local.get 0)) (then (unreachable))) (call $f (i32.sub (local.get 0) (i32.const 1))))
            (func (export "run") (result i32) (call $f (i32.const 100)) (i32.const 0))"#
        );
        let outcome = run(&component(dir.path(), None, &body)?)?;
        assert_eq!(outcome.code, 3, "{:.3000}", outcome.output);
        assert!(outcome.output.contains(shown), "no `{shown}` in:\n{:.3000}", outcome.output);
        assert!(!outcome.output.contains(['\u{1b}', '\u{7}']), "{:.3000}", outcome.output);
        assert!(!outcome.output.lines().any(|line| line.starts_with("worker:1")), "{:.3000}", outcome.output);
        assert!(outcome.output.len() < 8 << 10, "{} bytes", outcome.output.len());
        assert!(outcome.peak_memory_bytes < 200 << 20, "{} bytes resident", outcome.peak_memory_bytes);
    }
    Ok(())
}

fn base36(value: u32) -> String {
    let digit = |value: u32| char::from_digit(value, 36).unwrap_or('0').to_ascii_uppercase();
    if value < 36 { digit(value).to_string() } else { format!("{}{}", digit(value / 36), digit(value % 36)) }
}

#[test]
fn an_exit_is_no_trap_and_has_its_number_where_the_guest_passes_one() -> Result<()> {
    let failed = Run::guest("exits")?.guest_args(["3"]).output()?;
    assert_eq!(failed.code, 1, "{}", failed.output);
    assert!(failed.output.contains("the guest exited with a failure"), "{}", failed.output);
    let done = Run::guest("exits")?.guest_args(["0"]).output()?;
    assert_eq!(done.code, 0, "{}", done.output);

    let dir = tempfile::tempdir()?;
    let import = [
        r#"(import "wasi:cli/exit@0.2.12" (instance $exit (export "exit-with-code" (func (param "status-code" u8)))))"#,
        r#"(core func $call (canon lower (func $exit "exit-with-code")))"#,
        r#"(import "host" "call" (func $call (param i32)))"#,
    ];
    let exits = |code: u8| {
        let body = format!(r#"(func (export "run") (result i32) (call $call (i32.const {code})) (i32.const 0))"#);
        run(&component(dir.path(), Some(import), &body)?)
    };
    let numbered = exits(3)?;
    assert_eq!(numbered.code, 1, "{}", numbered.output);
    assert!(numbered.output.contains("the guest exited with code 3"), "{}", numbered.output);
    let zero = exits(0)?;
    assert_eq!(zero.code, 0, "{}", zero.output);
    for outcome in [failed, done, numbered, zero] {
        for word in ["trap", "frames", "hint:"] {
            assert!(!outcome.output.contains(word), "`{word}` in:\n{}", outcome.output);
        }
    }
    Ok(())
}

#[test]
fn an_error_that_worker_fn_returns_is_told_once_and_is_no_trap() -> Result<()> {
    let outcome = Run::guest("worker_error")?.output()?;
    assert_eq!(outcome.code, 1, "{}", outcome.output);
    assert_eq!(count(&outcome.output, "bad shard 7"), 1, "{}", outcome.output);
    for word in ["trap", "frames", "hint:"] {
        assert!(!outcome.output.contains(word), "`{word}` in:\n{}", outcome.output);
    }
    Ok(())
}

#[test]
fn too_many_random_bytes_at_once_are_4() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let import = [
        r#"(import "wasi:random/random@0.2.0" (instance $random
            (export "get-random-bytes" (func (param "len" u64) (result (list u8))))))"#,
        r#"(core func $call (canon lower (func $random "get-random-bytes")
            (memory (core memory $libc "memory")) (realloc (core func $libc "realloc"))))"#,
        r#"(import "host" "call" (func $call (param i64 i32)))"#,
    ];
    let asks = |bytes: u64| {
        let body = format!(
            r#"(func (export "run") (result i32) (call $call (i64.const {bytes}) (i32.const 64)) (i32.const 0))"#
        );
        run(&component(dir.path(), Some(import), &body)?)
    };
    let few = asks(64)?;
    assert_eq!(few.code, 0, "{}", few.output);
    for bytes in [(1 << 20) + 1, 1 << 32] {
        let outcome = asks(bytes)?;
        assert_eq!(outcome.code, 4, "{}", outcome.output);
        assert!(outcome.output.contains("more than 1 MiB of random bytes"), "{}", outcome.output);
        assert!(outcome.peak_memory_bytes < 200 << 20, "{} bytes", outcome.peak_memory_bytes);
    }
    Ok(())
}

/// The dumps in a directory.
fn dumps(dir: &Path) -> Result<Vec<PathBuf>> {
    std::fs::read_dir(dir).context("list dumps")?.map(|entry| Ok(entry?.path())).collect()
}

#[test]
fn a_trap_leaves_a_private_dump_named_by_its_task() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let option = format!("coredump={}", dir.path().display());
    let outcome = Run::guest("panics")?.args(["-D", &option]).output()?;
    assert_eq!(outcome.code, 3, "{}", outcome.output);
    let files = dumps(dir.path())?;
    assert_eq!(files.len(), 1, "{files:?}");
    let name = files[0].file_name().and_then(|name| name.to_str()).context("a name")?;
    assert!(name.starts_with("local-attempt"), "{name}");
    let metadata = files[0].metadata()?;
    assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
    assert!(metadata.len() > 1000 && metadata.len() < 4 << 20, "{} bytes", metadata.len());
    let told = outcome.output.lines().find(|line| line.contains("core dump")).context("no line tells of the dump")?;
    assert!(told.contains(name), "{told}");
    assert!(std::fs::read(&files[0])?.starts_with(b"\0asm"));

    let builder = Cluster::builder().workers(2).guest("fails_after").guest_args(["1", "panic"]);
    let outcomes = builder.flags(["-D", &option]).start()?.wait_all(PATIENCE)?;
    assert_eq!(outcomes["worker:1"].code, 3, "{}", outcomes.report());
    let files = dumps(dir.path())?;
    assert_eq!(files.len(), 2, "{files:?}");
    assert!(files.iter().any(|file| file.to_string_lossy().contains("/worker-1-attempt")), "{files:?}");
    Ok(())
}

/// Aim: a dump costs the host no memory, however much the guest had. Method: a guest that fills its limit and traps.
#[test]
fn a_dump_of_a_full_memory_takes_little_of_the_hosts() -> Result<()> {
    const LIMIT: u64 = 256 << 20;
    let dir = tempfile::tempdir()?;
    let option = format!("coredump={}", dir.path().display());
    let run = Run::guest("allocates")?.args(["--max-memory", "256MiB", "-D", &option]).guest_args(["aborts", "16"]);
    let outcome = run.output()?;
    assert_eq!(outcome.code, 4, "{}", outcome.output);
    let size = dumps(dir.path())?.first().context("no dump")?.metadata()?.len();
    println!("dump of {} MiB, {} MiB resident", size >> 20, outcome.peak_memory_bytes >> 20);
    assert!(size < LIMIT + (1 << 20), "{size} bytes");
    assert!(outcome.peak_memory_bytes < LIMIT + (200 << 20), "{} bytes resident", outcome.peak_memory_bytes);
    Ok(())
}

/// Aim: a signal while a dump is written loses neither the trap's code nor its report, and ends the process soon; a dump is
/// whole or not there. Method: a dump of a large memory, and a signal as soon as there is a file of it.
#[test]
fn a_signal_while_a_dump_is_written_leaves_the_traps_end() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let option = format!("coredump={}", dir.path().display());
    for signal in [Signal::TERM, Signal::INT] {
        let run = Run::guest("allocates")?.args(["--max-memory", "768MiB", "-D", &option]);
        let process = run.guest_args(["aborts", "16"]).start()?;
        let deadline = Instant::now() + PATIENCE;
        while dumps(dir.path())?.is_empty() {
            std::thread::sleep(Duration::from_millis(1));
            anyhow::ensure!(Instant::now() < deadline, "no dump begins: {}", process.report());
        }
        process.signal(signal);
        let told = Instant::now();
        let outcome = process.wait(PATIENCE)?;
        println!("ended {:?} after {signal:?}", told.elapsed());
        assert!(told.elapsed() < Duration::from_secs(10), "{:?}", told.elapsed());
        assert_eq!(outcome.code, 4, "{}", outcome.output);
        assert!(outcome.output.contains("memory limit 768 MiB reached"), "{}", outcome.output);
        for file in dumps(dir.path())? {
            assert_eq!(file.extension().and_then(|end| end.to_str()), Some("coredump"), "half a dump is left");
            std::fs::remove_file(file)?;
        }
    }
    Ok(())
}

#[test]
fn only_the_first_attempts_leave_a_dump() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let option = format!("coredump={}", dir.path().display());
    let run = Run::guest("tries_again")?.args(["--max-attempts", "5", "-D", &option]).guest_args(["9", "panic"]);
    let outcome = run.output()?;
    assert_eq!(outcome.code, 3, "{}", outcome.output);
    assert_eq!(dumps(dir.path())?.len(), 3, "the first three of five: {}", outcome.output);
    Ok(())
}

#[test]
fn a_directory_for_dumps_that_is_not_there_is_2_at_start_and_a_warning_later() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let missing = format!("coredump={}", dir.path().join("missing").display());
    let outcome = Run::guest("panics")?.args(["-D", &missing]).output()?;
    assert_eq!(outcome.code, 2, "{}", outcome.output);
    assert!(outcome.output.contains("-D coredump") && outcome.output.contains("is no directory"), "{}", outcome.output);
    // A directory where nobody, not even root, can make a file.
    let outcome = Run::guest("panics")?.args(["-D", "coredump=/proc/self"]).output()?;
    assert_eq!(outcome.code, 3, "{}", outcome.output);
    assert_eq!(count(&outcome.output, "no core dump"), 1, "{}", outcome.output);
    Ok(())
}
