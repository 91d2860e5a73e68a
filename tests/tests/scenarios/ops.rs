//! Ops with real processes: what the driver of a cluster gets of its workers, and how ops end.

use anyhow::{Context, Result};
use dchost_tests::{Cluster, ClusterBuilder, Outcome, PATIENCE, Process, Run, Signal, guest, wait_until};
use serde_json::Value;
use std::time::Duration;

/// Launches `workers` servers and a client that drives them all; `args` are flags and, after `--`, the guest's arguments.
fn launch(guest_name: &str, workers: &str, args: &[&str]) -> Result<Outcome> {
    let module = guest(guest_name)?.into_os_string();
    let cluster = ["launch", "--workers", workers, "--client", "--replication", "in-graph", "--module"];
    Run::new("launch").args(cluster).args([module]).args(args).output()
}

/// Has a driver of two workers do something, and looks for lines of its output.
fn check(args: &[&str], lines: &[&str]) -> Result<()> {
    let outcome = launch("ops", "2", args)?;
    assert_eq!(outcome.code, 0, "{args:?}\n{}", outcome.output);
    for line in lines {
        assert!(outcome.output.contains(line), "{args:?}: no `{line}` in:\n{}", outcome.output);
    }
    Ok(())
}

/// Workers that are standard servers, for clients that the test starts.
fn servers(workers: u32) -> ClusterBuilder {
    let mut builder = Cluster::builder().workers(workers);
    for index in 0..workers {
        builder = builder.without_module(&format!("worker:{index}"));
    }
    builder.flags(["--rejoin-timeout", "1s"])
}

fn client(cluster: &Cluster, name: &str, args: &[&str]) -> Result<Process> {
    client_with(cluster, name, &[], args)
}

fn client_with(cluster: &Cluster, name: &str, more: &[&str], args: &[&str]) -> Result<Process> {
    let flags =
        ["--task", "client", "--replication", "in-graph", "--cluster", cluster.spec(), "--rejoin-timeout", "1s"];
    let module = ["--module".into(), guest("ops")?.into_os_string()];
    Run::new(name).args(flags).args(more).args(module).guest_args(args).start()
}

/// What a task says of itself.
fn status(cluster: &Cluster, task: &str) -> Result<Value> {
    let address = format!("127.0.0.1:{}", cluster.port(task));
    let outcome = Run::new("status").args(["status", &address, "--format", "json"]).output()?;
    let status: Value = serde_json::from_str(&outcome.stdout).with_context(|| outcome.output.clone())?;
    Ok(status["servers"][0]["status"].clone())
}

/// Op instances on a task, over all sessions there.
fn instances(cluster: &Cluster, task: &str) -> Result<u64> {
    let status = status(cluster, task)?;
    let sessions = status["sessions"].as_array().with_context(|| status.to_string())?;
    Ok(sessions.iter().filter_map(|session| session["op_instances"].as_u64()).sum())
}

fn wait_for_instances(cluster: &Cluster, task: &str, count: u64) -> Result<()> {
    let what = format!("{count} op instances on {task}");
    wait_until(&what, PATIENCE, || instances(cluster, task).is_ok_and(|instances| instances == count))
}

#[test]
fn in_graph_makes_33_as_tensorflow_has_it() -> Result<()> {
    let outcome = launch("in_graph", "3", &[])?;
    assert_eq!(outcome.code, 0, "{}", outcome.output);
    assert!(outcome.stdout.contains("client:0 | sum=33\n"), "{}", outcome.output);
    let module = guest("in_graph")?.into_os_string();
    let flags = ["launch", "--workers", "3", "--replication", "in-graph", "--module"];
    let outcome = Run::new("launch").args(flags).args([module]).output()?;
    assert_eq!(outcome.code, 0, "{}", outcome.output);
    assert!(outcome.stdout.contains("worker:0 | sum=33\n"), "{}", outcome.output);
    Ok(())
}

#[test]
fn map_reduce_counts_on_workers_that_drive_and_on_those_of_a_client() -> Result<()> {
    let small = ["--", "--below", "1000000", "--chunk", "100000"];
    let of_client = launch("map_reduce", "2", &small)?;
    let module = guest("map_reduce")?.into_os_string();
    let between =
        Run::new("launch").args(["launch", "--workers", "2", "--module"]).args([module]).args(small).output()?;
    for (driver, outcome) in [("client:0", of_client), ("worker:0", between)] {
        assert_eq!(outcome.code, 0, "{}", outcome.output);
        for count in ["2 workers: 78498 primes below 1000000", "1 worker: 78498 primes below 1000000"] {
            assert!(outcome.stdout.contains(&format!("{driver} | {count} in ")), "{}", outcome.output);
        }
    }
    Ok(())
}

#[test]
fn ops_do_on_their_tasks_what_they_are_told() -> Result<()> {
    let both = ["worker:0", "worker:1"];
    let on = |what: &'static str| [&["--", "call", what][..], &both].concat();
    check(&on("state"), &["count on worker:0: 1\n", "count on worker:0: 2\n", "count on worker:0: 3\n"])?;
    check(&on("chain"), &["chain ends on worker:1 with 12\n"])?;
    check(&on("spread:1"), &["2 of 2 tasks are done\n"])?;
    check(&on("flood:200"), &["200 calls, the highest count is 100\n"])?;
    check(&on("echo:7"), &["echo on worker:1: [Tensor"])?;
    let place = [
        "worker:1 | op 7 on worker:1, arguments [\"call\", \"place:7\", \"worker:0\", \"worker:1\"]\n",
        "client:0 | place on worker:0: worker:0\n",
        "client:0 | place on worker:1: worker:1\n",
    ];
    check(&on("place:7"), &place)
}

#[test]
fn ops_reach_the_variables_of_their_task_and_of_others() -> Result<()> {
    // On worker:0 both are the same variable, which is 8 and then begins anew.
    let lines = ["sum on worker:0: 16\n", "sum on worker:1: 16\n"];
    let outcome = launch("ops", "2", &["--", "call", "remember:7", "worker:0", "worker:1"])?;
    assert_eq!(outcome.code, 0, "{}", outcome.output);
    for line in lines {
        assert!(outcome.output.contains(line), "no `{line}` in:\n{}", outcome.output);
    }
    Ok(())
}

/// Aim: a large result costs the task that has it and the one that takes it a few times its size, and delays nobody. Method: while a
/// client takes it, another one calls small ops of the same task, whose health is looked at. `cargo xtask soak ops` has it larger.
#[test]
fn a_result_of_200_megabytes_is_taken_whole_and_delays_nobody() -> Result<()> {
    /// Turns of the other client; with the pauses between them it begins before the large op and ends after it has begun to arrive.
    const LAPS: &str = "laps:200";
    /// Longer than what a busy machine makes of a millisecond, and much shorter than what the large result takes.
    const LATE: Duration = Duration::from_secs(2);
    /// Of a process without large values.
    const OWN_MEMORY_BYTES: u64 = 200 << 20;
    let bytes = match std::env::var("DCHOST_TESTS_RESULT_BYTES") {
        Ok(bytes) => bytes.parse().context("DCHOST_TESTS_RESULT_BYTES")?,
        Err(_) => 200_000_000_u64,
    };
    let max = (bytes + (1 << 20)).to_string();
    let limits = ["--max-memory", "3GiB", "--max-tensor", &max];
    let cluster = servers(2).flags(limits).start()?;
    let laps = client_with(&cluster, "laps", &limits, &["call", LAPS, "worker:1"])?;
    laps.wait_for_line("lap 1 of", PATIENCE)?;
    let large = client_with(&cluster, "large", &limits, &["call", &format!("big:{bytes}"), "worker:1"])?;
    let mut health = Vec::new();
    wait_until("the large result is taken", PATIENCE, || {
        health.push(dchost_tests::health(cluster.port("worker:1")));
        !large.is_running()
    })?;
    let outcome = large.wait(PATIENCE)?;
    assert_eq!(outcome.code, 0, "{}{}", outcome.output, cluster.report());
    assert!(outcome.stdout.contains(&format!("big on worker:1: {bytes} bytes\n")), "{}", outcome.output);
    let laps = laps.wait(PATIENCE)?;
    assert_eq!(laps.code, 0, "{}{}", laps.output, cluster.report());
    let longest = laps.stdout.lines().find_map(|line| line.split_once("longest lap: ")?.1.strip_suffix(" ms"));
    let longest = Duration::from_millis(longest.with_context(|| laps.output.clone())?.parse()?);
    let mut health = health.into_iter().collect::<Result<Vec<_>>>().with_context(|| cluster.report())?;
    health.sort_unstable();
    let (median, most) = (health[health.len() / 2], health[health.len() - 1]);
    let (taker, maker) = (outcome.peak_memory_bytes, cluster.task("worker:1").peak_memory_bytes());
    let times = |peak: u64| peak as f64 / bytes as f64;
    println!(
        "{bytes} bytes in {:?}: {:.1} times as much memory at most in the task that made them, {:.1} times in the client; \
         longest of other calls {longest:?}, health {median:?}, at most {most:?}",
        outcome.time,
        times(maker),
        times(taker)
    );
    assert!(longest < LATE && median < LATE, "{longest:?}, {median:?}");
    for (what, peak, most) in [("the task", maker, 4), ("the client", taker, 4)] {
        assert!(peak < most * bytes + OWN_MEMORY_BYTES, "{what}: {peak} bytes");
    }
    Ok(())
}

#[test]
fn errors_name_op_and_task_and_say_the_guests_own_words() -> Result<()> {
    let on = |what: &'static str| ["--", "try", what, "worker:1"];
    check(&on("error:3"), &["client:0 | error failed: op `error` on worker:1 failed: error number 3\n"])?;
    let panic = [
        "client:0 | panic failed: aborted: op `panic` on worker:1 trapped: unreachable",
        "panicked at tests/guests/examples/ops.rs",
        "panic number 3\n",
        "WARN op `panic` on worker:1 trapped: unreachable",
        "WARN   ops::panic\n",
    ];
    check(&on("panic:3"), &panic)?;
    let exit = "exit failed: aborted: op `exit` on worker:1 called exit with failure, which ends the sandbox\n";
    check(&on("exit:3"), &[exit])?;
    let unknown =
        "not-found: the component that runs on worker:1 has no op `nosuch`: it has `add_n`, `allocate`, `big`";
    check(&on("nosuch"), &[unknown])?;
    let nowhere = "invalid-argument: op `count` can't run on worker:7: the cluster has only worker:0, worker:1\n";
    check(&["--", "try", "count", "worker:7"], &[nowhere])?;
    let within = "op `nests` on worker:1 failed: failed-precondition: an op can't start ops";
    check(&on("nests"), &[within])
}

#[test]
fn an_op_that_never_returns_is_ended_and_the_next_has_its_turn() -> Result<()> {
    let after = "client:0 | count on worker:1: 1\n";
    let cancelled = "client:0 | spin: cancelled: op `spin` on worker:1 was cancelled\n";
    check(&["--", "call", "cancel", "worker:1"], &[cancelled, after])?;
    let late = "client:0 | spin: deadline-exceeded: op `spin` on worker:1 was not done within 200ms\n";
    check(&["--", "call", "timeout:200", "worker:1"], &[late, after])?;
    check(&["--", "call", "drop", "worker:1"], &[after])
}

#[test]
fn limits_are_the_tasks_own_and_named() -> Result<()> {
    let limit = |flags: &[&'static str], what: &'static str, words: &[&str]| {
        check(&[flags, &["--", "try", what, "worker:1"]].concat(), words)
    };
    let failed = "failed: resource-exhausted: op";
    limit(&["--max-memory", "64MiB"], "allocate:100000000", &[failed, "--max-memory"])?;
    limit(&["-W", "cpu-timeout=300ms"], "spin", &[failed, "cpu-timeout"])?;
    limit(&["-W", "fuel=50000000"], "spin", &[failed, "fuel"])?;
    limit(&["--max-tensor", "1MiB"], "big:1048577", &[failed, "--max-tensor"])
}

#[test]
fn a_local_run_has_no_ops() -> Result<()> {
    let outcome = Run::guest("ops")?.guest_args(["try", "count", "worker:0"]).output()?;
    assert_eq!(outcome.code, 0, "{}", outcome.output);
    let expected = "count failed: failed-precondition: no ops in a local run, which has no other tasks";
    assert!(outcome.stdout.contains(expected), "{}", outcome.output);
    Ok(())
}

#[test]
fn a_component_with_ops_runs_also_where_nobody_calls_them() -> Result<()> {
    let outcome = Run::guest("ops")?.output()?;
    assert_eq!(outcome.code, 0, "{}", outcome.output);
    Ok(())
}

/// Aim: whatever ends a client, its ops end on the servers, which serve the next. Method: a client is killed, another one asked to
/// end, while an op of theirs never returns.
#[test]
fn a_client_that_goes_takes_its_ops_along() -> Result<()> {
    let cluster = servers(2).start()?;
    for (signal, code) in [(Signal::KILL, -9), (Signal::TERM, 143)] {
        let spins = client(&cluster, "client", &["call", "spin", "worker:1"])?;
        wait_for_instances(&cluster, "worker:1", 1).with_context(|| spins.report())?;
        spins.signal(signal);
        assert_eq!(spins.wait(PATIENCE)?.code, code, "{}", cluster.report());
        wait_for_instances(&cluster, "worker:1", 0).with_context(|| cluster.report())?;
        let next = client(&cluster, "next", &["call", "count", "worker:1"])?.wait(PATIENCE)?;
        assert_eq!(next.code, 0, "{}{}", next.output, cluster.report());
    }
    Ok(())
}

#[test]
fn nothing_of_a_client_stays_on_its_servers() -> Result<()> {
    let cluster = servers(2).start()?;
    let outcome = client(&cluster, "client", &["call", "remember:7", "worker:0", "worker:1"])?.wait(PATIENCE)?;
    assert_eq!(outcome.code, 0, "{}{}", outcome.output, cluster.report());
    for task in ["worker:0", "worker:1"] {
        let empty = |status: &Value, what: &str| status[what].as_array().is_some_and(Vec::is_empty);
        let is_empty =
            || status(&cluster, task).is_ok_and(|status| empty(&status, "sessions") && empty(&status, "variables"));
        wait_until(&format!("{task} has neither sessions nor variables"), PATIENCE, is_empty)?;
    }
    Ok(())
}

#[test]
fn two_clients_at_once_have_instances_of_their_own() -> Result<()> {
    let cluster = servers(2).start()?;
    let spins = client(&cluster, "first", &["call", "spin", "worker:1"])?;
    wait_for_instances(&cluster, "worker:1", 1).with_context(|| spins.report())?;
    let other = client(&cluster, "second", &["call", "state", "worker:1"])?.wait(PATIENCE)?;
    assert_eq!(other.code, 0, "{}{}", other.output, cluster.report());
    assert!(other.stdout.contains("count on worker:1: 3"), "it neither waits for the other nor sees its state");
    spins.signal(Signal::KILL);
    assert_eq!(spins.wait(PATIENCE)?.code, -9);
    Ok(())
}

#[test]
fn a_server_that_dies_fails_the_ops_that_run_there() -> Result<()> {
    let mut cluster = servers(2).start()?;
    let spins = client(&cluster, "client", &["call", "spin", "worker:1"])?;
    wait_for_instances(&cluster, "worker:1", 1).with_context(|| spins.report())?;
    cluster.signal("worker:1", Signal::KILL);
    let outcome = spins.wait(PATIENCE)?;
    assert_eq!(outcome.code, 202, "{}{}", outcome.output, cluster.report());
    let expected = "op `spin` on worker:1 is lost: the connection to worker:1 broke";
    assert!(outcome.output.contains(expected), "{}", outcome.output);
    // Once it is back it serves whoever comes.
    cluster.start_task("worker:1")?;
    let next = client(&cluster, "next", &["call", "count", "worker:1"])?.wait(PATIENCE)?;
    assert_eq!(next.code, 0, "{}{}", next.output, cluster.report());
    Ok(())
}

/// Aim: who needs a worker that has left the job hears so at once, however long a task is waited for. Method: a worker's run ends
/// while another calls its ops again and again, and then its variables.
#[test]
fn a_worker_that_has_left_is_told_and_not_waited_for() -> Result<()> {
    let cluster = Cluster::builder()
        .workers(2)
        .guest("ops")
        .task_guest_args("worker:0", ["call", "left", "worker:1"])
        .task_guest_args("worker:1", [])
        .flags(["--connect-timeout", "1h", "--rejoin-timeout", "1h"])
        .start()?;
    let outcomes = cluster.wait_all(PATIENCE)?;
    outcomes.expect_codes([("worker:0", 0), ("worker:1", 0)]);
    let told = format!(
        "worker:1 at `127.0.0.1:{}` has left the job, and is not waited for: its run has ended",
        cluster.port("worker:1")
    );
    let output = &outcomes["worker:0"].stdout;
    for what in ["count: ", "memory: "] {
        let line = output.lines().find(|line| line.contains(what)).with_context(|| outcomes.report())?;
        assert!(line.ends_with(&told), "no `{told}` in:\n{}", outcomes.report());
    }
    Ok(())
}

#[test]
fn an_evaluators_ops_write_no_more_than_the_evaluator_may() -> Result<()> {
    let cluster = Cluster::builder()
        .workers(1)
        .evaluator()
        .guest("ops")
        .task_guest_args("worker:0", [])
        .task_guest_args("evaluator:0", ["try", "remember", "worker:0"])
        .start()?;
    let outcomes = cluster.wait_all(PATIENCE)?;
    outcomes.expect_codes([("evaluator:0", 0), ("worker:0", 0)]);
    outcomes
        .expect_output("evaluator:0", "op `remember` on worker:0 failed: failed-precondition: variable `memory` is on");
    Ok(())
}

#[test]
fn a_driver_of_64_workers_runs_an_op_on_each() -> Result<()> {
    let tasks: Vec<String> = (0..64).map(|index| format!("worker:{index}")).collect();
    let args: Vec<&str> = ["--", "call", "spread:1"].into_iter().chain(tasks.iter().map(String::as_str)).collect();
    let outcome = launch("ops", "64", &args)?;
    assert_eq!(outcome.code, 0, "{}", outcome.output);
    assert!(outcome.stdout.contains("client:0  | 64 of 64 tasks are done\n"), "{}", outcome.output);
    Ok(())
}
