//! How the runs of a split client end, what that means for the others, and for the client's exit.

use crate::gate::Gate;
use crate::split_client::{SOON, servers};
use anyhow::Result;
use dchost_tests::{PATIENCE, Signal};
use std::time::Duration;

#[test]
fn a_failed_run_gives_the_code_and_the_others_are_its_consequences() -> Result<()> {
    let cluster = servers(3, 1).start()?;
    for (ending, code, words) in [
        ("panic", 3, "error: worker:1: the guest trapped"),
        ("exit", 1, "error: worker:1: the guest exited with"),
        ("error", 1, "error: worker:1: worker_fn failed: gone after the first barrier"),
    ] {
        let outcome = cluster.client("client", "fails_after")?.guest_args(["1", ending]).start()?.wait(SOON)?;
        outcome.expect(code, &[words]);
        for task in ["worker:0", "worker:2"] {
            outcome.expect(code, &[&format!("{task} | second barrier: peer-failed [worker:1]")]);
        }
        assert_eq!(outcome.stderr.matches("| error: ").count(), 1, "one cause:\n{}", outcome.output);
    }
    cluster.end_servers()?;
    Ok(())
}

#[test]
fn a_limit_of_one_run_is_the_clients_exit() -> Result<()> {
    let cluster = servers(2, 0).start()?;
    let run = cluster.client("client", "exceeds")?.args(["--max-memory", "16MiB"]).guest_args(["memory", "64"]);
    run.start()?.wait(SOON)?.expect(4, &["error: worker:", "--max-memory"]);
    cluster.end_servers()?;
    Ok(())
}

#[test]
fn a_run_that_returns_early_is_named_by_the_barrier_of_the_others() -> Result<()> {
    let cluster = servers(3, 0).start()?;
    let outcome = cluster.client("client", "fails_after")?.guest_args(["1", "return"]).start()?.wait(SOON)?;
    // One of the two may fail by it, and end, before the other arrives.
    outcome.expect(201, &["second barrier: aborted [worker:1]", "worker:1 left without arriving"]);
    assert_eq!(outcome.stdout.matches("| second barrier: ").count(), 2, "{}", outcome.output);
    cluster.end_servers()?;
    Ok(())
}

#[test]
fn a_barrier_with_a_timeout_names_the_missing_run() -> Result<()> {
    let cluster = servers(2, 0).start()?;
    // The chief waits at the barrier while worker:1 sleeps far longer.
    let run = cluster.client("client", "exceeds")?.args(["--barrier-timeout", "1s"]);
    let outcome = run.guest_args(["barrier", "60000"]).start()?.wait(PATIENCE)?;
    outcome.expect(201, &["error: worker:0: deadline-exceeded", "worker:1"]);
    cluster.end_servers()?;
    Ok(())
}

#[test]
fn a_run_that_never_yields_is_dropped_when_its_grace_is_over() -> Result<()> {
    let cluster = servers(2, 0).start()?;
    let outcome = cluster.client("client", "spins_or_fails")?.output()?;
    outcome.expect(1, &["error: worker:1: worker_fn failed", "worker:0 | spinning", "was dropped"]);
    assert!(outcome.time < Duration::from_secs(60), "{:?}", outcome.time);
    cluster.end_servers()?;
    Ok(())
}

#[test]
fn another_attempt_begins_without_variables_and_the_last_failure_is_counted() -> Result<()> {
    let cluster = servers(2, 1).start()?;
    let run = |failures| cluster.client("client", "tries_again").map(|run| run.guest_args([failures]));
    let outcome = run("2")?.args(["--max-attempts", "3"]).output()?;
    outcome.expect(0, &["attempt 0 found nothing", "attempt 1 found nothing", "attempt 2 found nothing"]);
    outcome.expect(0, &["attempt 1 of 3 failed: worker:", "attempt 3 of 3 has ended well"]);
    let outcome = run("9")?.args(["--max-attempts", "2"]).output()?;
    outcome.expect(1, &["error: worker:", "lost at attempt 1", "(after 2 attempts)"]);
    // The same in a container that outlives its client.
    let outcome = run("1")?.args(["--max-attempts", "2", "--container", "mnist"]).output()?;
    outcome.expect(0, &["attempt 1 found nothing"]);
    cluster.end_servers()?;
    Ok(())
}

/// Method: the runs wait at a gate, each with a session on the ps, which is killed, and in the second round started anew.
#[test]
fn a_server_that_dies_under_a_client_is_named_with_202() -> Result<()> {
    let mut cluster = servers(2, 1).start()?;
    for restarts in [false, true] {
        let gate = Gate::new()?;
        let client =
            gate.client(&cluster, "client", &["--rejoin-timeout", if restarts { "60s" } else { "2s" }], &[])?;
        client.wait_for_lines("at the gate", 2, PATIENCE)?;
        cluster.signal("ps:0", Signal::KILL);
        cluster.task("ps:0").wait(PATIENCE)?;
        if restarts {
            cluster.start_task("ps:0")?;
            // It serves others.
            cluster.client("other", "gated")?.output()?.expect(0, &["kept 2 in the end"]);
        }
        gate.open()?;
        let code = if restarts { "peer-restarted" } else { "peer-failed" };
        client.wait(PATIENCE)?.expect(202, &["ps:0", code, "as a consequence, worker_fn failed"]);
        if !restarts {
            cluster.start_task("ps:0")?;
        }
    }
    cluster.end_servers()?;
    Ok(())
}

#[test]
fn a_server_that_never_starts_is_named_at_the_connect_deadline() -> Result<()> {
    let cluster = servers(2, 2).absent("ps:1").start()?;
    let outcome = cluster.client("client", "counter")?.args(["--connect-timeout", "2s"]).output()?;
    outcome.expect(201, &["ps:1"]);
    cluster.end_servers()?;
    Ok(())
}

#[test]
fn servers_may_start_after_their_client() -> Result<()> {
    let mut cluster = servers(2, 2).held("ps:0").held("ps:1").start()?;
    let client = cluster.client("client", "counter")?.start()?;
    client.wait_for_line("split client with 2 runs", PATIENCE)?;
    cluster.start_task("ps:1")?;
    cluster.start_task("ps:0")?;
    client.wait(PATIENCE)?.expect(0, &["worker:0 | x=14 y=16", "worker:1 | x=14 y=16"]);
    cluster.end_servers()?;
    Ok(())
}

#[test]
fn an_evaluator_runs_beside_the_others_and_writes_only_its_own() -> Result<()> {
    let cluster = servers(2, 1).evaluator().start()?;
    let outcome = cluster.client("client", "evaluates")?.output()?;
    let target = format!("evaluator on grpc://127.0.0.1:{}", cluster.port("evaluator:0"));
    let context = format!("evaluator:0 | {target}, chief true, distributed false, barrier false, summary true");
    outcome.expect(0, &[&context, "evaluator:0 | reads x = 5", "worker:0 | trained, score 0.5"]);
    for refused in
        ["initialize of x: failed-precondition", "update of x: failed-precondition", "barrier: failed-precondition"]
    {
        outcome.expect(0, &[refused]);
    }
    cluster.end_servers()?;
    Ok(())
}

#[test]
fn an_evaluator_has_its_grace_after_the_training_and_is_then_cancelled() -> Result<()> {
    let cluster = servers(2, 1).evaluator().start()?;
    for grace in ["1s", "0s"] {
        let run = cluster.client("client", "evaluates")?.args(["--evaluator-grace", grace]).guest_args(["stays"]);
        run.start()?.wait(SOON)?.expect(0, &["evaluator:0 | ended: cancelled"]);
    }
    cluster.end_servers()?;
    Ok(())
}

#[test]
fn a_failed_evaluator_gives_the_code_but_neither_ends_training_nor_makes_another_attempt() -> Result<()> {
    let cluster = servers(2, 1).evaluator().start()?;
    for way in ["fails", "fails-first"] {
        let run = cluster.client("client", "evaluates")?.args(["--max-attempts", "3"]).guest_args([way]);
        let outcome = run.output()?;
        outcome.expect(1, &["worker:0 | trained", "error: evaluator:0: worker_fn failed: bad checkpoint"]);
        assert_eq!(outcome.output.matches("worker:0 | trained").count(), 1, "{}", outcome.output);
    }
    cluster.end_servers()?;
    Ok(())
}

#[test]
fn an_evaluator_is_cancelled_at_once_when_the_training_has_failed() -> Result<()> {
    let cluster = servers(1, 1).evaluator().start()?;
    // It never yields: it has the time of a run that was told to end, and not its grace.
    let run = cluster.client("client", "spins_or_fails")?.args(["--evaluator-grace", "1h"]);
    run.guest_args(["0"]).start()?.wait(PATIENCE)?.expect(1, &["error: worker:0: worker_fn failed"]);
    cluster.end_servers()?;
    Ok(())
}
