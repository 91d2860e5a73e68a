//! What `dchost inspect` tells, that `--check` judges as a run does, and components of other versions and of no version.

use anyhow::{Context, Result};
use dchost_tests::{Outcome, PATIENCE, Run, guest};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// A component with imports, whose `run` is `body` in the core module's words.
fn worker(imports: &str, core_imports: &str, with: &str, body: &str) -> String {
    format!(
        r#"(component {imports}
          (core module $m {core_imports} (memory (export "memory") 1)
            (func (export "run") (result i32) {body} (i32.const 0)))
          (core instance $i (instantiate $m {with}))
          (func $run (result (result (error string))) (canon lift (core func $i "run") (memory (core memory $i "memory"))))
          (instance $entry (export "run" (func $run)))
          (export "dchost:worker/entry@0.1.0" (instance $entry)))"#
    )
}

fn plain(imports: &str) -> String {
    worker(imports, "", "", "")
}

/// A component that imports `launch` of an interface that nobody has, and calls it or not.
fn gpu(calls: bool) -> String {
    worker(
        r#"(import "acme:gpu/ops@1.0.0" (instance $gpu (export "launch" (func))))
           (core func $launch (canon lower (func $gpu "launch")))"#,
        r#"(import "gpu" "launch" (func $launch))"#,
        r#"(with "gpu" (instance (export "launch" (func $launch))))"#,
        if calls { "(call $launch)" } else { "" },
    )
}

struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Result<Self> {
        Ok(Files(tempfile::tempdir().context("make a directory")?))
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<PathBuf> {
        let path = self.0.path().join(name);
        std::fs::write(&path, bytes).context("write a file")?;
        Ok(path)
    }

    fn wat(&self, name: &str, text: &str) -> Result<PathBuf> {
        self.write(name, &wat::parse_str(text).context("encode a component")?)
    }
}

fn run(path: &Path, flags: &[&str]) -> Result<Outcome> {
    let args = ["--module".into(), path.as_os_str().to_owned()];
    Run::new("run").args(args).args(flags.iter().copied()).output()
}

fn inspect(path: &Path, flags: &[&str]) -> Result<Outcome> {
    let args: [OsString; 2] = ["inspect".into(), path.as_os_str().to_owned()];
    Run::new("inspect").args(args).args(flags.iter().copied()).output()
}

fn object(path: &Path, flags: &[&str]) -> Result<serde_json::Value> {
    let outcome = inspect(path, &[&["--format", "json"], flags].concat())?;
    serde_json::from_str(&outcome.stdout).with_context(|| format!("not one object:\n{}", outcome.output))
}

/// Checks that a run refuses a file, that `--check` gives the same code and message, and returns what both say.
#[track_caller]
fn refused_by_both(path: &Path, flags: &[&str]) -> Result<String> {
    let (ran, checked) = (run(path, flags)?, inspect(path, &[&["--check"], flags].concat())?);
    assert_eq!((ran.code, checked.code), (2, 2), "{}\n{}", ran.output, checked.output);
    // A run indents what belongs to one message.
    let told = |outcome: &Outcome| -> Vec<_> {
        outcome
            .stderr
            .lines()
            .skip_while(|line| !line.starts_with("error: "))
            .map(|line| line.trim().to_owned())
            .collect()
    };
    assert!(!told(&ran).is_empty(), "{}", ran.output);
    assert_eq!(told(&ran), told(&checked));
    // Without --check it is told, and that is all that was asked.
    let inspected = inspect(path, flags)?;
    assert_eq!(inspected.code, 0, "{}", inspected.output);
    assert!(inspected.stdout.contains("a run refuses it: "), "{}", inspected.stdout);
    Ok(ran.stderr)
}

#[test]
fn a_component_is_told_in_text_and_as_an_object() -> Result<()> {
    let path = guest("counter")?;
    let outcome = inspect(&path, &["--check"])?;
    assert_eq!((outcome.code, outcome.stderr.as_str()), (0, ""), "{}", outcome.output);
    for told in
        ["is a component", "world     worker", "dchost:worker/variables@0.1.0", "language Rust", "a run accepts it"]
    {
        assert!(outcome.stdout.contains(told), "no `{told}` in:\n{}", outcome.stdout);
    }
    let object = object(&path, &[])?;
    let bytes = std::fs::metadata(&path).context("look at the component")?.len();
    assert_eq!(object["kind"], "component");
    assert_eq!(object["world"], "worker");
    assert_eq!(object["size_bytes"], bytes);
    assert_eq!(object["refusal"], serde_json::Value::Null);
    assert!(object["memory_bytes"].as_u64() >= Some(64 << 10), "{object}");
    let imports = object["imports"].as_array().context("imports")?;
    assert!(imports.iter().all(|import| import["verdict"] == "served"), "{object}");
    Ok(())
}

#[test]
fn what_is_no_component_is_told_and_nothing_of_it_is_run() -> Result<()> {
    let files = Files::new()?;
    let hello = std::fs::read(guest("hello")?).context("read a component")?;
    let module = wat::parse_str("(module (memory 3))").context("encode a module")?;
    let cases: [(&str, &[u8]); 5] = [
        ("core-module", &module),
        ("damaged", &hello[..hello.len() / 2]),
        ("damaged", &hello[..6]),
        ("other", b"<html>not found</html>"),
        ("other", b"\x7fELF\x02\x01\x01"),
    ];
    for (kind, bytes) in cases {
        let path = files.write("train.wasm", bytes)?;
        let object = object(&path, &[])?;
        assert_eq!(object["kind"], kind, "{object}");
        assert_eq!(object["imports"], serde_json::Value::Null, "{object}");
        refused_by_both(&path, &[])?;
    }
    // Nothing can be told of what can't be read.
    let missing = inspect(&files.0.path().join("trian.wasm"), &[])?;
    assert_eq!(missing.code, 2);
    assert!(missing.stderr.contains("did you mean"), "{}", missing.output);
    assert_eq!(missing.stdout, "");
    Ok(())
}

#[test]
fn check_goes_by_the_limits_of_the_run() -> Result<()> {
    let files = Files::new()?;
    let path = files.wat("train.wasm", &plain("").replace("\"memory\") 1)", "\"memory\") 512)"))?;
    assert_eq!(inspect(&path, &["--check"])?.code, 0);
    let told = refused_by_both(&path, &["--max-memory", "16MiB"])?;
    assert!(told.contains("declares a memory of 32 MiB, above 16 MiB (--max-memory)"), "{told}");
    // A file above the size can't be told.
    let large = inspect(&path, &["--max-module-size", "100"])?;
    assert_eq!(large.code, 2);
    assert!(large.stderr.contains("--max-module-size"), "{}", large.output);
    Ok(())
}

#[test]
fn a_component_for_an_old_wasi_hears_all_that_is_wrong_at_once() -> Result<()> {
    let files = Files::new()?;
    let path = files.wat(
        "train.wasm",
        &plain(
            r#"(import "wasi:io/streams@0.2.0-rc-2023-11-05" (instance (export "f" (func))))
               (import "wasi:cli/exit@0.2.0" (instance (export "exit" (func (param "code" u32)))))
               (import "dchost:worker/worker-context@0.1.0" (instance
                 (export "is-chief" (func (result string)))
                 (export "rank" (func (result u32)))))"#,
        ),
    )?;
    let told = refused_by_both(&path, &[])?;
    for part in [
        "unknown import  `wasi:io/streams@0.2.0-rc-2023-11-05`: host offers WASI 0.2.x; rebuild",
        "wrong import    `exit` of `wasi:cli/exit@0.2.0` is imported as `func(code: u32)`",
        "wrong import    `is-chief` of `dchost:worker/worker-context@0.1.0`",
        "unknown import  `rank` of `dchost:worker/worker-context@0.1.0`",
    ] {
        assert!(told.contains(part), "no `{part}` in:\n{told}");
    }
    let verdicts: Vec<_> = object(&path, &[])?["imports"]
        .as_array()
        .context("imports")?
        .iter()
        .map(|import| import["verdict"].as_str().unwrap_or_default().to_owned())
        .collect();
    assert_eq!(verdicts, ["wrong-signature", "wrong-signature", "wrong-version"]);
    Ok(())
}

#[test]
fn a_component_of_a_newer_dchost_is_told_that_this_one_is_too_old() -> Result<()> {
    let files = Files::new()?;
    let path = files.wat("train.wasm", &plain("").replace("entry@0.1.0", "entry@0.9.0"))?;
    let told = refused_by_both(&path, &[])?;
    assert!(told.contains("`dchost:worker/entry@0.9.0`: host offers 0.1.x; this dchost is too old for it"), "{told}");
    Ok(())
}

#[test]
fn a_missing_a_misplaced_and_another_run_are_told_apart() -> Result<()> {
    let files = Files::new()?;
    let root =
        plain("").replace(r#"(export "dchost:worker/entry@0.1.0" (instance $entry))"#, r#"(export "run" (func $run))"#);
    let other = r#"(component
      (core module $m (func (export "run") (param i32) (result i32) (local.get 0)))
      (core instance $i (instantiate $m))
      (func $run (param "steps" u32) (result u32) (canon lift (core func $i "run")))
      (instance $entry (export "run" (func $run)))
      (export "dchost:worker/entry@0.1.0" (instance $entry)))"#;
    for (text, told) in [
        ("(component)", "it exports nothing: mark the entry with `#[worker_fn]`"),
        (root.as_str(), "`run` stands at the root of the world, export it inside interface `dchost:worker/entry`"),
        (other, "is `func(steps: u32) -> u32`, but `func() -> result<_, string>` is called"),
    ] {
        let output = refused_by_both(&files.wat("train.wasm", text)?, &[])?;
        assert!(output.contains(told), "no `{told}` in:\n{output}");
    }
    Ok(())
}

#[test]
fn an_unknown_import_is_refused_or_traps_when_it_is_called() -> Result<()> {
    const TRAP: [&str; 2] = ["-W", "unknown-imports-trap"];
    let files = Files::new()?;
    let (idle, calling) = (files.wat("idle.wasm", &gpu(false))?, files.wat("calling.wasm", &gpu(true))?);
    for path in [&idle, &calling] {
        let told = refused_by_both(path, &[])?;
        assert!(told.contains("unknown import  `acme:gpu/ops@1.0.0`"), "{told}");
        assert_eq!(inspect(path, &["--check", TRAP[0], TRAP[1]])?.code, 0, "linked, and not run");
    }
    let outcome = run(&idle, &TRAP)?;
    assert_eq!(outcome.code, 0, "{}", outcome.output);
    let outcome = run(&calling, &TRAP)?;
    assert_eq!(outcome.code, 3, "{}", outcome.output);
    assert!(outcome.stderr.contains("unknown import `acme:gpu/ops@1.0.0#launch` called"), "{}", outcome.output);
    Ok(())
}

/// Aim: what was built against an earlier 0.1 keeps working. Method: a component that is kept as it was built.
#[test]
fn a_component_built_with_the_first_sdk_still_runs() -> Result<()> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("guests/old/worker-0.1.0.wasm");
    let outcome = inspect(&path, &["--check"])?;
    assert_eq!(outcome.code, 0, "{}", outcome.output);
    let args = ["launch", "--workers", "2", "--ps", "2", "--module"].map(OsString::from);
    let outcome = Run::new("launch").args(args).args([path.as_os_str()]).start()?.wait(PATIENCE)?;
    assert_eq!(outcome.code, 0, "{}", outcome.output);
    Ok(())
}

/// A newer patch of the interfaces with the same functions is served as this one is.
#[test]
fn a_component_of_a_newer_patch_runs() -> Result<()> {
    let files = Files::new()?;
    let text = worker(
        r#"(import "dchost:worker/worker-context@0.1.7" (instance $context (export "is-chief" (func (result bool)))))
           (core func $is-chief (canon lower (func $context "is-chief")))"#,
        r#"(import "context" "is-chief" (func $is-chief (result i32)))"#,
        r#"(with "context" (instance (export "is-chief" (func $is-chief))))"#,
        "(if (i32.eqz (call $is-chief)) (then unreachable))",
    );
    let outcome = run(&files.wat("train.wasm", &text.replace("entry@0.1.0", "entry@0.1.7"))?, &[])?;
    assert_eq!(outcome.code, 0, "{}", outcome.output);
    Ok(())
}

/// Aim: a file's name, which whoever sends it chooses, drives no terminal and makes no line of its own. Method: such a name, and
/// everything that tells it.
#[test]
fn names_of_files_are_escaped_wherever_they_are_told() -> Result<()> {
    let files = Files::new()?;
    let name = "a\u{1b}[31m\u{9b}2J\nerror: forged.wasm";
    let bad = files.write(name, b"\0asm\x0d\0\x01\0\xff")?;
    let missing = files.0.path().join(format!("no{name}"));
    let out = files.0.path().join("out").display().to_string();
    for path in [&bad, &missing] {
        let path = path.as_os_str();
        let commands: [&[&str]; 6] = [
            &["inspect"],
            &["inspect", "--check", "--format", "json"],
            &["plan", "--format", "json", "--config"],
            &["compile", "-o", &out],
            &["launch", "--workers", "1", "--module"],
            &["--module"],
        ];
        for command in commands {
            let outcome = Run::new("dchost").args(command.iter().copied()).args([path]).output()?;
            assert!(outcome.output.contains("forged.wasm"), "{command:?}: {}", outcome.output);
            assert!(!outcome.output.contains(['\u{1b}', '\u{9b}']), "{command:?}: {:?}", outcome.output);
            assert!(!outcome.output.lines().any(|line| line.starts_with("error: forged")), "{}", outcome.output);
        }
    }
    Ok(())
}
