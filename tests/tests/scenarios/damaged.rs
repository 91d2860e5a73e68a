//! Files that are no whole component: each is refused in one line, whatever its bytes are.

use crate::components;
use anyhow::{Context, Result};
use dchost_tests::{Outcome, Run, guest};
use std::path::Path;

/// Runs a file as a component.
fn run(path: &Path) -> Result<Outcome> {
    let flags = ["--module".into(), path.as_os_str().to_owned(), "--timeout".into(), "20s".into()];
    Run::new("local").args(flags).output()
}

/// Checks that a file is refused in one line that names it, and says what it is.
#[track_caller]
fn check(path: &Path, names: &[&str]) -> Result<()> {
    let outcome = run(path)?;
    assert_eq!(outcome.code, 2, "{}: {}", path.display(), outcome.output);
    let told: Vec<&str> = outcome.stderr.lines().filter(|line| !line.contains(" INFO ")).collect();
    assert_eq!(told.len(), 1, "one line is told: {}", outcome.output);
    let path = path.to_str().context("a path in UTF-8")?;
    for name in names.iter().chain(&[path]) {
        assert!(told[0].contains(name), "no `{name}` in:\n{}", outcome.output);
    }
    assert_eq!(outcome.stdout, "", "refusals go to standard error");
    Ok(())
}

#[test]
fn a_truncated_component_is_refused() -> Result<()> {
    let whole = std::fs::read(guest("worker_error")?).context("read a component")?;
    let dir = tempfile::tempdir().context("make a directory")?;
    let path = dir.path().join("train.wasm");
    for length in [0, 1, 4, 7, 8, 9, whole.len() / 2, whole.len() * 99 / 100, whole.len() - 1] {
        std::fs::write(&path, &whole[..length]).context("write a part of it")?;
        let names: &[&str] = match length {
            0 => &["empty"],
            8 => &[],
            _ => &["truncated"],
        };
        // A header alone is a component that has nothing, which is told in the lines of a component that doesn't fit.
        if length == 8 {
            assert_eq!(run(&path)?.code, 2);
        } else {
            check(&path, names).with_context(|| format!("{length} bytes"))?;
        }
    }
    Ok(())
}

/// Aim: no bytes crash the loader. Method: bits flipped at places drawn from a fixed seed; what is still valid may run, and
/// may then end in any way but as a bug of dchost.
#[test]
fn flipped_bits_are_refused_or_run() -> Result<()> {
    let logs = components::logs().with("ENCODING", "utf8").with("LEVEL", "2").with("POINTER", "1024");
    let small = logs.with("LENGTH", "5").with("DATA", "hello").bytes()?;
    let large = std::fs::read(guest("worker_error")?).context("read a component")?;
    let dir = tempfile::tempdir().context("make a directory")?;
    let path = dir.path().join("train.wasm");
    let mut random = 0x5eed_u64;
    let mut next = |below: usize| {
        // Knuth's MMIX generator; its high bits are the good ones.
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(random >> 33).map(|drawn| drawn % below)
    };
    let mut refused = 0;
    for round in 0..200 {
        // A small component has a larger part of structure; a large one has code.
        let mut bytes = if round < 170 { small.clone() } else { large.clone() };
        let at = next(bytes.len())?;
        bytes[at] ^= 1 << next(8)?;
        std::fs::write(&path, &bytes).context("write it")?;
        let outcome = run(&path)?;
        assert!(matches!(outcome.code, 0..=4 | 124), "byte {at} of round {round}: {}", outcome.output);
        refused += i32::from(outcome.code == 2);
    }
    assert!(refused > 50, "most flips are seen, but only {refused} were");
    Ok(())
}

#[test]
fn what_is_no_file_of_wasm_is_called_by_its_name() -> Result<()> {
    let dir = tempfile::tempdir().context("make a directory")?;
    let path = dir.path().join("train.wasm");
    let core =
        "(module (import \"wasi_snapshot_preview1\" \"proc_exit\" (func (param i32))) (func (export \"_start\")))";
    let threads = "(module (import \"env\" \"memory\" (memory 1 2 shared)) (import \"wasi\" \"thread-spawn\" (func (param i32) (result i32))))";
    let elf = std::fs::read(std::env::current_exe()?).context("read this test itself")?;
    let cases: [(&[u8], &[&str]); 8] = [
        (&wat::parse_str(core)?, &["core module", "--target wasm32-wasip2"]),
        (&wat::parse_str(threads)?, &["core module", "--target wasm32-wasip2"]),
        (&elf, &["ELF"]),
        (b"<!DOCTYPE html><html><body>404</body></html>", &["HTML"]),
        (b"(component)", &["wasm text"]),
        (b"#!/bin/sh\nexit 0\n", &["script"]),
        (b"\0\0\0\0\0\0\0\0", &["binary data"]),
        (b"\0asm\x0d\0\x01\0\xff\xff\xff\xff\xff", &["no valid component"]),
    ];
    for (bytes, names) in cases {
        std::fs::write(&path, bytes).context("write it")?;
        check(&path, names)?;
    }
    let pipe = dir.path().join("pipe.wasm");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, 0o600.into()).context("make a pipe")?;
    check(&pipe, &["a pipe"])?;
    let socket = dir.path().join("socket.wasm");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).context("make a socket")?;
    check(&socket, &["a socket"])?;
    check(dir.path(), &["a directory"])?;
    check(Path::new("/dev/zero"), &["a device"])?;
    let looped = dir.path().join("loop.wasm");
    std::os::unix::fs::symlink(&looped, &looped).context("make a link to itself")?;
    check(&looped, &["can't read"])
}

#[test]
fn a_name_with_a_slip_is_told_the_file_beside_it() -> Result<()> {
    let dir = tempfile::tempdir().context("make a directory")?;
    std::fs::write(dir.path().join("train.wasm"), b"").context("write a file")?;
    let outcome = Run::new("local").args(["--module", "trian.wasm"]).dir(dir.path()).output()?;
    assert_eq!(outcome.code, 2, "{}", outcome.output);
    for text in ["no file `trian.wasm`", "did you mean `train.wasm`?"] {
        assert!(outcome.stderr.contains(text), "no `{text}` in:\n{}", outcome.output);
    }
    Ok(())
}

#[test]
fn threads_are_refused_in_the_component_and_in_the_guest() -> Result<()> {
    let shared = "(core module $m (memory 1 2 shared)) (core instance (instantiate $m))";
    check(&components::declares().with("ITEMS", shared).path()?, &["threads"])?;

    let outcome = Run::guest("spawns")?.output()?;
    assert_eq!(outcome.code, 3, "`thread::spawn` panics where there are no threads: {}", outcome.output);
    for text in ["no thread: Unsupported", "failed to spawn thread"] {
        assert!(outcome.output.contains(text), "no `{text}` in:\n{}", outcome.output);
    }
    assert!(!outcome.output.contains("another thread"), "{}", outcome.output);
    Ok(())
}

#[test]
fn nesting_that_would_exhaust_a_stack_is_refused_or_compiled() -> Result<()> {
    let declares = |items: String| components::declares().with("ITEMS", items).path();
    let types = |form: &dyn Fn(usize) -> String, depth: usize| {
        (1..=depth)
            .fold("(type $t0 (list u8))".to_owned(), |text, at| text + &format!("(type $t{at} {})", form(at - 1)))
    };
    let lists = types(&|inner| format!("(list $t{inner})"), 5000);
    let doubled = types(&|inner| format!("(tuple $t{inner} $t{inner})"), 64);
    for (what, items) in [("lists of lists", lists), ("tuples of tuples", doubled)] {
        let outcome = run(&declares(items)?)?;
        assert_eq!(outcome.code, 2, "{what}: {}", outcome.output);
    }
    // Components within each other, as bytes: the text format's own reader gives up earlier. They are valid, and what the
    // loader would take for them grows with the square of their depth.
    let dir = tempfile::tempdir().context("make a directory")?;
    let path = dir.path().join("nested.wasm");
    for depth in [2000, 100_000] {
        std::fs::write(&path, nested_components(depth)).context("write it")?;
        let outcome = run(&path)?;
        assert_eq!(outcome.code, 2, "{}", outcome.output);
        assert!(outcome.stderr.contains("within one another more than 100 deep"), "{}", outcome.output);
        assert!(outcome.peak_memory_bytes < 200 << 20, "{} bytes resident", outcome.peak_memory_bytes);
    }
    let nested =
        |open: &str, depth: usize| format!("(core module (func {}{}))", open.repeat(depth), "end ".repeat(depth));
    for (what, open, depth) in
        [("blocks", "block ", 20_000), ("loops", "loop ", 2000), ("ifs", "i32.const 1 if ", 20_000)]
    {
        let outcome = run(&declares(nested(open, depth))?)?;
        assert!(matches!(outcome.code, 0 | 2), "{what}: {}", outcome.output);
    }
    // What compiles in a time beyond reason is given up, and its thread doesn't hold up the process.
    let loops = components::declares().with("ITEMS", nested("loop ", 20_000)).run()?.args(["--compile-timeout", "2s"]);
    let outcome = loops.output()?;
    assert_eq!(outcome.code, 2, "{}", outcome.output);
    assert!(outcome.stderr.contains("--compile-timeout"), "{}", outcome.output);
    let sum = "i32.const 1 i32.add ".repeat(50_000);
    let operands = format!("(core module (func i32.const 1 {sum} drop))");
    let outcome = run(&declares(operands)?)?;
    assert!(matches!(outcome.code, 0 | 2), "sums: {}", outcome.output);
    Ok(())
}

/// A component that holds a component, and so on.
fn nested_components(depth: usize) -> Vec<u8> {
    const HEADER: &[u8] = b"\0asm\x0d\0\x01\0";
    const COMPONENT_SECTION: u8 = 4;
    // Built from the innermost outwards, back to front, so that the cost of many levels isn't quadratic here.
    let mut reversed: Vec<u8> = HEADER.iter().rev().copied().collect();
    for _ in 0..depth {
        let (mut length, mut digits) = (reversed.len(), Vec::new());
        loop {
            let more = length >= 0x80;
            digits.push((length & 0x7f) as u8 | if more { 0x80 } else { 0 });
            length >>= 7;
            if !more {
                break;
            }
        }
        reversed.extend(digits.iter().rev());
        reversed.push(COMPONENT_SECTION);
        reversed.extend(HEADER.iter().rev());
    }
    reversed.reverse();
    reversed
}
