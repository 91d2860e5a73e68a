//! Guests that take all the time that they can get: the host answers meanwhile, and each ends when it should.

use crate::components;
use anyhow::{Context, Result};
use dchost_tests::{Cluster, PATIENCE, Run, Signal, health};
use std::time::{Duration, Instant};

/// How late an end may come. A second is promised on a machine of its own; test machines are shared, and compile first.
const LATE: Duration = Duration::from_secs(15);

/// The median of some health checks.
///
/// A tenth of a second is the aim on a machine of its own. Five are asserted: noise delays some answers, while a server that
/// waits for its guest delays all of them, for ever.
#[track_caller]
fn check_health(port: u16) -> Result<()> {
    const HEALTHY: Duration = Duration::from_millis(500);
    let mut answered = (0..20).map(|_| health(port)).collect::<Result<Vec<_>>>()?;
    answered.sort();
    assert!(answered[answered.len() / 2] < HEALTHY, "{answered:?}");
    Ok(())
}

#[test]
fn a_server_is_healthy_while_its_guest_never_yields_and_the_clock_ends_it() -> Result<()> {
    let cluster = Cluster::builder().workers(1).guest("spins").flags(["--timeout", "5s"]).start()?;
    cluster.wait_for_line("worker:0", "spinning")?;
    check_health(cluster.port("worker:0"))?;
    let outcome = cluster.task("worker:0").wait(PATIENCE)?;
    assert_eq!(outcome.code, 124, "{}", outcome.output);
    assert!(outcome.time < Duration::from_secs(5) + LATE, "{:?}", outcome.time);
    for text in ["worker:0", "--timeout"] {
        assert!(outcome.stderr.contains(text), "no `{text}` in:\n{}", outcome.output);
    }
    Ok(())
}

#[test]
fn a_server_is_healthy_while_its_guest_calls_the_host_without_end() -> Result<()> {
    let cluster = Cluster::builder().workers(1).module(components::asks().path()?).start()?;
    let task = cluster.task("worker:0");
    cluster.wait_for_line("worker:0", "attends its leader")?;
    check_health(cluster.port("worker:0"))?;
    let told = Instant::now();
    task.signal(Signal::TERM);
    let outcome = task.wait(PATIENCE)?;
    assert_eq!(outcome.code, 143, "{}", outcome.output);
    assert!(told.elapsed() < LATE, "{:?}", told.elapsed());
    Ok(())
}

#[test]
fn one_instruction_on_half_a_gigabyte_delays_the_end_by_little() -> Result<()> {
    // Interrupts are seen between instructions only, and this one writes 512 MiB. Health doesn't wait for it.
    let guest = components::fills().with("PAGES", "8193").with("BYTES", "0x20000000");
    let cluster = Cluster::builder().workers(1).module(guest.path()?).flags(["--timeout", "3s"]).start()?;
    cluster.wait_for_line("worker:0", "attends its leader")?;
    check_health(cluster.port("worker:0"))?;
    let outcome = cluster.task("worker:0").wait(PATIENCE)?;
    assert_eq!(outcome.code, 124, "{}", outcome.output);
    assert!(outcome.time < Duration::from_secs(3) + LATE, "{:?}", outcome.time);

    let budget = guest.run()?.args(["-W", "cpu-timeout=500ms"]).output()?;
    assert_eq!(budget.code, 4, "{}", budget.output);
    assert!(budget.output.contains("-W cpu-timeout"), "{}", budget.output);
    Ok(())
}

#[test]
fn a_host_call_that_waits_for_a_mute_task_ends_with_the_clock_and_is_named() -> Result<()> {
    // The kernel accepts connections to ps:0, and nobody ever answers on them.
    let builder = Cluster::builder().workers(1).ps(1).held("ps:0").guest("big_variable").guest_args(["1024", "ps:0"]);
    let cluster = builder.flags(["--timeout", "3s"]).start()?;
    let outcome = cluster.task("worker:0").wait(PATIENCE)?;
    assert_eq!(outcome.code, 124, "{}", outcome.output);
    assert!(outcome.time < Duration::from_secs(3) + LATE, "{:?}", outcome.time);
    for text in ["--timeout", "the host call variables.initialize of `big`"] {
        assert!(outcome.stderr.contains(text), "no `{text}` in:\n{}", outcome.output);
    }
    Ok(())
}

#[test]
fn without_limits_a_guest_computes_as_long_as_it_likes() -> Result<()> {
    // A second or more: a hundred ticks of the clock that makes guests yield.
    let guest = components::computes().with("TURNS", "1000000000");
    let outcome = guest.run()?.output()?;
    assert_eq!(outcome.code, 0, "{}", outcome.output);
    let outcome = guest.run()?.args(["-W", "cpu-timeout=100ms"]).output()?;
    assert_eq!(outcome.code, 4, "{}", outcome.output);
    assert!(outcome.output.contains("cpu"), "{}", outcome.output);
    Ok(())
}

#[test]
fn one_thread_ticks_for_a_process() -> Result<()> {
    let run = Run::guest("spins")?.start()?;
    run.wait_for_line("spinning", PATIENCE)?;
    let tasks = std::fs::read_dir(format!("/proc/{}/task", run.pid())).context("list the threads")?;
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    let names: Vec<String> = names.map(|name| name.trim_end().to_owned()).collect();
    assert_eq!(names.iter().filter(|name| *name == "dchost-epoch").count(), 1, "{names:?}");
    run.signal(Signal::TERM);
    assert_eq!(run.wait(PATIENCE)?.code, 143);
    Ok(())
}
