//! `dchost launch`.

use anyhow::{Context, Result};
use dchost_tests::{PATIENCE, Process, Run, Signal, guest, is_listening, wait_until};
use rustix::process::{Pid, kill_process};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Two seconds are promised after a signal; the rest is for a test machine that runs much else.
const SOON: Duration = Duration::from_secs(10);

pub(crate) fn launch(name: &str, args: &[&str]) -> Result<Run> {
    let module = guest(name)?.into_os_string();
    Ok(Run::new("launch").args(["launch".into(), "--module".into(), module]).args(args))
}

/// The processes that `parent` has started, with the port of each.
fn children(parent: &Process) -> Result<BTreeMap<u32, u16>> {
    let pid = parent.pid();
    let mut children = BTreeMap::new();
    // Any thread of the launcher may have started a child.
    for thread in std::fs::read_dir(format!("/proc/{pid}/task")).context("list the launcher's threads")? {
        let list = std::fs::read_to_string(thread.context("list")?.path().join("children")).context("read children")?;
        for child in list.split_whitespace() {
            let command = std::fs::read(format!("/proc/{child}/cmdline")).context("read a command line")?;
            let words: Vec<_> = command.split(|&byte| byte == 0).map(String::from_utf8_lossy).collect();
            let after = |flag: &str| words.iter().skip_while(|word| *word != flag).nth(1);
            let task = after("--task").with_context(|| format!("no --task in {words:?}"))?;
            let cluster = after("--cluster").with_context(|| format!("no --cluster in {words:?}"))?;
            let cluster: Value = serde_json::from_str(cluster).context("read --cluster")?;
            let (job, index) = task.split_once(':').context("split the task")?;
            let index: usize = index.parse().context("read the index")?;
            let address = cluster[job][index].as_str().context("find the address")?;
            let port = address.rsplit(':').next().and_then(|port| port.parse().ok()).context("find the port")?;
            children.insert(child.parse().context("read a process id")?, port);
        }
    }
    Ok(children)
}

fn is_alive(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}/cmdline")).exists()
}

#[test]
fn a_launched_counter_ends_well_and_every_line_has_its_task() -> Result<()> {
    let outcome = launch("counter", &["--workers", "3", "--ps", "2"])?.output()?;
    outcome.expect(0, &["worker:0 | x=16 y=14", "worker:1 | x=16 y=14", "worker:2 | x=16 y=14"]);
    assert_eq!(outcome.stdout.lines().count(), 3, "data only on standard output:\n{}", outcome.stdout);
    let table: Vec<_> = outcome.stderr.lines().skip_while(|line| !line.starts_with("task ")).collect();
    assert_eq!(table.len(), 6, "{}", outcome.stderr);
    assert!(table[1..].iter().all(|row| row.contains(" done ") && row.contains("MiB")), "{table:#?}");
    Ok(())
}

#[test]
fn chief_and_evaluator_can_be_launched() -> Result<()> {
    let outcome = launch("hello", &["--chief", "--workers", "1", "--ps", "1", "--evaluator"])?.output()?;
    outcome.expect(0, &["chief:0     | hello: is_chief true", "worker:0    | hello: is_chief false"]);
    outcome.expect(0, &["evaluator:0 | hello: distributed_mode false", "worker:0    | hello: num_workers 2"]);
    Ok(())
}

#[test]
fn the_environment_of_the_launcher_does_not_reach_the_tasks() -> Result<()> {
    let config = r#"{"cluster":{"worker":["elsewhere:1"]},"task":{"type":"worker","index":0}}"#;
    let run = launch("hello", &["--workers", "2"])?.env("TF_CONFIG", config).env("LISTEN_FDS", "7");
    run.output()?.expect(0, &["worker:1 | hello: num_workers 2"]);
    Ok(())
}

#[test]
fn lines_of_many_tasks_never_tear() -> Result<()> {
    let outcome = launch("prints", &["--workers", "3", "--", "2000", "1000"])?.output()?;
    assert_eq!(outcome.code, 0, "{}", outcome.output);
    for task in ["worker:0", "worker:1", "worker:2"] {
        let prefix = format!("{task} | line ");
        let lines: Vec<_> = outcome.stdout.lines().filter_map(|line| line.strip_prefix(&prefix)).collect();
        let numbers: Vec<usize> = lines.iter().filter_map(|number| number.parse().ok()).collect();
        assert_eq!(numbers, (0..1000).collect::<Vec<_>>(), "{task}");
    }
    for line in outcome.stdout.lines() {
        assert!(line.starts_with("worker:") && line[8..].starts_with(" | "), "no task in `{line}`");
    }
    Ok(())
}

#[test]
fn json_lines_carry_the_task() -> Result<()> {
    let outcome = launch("hello", &["--workers", "2", "--log-format", "json"])?.output()?;
    assert_eq!(outcome.code, 0, "{}", outcome.output);
    for line in outcome.output.lines() {
        serde_json::from_str::<Value>(line).with_context(|| format!("not JSON: {line}"))?;
    }
    let tasks: Vec<_> = outcome.stdout.lines().filter(|line| line.contains("\"task\":\"worker:1\"")).collect();
    assert!(!tasks.is_empty(), "{}", outcome.output);
    Ok(())
}

#[test]
fn the_first_cause_is_the_launchers_exit() -> Result<()> {
    for (ending, code, words) in [("error", 1, "failed in worker_fn"), ("panic", 3, "trapped")] {
        let outcome = launch("fails_after", &["--workers", "3", "--ps", "1", "--", "1", ending])?.output()?;
        outcome.expect(code, &["worker:0 | second barrier: peer-failed [worker:1]"]);
        let cause: Vec<_> = outcome.stderr.lines().filter(|line| line.contains("first cause")).collect();
        assert_eq!(cause.len(), 1, "{}", outcome.output);
        assert!(cause[0].starts_with("worker:1") && cause[0].contains(words), "{}", cause[0]);
    }
    Ok(())
}

#[test]
fn the_wall_clock_ends_a_launch() -> Result<()> {
    let outcome = launch("spins", &["--workers", "2", "--timeout", "2s"])?.output()?;
    outcome.expect(124, &["--timeout"]);
    Ok(())
}

#[test]
fn a_signal_to_the_launcher_leaves_no_process_and_no_port() -> Result<()> {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let run = launch("spins", &["--workers", "3", "--ps", "1"])?.start()?;
        run.wait_for_lines("| spinning", 3, PATIENCE)?;
        let children = children(&run)?;
        assert_eq!(children.len(), 4, "{children:?}");
        assert!(children.values().all(|&port| is_listening(port)), "{children:?}");
        let told = Instant::now();
        run.signal(signal);
        let outcome = run.wait(SOON)?;
        assert_eq!(outcome.code, code, "{}", outcome.output);
        assert!(told.elapsed() < SOON, "{:?}", told.elapsed());
        for (&pid, &port) in &children {
            assert!(!is_alive(pid) && !is_listening(port), "{pid} or {port} is left");
        }
    }
    Ok(())
}

#[test]
fn tasks_do_not_outlive_a_launcher_that_is_killed() -> Result<()> {
    let run = launch("spins", &["--workers", "2", "--ps", "1"])?.start()?;
    run.wait_for_lines("| spinning", 2, PATIENCE)?;
    let children = children(&run)?;
    assert_eq!(children.len(), 3, "{children:?}");
    run.signal(Signal::KILL);
    for (&pid, &port) in &children {
        wait_until("a task has ended", SOON, || !is_alive(pid) && !is_listening(port))?;
    }
    Ok(())
}

#[test]
fn a_launcher_whose_output_nobody_reads_any_more_finishes() -> Result<()> {
    let mut command = launch("prints", &["--workers", "2", "--", "0", "5000"])?.command()?;
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().context("start")?;
    let mut stdout = BufReader::new(child.stdout.take().context("its output")?);
    let mut line = String::new();
    stdout.read_line(&mut line).context("read the first line")?;
    drop(stdout);
    assert!(line.starts_with("worker:"), "{line}");
    assert_eq!(child.wait().context("wait")?.code(), Some(0));
    Ok(())
}

#[test]
fn a_worker_that_is_killed_counts_as_a_failed_peer() -> Result<()> {
    let run = launch("waits_uninitialized", &["--workers", "2", "--ps", "1"])?.start()?;
    run.wait_for_lines("| waiting", 2, PATIENCE)?;
    // In the order of their start: worker:0, worker:1, ps:0.
    let victim = *children(&run)?.keys().nth(1).context("a second child")?;
    let victim = i32::try_from(victim).ok().and_then(Pid::from_raw).context("its process id")?;
    // It is the launcher's child and has not been told to end, so the id is its own.
    kill_process(victim, Signal::KILL).context("kill it")?;
    let outcome = run.wait(PATIENCE)?;
    outcome.expect(202, &["ended by signal 9 (SIGKILL), first cause"]);
    Ok(())
}
