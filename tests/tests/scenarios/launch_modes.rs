//! `dchost launch` of split clients and in-graph drivers.

use crate::launch::launch;
use anyhow::{Context, Result};
use dchost_tests::{Outcome, PATIENCE, Signal};
use serde_json::Value;
use std::time::Duration;

/// The closing table's row of a task.
#[track_caller]
fn row<'o>(outcome: &'o Outcome, task: &str) -> &'o str {
    let mut rows = outcome.stderr.lines().skip_while(|line| !line.starts_with("task "));
    rows.find(|row| row.starts_with(task)).unwrap_or_else(|| panic!("no row of {task}:\n{}", outcome.stderr))
}

#[test]
fn a_launched_client_runs_everything_and_its_servers_end_with_it() -> Result<()> {
    for flags in [&["--client"][..], &["--mode", "split-client"]] {
        let outcome = launch("counter", &["--workers", "3", "--ps", "2"])?.args(flags).output()?;
        for worker in 0..3 {
            outcome.expect(0, &[&format!("client:0 | worker:{worker} | x=16 y=14")]);
        }
        assert_eq!(outcome.stdout.lines().count(), 3, "data only on standard output:\n{}", outcome.stdout);
        assert!(row(&outcome, "client:0").contains(" done "), "{}", outcome.stderr);
        assert!(!row(&outcome, "ps:1").contains("failed"), "{}", outcome.stderr);
        assert!(outcome.time < Duration::from_secs(30), "{:?}", outcome.time);
    }
    Ok(())
}

#[test]
fn an_evaluator_of_a_launched_client_has_a_server_and_runs_in_the_client() -> Result<()> {
    let flags = ["--workers", "2", "--ps", "1", "--evaluator", "--mode", "split-client"];
    let outcome = launch("evaluates", &flags)?.output()?;
    outcome.expect(0, &["client:0    | evaluator:0 | reads x = 5", "client:0    | worker:0 | trained, score 0.5"]);
    Ok(())
}

#[test]
fn in_graph_is_launched_in_both_modes() -> Result<()> {
    let flags = ["--workers", "3", "--replication", "in-graph"];
    let independent = launch("drives", &flags)?.output()?;
    independent.expect(0, &["worker:0 | sum 33.0 on grpc://127.0.0.1:"]);
    let split = launch("drives", &flags)?.args(["--client"]).output()?;
    split.expect(0, &["client:0 | sum 33.0 on grpc://127.0.0.1:"]);
    for outcome in [independent, split] {
        assert_eq!(outcome.stdout.lines().count(), 1, "{}", outcome.stdout);
    }
    Ok(())
}

#[test]
fn a_failing_client_is_the_first_cause() -> Result<()> {
    for (ending, code, words) in [("error", 1, "failed in worker_fn"), ("panic", 3, "trapped")] {
        let run = launch("fails_after", &["--workers", "3", "--ps", "1", "--client", "--", "1", ending])?;
        let outcome = run.output()?;
        outcome.expect(
            code,
            &["client:0 | error: worker:1: ", "client:0 | worker:2 | second barrier: peer-failed [worker:1]"],
        );
        let row = row(&outcome, "client:0");
        assert!(row.contains(words) && row.contains("first cause"), "{row}");
        assert_eq!(outcome.stderr.matches("first cause").count(), 1, "{}", outcome.stderr);
    }
    Ok(())
}

#[test]
fn a_launched_client_is_tried_again_on_the_same_servers() -> Result<()> {
    let flags = ["--workers", "2", "--ps", "1", "--client", "--max-attempts", "3", "--", "2"];
    let outcome = launch("tries_again", &flags)?.output()?;
    outcome.expect(0, &["attempt 0 found nothing", "attempt 2 found nothing", "attempt 3 of 3 has ended well"]);
    Ok(())
}

#[test]
fn progress_of_a_launched_clients_runs_is_told_apart() -> Result<()> {
    let flags = ["--workers", "3", "--client"];
    let outcome = launch("reports", &flags)?.output()?;
    for worker in 0..3 {
        outcome.expect(0, &[&format!("client:0 | worker:{worker} | progress 10/10 steps of worker:{worker}")]);
    }
    let outcome = launch("reports", &flags)?.args(["--log-format", "json"]).output()?;
    assert_eq!(outcome.code, 0, "{}", outcome.output);
    let mut complete = Vec::new();
    for line in outcome.output.lines() {
        let line: Value = serde_json::from_str(line).with_context(|| format!("not JSON: {line}"))?;
        if line["progress"]["done"] == 10 {
            complete.extend(line["task"].as_str().map(str::to_owned));
        }
    }
    complete.sort_unstable();
    assert_eq!(complete, ["worker:0", "worker:1", "worker:2"], "{}", outcome.output);
    Ok(())
}

#[test]
fn a_signal_ends_a_launched_client_and_its_servers() -> Result<()> {
    let run = launch("waits_uninitialized", &["--workers", "2", "--ps", "1", "--client"])?.start()?;
    run.wait_for_lines("| waiting", 2, PATIENCE)?;
    run.signal(Signal::TERM);
    assert_eq!(run.wait(PATIENCE)?.code, 143);
    Ok(())
}
