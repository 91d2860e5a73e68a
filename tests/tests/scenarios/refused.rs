//! What is refused before a port is bound, and what cannot be bound.

use anyhow::{Context, Result};
use dchost_tests::{Cluster, Outcome, PATIENCE, Port, Run, guest};
use std::net::TcpListener;
use std::path::Path;

/// Checks a refusal: its code, that it names what it should, and that it is no crash.
#[track_caller]
fn check(outcome: &Outcome, code: i32, names: &[&str]) {
    assert_eq!(outcome.code, code, "{}", outcome.output);
    for name in names {
        assert!(outcome.stderr.contains(name), "no `{name}` in:\n{}", outcome.output);
    }
    assert_eq!(outcome.stdout, "", "refusals go to standard error");
    for sign in ["panicked at", "RUST_BACKTRACE", "stack backtrace"] {
        assert!(!outcome.stderr.contains(sign), "a crash:\n{}", outcome.output);
    }
}

fn run_module(path: &Path) -> Result<Outcome> {
    Run::new("local").args(["--module".into(), path.as_os_str().to_owned()]).output()
}

#[test]
fn a_missing_module_is_named_as_typed() -> Result<()> {
    let outcome = Run::new("local").args(["--module", "no/such/train.wasm"]).output()?;
    check(&outcome, 2, &["no/such/train.wasm"]);
    Ok(())
}

#[test]
fn what_is_no_component_is_refused_with_what_it_is() -> Result<()> {
    let dir = tempfile::tempdir().context("make a directory")?;
    let path = dir.path().join("train.wasm");
    let core = wat::parse_str("(module)").context("encode a core module")?;
    let cases: [(&[u8], &[&str]); 5] = [
        (b"<html>not found</html>", &["train.wasm"]),
        (b"", &["train.wasm"]),
        (&core, &["core module", "wasm32-wasip2"]),
        (&core[..6], &["train.wasm"]),
        (b"\x7fELF\x02\x01\x01", &["train.wasm"]),
    ];
    for (bytes, names) in cases {
        std::fs::write(&path, bytes).context("write the module")?;
        check(&run_module(&path)?, 2, names);
    }
    check(&run_module(dir.path())?, 2, &[]);
    Ok(())
}

#[test]
fn a_component_that_does_not_fit_is_told_what_is_missing() -> Result<()> {
    let dir = tempfile::tempdir().context("make a directory")?;
    let path = dir.path().join("train.wasm");
    std::fs::write(&path, wat::parse_str("(component)").context("encode a component")?).context("write it")?;
    check(&run_module(&path)?, 2, &["train.wasm", "dchost:worker/entry"]);
    Ok(())
}

#[test]
fn a_malformed_tf_config_is_never_taken_for_a_local_run() -> Result<()> {
    let config = "{'cluster':{'ps':'','worker':'a:2222,b:2222'},'task':{'index':0,'type':''}}";
    let outcome = Run::guest("hello")?.env("TF_CONFIG", config).output()?;
    check(&outcome, 2, &["TF_CONFIG", "double quotes"]);
    Ok(())
}

#[test]
fn a_port_that_is_taken_is_named_and_worth_a_retry() -> Result<()> {
    let taken = TcpListener::bind("127.0.0.1:0").context("bind")?;
    let address = taken.local_addr().context("its address")?.to_string();
    let cluster = format!("{{\"worker\":[\"{address}\"]}}");
    let outcome = Run::guest("hello")?.args(["--cluster", &cluster, "--task", "worker:0"]).output()?;
    check(&outcome, 200, &[&address]);
    Ok(())
}

#[test]
fn a_second_process_of_a_task_is_refused() -> Result<()> {
    let mut cluster = Cluster::builder().workers(2).guest("sleeps").start()?;
    for task in ["worker:0", "worker:1"] {
        cluster.wait_for_line(task, "sleeping")?;
    }
    // On the same port it cannot bind; on another one the leader knows that the first is alive.
    check(&cluster.run("worker:0")?.output()?, 200, &[&cluster.port("worker:0").to_string()]);
    let elsewhere = TcpListener::bind("127.0.0.1:0").context("bind")?;
    let outcome = cluster.run("worker:1")?.listener(elsewhere).output()?;
    assert_eq!(outcome.code, 200, "{}", outcome.output);
    assert!(outcome.stderr.contains("worker:1"), "{}", outcome.output);
    for task in ["worker:0", "worker:1"] {
        assert!(cluster.task(task).is_running(), "the first goes on\n{}", cluster.report());
    }
    Ok(())
}

/// Aim: nobody is added to a job that runs. Method: the two wait for the gate while a third, whose cluster has a worker more,
/// asks their leader.
#[test]
fn a_worker_more_is_refused_by_a_running_job() -> Result<()> {
    let gate = tempfile::tempdir().context("make a directory")?;
    let grant = format!("{}::/gate:ro", gate.path().display());
    let builder = Cluster::builder().workers(2).ps(1).guest("gated").guest_args(["/gate/gate"]);
    let cluster = builder.flags(["--dir", &grant]).start()?;
    for task in ["worker:0", "worker:1"] {
        cluster.wait_for_line(task, "at the gate")?;
    }
    let port = Port::new()?;
    let mut larger: serde_json::Value = serde_json::from_str(cluster.spec()).context("read the cluster")?;
    larger["worker"].as_array_mut().context("its workers")?.push(port.address().to_string().into());
    let third = Run::new("worker:2").args(["--task", "worker:2", "--cluster", &larger.to_string(), "--dir", &grant]);
    let third = third.args(["--module".into(), guest("gated")?.into_os_string()]).listener(port.listen()?);
    let outcome = third.output()?;
    check(&outcome, 2, &["worker:0 has no worker:2", "has 2 tasks, and a running job takes no more"]);
    std::fs::write(gate.path().join("gate"), "").context("open the gate")?;
    let outcomes = cluster.wait_all(PATIENCE)?;
    outcomes.expect_codes([("ps:0", 0), ("worker:0", 0), ("worker:1", 0)]);
    for task in ["worker:0", "worker:1"] {
        outcomes.expect_output(task, "kept 2 in the end, one of 2 workers");
    }
    Ok(())
}

#[test]
fn workers_with_different_modules_do_not_train_together() -> Result<()> {
    let cluster = Cluster::builder().workers(2).guest("sleeps").task_guest("worker:1", "spins").start()?;
    let outcome = cluster.task("worker:1").wait(PATIENCE)?;
    assert_eq!(outcome.code, 2, "{}", cluster.report());
    Ok(())
}

#[test]
fn a_named_task_without_a_cluster_is_told_how_to_launch_one() -> Result<()> {
    let module = guest("hello")?;
    let args = ["--task".into(), "worker:0".into(), "--module".into(), module.into_os_string()];
    check(&Run::new("worker:0").args(args).output()?, 2, &["dchost launch"]);
    Ok(())
}

#[test]
fn launch_refuses_what_would_run_nothing() -> Result<()> {
    let launch = |args: &[&str]| Run::new("launch").args(["launch"]).args(args).output();
    let module = guest("hello")?;
    let module = module.to_str().context("a path in UTF-8")?;
    check(&launch(&["--workers", "0", "--module", module])?, 2, &["--workers"]);
    check(&launch(&["--workers", "2", "--module", "no/such.wasm"])?, 2, &["no/such.wasm"]);
    check(&launch(&["--workers", "2"])?, 2, &["--module"]);
    Ok(())
}
