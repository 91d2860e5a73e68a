//! What fuzzing starts from, made anew each time so that it stays in step with the WIT and the protocol.
//!
//! The directory `seeds/` beside this crate's sources holds, for each target, inputs that once were findings.

mod wire;

pub use wire::wire;

use crate::guest::Guest;
use crate::script::{SCRATCH, SLOT_BYTES, Script, Value};
use dchost::config::{KEYS, twin};
use std::path::Path;

/// The variable that names the directory of a target's seeds; `cargo xtask soak fuzz` sets it.
const DIRECTORY: &str = "FUZZ_SEEDS_DIR";

/// Writes the seeds where the environment says so.
///
/// # Panics
/// They can't be written.
pub fn write(seeds: impl IntoIterator<Item = (String, Vec<u8>)>) {
    let Some(directory) = std::env::var_os(DIRECTORY) else { return };
    for (name, bytes) in seeds {
        std::fs::write(Path::new(&directory).join(name), bytes).expect("the seed is written");
    }
}

/// Scripts of the guest: what a component does, and what only a hostile one does.
pub fn imports(guest: &Guest) -> Vec<(String, Vec<u8>)> {
    use Value::{Last, Number, Slot};
    const ONE: Value = Number(1);
    const NONE: Value = Number(0);
    let mut seeds = Vec::new();
    for place in 0..4 {
        for kind in 0..3 {
            let script = declare(Script::new(guest, place), kind)
                .call("variables.initialize", &[Slot(37), ONE, NONE])
                .call("variables.read", &read(guest))
                .call("variables.update", &[Slot(38), ONE, ONE, NONE])
                .call("variables.uninitialized", &[Slot(36), ONE])
                .call("variable.name", &[ONE])
                .call("variable.shape", &[ONE])
                .call("drop variable", &[ONE])
                .call("drop variable", &[ONE]);
            seeds.push((format!("variables-{place}-{kind}"), script.finish()));
        }
        let wait = Script::new(guest, place)
            .call("worker-context.barrier", &[Slot(32), Number(4), ONE, Number(1000)])
            .call("worker-context.wait-for-other-workers", &[])
            .call("worker-context.cluster-spec", &[])
            .call("worker-context.this-task", &[])
            .call("variables.wait-initialized", &[Slot(36), NONE, ONE, Number(5000)]);
        seeds.push((format!("waits-{place}"), wait.finish()));
    }
    let pending = declare(Script::new(guest, 1), 0)
        .call("variables.initialize", &[Slot(37), ONE, NONE])
        .call("variables.start-read", &read(guest))
        .call("pending.subscribe", &[Last(0)])
        .call("pollable.block", &[Last(0)])
        .call("pending.get", &[Last(1)])
        .call("pending.get", &[Last(2)])
        .call("drop pending", &[Last(3)]);
    seeds.push(("pending".to_owned(), pending.finish()));
    for op in ["echo", "many", "late", "never", "fails"] {
        let length = Number(op.len() as u64);
        let start = [Slot(40), Number(6), ONE, Slot(41), length, NONE, NONE, NONE, NONE];
        let script = Script::new(guest, 1)
            .copy(40, b"worker")
            .copy(41, op.as_bytes())
            .call("ops.start", &start)
            .call("call.subscribe", &[ONE])
            .call("call.keep", &[ONE])
            .call("ops.start", &start)
            .call("call.cancel", &[ONE])
            .call("call.get", &[ONE])
            .call("drop call", &[ONE]);
        seeds.push((format!("ops-{op}"), script.finish()));
    }
    let texts = Script::new(guest, 0)
        .copy(40, b"\x1b]0;owned\x07\nworker:1: fake\r\xc2\x9b2J")
        .call("log.write", &[Number(2), Slot(40), Number(30)])
        .call("summary.scalar", &[Slot(40), Number(30), ONE, Number(0x3FF0_0000_0000_0000)])
        .call("summary.progress", &[ONE, ONE, Number(10), Slot(40), Number(30)])
        .raw(&[0xFD, 0x70 + 40, 30]);
    seeds.push(("texts".to_owned(), texts.finish()));
    let hostile = Script::new(guest, 0)
        .call("random.get-random-bytes", &[Number(1 << 32)])
        .call("log.write", &[Number(2), NONE, Number(512 << 10)])
        .call("monotonic-clock.subscribe-duration", &[Number(u64::MAX)])
        .call("poll.poll", &[Slot(36), ONE])
        .raw(&[0xFC, 0x6F]);
    seeds.push(("hostile".to_owned(), hostile.finish()));
    // Every import by itself, with small numbers.
    for index in 0..guest.names().count() {
        let index = u8::try_from(index).expect("fewer than 224 imports");
        seeds.push((format!("import-{index}"), [0, index].into_iter().chain([1; 16]).collect()));
    }
    seeds
}

/// Declares `weights` as u8 of shape `[4]`, placed by the variant `placement`: automatically, on `ps:0`, sharded.
fn declare(script: Script<'_>, placement: u64) -> Script<'_> {
    let inside = |slot: u32| Value::Number(u64::from(SCRATCH + SLOT_BYTES * slot + 16));
    let (name, dtype, shape) = ([Value::Slot(32), Value::Number(7)], Value::Number(4), [inside(33), Value::Number(1)]);
    let task = [inside(39), Value::Number(2), Value::Number(0)];
    let placement = [Value::Number(placement)];
    script.call("variable.declare", &[&name[..], &[dtype], &shape, &placement, &task].concat())
}

/// The first handle of slot 36, with the options all absent.
fn read(guest: &Guest) -> Vec<Value> {
    let (_, parameters) = guest.import("variables.read").expect("the WIT has it");
    let mut values = vec![Value::Number(0); parameters];
    (values[0], values[1]) = (Value::Slot(36), Value::Number(1));
    values
}

/// Files that are components and files that are something else.
pub fn loader(guest: &Guest) -> Vec<(String, Vec<u8>)> {
    let component = guest.component();
    let wat = |text: &str| wat::parse_str(text).expect("the text is valid");
    let mut seeds: Vec<(&str, Vec<u8>)> = vec![
        ("core", wat("(module (func (export \"run\")))")),
        ("empty-component", wat("(component)")),
        (
            "done",
            wat(r#"(component
                (core module $m (func (export "run") (result i32) i32.const 0) (memory (export "memory") 1))
                (core instance $i (instantiate $m))
                (func $run (result (result (error string))) (canon lift (core func $i "run") (memory $i "memory")))
                (instance $e (export "run" (func $run)))
                (export "dchost:worker/entry@0.1.0" (instance $e)))"#),
        ),
        (
            "loops",
            wat(r#"(component
                (core module $m (func (export "run") (result i32) (loop br 0) unreachable) (memory (export "memory") 1))
                (core instance $i (instantiate $m))
                (func $run (result (result (error string))) (canon lift (core func $i "run") (memory $i "memory")))
                (instance $e (export "run" (func $run)))
                (export "dchost:worker/entry@0.1.0" (instance $e)))"#),
        ),
        (
            "calls",
            wat(r#"(component
                (import "dchost:worker/worker-context@0.1.0" (instance $c (export "is-chief" (func (result bool)))))
                (core func $chief (canon lower (func $c "is-chief")))
                (core module $m (import "c" "chief" (func $chief (result i32)))
                  (func (export "run") (result i32) (drop (call $chief)) i32.const 0) (memory (export "memory") 1))
                (core instance $i (instantiate $m (with "c" (instance (export "chief" (func $chief))))))
                (func $run (result (result (error string))) (canon lift (core func $i "run") (memory $i "memory")))
                (instance $e (export "run" (func $run)))
                (export "dchost:worker/entry@0.1.0" (instance $e)))"#),
        ),
        ("whole", component.to_vec()),
        ("half", component[..component.len() / 2].to_vec()),
        ("header", component[..8].to_vec()),
        ("cut-header", component[..5].to_vec()),
        ("elf", b"\x7fELF\x02\x01\x01\0wasmtime".to_vec()),
        ("html", b"<!DOCTYPE html><html><body>404</body></html>".to_vec()),
        ("text", b"(component)".to_vec()),
        ("zip", b"PK\x03\x04".to_vec()),
        ("empty", Vec::new()),
    ];
    for (name, prefix) in [("smith", "smith:"), ("fit", "fit:")] {
        let bytes = (0..512_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8);
        seeds.push((name, prefix.bytes().chain(bytes).collect()));
    }
    seeds.into_iter().map(|(name, bytes)| (name.to_owned(), bytes)).collect()
}

/// Command lines, environments and files.
pub fn config() -> Vec<(String, Vec<u8>)> {
    const CLUSTER: &str =
        r#"{"chief":["h:1"],"worker":["a:2222","b:2222"],"ps":{"3":"c:1"},"evaluator":["127.0.0.1:9"]}"#;
    let file = concat!(
        "Ttimeout = \"3s\"\nmax-memory = \"1GiB\"\nfuel = 7\nmax-handles = 5\ncpu-timeout = \"none\"\n",
        "dir = [\"/tmp::/data:ro\"]\nenv = [\"A=b\"]\ninsecure = true\nmode = \"independent-worker\"\n",
        "[cluster]\nworker = [\"a:1\"]\n",
    );
    let seeds: [&[&str]; 12] = [
        &["F--module=m.wasm", "F--task=worker:0", "F--cluster={\"worker\":[\"127.0.0.1:1\"]}"],
        &[
            "F--module=m.wasm",
            &format!("ETF_CONFIG={{\"cluster\":{CLUSTER},\"task\":{{\"type\":\"ps\",\"index\":3}}}}"),
        ],
        &["F--module=m.wasm", &format!("EDCHOST_CLUSTER={CLUSTER}"), "EDCHOST_TASK=worker:1", "F--insecure"],
        &[file, "F--module=m.wasm", "F--bind=[::1]:0"],
        &["F--dir=/tmp::/data:ro", "F--env=HOME", "EHOME=/tmp", "F--env=A=b", "F-Wfuel=7,max-handles=5", "F--no-cache"],
        &["L", "F--workers=2", "F--ps=1", "F--module=m.wasm", "F--timeout=3s", "F--end=chief-done", file],
        &["L", "F--chief", "F--evaluator", "F--module=-x", "F--container=run-1", "F-Dcoredump=/tmp", "F--", "F--help"],
        &["Fplan", "F--mode=split-client", "F--rpc-layer=none", "F--replication=in-graph", "F--format=json"],
        &["EDCHOST_VERBOSE=3", "EDCHOST_LOG_FORMAT=jsn", "EDCHOST_DIR=/tmp;/x::y:ro", "EDCHOST_MAX_MEMRY=1"],
        &["1GiB", "512KiB", "3.5 MiB", "0", "18446744073709551615", "1h 3s", "none", "0s", "1year", "500ms"],
        &[
            "cpu-timeout=1s",
            "max-wasm-stack=64MiB",
            "unknown-imports-trap=true",
            "/tmp::/data:ro",
            "NAME=VALUE",
            "NAME",
        ],
        &["10.0.0.0/8:443", "[::1]:80", "example.org", "sha256:00", "coredump=/tmp", "*.example.org:1"],
    ];
    let seeds = seeds.iter().enumerate();
    let written = seeds.map(|(at, parts)| (format!("config-{at}"), parts.join("\0").into_bytes()));
    // Every setting in each of its places, with a value that fits some.
    let keys = KEYS.iter().map(|key| {
        let parts = format!("E{}=1\0F--module=m.wasm\0F--{key}=1\0T{key} = \"1s\"", twin(key));
        (format!("key-{key}"), parts.into_bytes())
    });
    written.chain(keys).collect()
}
