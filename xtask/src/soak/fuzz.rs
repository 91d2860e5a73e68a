//! Fuzzing: the targets of `tests/fuzz`, each for a while.
//!
//! Needs nightly, for instrumented code, and cargo-fuzz; neither is part of the gate. Everything that it writes lies in
//! `tests/fuzz/target`: what was built, each target's corpus (which the next soak goes on from), logs and findings.

use crate::shell::{cargo, command, output, root, run as run_command, shown, succeeds};
use anyhow::{Context as _, Result, bail, ensure};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// Every target and its largest input in bytes: a component has some KiB, the others say much in little.
/// `tests/fuzz/src/lib.rs` says what each does.
const TARGETS: [(&str, u32); 4] = [("loader", 32 << 10), ("config", 4 << 10), ("imports", 4 << 10), ("wire", 4 << 10)];

/// How long each target runs where the command line does not say, in seconds.
pub(super) const SECONDS: u32 = 60;

/// Bounds of each target: memory in MiB, and one input's time in seconds.
const BOUNDS: [&str; 2] = ["-rss_limit_mb=2048", "-timeout=10"];

/// How a target is built.
///
/// Without a sanitizer: dchost has no unsafe code that a guest reaches, wasmtime's own is fuzzed with sanitizers upstream,
/// and one would double the time of a build and of each run. Overflow checks and debug assertions are on. Without
/// `cfg(fuzzing)`: what is tested is what is shipped.
const BUILD: [&str; 8] =
    ["+nightly", "fuzz", "build", "--fuzz-dir", "tests/fuzz", "--sanitizer", "none", "--no-cfg-fuzzing"];

/// Builds the targets and runs each for `seconds`.
///
/// # Errors
/// A tool that is missing, with how to install it; a failing build; findings, with how to repeat them.
pub(super) fn run(seconds: u32) -> Result<String> {
    ensure_tools()?;
    let work = root().join("tests/fuzz/target");
    run_command(cargo(BUILD).arg("--target-dir").arg(&work))?;
    let binaries = work.join(host()?).join("release");
    let mut notes = Vec::new();
    let mut findings = Vec::new();
    for (target, input_bytes_max) in TARGETS {
        let bounds = [format!("-max_total_time={seconds}"), format!("-max_len={input_bytes_max}")];
        let outcome = fuzz(&binaries.join(target), target, &work, &bounds)?;
        println!("{target:<8} {}", outcome.note);
        notes.push(format!("{target} {}", outcome.note));
        findings.extend(outcome.finding);
    }
    ensure!(
        findings.is_empty(),
        "{} of {} targets found something:\n{}",
        findings.len(),
        TARGETS.len(),
        findings.join("\n")
    );
    Ok(notes.join("; "))
}

fn ensure_tools() -> Result<()> {
    if !succeeds(&mut cargo(["+nightly", "--version"])) {
        bail!("fuzzing needs the nightly toolchain: `rustup toolchain install nightly --profile minimal`");
    }
    if !succeeds(&mut cargo(["fuzz", "--version"])) {
        bail!("fuzzing needs cargo-fuzz, and a C++ compiler for libFuzzer: `cargo install --locked cargo-fuzz`");
    }
    Ok(())
}

/// This machine's target triple, which cargo-fuzz builds for.
fn host() -> Result<String> {
    let version = output(command("rustc").args(["+nightly", "-vV"]))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("find the host in what `rustc -vV` prints")?.to_owned())
}

/// What came of one target.
struct Outcome {
    note: String,
    finding: Option<String>,
}

/// Runs one target on its seeds, the corpus of earlier soaks and what it makes of them.
fn fuzz(binary: &Path, target: &str, work: &Path, bounds: &[String]) -> Result<Outcome> {
    let directory = |name: &str| -> Result<PathBuf> {
        let directory = work.join(name).join(target);
        fs::create_dir_all(&directory).with_context(|| format!("make `{}`", directory.display()))?;
        Ok(directory)
    };
    let (corpus, generated, artifacts) = (directory("corpus")?, directory("generated")?, directory("artifacts")?);
    let log = work.join(format!("{target}.log"));
    let mut fuzzer = command(binary);
    fuzzer
        .args(BOUNDS)
        .args(bounds)
        .arg(format!("-artifact_prefix={}/", artifacts.display()))
        .arg("-print_final_stats=1")
        // New inputs go to the first directory.
        .args([&corpus, &generated])
        // Earlier findings of this target, if there are any.
        .args(Some(root().join("tests/fuzz/seeds").join(target)).filter(|seeds| seeds.is_dir()))
        .env("FUZZ_SEEDS_DIR", &generated)
        .env("RUST_BACKTRACE", "1")
        // Compiling on one thread costs less than handing out functions of a few bytes.
        .env("RAYON_NUM_THREADS", "1")
        .stderr(File::create(&log).with_context(|| format!("make `{}`", log.display()))?);
    println!("$ {}", shown(&fuzzer));
    let status = fuzzer.status().with_context(|| format!("start `{}`", binary.display()))?;
    let text = String::from_utf8_lossy(&fs::read(&log).context("read the fuzzer's log")?).into_owned();
    let executions = stat(&text, "stat::number_of_executed_units:").unwrap_or(0);
    let coverage = text.lines().rev().find_map(|line| stat(line, "cov:")).unwrap_or(0);
    let findings = u8::from(!status.success());
    let note = format!("{executions} executions, {coverage} edges, {findings} findings");
    let finding = (!status.success()).then(|| {
        let what = reason(&text).unwrap_or("it ended without a reason");
        let artifact = text.split_once("Test unit written to ").and_then(|(_, rest)| rest.lines().next());
        let repeat = match artifact {
            Some(artifact) => format!("repeat: {} {artifact}", binary.display()),
            None => "no input was kept".to_owned(),
        };
        format!("  {target}: {what}\n    {repeat}\n    log: {}", log.display())
    });
    ensure!(executions > 0 || finding.is_some(), "`{target}` ran nothing, see `{}`", log.display());
    Ok(Outcome { note, finding })
}

/// The number after `name`.
fn stat(text: &str, name: &str) -> Option<u64> {
    let (_, rest) = text.split_once(name)?;
    rest.split_whitespace().next()?.parse().ok()
}

/// Why a fuzzer ended: the panic's text, else what libFuzzer says.
fn reason(log: &str) -> Option<&str> {
    let mut lines = log.lines();
    match lines.find(|line| line.contains(" panicked at ")) {
        Some(_) => lines.next(),
        None => log.lines().find(|line| line.contains("ERROR: libFuzzer: ")),
    }
}

#[cfg(test)]
mod tests {
    use super::{reason, stat};

    #[test]
    fn logs_are_understood() {
        let log = "#8192 pulse  cov: 3120 ft: 9000\nthread 'x' (1) panicked at src/a.rs:1:2:\nboom\n\
                   ==1== ERROR: libFuzzer: deadly signal\nstat::number_of_executed_units: 8200\n";
        assert_eq!(stat(log, "stat::number_of_executed_units:"), Some(8200));
        assert_eq!(stat(log, "cov:"), Some(3120));
        assert_eq!(reason(log), Some("boom"));
        assert_eq!(reason("==1== ERROR: libFuzzer: out-of-memory"), Some("==1== ERROR: libFuzzer: out-of-memory"));
        assert_eq!((stat("", "cov:"), reason("Done 7 runs")), (None, None));
    }
}
