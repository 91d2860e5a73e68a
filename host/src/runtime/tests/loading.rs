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
    let bytes = guest(&[BARRIER], &waits_at("free"));
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
    let hex = |digest: [u8; 32]| format!("sha256:{}", super::super::precompiled::hex(&digest));
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
