//! How one process ends, with each of its codes, and how a local run is tried again.

use anyhow::{Context, Result};
use dchost_tests::{Outcome, PATIENCE, Run, Signal, wait_until};
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::Stdio;

/// Checks the code, that standard error (or, for 0, nothing) says each text, and that nothing looks like a crash of dchost; a
/// guest's own panic is on `thread '<unnamed>'`.
#[track_caller]
fn check(outcome: &Outcome, code: i32, texts: &[&str]) {
    assert_eq!(outcome.code, code, "{}", outcome.output);
    for text in texts {
        assert!(outcome.stderr.contains(text), "no `{text}` in:\n{}", outcome.output);
    }
    // The second is where a panic of the host says it was.
    for sign in ["stack backtrace", concat!("host", "/src/"), "thread 'main'", "thread 'guest'", "thread 'control'"] {
        assert!(!outcome.stderr.contains(sign), "a crash:\n{}", outcome.output);
    }
}

/// Aim: whoever starts a process knows from its code and last words what to do. Method: one way to each code.
#[test]
fn each_code_of_a_single_process_says_what_to_do() -> Result<()> {
    let dir = tempfile::tempdir().context("make a directory")?;
    let file = dir.path().join("no-directory");
    std::fs::write(&file, "").context("write a file")?;
    let below_file = file.join("runs").display().to_string();
    let full = dir.path().join("full");
    std::fs::create_dir(&full).context("make a directory")?;
    std::os::unix::fs::symlink("/dev/full", full.join("local.jsonl")).context("link to the full device")?;
    let full = full.display().to_string();
    /// Guest, flags, arguments, code, texts of stderr.
    type Case<'a> = (&'a str, &'a [&'a str], &'a [&'a str], i32, &'a [&'a str]);
    let cases: &[Case<'_>] = &[
        ("hello", &[], &[], 0, &[]),
        ("worker_error", &[], &[], 1, &["worker_fn failed: bad shard 7"]),
        ("exits", &[], &["3"], 1, &["the guest exited"]),
        ("hello", &["--max-memory", "64KiB"], &[], 2, &["--max-memory"]),
        ("panics", &[], &[], 3, &["the guest trapped", "loss is NaN"]),
        ("spins", &["-W", "cpu-timeout=1s"], &[], 4, &["cpu limit", "-W cpu-timeout"]),
        ("tries_again", &["--summary-dir", &below_file], &["0"], 74, &["--summary-dir", &below_file]),
        ("tries_again", &["--summary-dir", &full], &["0"], 74, &["--summary-dir", "No space left"]),
        ("sleeps", &["--timeout", "1s"], &[], 124, &["--timeout"]),
    ];
    for (guest, flags, args, code, texts) in cases {
        let outcome = Run::guest(guest)?.args(*flags).guest_args(*args).output()?;
        check(&outcome, *code, texts);
    }
    for (signal, code, text) in [(Signal::INT, 130, "ended by SIGINT"), (Signal::TERM, 143, "ended by SIGTERM")] {
        let run = Run::guest("sleeps")?.start()?;
        run.wait_for_line("sleeping", PATIENCE)?;
        run.signal(signal);
        check(&run.wait(PATIENCE)?, code, &[text]);
    }
    Ok(())
}

#[test]
fn a_local_run_is_tried_again_from_nothing() -> Result<()> {
    let dir = tempfile::tempdir().context("make a directory")?;
    for ending in ["error", "panic", "exit", "memory"] {
        let summaries = dir.path().join(ending);
        let run = Run::guest("tries_again")?
            .args(["--max-attempts", "3", "--max-memory", "64MiB", "--summary-dir"])
            .args([summaries.as_os_str()]);
        let outcome = run.guest_args(["2", ending]).output()?;
        check(&outcome, 0, &["attempt 1 of 3 failed: ", "attempt 2 of 3 failed: ", "the next one begins"]);
        let stdout = "attempt 0 found nothing\nattempt 1 found nothing\nattempt 2 found nothing\n";
        assert_eq!(outcome.stdout, stdout, "{ending}: {}", outcome.output);
        let text = std::fs::read_to_string(summaries.join("local.jsonl")).context("read the summaries")?;
        assert_eq!(text.lines().count(), 3, "summaries are appended: {text}");
    }
    Ok(())
}

#[test]
fn the_last_attempts_failure_is_the_processs() -> Result<()> {
    for (ending, code, words) in [
        ("error", 1, "lost at attempt 2 (after 3 attempts)"),
        ("panic", 3, "(after 3 attempts)"),
        ("memory", 4, "more refused (--max-memory) (after 3 attempts)"),
    ] {
        let run =
            Run::guest("tries_again")?.args(["--max-attempts", "3", "--max-memory", "64MiB"]).guest_args(["9", ending]);
        let outcome = run.output()?;
        check(&outcome, code, &[words]);
        assert!(outcome.stderr.contains("attempt 2 of 3 failed"), "{}", outcome.output);
        assert_eq!(outcome.stdout.lines().count(), 3, "{}", outcome.output);
    }
    Ok(())
}

/// Aim: what one attempt printed is not held against the next. Method: a budget that one attempt nearly uses up.
#[test]
fn each_attempt_has_an_output_budget_of_its_own() -> Result<()> {
    let run = |attempts: &str| -> Result<Outcome> {
        let run = Run::guest("tries_again")?.args(["--max-attempts", attempts, "-W", "max-output=200"]);
        run.guest_args(["2", "error"]).output()
    };
    let outcome = run("3")?;
    check(&outcome, 0, &[]);
    assert_eq!(outcome.stdout.lines().count(), 3, "{}", outcome.output);
    assert!(!outcome.stderr.contains("[dchost "), "nothing was held back: {}", outcome.output);
    Ok(())
}

/// Aim: whoever keeps the output of a run hears that it isn't there. Method: a device that is always full; a run's own
/// failure, and a reader that has gone, change nothing.
#[test]
fn standard_output_that_cannot_be_written_is_74() -> Result<()> {
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").context("open the full device");
    let [hello, prints, error] = ["hello", "prints", "worker_error"].map(dchost_tests::guest);
    let (hello, prints, error) = (hello?, prints?, error?);
    let dir = tempfile::tempdir()?;
    let new = dir.path().join("my-job");
    let [hello, prints, error, new] = [&hello, &prints, &error, &new].map(|path| path.display().to_string());
    let cases: &[(&[&str], i32)] = &[
        (&["--module", &prints], 74),
        (&["--log-format", "json", "--module", &prints], 74),
        (&["--module", &error], 1),
        (&["launch", "--workers", "2", "--module", &hello], 74),
        (&["plan", "--module", &hello], 74),
        (&["plan", "--format", "json", "--module", &hello], 74),
        (&["inspect", &hello], 74),
        (&["inspect", "--format", "json", &hello], 74),
        (&["new", &new], 74),
        (&["--help"], 74),
        (&["--version"], 74),
    ];
    for (args, code) in cases {
        let run = |stdout: Stdio| {
            let mut command = std::process::Command::new(dchost_tests::dchost()?);
            let command = command.args(*args).stdin(Stdio::null()).stdout(stdout);
            command.output().context("run dchost")
        };
        let output = run(full()?.into())?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(*code), "{args:?}: {stderr}");
        assert!(!stderr.contains("panicked"), "{args:?}: {stderr}");
        if *code == 74 {
            assert!(stderr.contains("standard output") && stderr.contains("No space left"), "{args:?}: {stderr}");
        }
        if args[0] == "new" {
            continue;
        }
        let (reader, gone) = std::io::pipe().context("make a pipe")?;
        drop(reader);
        let output = run(gone.into())?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(if *code == 74 { 0 } else { *code }), "{args:?}: {stderr}");
        assert!(!stderr.contains("standard output"), "{args:?}: {stderr}");
    }
    Ok(())
}

/// More than a pipe holds, and less than what dchost holds for its reader: the guest ends although nobody reads.
const LINES: usize = 100_000;

/// Starts dchost with arguments, a guest that prints [`LINES`] lines, and a standard output that the test may leave unread.
fn prints_much(args: &[&str]) -> Result<std::process::Child> {
    let mut command = std::process::Command::new(dchost_tests::dchost()?);
    command.args(args).arg("--module").arg(dchost_tests::guest("prints")?).args(["--", "0", &LINES.to_string()]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().context("run dchost")
}

/// Waits for the end of a process, whose code it answers.
fn code_of(process: &mut std::process::Child) -> Result<Option<i32>> {
    wait_until("dchost ends", PATIENCE, || !matches!(process.try_wait(), Ok(None)))?;
    Ok(process.wait().context("wait")?.code())
}

#[test]
fn output_that_nobody_reads_keeps_a_process_until_it_has_to_end() -> Result<()> {
    for args in [&["--timeout", "5s"][..], &["launch", "--workers", "2", "--timeout", "5s"]] {
        let code = code_of(&mut prints_much(args)?)?;
        assert_eq!(code, Some(124), "{args:?}: without a reader nothing but the clock ends it");
    }
    Ok(())
}

/// Aim: what tasks printed reaches whoever reads it late, and a signal ends a launcher that waits for that. Method: a pipe that
/// is not read before all tasks have ended.
#[test]
fn output_of_a_launched_cluster_is_all_there_when_it_is_read_late() -> Result<()> {
    for signal in [None, Some(Signal::TERM)] {
        let mut launch = prints_much(&["launch", "--workers", "2"])?;
        let mut stdout = BufReader::new(launch.stdout.take().context("a pipe")?);
        stdout.read_line(&mut String::new()).context("read a line")?;
        let children = format!("/proc/{0}/task/{0}/children", launch.id());
        std::fs::metadata(&children).context("list tasks")?;
        wait_until("tasks end", PATIENCE, || std::fs::read_to_string(&children).is_ok_and(|tasks| tasks.is_empty()))?;
        let code = match signal {
            Some(signal) => {
                rustix::process::kill_process(rustix::process::Pid::from_child(&launch), signal).context("signal")?;
                143
            }
            None => {
                let mut ends = 0;
                for line in stdout.by_ref().lines() {
                    ends += usize::from(line.context("read")?.ends_with(&format!("| line {}", LINES - 1)));
                }
                assert_eq!(ends, 2, "the last lines of both");
                0
            }
        };
        assert_eq!(code_of(&mut launch)?, Some(code));
    }
    Ok(())
}

#[test]
fn what_another_attempt_would_meet_again_is_not_tried_again() -> Result<()> {
    let outcome = Run::guest("hello")?.args(["--max-attempts", "3", "--max-memory", "64KiB"]).output()?;
    check(&outcome, 2, &["--max-memory"]);
    assert!(!outcome.stderr.contains("of 3 failed"), "{}", outcome.output);
    Ok(())
}

#[test]
fn the_wall_clock_spans_all_attempts() -> Result<()> {
    let run = Run::guest("tries_again")?.args(["--max-attempts", "100000", "--timeout", "3s"]);
    let outcome = run.guest_args(["100000", "slow"]).output()?;
    check(&outcome, 124, &["--timeout", "attempt 1 of 100000 failed"]);
    Ok(())
}

#[test]
fn a_cluster_is_not_tried_again_yet() -> Result<()> {
    let cluster = r#"{"worker":["127.0.0.1:1"]}"#;
    let run = Run::guest("hello")?.args(["--cluster", cluster, "--task", "worker:0", "--max-attempts", "2"]);
    check(&run.output()?, 2, &["--max-attempts", "independent workers"]);
    let module = dchost_tests::guest("hello")?;
    let run = Run::new("launch").args(["launch", "--workers", "2", "--max-attempts", "2", "--module"]);
    check(&run.args([module.as_os_str()]).output()?, 2, &["--max-attempts", "independent workers"]);
    Ok(())
}

/// Aim: what is written beyond a limit on the size of files fails, and does not end the process by SIGXFSZ. Method: a cold
/// compile cache and a core dump, both larger than the limit.
#[test]
fn a_limit_on_the_size_of_files_ends_no_process() -> Result<()> {
    let dir = tempfile::tempdir().context("make a directory")?;
    let output = std::process::Command::new("sh")
        .args(["-c", "ulimit -f 64; exec \"$@\"", "sh"])
        .arg(dchost_tests::dchost()?)
        .args(["--max-memory", "64MiB", "--cache-dir"])
        .arg(dir.path().join("cache"))
        .arg("-D")
        .arg(format!("coredump={}", dir.path().display()))
        .arg("--module")
        .arg(dchost_tests::guest("panics")?)
        .output()
        .context("run sh")?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{stderr}");
    assert!(stderr.contains("loss is NaN") && stderr.contains("coredump"), "{stderr}");
    Ok(())
}
