//! A run on its own: output, ends and limits.

use anyhow::{Context, Result};
use dchost_tests::{PATIENCE, Run, Signal};
use serde_json::Value;
use std::time::Duration;

/// Two seconds are promised after a signal; the rest is for a test machine that runs much else.
const SOON: Duration = Duration::from_secs(10);

#[test]
fn hello_prints_the_context_of_a_local_run() -> Result<()> {
    let outcome = Run::guest("hello")?.guest_args(["--greet"]).output()?;
    assert_eq!(outcome.code, 0, "{}", outcome.output);
    let lines = ["task none", "master_target local", "num_workers 0", "is_chief true", "distributed_mode false"];
    for line in lines.iter().chain(&["has_barrier false", "cluster none", "args [\"--greet\"]"]) {
        assert!(outcome.stdout.contains(&format!("hello: {line}\n")), "no `{line}` in:\n{}", outcome.output);
    }
    Ok(())
}

#[test]
fn output_is_escaped_and_stays_on_its_stream() -> Result<()> {
    let outcome = Run::guest("prints")?.guest_args(["0", "500"]).output()?;
    assert_eq!(outcome.code, 0, "{}", outcome.output);
    let is_harmful = |c: char| c.is_control() && c != '\n' && c != '\t';
    assert!(!outcome.output.contains(is_harmful), "{:?}", outcome.output);
    for line in ["plain stdout", "tab\there", "last words on stdout", "line 0", "line 499"] {
        assert!(outcome.stdout.lines().any(|seen| seen == line), "no `{line}` in:\n{}", outcome.output);
    }
    for text in ["plain stderr", "log warn", "log error", "last words on stderr"] {
        assert!(outcome.stderr.contains(text), "no `{text}` in:\n{}", outcome.output);
    }
    assert!(!outcome.stderr.contains("log trace"), "details are shown on request only:\n{}", outcome.output);
    Ok(())
}

#[test]
fn json_output_is_json_in_every_line() -> Result<()> {
    let outcome = Run::guest("prints")?.args(["--log-format", "json"]).output()?;
    assert_eq!(outcome.code, 0, "{}", outcome.output);
    for line in outcome.output.lines() {
        let value: Value = serde_json::from_str(line).with_context(|| format!("not JSON: {line}"))?;
        assert!(value["level"].is_string(), "{line}");
    }
    assert!(outcome.stdout.contains("\"message\":\"plain stdout\""), "{}", outcome.output);
    Ok(())
}

#[test]
fn an_error_of_worker_fn_is_1_told_once() -> Result<()> {
    let outcome = Run::guest("worker_error")?.output()?;
    assert_eq!(outcome.code, 1, "{}", outcome.output);
    assert_eq!(outcome.output.matches("bad shard 7").count(), 1, "{}", outcome.output);
    assert!(!outcome.output.contains("backtrace"), "an error is no crash:\n{}", outcome.output);
    Ok(())
}

#[test]
fn a_panic_is_3_with_the_last_words() -> Result<()> {
    let outcome = Run::guest("panics")?.output()?;
    assert_eq!(outcome.code, 3, "{}", outcome.output);
    for text in ["loss is NaN", "check_loss"] {
        assert!(outcome.output.contains(text), "no `{text}` in:\n{}", outcome.output);
    }
    Ok(())
}

#[test]
fn an_exit_of_the_guest_is_1_or_0() -> Result<()> {
    for (number, code) in [("3", 1), ("0", 0)] {
        let outcome = Run::guest("exits")?.guest_args([number]).output()?;
        assert_eq!(outcome.code, code, "{}", outcome.output);
        assert!(outcome.stdout.contains(&format!("exiting with {number}")), "{}", outcome.output);
    }
    Ok(())
}

#[test]
fn an_exhausted_stack_is_3_and_says_so() -> Result<()> {
    for kind in ["wasm", "shadow"] {
        let outcome = Run::guest("recurses")?.guest_args([kind]).output()?;
        assert_eq!(outcome.code, 3, "{kind}: {}", outcome.output);
        assert!(outcome.output.contains("stack"), "{kind}: {}", outcome.output);
    }
    Ok(())
}

#[test]
fn memory_beyond_the_limit_is_4_and_names_the_flag() -> Result<()> {
    const LIMIT: u64 = 256 << 20;
    let run = |ending| Run::guest("allocates")?.args(["--max-memory", "256MiB"]).guest_args([ending, "16"]).output();
    let aborted = run("aborts")?;
    assert_eq!(aborted.code, 4, "{}", aborted.output);
    assert!(aborted.output.contains("--max-memory"), "{}", aborted.output);
    let refused = run("refused")?;
    assert_eq!(refused.code, 1, "a guest that copes with the refusal ends as it likes: {}", refused.output);
    assert!(refused.output.contains("memory refused after"), "{}", refused.output);
    for outcome in [aborted, refused] {
        // What dchost itself and the compiler need comes on top.
        assert!(outcome.peak_memory_bytes < LIMIT + (200 << 20), "{} bytes resident", outcome.peak_memory_bytes);
    }
    Ok(())
}

#[test]
fn the_wall_clock_ends_a_guest_that_spins_and_one_that_sleeps() -> Result<()> {
    for guest in ["spins", "sleeps"] {
        let outcome = Run::guest(guest)?.args(["--timeout", "2s"]).output()?;
        assert_eq!(outcome.code, 124, "{guest}: {}", outcome.output);
        assert!(outcome.stderr.contains("--timeout"), "{guest}: {}", outcome.output);
    }
    Ok(())
}

#[test]
fn a_signal_ends_a_guest_that_spins_and_one_that_sleeps() -> Result<()> {
    for (guest, sign) in [("spins", "spinning"), ("sleeps", "sleeping")] {
        for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130)] {
            let run = Run::guest(guest)?.start()?;
            run.wait_for_line(sign, PATIENCE)?;
            run.signal(signal);
            let outcome = run.wait(SOON)?;
            assert_eq!(outcome.code, code, "{guest}: {}", outcome.output);
        }
    }
    Ok(())
}

#[test]
fn a_launched_child_ends_when_its_launcher_has_gone() -> Result<()> {
    for (guest, sign) in [("spins", "spinning"), ("sleeps", "sleeping")] {
        let mut run = Run::guest(guest)?.args(["--launched"]).pipe_stdin().start()?;
        run.wait_for_line(sign, PATIENCE)?;
        run.close_stdin();
        assert_eq!(run.wait(SOON)?.code, 143, "{guest}: {}", run.report());
    }
    Ok(())
}

#[test]
fn closed_standard_streams_do_not_change_the_end() -> Result<()> {
    let (reader, writer) = std::io::pipe().context("make a pipe")?;
    drop(reader);
    let mut command = Run::guest("prints")?.guest_args(["0", "5000"]).command()?;
    command.stdout(writer.try_clone().context("share the pipe")?).stderr(writer);
    let mut child = command.spawn().context("start")?;
    drop(command);
    assert_eq!(child.wait().context("wait")?.code(), Some(0));
    Ok(())
}

#[test]
fn a_run_writes_its_summaries() -> Result<()> {
    let dir = tempfile::tempdir().context("make a directory")?;
    let summaries = dir.path().join("runs/1");
    let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/data::/data:ro");
    let run = Run::guest("digits")?.args(["--dir", data, "--summary-dir"]).args([summaries.as_os_str()]);
    let outcome = run.guest_args(["--epochs", "1"]).output()?;
    assert_eq!(outcome.code, 0, "{}", outcome.output);
    let text = std::fs::read_to_string(summaries.join("local.jsonl")).context("read the summaries")?;
    assert!(!text.is_empty(), "{}", outcome.output);
    for line in text.lines() {
        let value: Value = serde_json::from_str(line).with_context(|| format!("not JSON: {line}"))?;
        assert!(value["step"].is_u64() && value["tag"].is_string() && value["wall_time"].is_f64(), "{line}");
    }
    Ok(())
}

#[test]
fn started_calls_are_answered_in_any_order() -> Result<()> {
    let outcome = Run::guest("pends")?.output()?;
    assert_eq!(outcome.code, 0, "{}", outcome.output);
    assert!(outcome.stdout.contains("updates ready, versions"), "{}", outcome.output);
    Ok(())
}

#[test]
fn a_directory_is_there_only_where_granted_and_written_only_where_allowed() -> Result<()> {
    let dir = tempfile::tempdir()?;
    std::fs::write(dir.path().join("greeting.txt"), "hello\n")?;
    let grant = |mode: &str| format!("{}::/data{mode}", dir.path().display());
    let written = dir.path().join("written.txt");

    let outcome = Run::guest("reads_dir")?.output()?;
    assert!(outcome.stdout.contains("cannot list /data"), "{}", outcome.output);

    let outcome = Run::guest("reads_dir")?.args(["--dir", &grant(":ro")]).output()?;
    assert!(outcome.stdout.contains("/data/greeting.txt: hello\n"), "{}", outcome.output);
    assert!(outcome.stdout.contains("cannot write to /data: PermissionDenied"), "{}", outcome.output);
    assert!(!written.exists());

    let outcome = Run::guest("reads_dir")?.args(["--dir", &grant("")]).output()?;
    assert!(outcome.stdout.contains("wrote /data/written.txt"), "{}", outcome.output);
    assert_eq!(std::fs::read_to_string(&written)?, "by the guest\n");
    Ok(())
}
