//! What isn't a component that fits, and how it is refused.

use super::*;
use crate::runtime::test_support::{BARRIER, guest, waits_at};
use expect_test::{Expect, expect};
use std::fs;

async fn refusal(bytes: Vec<u8>) -> LoadError {
    ENGINE.load_bytes("train.wasm", bytes.into()).await.expect_err("refused")
}

async fn check(wat: &str, expected: Expect) {
    expected.assert_eq(&refusal(wat::parse_str(wat).unwrap()).await.to_string());
}

/// The export that a component needs, beside what a test is about.
fn with_run(rest: &str) -> String {
    format!(
        r#"(component {rest}
          (core module $m (memory (export "memory") 1) (func (export "run") (result i32) (i32.const 0)))
          (core instance $i (instantiate $m))
          (func $run (result (result (error string))) (canon lift (core func $i "run") (memory (core memory $i "memory"))))
          (instance $entry (export "run" (func $run)))
          (export "dchost:worker/entry@0.1.0" (instance $entry)))"#
    )
}

#[tokio::test]
async fn files_that_are_no_components_are_named() {
    let cases: [(&[u8], &str); 7] = [
        (b"", "an empty file"),
        (b"<!doctype html><p>404", "an HTML page"),
        (b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0", "an ELF binary"),
        (b"(component)", "wasm text"),
        (b"hello", "text"),
        (b"\0asm\x01\0\0\0", "core module, a component is needed: build with `--target wasm32-wasip2`"),
        (b"\0asm\x0d\0", "truncated"),
    ];
    for (bytes, expected) in cases {
        let error = refusal(bytes.to_vec()).await.to_string();
        assert!(error.contains(expected) && error.contains("`train.wasm`"), "{error}");
    }
}

#[tokio::test]
async fn precompiled_code_is_refused_unexecuted() {
    let code = ENGINE.inner.wasmtime.precompile_component(&guest(&[BARRIER], &waits_at("free"))).unwrap();
    assert!(matches!(refusal(code).await, LoadError::Precompiled { .. }));
}

#[tokio::test]
async fn a_missing_file_suggests_its_neighbour() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("train.wasm"), guest(&[BARRIER], &waits_at("free"))).unwrap();
    let error = ENGINE.load(&dir.path().join("trian.wasm")).await.unwrap_err().to_string();
    assert!(error.contains("trian.wasm`, did you mean") && error.ends_with("train.wasm`?"), "{error}");
    let module = ENGINE.load(&dir.path().join("train.wasm")).await.unwrap();
    assert_eq!(module.name(), "train.wasm");
    assert_eq!(module.size_bytes(), fs::metadata(dir.path().join("train.wasm")).unwrap().len());
}

#[tokio::test]
async fn directories_and_pipes_are_refused_without_opening_them() {
    let dir = tempfile::tempdir().unwrap();
    let error = ENGINE.load(dir.path()).await.unwrap_err().to_string();
    assert!(error.contains("is a directory, not a file"), "{error}");
    let pipe = dir.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0).unwrap();
    let error = tokio::time::timeout(DEADLINE, ENGINE.load(&pipe)).await.unwrap().unwrap_err().to_string();
    assert!(error.contains("is a pipe, not a file"), "{error}");
}

#[tokio::test]
async fn a_file_above_the_cap_is_refused_by_its_size() {
    let engine = Engine::new(EngineOptions { module_bytes_max: 1 << 20, ..EngineOptions::default() }).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(300 << 20).unwrap();
    let error = engine.load(file.path()).await.unwrap_err().to_string();
    assert!(error.contains("300 MiB") && error.contains("1 MiB") && error.contains("--max-module-size"), "{error}");
}

#[tokio::test]
async fn compiling_has_a_time_limit() {
    let engine = Engine::new(EngineOptions { compile_timeout: Duration::ZERO, ..EngineOptions::default() }).unwrap();
    // So much that a busy machine, on which the look at the clock comes late, isn't done with it before.
    let functions = "(func (result i64) (i64.mul (i64.const 3) (i64.const 4)))".repeat(5000);
    let bytes = wat::parse_str(format!("(component (core module {functions}))")).unwrap();
    let error = engine.load_bytes("train.wasm", bytes.into()).await.unwrap_err();
    assert!(error.to_string().contains("--compile-timeout"), "{error}");
}

#[tokio::test]
async fn a_truncated_component_is_refused_at_every_length() {
    let whole = guest(&[BARRIER], &waits_at("free"));
    for length in (0..whole.len()).step_by(7).chain([whole.len() - 1]) {
        let error = refusal(whole[..length].to_vec()).await;
        assert!(!error.to_string().is_empty());
        assert!(
            matches!(error, LoadError::Invalid { .. } | LoadError::NotWasm { .. } | LoadError::Misfit { .. }),
            "{length}: {error}"
        );
    }
}

/// Flipped bits may leave a valid component, but never panic.
#[tokio::test]
async fn flipped_bytes_never_panic() {
    let whole = guest(&[BARRIER], &waits_at("free"));
    for index in 0..200 {
        let mut bytes = whole.clone();
        let at = index * 7919 % bytes.len();
        bytes[at] ^= 1 << (index % 8);
        let loaded = ENGINE.load_bytes("train.wasm", bytes.into()).await;
        assert!(!matches!(loaded, Err(LoadError::Bug { .. })), "byte {at}");
    }
}

#[tokio::test]
async fn names_in_a_refusal_are_harmless_and_short() {
    // A type with one enum, whose case has a name that no tool makes.
    let component = |name: &[u8]| {
        let mut size = Vec::new();
        let leb128 = |mut value: usize, bytes: &mut Vec<u8>| {
            while value >= 0x80 {
                bytes.push(u8::try_from(value & 0x7f).unwrap() | 0x80);
                value >>= 7;
            }
            bytes.push(u8::try_from(value).unwrap());
        };
        let mut section = vec![1, 0x6d, 1];
        leb128(name.len(), &mut section);
        section.extend(name);
        leb128(section.len(), &mut size);
        [b"\0asm\x0d\0\x01\0\x07", &size[..], &section].concat()
    };
    let text = refusal(component(b"\x1b]0;owned\x07\n")).await.to_string();
    assert!(text.contains(r"`\u{1b}]0;owned\u{7}") && !text.contains(char::is_control), "{text:?}");
    let text = refusal(component(&[b'_'; 50_000])).await.to_string();
    assert!(text.len() < 10_000, "{} bytes", text.len());
}

#[tokio::test]
async fn every_unknown_import_is_listed() {
    let imports = r#"
      (import "acme:gpu/ops@1.0.0" (instance (export "launch" (func))))
      (import "dchost:worker/cluster@0.1.0" (instance (export "join" (func))))
      (import "dchost:worker/logg@0.1.0" (instance (export "write" (func))))
      (import "dchost:worker/log@0.3.0" (instance (export "write" (func))))
      (import "wasi:io/streams@0.2.0-rc-2023-11-05" (instance (export "f" (func))))
      (import "wasi:http/types@0.2.0" (instance (export "f" (func))))
      (import "dchost:worker/summary@0.1.0" (instance (export "histogram" (func))))
      (import "root" (func))"#;
    check(&with_run(imports), expect![[r#"
        `train.wasm` does not fit world `worker` of dchost:worker@0.1.0
          unknown import  `acme:gpu/ops@1.0.0`: dchost offers dchost:worker and WASI 0.2 only; build without it
          unknown import  `dchost:worker/cluster@0.1.0`: dchost:worker has no such interface
          unknown import  `dchost:worker/log@0.3.0`: host offers 0.1.x; rebuild with dchost-guest 0.1, or take another dchost
          unknown import  `dchost:worker/logg@0.1.0`: dchost:worker has no such interface, did you mean `log`?
          unknown import  `histogram` of `dchost:worker/summary@0.1.0`: this dchost's interface has no such function; rebuild with dchost-guest 0.1, or take a newer dchost
          unknown import  `root`: dchost offers nothing at the root of the world
          unknown import  `wasi:http/types@0.2.0`: not among the WASI interfaces that dchost offers (cli, clocks, filesystem, io, random, sockets); build without it
          unknown import  `wasi:io/streams@0.2.0-rc-2023-11-05`: host offers WASI 0.2.x; rebuild with a current toolchain"#]]).await;
}

#[tokio::test]
async fn an_import_of_another_signature_is_told() {
    let imports = r#"
      (import "dchost:worker/worker-context@0.1.0" (instance (export "is-chief" (func (result string)))))"#;
    check(&with_run(imports), expect![[r#"
        `train.wasm` does not fit world `worker` of dchost:worker@0.1.0
          wrong import    `is-chief` of `dchost:worker/worker-context@0.1.0` is imported as `func() -> string`: expected `bool` found `string`; rebuild with dchost-guest 0.1"#]]).await;
}

#[tokio::test]
async fn every_wrong_function_of_an_interface_is_listed() {
    let imports = r#"
      (import "dchost:worker/worker-context@0.1.0" (instance
        (export "is-chief" (func (result string)))
        (export "num-workers" (func (param "of" string) (result u64)))
        (export "this-rank" (func (result u32)))
        (export "attempt" (func (result u32)))))
      (import "wasi:random/random@0.2.0" (instance
        (export "get-random-u64" (func (result u32)))
        (export "get-random-float" (func (result f32)))))"#;
    check(&with_run(imports), expect![[r#"
        `train.wasm` does not fit world `worker` of dchost:worker@0.1.0
          wrong import    `is-chief` of `dchost:worker/worker-context@0.1.0` is imported as `func() -> string`: expected `bool` found `string`; rebuild with dchost-guest 0.1
          wrong import    `num-workers` of `dchost:worker/worker-context@0.1.0` is imported as `func(of: string) -> u64`: expected 0-tuple, found 1-tuple; rebuild with dchost-guest 0.1
          unknown import  `this-rank` of `dchost:worker/worker-context@0.1.0`: this dchost's interface has no such function; rebuild with dchost-guest 0.1, or take a newer dchost
          wrong import    `get-random-u64` of `wasi:random/random@0.2.0` is imported as `func() -> u32`: expected `u64` found `u32`; rebuild with a toolchain for WASI 0.2
          unknown import  `get-random-float` of `wasi:random/random@0.2.0`: this dchost's interface has no such function; rebuild with a toolchain for WASI 0.2, or take a newer dchost"#]]).await;
}

/// A newer patch of 0.1 with the same functions is the same interface, and a function that it added is told.
#[tokio::test]
async fn a_newer_patch_of_the_world_works_as_far_as_it_is_the_same() {
    let newer = |function: &str| {
        with_run(&format!(
            r#"(import "dchost:worker/worker-context@0.1.7" (instance (export "{function}" (func (result bool)))))"#
        ))
        .replace("entry@0.1.0", "entry@0.1.7")
    };
    let bytes = wat::parse_str(newer("is-chief")).unwrap();
    let module = ENGINE.load_bytes("train.wasm", bytes.into()).await.unwrap();
    assert_eq!(module.surface().world, Some(crate::runtime::World::Worker));
    check(&newer("is-leader"), expect![[r#"
        `train.wasm` does not fit world `worker` of dchost:worker@0.1.0
          unknown import  `is-leader` of `dchost:worker/worker-context@0.1.7`: this dchost's interface has no such function; rebuild with dchost-guest 0.1, or take a newer dchost"#]]).await;
}

/// Names are as long as a component likes, and as many.
#[tokio::test]
async fn a_report_is_bounded_whatever_the_names_are() {
    let long = "a".repeat(50_000);
    let many: String = (0..900)
        .map(|index| format!(r#"(import "acme:gpu/ops{index}@1.0.0" (instance (export "f" (func))))"#))
        .collect();
    let functions: String =
        (0..2000).map(|index| format!(r#"(export "f{index}-{}" (func))"#, "b".repeat(100))).collect();
    let one = format!(r#"(import "dchost:worker/log@0.1.0" (instance {functions}))"#);
    let named = format!(r#"(import "acme:{long}/ops@1.0.0" (instance (export "{long}" (func))))"#);
    for imports in [many, one, named] {
        let error = refusal(wat::parse_str(with_run(&imports)).unwrap()).await;
        assert!(matches!(error, LoadError::Misfit { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.len() < 64 << 10 && text.lines().count() <= 66, "{} bytes: {text}", text.len());
        assert!(text.lines().all(|line| line.len() < 1000), "{text}");
    }
}

/// A type of a few lines may be long to write out: each of these has the one before twice.
#[tokio::test]
async fn a_signature_is_bounded() {
    let mut types = "(type $t0 (tuple u8 u8))".to_owned();
    for index in 1..16 {
        types += &format!("(type $t{index} (tuple $t{} $t{}))", index - 1, index - 1);
    }
    let imports = format!(
        r#"(import "dchost:worker/log@0.1.0" (instance {} (export "write" (func (param "level" $t15) (param "message" string)))))"#,
        types
    );
    let text = refusal(wat::parse_str(with_run(&imports)).unwrap()).await.to_string();
    assert!(text.contains("`write` of `dchost:worker/log@0.1.0` is imported as `func(level: tuple<tuple<"), "{text}");
    assert!(text.len() < 1000, "{} bytes", text.len());
}

/// An interface with nothing to call needs nothing of the host, whoever's it is.
#[tokio::test]
async fn types_alone_are_no_fault_whatever_their_version() {
    let imports = r#"(import "dchost:worker/types@0.3.0" (instance (type $t u32) (export "millis" (type (eq $t)))))"#;
    let module = ENGINE.load_bytes("train.wasm", wat::parse_str(with_run(imports)).unwrap().into()).await.unwrap();
    let surface = module.surface();
    let [import] = surface.imports.as_slice() else { panic!("{surface:?}") };
    assert_eq!(import.verdict, crate::runtime::Verdict::WrongVersion);
    assert_eq!(import.note.as_deref(), Some("types only, which need nothing of the host"));
}

#[tokio::test]
async fn unknown_imports_may_trap_instead_of_being_refused_and_wrong_ones_may_not() {
    let engine = Engine::new(EngineOptions { unknown_imports_trap: true, ..EngineOptions::default() }).unwrap();
    let unknown = r#"
      (import "acme:gpu/ops@1.0.0" (instance (export "buffer" (type (sub resource))) (export "launch" (func))))
      (import "dchost:worker/summary@0.1.4" (instance (export "histogram" (func))))
      (import "wasi:http/types@0.3.0" (instance (export "f" (func))))
      (import "wasi:cli/exit@0.2.3" (instance (export "exit-gently" (func))))
      (import "root" (func))"#;
    let module = engine.load_bytes("train.wasm", wat::parse_str(with_run(unknown)).unwrap().into()).await.unwrap();
    let imports = module.surface().imports;
    assert_eq!(imports.len(), 5);
    for import in imports {
        assert!(import.note.as_deref().unwrap_or_default().ends_with("traps when it is called"), "{import:?}");
    }
    let wrong = format!(
        r#"{unknown} (import "dchost:worker/worker-context@0.1.0" (instance (export "is-chief" (func (result string)))))"#
    );
    let error = engine.load_bytes("train.wasm", wat::parse_str(with_run(&wrong)).unwrap().into()).await.unwrap_err();
    let LoadError::Misfit { misfit, .. } = error else { panic!("{error}") };
    let [problem] = misfit.problems.as_slice() else { panic!("{misfit}") };
    assert!(problem.starts_with("wrong import    `is-chief`"), "{problem}");
}

#[tokio::test]
async fn a_component_without_exports_is_told_what_to_export() {
    check("(component)", expect![[r#"
        `train.wasm` does not fit world `worker` of dchost:worker@0.1.0
          missing export  `run` (interface dchost:worker/entry@0.1.0); it exports nothing: mark the entry with `#[worker_fn]`"#]]).await;
}

#[tokio::test]
async fn a_newer_entry_is_told() {
    let newer = with_run("").replace("entry@0.1.0", "entry@0.9.0");
    check(&newer, expect![[r#"
        `train.wasm` does not fit world `worker` of dchost:worker@0.1.0
          missing export  `run` (interface dchost:worker/entry@0.1.0), but exports the newer `dchost:worker/entry@0.9.0`: host offers 0.1.x; this dchost is too old for it, take a newer dchost or rebuild with dchost-guest 0.1"#]]).await;
}

#[tokio::test]
async fn a_run_at_the_root_is_told() {
    let root = with_run("")
        .replace(r#"(export "dchost:worker/entry@0.1.0" (instance $entry))"#, r#"(export "run" (func $run))"#);
    check(&root, expect![[r#"
        `train.wasm` does not fit world `worker` of dchost:worker@0.1.0
          missing export  `run` (interface dchost:worker/entry@0.1.0); `run` stands at the root of the world, export it inside interface `dchost:worker/entry`"#]]).await;
}

#[tokio::test]
async fn a_misspelt_run_and_one_of_another_signature_are_told() {
    let misspelt = with_run("").replace(r#"$entry (export "run""#, r#"$entry (export "runn""#);
    check(
        &misspelt,
        expect![[r#"
        `train.wasm` does not fit world `worker` of dchost:worker@0.1.0
          missing export  `run` in `dchost:worker/entry@0.1.0`, which has `runn`"#]],
    )
    .await;
    let other = r#"(component
      (core module $m (func (export "run") (param i32) (result i32) (local.get 0)))
      (core instance $i (instantiate $m))
      (func $run (param "steps" u32) (result u32) (canon lift (core func $i "run")))
      (instance $entry (export "run" (func $run)))
      (export "dchost:worker/entry@0.1.0" (instance $entry)))"#;
    check(other, expect![[r#"
        `train.wasm` does not fit world `worker` of dchost:worker@0.1.0
          wrong export    `run` of `dchost:worker/entry@0.1.0` is `func(steps: u32) -> u32`, but `func() -> result<_, string>` is called"#]]).await;
}

#[tokio::test]
async fn threads_are_told_as_not_offered() {
    let shared = r#"(component (core module (memory 1 2 shared)))"#;
    let error = refusal(wat::parse_str(shared).unwrap()).await.to_string();
    assert!(error.contains("uses threads and shared memories, which dchost doesn't offer"), "{error}");
}

#[tokio::test]
async fn an_unusable_cache_is_no_reason_to_fail() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let options = EngineOptions { cache_dir: Some(file.path().join("below-a-file")), ..EngineOptions::default() };
    let engine = Engine::new(options).unwrap();
    engine.load_bytes("train.wasm", guest(&[BARRIER], &waits_at("free")).into()).await.unwrap();
}

#[tokio::test]
async fn compiled_code_is_kept_in_the_cache() {
    let dir = tempfile::tempdir().unwrap();
    let options = EngineOptions { cache_dir: Some(dir.path().join("new")), ..EngineOptions::default() };
    let bytes = guest(&[BARRIER], &waits_at("free"));
    for _ in 0..2 {
        Engine::new(options.clone()).unwrap().load_bytes("train.wasm", bytes.clone().into()).await.unwrap();
    }
    assert!(fs::read_dir(dir.path().join("new")).unwrap().next().is_some());
}

/// The one entry of a cache.
fn entry(dir: &std::path::Path) -> std::path::PathBuf {
    let mut entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let entry = entries.next().unwrap();
    assert!(entries.next().is_none(), "one entry");
    entry
}

#[tokio::test]
async fn damaged_entries_of_the_cache_are_replaced_unexecuted() {
    let dir = tempfile::tempdir().unwrap();
    let options = EngineOptions { cache_dir: Some(dir.path().to_owned()), ..EngineOptions::default() };
    let bytes = guest(&[BARRIER], &waits_at("free"));
    let load = async || {
        Engine::new(options.clone()).unwrap().load_bytes("train.wasm", bytes.clone().into()).await.unwrap();
    };
    load().await;
    let path = entry(dir.path());
    let whole = fs::read(&path).unwrap();
    let inode = || std::os::unix::fs::MetadataExt::ino(&fs::metadata(&path).unwrap());
    let first = inode();
    load().await;
    assert_eq!(inode(), first, "a hit writes nothing");
    let mut flipped = whole.clone();
    *flipped.last_mut().unwrap() ^= 1;
    for damaged in [&whole[..0], &whole[..whole.len() / 2], &flipped] {
        fs::write(&path, damaged).unwrap();
        load().await;
        // What is compiled anew may differ in its order, but is whole.
        let replaced = fs::read(&path).unwrap();
        assert!(replaced != damaged, "it is replaced");
        assert!(Engine::new(options.clone()).unwrap().inner.maker.open(&replaced).is_ok());
    }
}

#[tokio::test]
async fn other_settings_have_another_entry() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = guest(&[BARRIER], &waits_at("free"));
    for fuel in [false, true, false] {
        let options = EngineOptions { cache_dir: Some(dir.path().to_owned()), fuel, ..EngineOptions::default() };
        Engine::new(options).unwrap().load_bytes("train.wasm", bytes.clone().into()).await.unwrap();
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
}

#[tokio::test]
async fn another_digest_is_refused_with_both() {
    let bytes = guest(&[BARRIER], &waits_at("free"));
    let found = ENGINE.load_bytes("train.wasm", bytes.clone().into()).await.unwrap().digest();
    let with = |digest| Engine::new(EngineOptions { digest: Some(digest), ..EngineOptions::default() }).unwrap();
    with(found).load_bytes("train.wasm", bytes.clone().into()).await.unwrap();
    let error = with([0xab; 32]).load_bytes("train.wasm", bytes.into()).await.unwrap_err().to_string();
    let hex = |digest: [u8; 32]| format!("sha256:{}", crate::text::hex(&digest));
    assert!(error.contains(&hex(found)) && error.contains(&hex([0xab; 32])), "{error}");
}

#[tokio::test]
async fn precompiled_files_are_loaded_where_all_is_right() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let (source, path) = (dir.path().join("train.wasm"), dir.path().join("train.dchost"));
    fs::write(&source, guest(&[BARRIER], &waits_at("free"))).unwrap();
    let options = EngineOptions { allow_precompiled: true, ..EngineOptions::default() };
    let engine = Engine::new(options.clone()).unwrap();
    let bytes = engine.precompile(&source).await.unwrap();
    let digest = engine.load(&source).await.unwrap().digest();
    let mode = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    fs::write(&path, &bytes).unwrap();
    mode(0o644);
    assert_eq!(engine.load(&path).await.unwrap().digest(), digest, "the digest is the source's");

    // The cap is the component's: its code is larger.
    let cap = bytes.len() as u64 / 2;
    let capped = Engine::new(EngineOptions { module_bytes_max: cap, ..options.clone() }).unwrap();
    assert_eq!(capped.load(&path).await.unwrap().digest(), digest);
    let error = Engine::new(EngineOptions { module_bytes_max: cap, ..EngineOptions::default() }).unwrap();
    assert!(matches!(error.load(&path).await.unwrap_err(), LoadError::TooLarge { .. }));

    let error = ENGINE.load(&path).await.unwrap_err();
    assert!(matches!(error, LoadError::PrecompiledNotAllowed { .. }), "{error}");
    assert!(error.to_string().contains("--allow-precompiled"), "{error}");
    let other = Engine::new(EngineOptions { digest: Some([1; 32]), ..options.clone() }).unwrap();
    assert!(matches!(other.load(&path).await.unwrap_err(), LoadError::Digest { .. }));
    let fuel = Engine::new(EngineOptions { fuel: true, ..options }).unwrap();
    let error = fuel.load(&path).await.unwrap_err().to_string();
    assert!(error.contains("fuel not counted") && error.contains("fuel counted (-W fuel)"), "{error}");
    for bits in [0o664, 0o646] {
        mode(bits);
        let error = engine.load(&path).await.unwrap_err().to_string();
        assert!(error.contains("chmod go-w"), "{error}");
    }
    mode(0o600);
    for damaged in [&bytes[..bytes.len() - 1], &bytes[..40], &bytes[..8]] {
        fs::write(&path, damaged).unwrap();
        assert!(matches!(engine.load(&path).await.unwrap_err(), LoadError::PrecompiledDamaged { .. }));
    }
    let error = engine.load_bytes("train.dchost", bytes.into()).await.unwrap_err();
    assert!(matches!(error, LoadError::PrecompiledDistrusted { .. }), "{error}");
}
