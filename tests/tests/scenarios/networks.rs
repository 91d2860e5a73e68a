//! Names that come late, move or have many addresses; ports that somebody else has; clusters one after another.

use crate::gate::Gate;
use anyhow::{Context, Result};
use dchost_tests::{Cluster, Hosts, PATIENCE, Port, Process, Run, Signal, guest, wait_until};
use serde_json::json;
use std::net::{Ipv4Addr, TcpListener};

/// Two workers and a ps that know each other by names, which a hosts file of the test's gives or doesn't.
struct Named {
    hosts: Hosts,
    worker_0: Port,
    worker_1: Port,
    ps: Port,
}

impl Named {
    fn new() -> Result<Self> {
        Ok(Named { hosts: Hosts::new()?, worker_0: Port::new()?, worker_1: Port::new()?, ps: Port::new()? })
    }

    fn run(&self, task: &str, module: Option<&str>) -> Result<Run> {
        let (worker_0, worker_1, ps) = (self.worker_0.number(), self.worker_1.number(), self.ps.number());
        let workers = [format!("worker-0.test:{worker_0}"), format!("worker-1.test:{worker_1}")];
        let cluster = json!({ "worker": workers, "ps": [format!("ps-0.test:{ps}")] }).to_string();
        let run = Run::new(task).args(["--task", task, "--cluster", &cluster, "--connect-timeout", "60s"]);
        let run = match module {
            Some(name) => run.args(["--module".into(), guest(name)?.into_os_string()]),
            None => run,
        };
        run.hosts(&self.hosts)
    }

    fn start(&self, task: &str, module: Option<&str>, listener: TcpListener) -> Result<Process> {
        self.run(task, module)?.listener(listener).start()
    }
}

/// Waits for a line that names who is missed, and then why.
fn told(process: &Process, who: &str, why: &str) -> Result<()> {
    let is_told =
        || process.output().lines().any(|line| line.split_once(who).is_some_and(|(_, rest)| rest.contains(why)));
    wait_until(&format!("{} tells `{who}` and `{why}`", process.name()), PATIENCE, is_told)
        .with_context(|| process.report())
}

/// Aim: pods get their names when they are up, in any order, and nobody exits for it. Method: all three are started while no
/// name is known, and names are added one by one, once the log tells that they are missed.
#[test]
fn names_that_resolve_late_are_told_and_waited_for() -> Result<()> {
    let named = Named::new()?;
    let loopback: &[&str] = &["127.0.0.1"];
    let worker_1 = named.start("worker:1", Some("gated"), named.worker_1.listen()?)?;
    let worker_0 = named.start("worker:0", Some("gated"), named.worker_0.listen()?)?;
    let ps = named.start("ps:0", None, named.ps.listen()?)?;
    let unresolved = "name does not resolve: failed to lookup address information";
    told(&worker_1, "waiting for the leader worker:0 for ", unresolved)?;
    told(&worker_0, "worker:1 not seen yet for ", unresolved)?;
    named.hosts.set(&[("worker-0.test", loopback)])?;
    worker_1.wait_for_line("attends its leader worker:0", PATIENCE)?;
    told(&worker_0, "waiting for a task", unresolved)?;
    named.hosts.set(&[("worker-0.test", loopback), ("ps-0.test", loopback)])?;
    for process in [&worker_0, &worker_1, &ps] {
        let outcome = process.wait(PATIENCE)?;
        outcome.expect(0, if process.name() == "ps:0" { &[] } else { &["kept 2 in the end"] });
    }
    Ok(())
}

/// Aim: a server that comes back elsewhere under its name is found. Method: a client's run has called the ps when that is
/// killed and started at another address, to which its name is moved; the run finds it restarted, and its next attempt works.
#[test]
fn a_name_that_moves_with_its_restarted_server_is_followed() -> Result<()> {
    let named = Named::new()?;
    let gate = Gate::new()?;
    let workers: [(&str, &[&str]); 2] = [("worker-0.test", &["127.0.0.1"]), ("worker-1.test", &["127.0.0.1"])];
    let name_ps = |address: &str| named.hosts.set(&[workers[0], workers[1], ("ps-0.test", &[address])]);
    name_ps("127.0.0.2")?;
    let servers = [("worker:0", &named.worker_0), ("worker:1", &named.worker_1)];
    let servers = servers.map(|(task, port)| named.start(task, None, port.listen()?));
    let first = named.start("ps:0", None, named.ps.listen_at(Ipv4Addr::new(127, 0, 0, 2))?)?;
    let client = named.run("client", Some("gated"))?.args(["--max-attempts", "2"]);
    let client = gate.grant(client).start()?;
    client.wait_for_lines("at the gate", 2, PATIENCE)?;
    first.signal(Signal::KILL);
    first.wait(PATIENCE)?;
    name_ps("127.0.0.3")?;
    let second = named.start("ps:0", None, named.ps.listen_at(Ipv4Addr::new(127, 0, 0, 3))?)?;
    gate.open()?;
    client.wait(PATIENCE)?.expect(0, &["peer-restarted", "attempt 1 found nothing", "kept 2 in the end"]);
    for server in servers.into_iter().chain([Ok(second)]) {
        let server = server?;
        server.wait_for_line("serves on", PATIENCE)?;
        server.signal(Signal::TERM);
        server.wait(PATIENCE)?.expect(143, &[]);
    }
    Ok(())
}

/// Method: the name of the leader, and that of the ps, have an address of the other family and two where nobody listens.
#[test]
fn every_address_of_a_name_is_tried() -> Result<()> {
    let named = Named::new()?;
    let addresses: &[&str] = &["::1", "127.0.0.2", "127.0.0.3", "127.0.0.1"];
    named.hosts.set(&[("worker-0.test", addresses), ("worker-1.test", addresses), ("ps-0.test", addresses)])?;
    let worker_0 = named.start("worker:0", Some("gated"), named.worker_0.listen()?)?;
    let worker_1 = named.start("worker:1", Some("gated"), named.worker_1.listen()?)?;
    let ps = named.start("ps:0", None, named.ps.listen()?)?;
    for process in [&worker_0, &worker_1, &ps] {
        process.wait(PATIENCE)?.expect(0, &[]);
    }
    Ok(())
}

/// Aim: who can't bind says so at once, and the others tell whom they miss and why. Method: the port is somebody's who
/// accepts and says nothing.
#[test]
fn a_task_whose_port_is_taken_is_200_and_the_others_name_it() -> Result<()> {
    let builder = Cluster::builder().workers(2).guest("barrier_loop").held("worker:1");
    let mut cluster = builder.flags(["--connect-timeout", "12s"]).start()?;
    let _somebody = cluster.take_listener("worker:1");
    cluster.start_task("worker:1")?;
    let address = format!("127.0.0.1:{}", cluster.port("worker:1"));
    let outcome = cluster.task("worker:1").wait(PATIENCE)?;
    outcome.expect(200, &[&address, "in use"]);
    told(cluster.task("worker:0"), "worker:1 not seen yet for ", "no answer within 3 s")?;
    let outcome = cluster.task("worker:0").wait(PATIENCE)?;
    outcome.expect(201, &["worker:1", "no answer within 3 s", "--connect-timeout"]);
    Ok(())
}

/// The same where a server of another job has the port: it answers, and is nobody's worker:1.
#[test]
fn a_port_that_another_job_has_is_told_as_such() -> Result<()> {
    let other = Cluster::builder().workers(1).guest("sleeps").start()?;
    other.wait_for_line("worker:0", "sleeping")?;
    let own = Port::new()?;
    let cluster = json!({ "worker": [own.address(), format!("127.0.0.1:{}", other.port("worker:0"))] }).to_string();
    let run = |task: &str| {
        let run = Run::guest("barrier_loop")?.args(["--task", task, "--cluster", &cluster]);
        anyhow::Ok(run.args(["--connect-timeout", "8s"]))
    };
    run("worker:1")?.output()?.expect(200, &["in use"]);
    let worker_0 = run("worker:0")?.listener(own.listen()?).start()?;
    told(&worker_0, "worker:1 not seen yet for ", "it answers, but does not attend")?;
    worker_0.wait(PATIENCE)?.expect(201, &["worker:1", "it answers, but does not attend"]);
    assert!(other.task("worker:0").is_running(), "{}", other.report());
    Ok(())
}

/// Method: the ps's port answers nothing at all, and then refuses.
#[test]
fn a_ps_behind_a_firewall_and_one_that_is_not_there_are_told_apart() -> Result<()> {
    let (worker, ps) = (Port::new()?, Port::new()?);
    let cluster = json!({ "worker": [worker.address()], "ps": [ps.address()] }).to_string();
    let start = || {
        let run = Run::guest("gated")?.args(["--task", "worker:0", "--cluster", &cluster]);
        run.args(["--connect-timeout", "12s"]).listener(worker.listen()?).start()
    };
    let filtered = ps.filter()?;
    let process = start()?;
    told(&process, "waiting for a task", "timed out")?;
    process.wait(PATIENCE)?.expect(201, &["ps:0", "timed out"]);
    drop(filtered);
    let process = start()?;
    told(&process, "waiting for a task", "connection refused")?;
    process.wait(PATIENCE)?.expect(201, &["ps:0", "connection refused"]);
    Ok(())
}

#[test]
fn a_cluster_of_one_may_leave_its_port_to_the_system() -> Result<()> {
    let server = Run::new("ps:0").args(["--task", "ps:0", "--cluster", r#"{"ps":["127.0.0.1:0"]}"#]).start()?;
    let line = server.wait_for_line("serves on 127.0.0.1:", PATIENCE)?;
    let port = server.sockets()?.iter().find(|socket| socket.is_listening()).map(|socket| socket.local.port());
    let port = port.context("it listens")?;
    assert!(port != 0 && line.contains(&format!("127.0.0.1:{port}")), "{port}: {line}");
    server.signal(Signal::TERM);
    server.wait(PATIENCE)?.expect(143, &[]);
    Ok(())
}

/// How many clusters follow each other; `cargo xtask soak clusters` sets it.
const CLUSTERS: &str = "SCENARIO_CLUSTERS";

/// Aim: a test never loses a port that it has chosen. Method: clusters of five, one after another, half of whose tasks are
/// handed a listening socket and half bind their port themselves.
#[test]
fn clusters_of_five_follow_each_other() -> Result<()> {
    const TASKS: [&str; 5] = ["ps:0", "ps:1", "worker:0", "worker:1", "worker:2"];
    let count = std::env::var(CLUSTERS).map_or(Ok(5), |count| count.parse()).context(CLUSTERS)?;
    for number in 0..count {
        let mut builder = Cluster::builder().workers(3).ps(2).guest("counter");
        for task in TASKS {
            builder = builder.held(task);
        }
        let mut cluster = builder.start()?;
        for (index, task) in TASKS.into_iter().enumerate() {
            if (index + number) % 2 == 0 {
                drop(cluster.take_listener(task));
            }
            cluster.start_task(task)?;
        }
        let outcomes = cluster.wait_all(PATIENCE).with_context(|| format!("cluster {number} of {count}"))?;
        outcomes.expect_codes(TASKS.map(|task| (task, 0)));
    }
    Ok(())
}
