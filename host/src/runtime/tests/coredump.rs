//! What a trap leaves on disk.

use super::*;
use crate::error::{Error, ErrorCode};
use crate::handles::Handles;
use crate::runtime::test_support::{EXIT, guest};
use std::path::{Path, PathBuf};
use wasmparser::{CoreDumpModulesSection, CoreDumpSection, CoreDumpStackSection, KnownCustom, Parser, Payload};

/// Runs a component with dumps in `dir`; answers the end, and the files there.
async fn dumped(dir: &Path, bytes: Vec<u8>, limits: Limits) -> (RunEnd, Vec<PathBuf>) {
    let fuel = limits.fuel.is_some();
    let engine = Engine::new(EngineOptions { coredump: true, fuel, ..EngineOptions::default() }).unwrap();
    let options = GuestOptions { coredump_dir: Some(dir.to_owned()), limits, ..GuestOptions::default() };
    let (report, _) = run_on(&engine, bytes, options).await;
    let files =
        std::fs::read_dir(dir).map_or_else(|_| Vec::new(), |dir| dir.map(|file| file.unwrap().path()).collect());
    (report.end, files)
}

/// What a reader finds in a dump.
#[derive(Debug, Default)]
struct Dump {
    name: String,
    pages: Vec<u64>,
    globals: u32,
    /// Memory, address and bytes of each segment.
    segments: Vec<(u32, i32, Vec<u8>)>,
    modules: usize,
    instances: usize,
    /// Function indexes, innermost first.
    frames: Vec<u32>,
}

fn read(path: &Path) -> Dump {
    let bytes = std::fs::read(path).unwrap();
    wasmparser::Validator::new().validate_all(&bytes).expect("a dump is a valid module");
    let mut dump = Dump::default();
    for payload in Parser::new(0).parse_all(&bytes) {
        match payload.unwrap() {
            Payload::MemorySection(memories) => {
                dump.pages = memories.into_iter().map(|memory| memory.unwrap().initial).collect();
            }
            Payload::GlobalSection(globals) => dump.globals = globals.count(),
            Payload::DataSection(segments) => {
                for segment in segments {
                    let segment = segment.unwrap();
                    let wasmparser::DataKind::Active { memory_index, offset_expr } = segment.kind else {
                        panic!("a passive segment")
                    };
                    let wasmparser::Operator::I32Const { value } = offset_expr.get_operators_reader().read().unwrap()
                    else {
                        panic!("an offset that is no constant")
                    };
                    dump.segments.push((memory_index, value, segment.data.to_vec()));
                }
            }
            Payload::CustomSection(section) => match section.as_known() {
                KnownCustom::CoreDump(CoreDumpSection { name }) => dump.name = name.to_owned(),
                KnownCustom::CoreDumpModules(CoreDumpModulesSection { modules }) => dump.modules = modules.len(),
                KnownCustom::CoreDumpInstances(section) => {
                    for instance in &section.instances {
                        assert!((instance.module_index as usize) < dump.modules);
                        assert!(instance.memories.iter().all(|&index| (index as usize) < dump.pages.len()));
                    }
                    dump.instances = section.instances.len();
                }
                KnownCustom::CoreDumpStack(CoreDumpStackSection { frames, .. }) => {
                    assert!(frames.iter().all(|frame| (frame.instanceidx as usize) < dump.instances));
                    dump.frames = frames.iter().map(|frame| frame.funcidx).collect();
                }
                _ => panic!("a section that no dump has: {}", section.name()),
            },
            _ => {}
        }
    }
    dump
}

#[tokio::test]
async fn a_trap_leaves_memory_globals_and_frames() {
    let dir = tempfile::tempdir().unwrap();
    let body = r#"(global $g (mut i64) (i64.const -7)) (global $f (mut f64) (f64.const 1.5)) (global $r funcref (ref.null func))
        (global $v (mut v128) (v128.const i32x4 1 2 3 4))
        (data (i32.const 1024) "batch 41") (func $inner (unreachable))
        (func (export "run") (result i32) (i32.store8 (i32.const 65535) (i32.const 9)) (call $inner) (i32.const 0))"#;
    let (end, files) = dumped(dir.path(), guest(&[], body), Limits::default()).await;
    let RunEnd::Trap { kind, report } = end else { panic!("no trap: {end:?}") };
    assert_eq!(kind, "unreachable code reached (a panic or an abort)");
    assert!(report.contains("frames, innermost first:\n  inner\n"), "{report}");
    let [file] = files.as_slice() else { panic!("{files:?}") };
    let name = file.file_name().unwrap().to_str().unwrap();
    assert!(name.starts_with("local-attempt3-") && name.ends_with(".coredump"), "{name}");
    assert!(name.contains(&format!("-{}-", std::process::id())), "{name}");
    let dump = read(file);
    assert_eq!((dump.name.as_str(), dump.pages.as_slice()), ("guest.wasm", [1].as_slice()));
    // One of them is the allocator's.
    assert_eq!(dump.globals, 5);
    assert_eq!(dump.frames, [0, 1], "inner, then run");
    let mut memory = vec![0; 64 << 10];
    for (index, address, bytes) in &dump.segments {
        assert_eq!(*index, 0);
        let address = usize::try_from(*address).unwrap();
        memory[address..address + bytes.len()].copy_from_slice(bytes);
    }
    assert_eq!((&memory[1024..1032], memory[65535]), (b"batch 41".as_slice(), 9));
    assert!(memory.iter().filter(|&&byte| byte != 0).count() == 9, "nothing else is there");
}

#[tokio::test]
async fn each_run_leaves_a_file_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    for runs in 1..=3 {
        let body = r#"(func (export "run") (result i32) (unreachable))"#;
        let (_, files) = dumped(dir.path(), guest(&[], body), Limits::default()).await;
        assert_eq!(files.len(), runs);
    }
}

#[tokio::test]
async fn limits_leave_a_dump_too() {
    let spin = r#"(func (export "run") (result i32) (loop (br 0)) (unreachable))"#;
    let hungry = r#"(func (export "run") (result i32)
        (if (i32.eq (memory.grow (i32.const 100)) (i32.const -1)) (then (unreachable))) (i32.const 0))"#;
    let cpu = Limits { cpu_timeout: Some(Duration::from_millis(50)), ..Limits::default() };
    let memory = Limits { memory_bytes_max: 1 << 20, ..Limits::default() };
    let fuel = Limits { fuel: Some(10_000), ..Limits::default() };
    for (body, limits) in [(spin, cpu), (spin, fuel), (hungry, memory)] {
        let dir = tempfile::tempdir().unwrap();
        let (end, files) = dumped(dir.path(), guest(&[], body), limits).await;
        assert!(matches!(end, RunEnd::Limit { .. }), "{end:?}");
        assert_eq!(read(&files[0]).pages, [1]);
    }
}

#[tokio::test]
async fn an_exit_or_an_error_leaves_no_dump() {
    let dir = tempfile::tempdir().unwrap();
    let exit = r#"(func (export "run") (result i32) (call $exit (i32.const 1)) (i32.const 0))"#;
    let error = r#"(func (export "run") (result i32) (i32.store8 (i32.const 16) (i32.const 1)) (i32.const 16))"#;
    for bytes in [guest(&[EXIT], exit), guest(&[], error)] {
        let (_, files) = dumped(dir.path(), bytes, Limits::default()).await;
        assert_eq!(files, Vec::<PathBuf>::new());
    }
}

/// Aim: a run that had to end in any case leaves none, nor does one whose dump was given up; the end is as it was, and told.
#[tokio::test]
async fn a_dump_that_nobody_wants_is_not_left() {
    let body = r#"(func (export "run") (result i32) (unreachable))"#;
    let engine = Engine::new(EngineOptions { coredump: true, ..EngineOptions::default() }).unwrap();
    let module = engine.load_bytes("guest.wasm", guest(&[], body).into()).await.unwrap();
    for (interrupted, given_up, left) in [(false, false, 1), (true, false, 0), (false, true, 0)] {
        let dir = tempfile::tempdir().unwrap();
        let options = GuestOptions { coredump_dir: Some(dir.path().to_owned()), ..GuestOptions::default() };
        let error = Error::new(ErrorCode::PeerFailed, "worker:1 failed");
        let (_interrupt, receiver) = tokio::sync::watch::channel(interrupted.then_some(error));
        let handles = Handles { interrupt: receiver, ..Fakes::new().handles() };
        let watch = RunWatch::new();
        if given_up {
            watch.give_up_dump();
        }
        let report = module.run(options, handles, watch.clone()).await;
        assert!(matches!(report.end, RunEnd::Trap { .. }), "{:?}", report.end);
        assert_eq!(watch.ended().await.end, report.end);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), left, "{interrupted} {given_up}");
    }
}

/// Aim: the end is known before the dump is written. Method: a runtime whose one thread for blocking calls is busy until the
/// end was seen.
#[test]
fn the_end_is_told_before_the_dump_is_written() {
    let runtime = tokio::runtime::Builder::new_multi_thread().max_blocking_threads(1).enable_all().build().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let files = || std::fs::read_dir(dir.path()).unwrap().count();
    let body = r#"(func (export "run") (result i32) (unreachable))"#;
    let engine = Engine::new(EngineOptions { coredump: true, ..EngineOptions::default() }).unwrap();
    let module = runtime.block_on(engine.load_bytes("guest.wasm", guest(&[], body).into())).unwrap();
    let (go_on, waits) = std::sync::mpsc::channel::<()>();
    runtime.spawn_blocking(move || waits.recv());
    let options = GuestOptions { coredump_dir: Some(dir.path().to_owned()), ..GuestOptions::default() };
    let (watch, handles) = (RunWatch::new(), Fakes::new().handles());
    let run = runtime.spawn({
        let watch = watch.clone();
        async move { module.run(options, handles, watch).await }
    });
    let told = runtime.block_on(watch.ended());
    assert!(matches!(told.end, RunEnd::Trap { .. }), "{told:?}");
    assert_eq!(files(), 0);
    drop(go_on);
    assert_eq!(runtime.block_on(run).unwrap().end, told.end);
    assert_eq!(files(), 1);
}

/// A dump that can't be written changes nothing else.
#[tokio::test]
async fn a_dump_that_cannot_be_written_leaves_the_end_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let body = r#"(func (export "run") (result i32) (unreachable))"#;
    let (end, files) = dumped(&dir.path().join("missing"), guest(&[], body), Limits::default()).await;
    assert!(matches!(end, RunEnd::Trap { .. }), "{end:?}");
    assert_eq!(files, Vec::<PathBuf>::new());
}

/// A trap in the inner part of a composed component, whose parts share globals that belong to neither.
#[tokio::test]
async fn a_composed_component_leaves_a_dump() {
    let run = "(drop (call $first (i32.const 100) (i32.const 1)))";
    let dir = tempfile::tempdir().unwrap();
    let (end, files) = dumped(dir.path(), composed("(unreachable)", run), Limits::default()).await;
    assert!(matches!(end, RunEnd::Trap { .. }), "{end:?}");
    let mut dump = read(&files[0]);
    dump.pages.sort_unstable();
    assert_eq!(dump.pages, [1, 2]);
    assert!(dump.segments.iter().any(|(_, _, bytes)| bytes.starts_with(b"inner")));
    assert!(dump.frames.len() >= 2, "{dump:?}");
}
