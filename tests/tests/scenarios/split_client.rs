//! Split clients: every run of worker_fn in one process, on standard servers that know nothing of it.

use crate::gate::Gate;
use anyhow::{Context, Result};
use dchost_tests::{Cluster, ClusterBuilder, PATIENCE, Signal};
use serde_json::Value;
use std::time::Duration;

/// Soon, on a test machine that runs much else.
pub(crate) const SOON: Duration = Duration::from_secs(20);

pub(crate) fn servers(workers: u32, ps: u32) -> ClusterBuilder {
    Cluster::builder().workers(workers).ps(ps)
}

#[test]
fn a_client_runs_all_workers_and_the_servers_serve_the_next_one() -> Result<()> {
    for flags in [&[][..], &["--mode", "split-client"]] {
        let mut builder = servers(3, 2);
        for flag in flags.chunks(2) {
            builder = builder.flags([flag[0], flag[1]]);
        }
        let cluster = builder.start()?;
        for name in ["first", "second"] {
            let outcome = cluster.client(name, "counter")?.output()?;
            outcome.expect(0, &["split client with 3 runs of worker_fn", "container `run-"]);
            let mut lines: Vec<_> = outcome.stdout.lines().collect();
            lines.sort_unstable();
            assert_eq!(lines, ["worker:0 | x=16 y=14", "worker:1 | x=16 y=14", "worker:2 | x=16 y=14"]);
        }
        cluster.end_servers()?;
    }
    Ok(())
}

#[test]
fn a_client_needs_no_task_where_the_mode_is_given() -> Result<()> {
    let cluster = servers(1, 2).start()?;
    let module = dchost_tests::guest("counter")?.into_os_string();
    let run = dchost_tests::Run::new("client").args(["--mode", "split-client", "--cluster", cluster.spec()]);
    run.args(["--module".into(), module]).output()?.expect(0, &["worker:0 | x=12 y=18"]);
    cluster.end_servers()?;
    Ok(())
}

#[test]
fn under_the_mode_of_split_clients_a_task_with_a_module_only_serves() -> Result<()> {
    let cluster = servers(2, 2).guest("counter").flags(["--mode", "split-client"]).start()?;
    cluster.client("client", "counter")?.output()?.expect(0, &["worker:0 | x=14 y=16"]);
    let outcomes = cluster.end_servers()?;
    for task in ["worker:0", "worker:1"] {
        assert_eq!(outcomes[task].stdout, "", "{}", outcomes.report());
        assert_eq!(outcomes[task].stderr.matches(" WARN ").count(), 1, "{}", outcomes.report());
        outcomes.expect_output(task, "--module");
    }
    Ok(())
}

#[test]
fn a_chief_is_one_of_the_runs_and_each_has_its_context() -> Result<()> {
    let cluster = servers(2, 1).chief().start()?;
    let outcome = cluster.client("client", "hello")?.output()?;
    let expected = [
        ("chief:0", cluster.port("chief:0"), true),
        ("worker:0", cluster.port("worker:0"), false),
        ("worker:1", cluster.port("worker:1"), false),
    ];
    for (task, port, chief) in expected {
        let hello = |text: &str| format!("{task} | hello: {text}");
        let lines = [
            hello(&format!("task {task}")),
            hello(&format!("master_target grpc://127.0.0.1:{port}")),
            hello("num_workers 3"),
            hello(&format!("is_chief {chief}")),
            hello("distributed_mode true"),
            hello("has_barrier true"),
        ];
        outcome.expect(0, &lines.each_ref().map(String::as_str));
    }
    cluster.end_servers()?;
    Ok(())
}

#[test]
fn lines_of_a_run_stay_in_order_and_carry_its_task() -> Result<()> {
    let cluster = servers(3, 0).start()?;
    let outcome = cluster.client("client", "reports")?.output()?;
    assert_eq!(outcome.code, 0, "{}", outcome.output);
    for task in ["worker:0", "worker:1", "worker:2"] {
        let prefix = format!("{task} | {task} line ");
        let lines: Vec<_> = outcome.stdout.lines().filter_map(|line| line.strip_prefix(&prefix)).collect();
        assert_eq!(lines, ["1", "2", "3", "4", "5", "6", "7", "8", "9", "10"], "{}", outcome.output);
        for line in [format!("{task} | progress 10/10 steps of {task}"), format!("{task} | WARN {task} has ended")] {
            assert!(outcome.stderr.lines().any(|found| found == line), "no `{line}` in:\n{}", outcome.stderr);
        }
    }
    assert_eq!(outcome.stdout.lines().count(), 30, "data only on standard output:\n{}", outcome.stdout);
    cluster.end_servers()?;
    Ok(())
}

#[test]
fn json_lines_carry_the_task_of_their_run() -> Result<()> {
    let cluster = servers(2, 0).start()?;
    let outcome = cluster.client("client", "reports")?.args(["--log-format", "json"]).output()?;
    assert_eq!(outcome.code, 0, "{}", outcome.output);
    let mut tasks = Vec::new();
    for line in outcome.output.lines() {
        let line: Value = serde_json::from_str(line).with_context(|| format!("not JSON: {line}"))?;
        let task = line["task"].as_str().with_context(|| format!("no task in {line}"))?.to_owned();
        if let Some(message) = line["message"].as_str().filter(|message| message.contains(" line ")) {
            assert!(message.starts_with(&task), "{task}: {message}");
        }
        tasks.push(task);
    }
    for task in ["client:0", "worker:0", "worker:1"] {
        assert!(tasks.iter().any(|found| found == task), "nothing of {task}:\n{}", outcome.output);
    }
    cluster.end_servers()?;
    Ok(())
}

#[test]
fn summaries_are_files_of_the_runs_that_save_them() -> Result<()> {
    let cluster = servers(2, 0).evaluator().start()?;
    for (replication, files) in [
        ("between-graph", ["evaluator-0.jsonl", "worker-0.jsonl"]),
        ("in-graph", ["client-0.jsonl", "evaluator-0.jsonl"]),
    ] {
        let dir = tempfile::tempdir().context("make a directory")?;
        let run = cluster.client("client", "reports")?.args(["--replication", replication]);
        let outcome = run.args(["--summary-dir".into(), dir.path().as_os_str().to_owned()]).output()?;
        assert_eq!(outcome.code, 0, "{}", outcome.output);
        let mut names = Vec::new();
        for entry in std::fs::read_dir(dir.path()).context("list the summaries")? {
            let entry = entry.context("list the summaries")?;
            let lines = std::fs::read_to_string(entry.path()).context("read a summary")?.lines().count();
            assert_eq!(lines, 10, "{entry:?}");
            names.extend(entry.file_name().into_string());
        }
        names.sort_unstable();
        assert_eq!(names, files);
    }
    cluster.end_servers()?;
    Ok(())
}

/// Method: both are at their gate before either may go on.
#[test]
fn two_clients_at_the_same_time_have_containers_of_their_own() -> Result<()> {
    let cluster = servers(3, 1).start()?;
    let gate = Gate::new()?;
    let clients = [gate.client(&cluster, "first", &[], &[])?, gate.client(&cluster, "second", &[], &[])?];
    for client in &clients {
        client.wait_for_lines("at the gate", 3, PATIENCE)?;
    }
    gate.open()?;
    for client in &clients {
        let outcome = client.wait(PATIENCE)?;
        outcome.expect(0, &["attempt 0 found nothing, kept 3"]);
        assert_eq!(outcome.output.matches("kept 3 in the end").count(), 3, "{}", outcome.output);
    }
    cluster.end_servers()?;
    Ok(())
}

#[test]
fn a_second_client_on_a_named_container_is_refused_while_the_first_lives() -> Result<()> {
    let cluster = servers(2, 1).start()?;
    let gate = Gate::new()?;
    let first = gate.client(&cluster, "first", &["--container", "mnist"], &[])?;
    first.wait_for_lines("at the gate", 2, PATIENCE)?;
    let second = cluster.client("second", "gated")?.args(["--container", "mnist"]).output()?;
    second.expect(2, &["container `mnist` of ps:0 is in use by another client", "--share-container"]);
    gate.open()?;
    first.wait(PATIENCE)?.expect(0, &["kept 2 in the end"]);
    // It is free again, and what the first left is dropped for who doesn't share.
    cluster.client("third", "gated")?.args(["--container", "mnist"]).output()?.expect(0, &["found nothing, kept 2"]);
    cluster.end_servers()?;
    Ok(())
}

#[test]
fn clients_that_share_a_container_meet_in_it_and_find_what_was_left() -> Result<()> {
    const SHARED: [&str; 3] = ["--container", "mnist", "--share-container"];
    let cluster = servers(2, 1).start()?;
    let gate = Gate::new()?;
    let first = gate.client(&cluster, "first", &SHARED, &[])?;
    first.wait_for_lines("at the gate", 2, PATIENCE)?;
    cluster.client("second", "gated")?.args(SHARED).output()?.expect(0, &["found something, kept 4"]);
    gate.open()?;
    first.wait(PATIENCE)?.expect(0, &["found nothing, kept 2", "kept 4 in the end"]);
    cluster.client("third", "gated")?.args(SHARED).output()?.expect(0, &["found something, kept 6"]);
    // Who wants it alone begins with nothing, and leaves something to those who share.
    cluster.client("alone", "gated")?.args(&SHARED[..2]).output()?.expect(0, &["found nothing, kept 2"]);
    cluster.client("last", "gated")?.args(SHARED).output()?.expect(0, &["found something, kept 4"]);
    cluster.end_servers()?;
    Ok(())
}

/// Aim: a client that is alone has no company, whoever comes second.
#[test]
fn who_shares_a_container_is_refused_while_a_client_has_it_alone() -> Result<()> {
    let cluster = servers(2, 1).start()?;
    let gate = Gate::new()?;
    let first = gate.client(&cluster, "first", &["--container", "mnist"], &[])?;
    first.wait_for_lines("at the gate", 2, PATIENCE)?;
    let sharing = || cluster.client("second", "gated").map(|run| run.args(["--container=mnist", "--share-container"]));
    sharing()?.output()?.expect(2, &["`mnist` of ps:0 is in use by another client", "start that one with"]);
    gate.open()?;
    first.wait(PATIENCE)?.expect(0, &["kept 2 in the end"]);
    sharing()?.output()?.expect(0, &["found something, kept 4"]);
    cluster.end_servers()?;
    Ok(())
}

/// Aim: an op uses its client's container as the client would. Method: the client itself never calls the ps, so that the op
/// is the first of it there.
#[test]
fn an_op_uses_a_container_as_its_client_does() -> Result<()> {
    let cluster = servers(1, 1).start()?;
    let shared = cluster.client("shared", "gated")?.args(["--container=mnist", "--share-container"]);
    shared.output()?.expect(0, &["kept 1 in the end"]);
    let client = || cluster.client("client", "adds_by_op").map(|run| run.args(["--container=mnist"]));
    client()?.args(["--share-container"]).output()?.expect(0, &["kept 2"]);
    client()?.output()?.expect(0, &["kept 1"]);
    let gate = Gate::new()?;
    let other = gate.client(&cluster, "other", &["--container", "mnist"], &[])?;
    other.wait_for_line("at the gate", PATIENCE)?;
    let refused = client()?.output()?;
    assert_ne!(refused.code, 0, "{}", refused.output);
    refused.expect(refused.code, &["op `add` on worker:0 failed", "`mnist` of ps:0 is in use by another client"]);
    gate.open()?;
    other.wait(PATIENCE)?.expect(0, &["kept 1 in the end"]);
    cluster.end_servers()?;
    Ok(())
}

#[test]
fn the_container_of_a_job_is_refused_to_a_client() -> Result<()> {
    // A job of its own, whose runs wait for a variable for as long as the test likes.
    let cluster = servers(2, 1).guest("waits_uninitialized").start()?;
    for task in ["worker:0", "worker:1"] {
        cluster.wait_for_line(task, "waiting")?;
    }
    cluster.wait_for_line("ps:0", "attends its leader")?;
    let outcome = cluster.client("client", "gated")?.args(["--container", "default"]).output()?;
    outcome.expect(2, &["container `default` of ps:0 is that of a job", "another --container"]);
    // In a container of its own it is in nobody's way.
    cluster.client("client", "gated")?.output()?.expect(0, &["found nothing, kept 2"]);
    Ok(())
}

#[test]
fn a_killed_client_leaves_its_container_to_the_next_at_once() -> Result<()> {
    let cluster = servers(2, 1).start()?;
    let gate = Gate::new()?;
    let first = gate.client(&cluster, "first", &["--container", "mnist"], &[])?;
    first.wait_for_lines("at the gate", 2, PATIENCE)?;
    first.signal(Signal::KILL);
    assert_eq!(first.wait(PATIENCE)?.code, -9);
    let next = cluster.client("next", "gated")?.args(["--container", "mnist"]).start()?;
    next.wait(SOON)?.expect(0, &["found nothing, kept 2"]);
    cluster.end_servers()?;
    Ok(())
}

/// Method: its servers tell at `-v` of each session's end; each of two runs has one on the ps.
#[test]
fn a_client_that_is_told_to_end_closes_its_sessions() -> Result<()> {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let cluster = servers(2, 1).flags(["-v"]).start()?;
        let gate = Gate::new()?;
        let client = gate.client(&cluster, "client", &[], &[])?;
        client.wait_for_lines("at the gate", 2, PATIENCE)?;
        client.signal(signal);
        let outcome = client.wait(SOON)?;
        outcome.expect(code, &["client:0 | error: ended by SIG", "client:0 |   worker:1: the guest was "]);
        cluster.task("ps:0").wait_for_lines("session ended", 2, SOON)?;
        cluster.end_servers()?;
    }
    Ok(())
}

#[test]
fn the_wall_clock_ends_all_runs_of_a_client() -> Result<()> {
    let cluster = servers(3, 1).start()?;
    for guest in ["spins", "waits_uninitialized"] {
        let outcome = cluster.client("client", guest)?.args(["--timeout", "3s"]).output()?;
        outcome.expect(124, &["--timeout"]);
    }
    cluster.end_servers()?;
    Ok(())
}

/// Aim: a client's cost by run is small. Method: many runs on two servers; the time and memory are for whoever reads the output.
#[test]
fn two_hundred_and_fifty_six_runs_fit_into_one_client() -> Result<()> {
    let mut builder = servers(256, 2);
    for index in 0..256 {
        builder = builder.absent(&format!("worker:{index}"));
    }
    let cluster = builder.start()?;
    let outcome = cluster.client("client", "counter")?.output()?;
    assert_eq!(outcome.code, 0, "{}", outcome.output);
    assert_eq!(outcome.stdout.lines().filter(|line| line.ends_with(" | x=522 y=-492")).count(), 256);
    println!("256 runs: {:?}, {} MiB at most", outcome.time, outcome.peak_memory_bytes >> 20);
    cluster.end_servers()?;
    Ok(())
}
