//! Components that attack their host: each ends with a clear code and message, and dchost itself is none the worse.
//!
//! That no panic text, process or socket is left behind is checked by the harness for each of them.

use crate::components;
use anyhow::Result;
use dchost_tests::{Outcome, Wat};
use serde_json::Value;

/// What dchost itself may need beside a guest's memory: code, the compiler, buffers; in bytes.
const OWN_MEMORY_BYTES: u64 = 200 << 20;

/// Runs a component and checks how it ends: its code, and what is said.
#[track_caller]
fn check(case: &str, wat: &Wat, flags: &[&str], code: i32, names: &[&str]) -> Outcome {
    let run = wat.run().unwrap_or_else(|error| panic!("{case}: {error:#}"));
    let outcome = run.args(flags).output().unwrap_or_else(|error| panic!("{case}: {error:#}"));
    assert_eq!(outcome.code, code, "{case}: {}", outcome.output);
    for name in names {
        assert!(outcome.output.contains(name), "{case}: no `{name}` in:\n{}", outcome.output);
    }
    assert!(!outcome.output.contains(is_harmful), "{case}: {:?}", outcome.output);
    let memory_bytes = outcome.peak_memory_bytes;
    assert!(memory_bytes < OWN_MEMORY_BYTES, "{case}: {memory_bytes} bytes resident\n{}", outcome.output);
    outcome
}

/// What moves a terminal's cursor, or turns the direction of text.
fn is_harmful(character: char) -> bool {
    (character.is_control() && character != '\n' && character != '\t')
        || matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[test]
fn an_allocator_that_lies_to_the_host_harms_only_its_guest() {
    // The host wants memory for one string and one list.
    let allocator = |body| components::allocates_for_host().with("REALLOC", body);
    let cases: [(&str, &str, i32, &[&str]); 8] = [
        ("beyond memory", "(i32.const 0x7ffffff0)", 3, &["realloc"]),
        ("at the end of memory", "(i32.const 65528)", 3, &["realloc"]),
        ("at the end of addresses", "(i32.const -8)", 3, &["realloc"]),
        ("unaligned", "(i32.const 4097)", 3, &["aligned"]),
        ("always the same place", "(i32.const 4096)", 0, &[]),
        ("traps", "(unreachable)", 3, &["unreachable"]),
        (
            "exits, a call of the host within a call of the host",
            "(call $exit (i32.const 0)) (unreachable)",
            3,
            &["leave"],
        ),
        ("recurses", "(call 1 (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0))", 3, &["stack"]),
    ];
    for (case, body, code, names) in cases {
        check(case, &allocator(body), &["--timeout", "30s"], code, names);
    }
    check("never returns", &allocator("(loop (br 0)) (unreachable)"), &["--timeout", "1s"], 124, &["--timeout"]);
}

#[test]
fn code_before_and_after_the_run_is_bounded_as_the_run_is() {
    for (case, body, flags, code, names) in [
        ("loops", "(loop (br 0))", ["--timeout", "1s"], 124, "--timeout"),
        ("loops", "(loop (br 0))", ["-W", "cpu-timeout=200ms"], 4, "-W cpu-timeout"),
        ("traps", "(unreachable)", ["--timeout", "30s"], 3, "unreachable"),
        ("recurses", "(call $start)", ["--timeout", "30s"], 3, "stack"),
        ("exits", "(call $exit (i32.const 1))", ["--timeout", "30s"], 1, "exited"),
    ] {
        check(&format!("start {case}"), &components::starts().with("START", body), &flags, code, &[names]);
    }
    for (case, body, flags, code, names) in [
        ("loops", "(loop (br 0))", ["--timeout", "1s"], 124, "--timeout"),
        ("loops", "(loop (br 0))", ["-W", "cpu-timeout=200ms"], 4, "-W cpu-timeout"),
        ("traps", "(unreachable)", ["--timeout", "30s"], 3, "unreachable"),
    ] {
        check(&format!("cleanup {case}"), &components::cleans_up().with("CLEANUP", body), &flags, code, &[names]);
    }
}

#[test]
fn a_component_of_too_many_parts_does_not_run() {
    let declares = |items: String| components::declares().with("ITEMS", items);
    let many = |item: &str, count: usize| item.repeat(count);
    // Of what the runtime makes for each run: 64 core instances, 8 memories, 32 tables.
    let instances = |count| declares(format!("(core module $m) {}", many("(core instance (instantiate $m))", count)));
    let too_many = |case: &str, wat: &Wat, of: &str| {
        let outcome = wat.run().and_then(|run| run.output()).unwrap_or_else(|error| panic!("{case}: {error:#}"));
        assert_eq!(outcome.code, 2, "{case}: {}", outcome.output);
        assert!(outcome.output.contains(of), "{case}: no `{of}` in:\n{}", outcome.output);
    };
    check("60 instances", &instances(60), &[], 0, &[]);
    too_many("65 instances", &instances(65), "instance");
    let of_module = |field: &str, count| {
        declares(format!("(core module $m {field}) {}", many("(core instance (instantiate $m))", count)))
    };
    check("7 memories", &of_module("(memory 1)", 7), &[], 0, &[]);
    too_many("9 memories", &of_module("(memory 1)", 9), "memor");
    too_many("33 tables", &of_module("(table 1 funcref)", 33), "table");
    let instance = "(component $c (core module $m) (core instance (instantiate $m)))";
    let instances = declares(format!("{instance} {}", many("(instance (instantiate $c))", 900)));
    too_many("900 instances of a component", &instances, "instance");
}

#[test]
fn declared_memory_and_tables_are_summed_before_anything_runs() {
    let declares = |items: &str| components::declares().with("ITEMS", items);
    let four_gib = "(core module $m (memory 65536)) (core instance (instantiate $m)) (core instance (instantiate $m))";
    check("4 GiB twice", &declares(four_gib), &[], 2, &["--max-memory", "4096 MiB"]);
    let sum = "(core module $m (memory 4096)) (core instance (instantiate $m)) (core instance (instantiate $m))
        (core instance (instantiate $m)) (core instance (instantiate $m)) (core instance (instantiate $m))";
    check("256 MiB five times", &declares(sum), &[], 2, &["--max-memory", "256 MiB"]);
    let table = "(core module $m (table 10000000 funcref)) (core instance (instantiate $m))";
    check("a table of 10 million", &declares(table), &["--max-memory", "64MiB"], 2, &["--max-memory"]);
    let outcome =
        check("a growing table", &components::grows_tables(), &["--max-memory", "64MiB"], 4, &["--max-memory"]);
    assert!(outcome.output.contains("64 MiB"), "{}", outcome.output);
}

#[test]
fn a_result_that_is_none_ends_in_a_trap() {
    let answers = |pages: &str, pointer: &str, bytes: &str| {
        components::answers().with("PAGES", pages).with("POINTER", pointer).with("BYTES", bytes)
    };
    let cases: [(&str, &str, &str, i32, &[&str]); 8] = [
        ("an error", "16", "\\01\\00\\00\\00\\00\\04\\00\\00\\11\\00\\00\\00", 1, &["as the guest says"]),
        ("at the end of memory", "65532", "", 3, &["bounds"]),
        ("beyond memory", "-4", "", 3, &["bounds"]),
        ("unaligned", "17", "", 3, &["align"]),
        ("of no known case", "16", "\\07", 3, &["discriminant"]),
        ("with text beyond memory", "16", "\\01\\00\\00\\00\\f0\\ff\\ff\\7f\\11\\00\\00\\00", 3, &["bounds"]),
        ("with text of 4 GiB", "16", "\\01\\00\\00\\00\\00\\04\\00\\00\\ff\\ff\\ff\\ff", 3, &["bounds"]),
        ("with text that is no UTF-8", "16", "\\01\\00\\00\\00\\1c\\00\\00\\00\\02\\00\\00\\00\\ff\\fe", 3, &["utf-8"]),
    ];
    for (case, pointer, bytes, code, names) in cases {
        check(case, &answers("1", pointer, bytes), &[], code, names);
    }
    // An error of 768 MiB, within the guest's memory: what is kept and shown of it is bounded, and nothing else.
    let long = answers("16383", "16", "\\01\\00\\00\\00\\00\\04\\00\\00\\00\\00\\00\\30");
    let outcome = long.run().and_then(|run| run.output()).expect("it ends");
    assert!(matches!(outcome.code, 1 | 4), "{}", &outcome.output[..outcome.output.len().min(2000)]);
    assert!(outcome.output.len() < 1 << 20, "{} bytes shown", outcome.output.len());
}

#[test]
fn handles_cannot_be_forged_dropped_twice_or_mixed_up() {
    let cases: [(&str, &str, i32, &[&str]); 9] = [
        (
            "used well",
            "(call $block (local.tee $pollable (call $subscribe (i64.const 0)))) (call $drop-pollable (local.get $pollable))",
            0,
            &[],
        ),
        ("forged", "(call $block (i32.const 1234))", 3, &["handle"]),
        ("forged, the largest", "(call $block (i32.const -1))", 3, &["handle"]),
        ("zero", "(call $block (i32.const 0))", 3, &["handle"]),
        (
            "dropped twice",
            "(call $drop-pollable (local.tee $pollable (call $subscribe (i64.const 0)))) (call $drop-pollable (local.get $pollable))",
            3,
            &["handle"],
        ),
        (
            "used after its drop",
            "(call $drop-pollable (local.tee $pollable (call $subscribe (i64.const 0)))) (call $block (local.get $pollable))",
            3,
            &["handle"],
        ),
        ("of another type", "(call $block (call $stdout))", 3, &["handle"]),
        ("dropped as another type", "(call $drop-pollable (call $stdout))", 3, &["handle"]),
        (
            "all again and again",
            "(loop (call $drop-pollable (call $subscribe (i64.const 0))) (call $drop-stdout (call $stdout)) (br_if 0 (i32.lt_u (local.tee $out (i32.add (local.get $out) (i32.const 1))) (i32.const 20000))))",
            0,
            &[],
        ),
    ];
    for (case, calls, code, names) in cases {
        check(case, &components::handles().with("CALLS", calls), &["--timeout", "60s"], code, names);
    }
}

#[test]
fn text_in_any_encoding_is_shown_right_or_refused() {
    let logs = |encoding: &str, level: &str, pointer: &str, length: &str, data: &str| {
        let wat = components::logs().with("ENCODING", encoding).with("LEVEL", level).with("POINTER", pointer);
        wat.with("LENGTH", length).with("DATA", data)
    };
    let cases: [(&str, [&str; 5], i32, &[&str]); 17] = [
        ("utf-8", ["utf8", "4", "1024", "3", "h\\c3\\a4"], 0, &["hä"]),
        ("utf-8 broken", ["utf8", "4", "1024", "2", "\\c3\\28"], 3, &["utf-8"]),
        ("utf-16", ["utf16", "4", "1024", "3", "h\\00\\e4\\00\\16\\4e"], 0, &["hä世"]),
        ("utf-16 surrogates", ["utf16", "4", "1024", "2", "\\3d\\d8\\00\\de"], 0, &["😀"]),
        ("utf-16 lone surrogate", ["utf16", "4", "1024", "2", "\\3d\\d8h\\00"], 3, &["surrogate"]),
        ("utf-16 unaligned", ["utf16", "4", "1025", "1", "hhhh"], 3, &["align"]),
        ("utf-16 beyond memory", ["utf16", "4", "65534", "2", ""], 3, &["bounds"]),
        ("utf-16 whose bytes overflow", ["utf16", "4", "1024", "0x80000000", ""], 3, &["bounds"]),
        ("latin1", ["latin1+utf16", "4", "1024", "2", "h\\e4"], 0, &["hä"]),
        ("latin1 tagged as utf-16", ["latin1+utf16", "4", "1024", "0x80000001", "\\16\\4e"], 0, &["世"]),
        ("latin1 with the largest tag", ["latin1+utf16", "4", "1024", "-1", ""], 3, &["bounds"]),
        ("escapes", ["utf8", "4", "1024", "10", "\\1b[2J\\0aowned"], 0, &["\\u{1b}[2J"]),
        ("nothing, at a wild place", ["utf8", "4", "-1", "0", ""], 3, &["bounds"]),
        ("nothing, at the end of memory", ["utf8", "4", "65536", "0", ""], 0, &[]),
        ("the whole memory", ["utf8", "4", "0", "65536", ""], 0, &[]),
        ("a level that isn't there", ["utf8", "5", "1024", "1", "x"], 3, &["discriminant"]),
        ("the largest level", ["utf8", "-1", "1024", "1", "x"], 3, &["discriminant"]),
    ];
    for (case, [encoding, level, pointer, length, data], code, names) in cases {
        check(case, &logs(encoding, level, pointer, length, data), &[], code, names);
    }
}

#[test]
fn a_poll_of_ten_thousand_timers_answers_and_one_of_nothing_traps() {
    let polls = |timers: &str, entries: &str| components::polls().with("TIMERS", timers).with("ENTRIES", entries);
    // A timer takes two entries of the host's table: itself, and what is polled.
    let handles = ["--timeout", "60s", "-W", "max-handles=20010"];
    check("10,000 timers", &polls("10000", "10001"), &handles, 0, &[]);
    check("20,000 timers", &polls("20000", "20001"), &handles, 4, &["-W max-handles"]);
    // Each entry of the list borrows its handle once more.
    check("one timer a million times", &polls("0", "1000000"), &["--timeout", "60s"], 4, &["-W max-handles"]);
    // 64-bit time overflows here: what waits for ever is ended by the clock on the wall.
    let waits = components::handles().with("CALLS", "(call $block (call $subscribe (i64.const -1)))");
    check("for ever", &waits, &["--timeout", "1s"], 124, &["--timeout"]);
}

#[test]
fn a_guest_that_waits_for_nothing_ends_with_a_trap_or_its_timeout() {
    // As a program in Go whose goroutines all wait for each other, or one in JavaScript that returns with timers pending.
    let empty = "(call $block (call $subscribe (i64.const 3600000000000)))";
    check("a timer of an hour", &components::handles().with("CALLS", empty), &["--timeout", "1s"], 124, &["--timeout"]);
    let returns = "(drop (call $subscribe (i64.const 3600000000000)))";
    let outcome = check("a timer left behind", &components::handles().with("CALLS", returns), &[], 0, &[]);
    assert!(outcome.time.as_secs() < 60, "{:?}", outcome.time);
}

#[test]
fn scalars_that_json_cannot_say_leave_a_file_that_can_be_read() -> Result<()> {
    let dir = tempfile::tempdir()?;
    // A NaN with a payload and a sign, a signalling one, both infinities, the smallest and a plain number.
    for (index, bits) in
        ["-1", "0x7ff0000000000001", "0x7ff0000000000000", "0xfff0000000000000", "1", "0x3ff8000000000000"]
            .iter()
            .enumerate()
    {
        let summaries = dir.path().join(index.to_string());
        let run = components::scalars()
            .with("VALUE", bits)
            .run()?
            .args(["--summary-dir".into(), summaries.as_os_str().to_owned()]);
        let outcome = run.output()?;
        assert_eq!(outcome.code, 0, "{bits}: {}", outcome.output);
        assert!(!outcome.output.contains(is_harmful), "{bits}: {:?}", outcome.output);
        let text = std::fs::read_to_string(summaries.join("local.jsonl"))?;
        let lines = text.lines().map(serde_json::from_str::<Value>).collect::<Result<Vec<_>, _>>()?;
        assert_eq!(lines.len(), 1, "one scalar is one line: {text}");
        assert!(!text.trim_end_matches('\n').contains(is_harmful), "{text:?}");
    }
    Ok(())
}

#[test]
fn random_bytes_of_one_call_are_bounded() {
    for length in ["-1", "0x100000000", "0x10000000"] {
        check(length, &components::randomizes().with("LENGTH", length), &["--timeout", "60s"], 4, &["random"]);
    }
}

#[test]
fn names_in_a_trap_are_shown_without_harm() {
    let outcome = check("a forged name", &components::forges_names(), &[], 3, &["\\u{1b}[2J"]);
    assert!(!outcome.output.lines().any(|line| line.starts_with("worker:1")), "{}", outcome.output);
}

#[test]
fn names_in_a_refusal_are_shown_without_harm() {
    const NAME: &str = r"\1b[2J\1b]0;owned\07\0aworker:1 | all is well \e2\80\ae";
    let missing = format!(r#"(core module $m (import "{NAME}" "{NAME}" (func))) (core instance (instantiate $m))"#);
    let outcome = check("a missing import", &components::declares().with("ITEMS", missing), &[], 2, &["owned"]);
    assert!(!outcome.output.lines().any(|line| line.starts_with("worker:1")), "{}", outcome.output);
}
