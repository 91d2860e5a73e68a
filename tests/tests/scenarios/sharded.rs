//! Variables in parts on several ps tasks.

use crate::split_client::servers;
use anyhow::Result;
use dchost_tests::{Cluster, Outcome, PATIENCE, Run};
use serde_json::Value;

const SHARED: [&str; 3] = ["--container", "tables", "--share-container"];

#[test]
fn workers_train_a_table_in_parts_on_three_ps() -> Result<()> {
    let outcomes = Cluster::builder().workers(2).ps(3).guest("trains_sharded").start()?.wait_all(PATIENCE)?;
    outcomes.expect_codes([("ps:0", 0), ("ps:1", 0), ("ps:2", 0), ("worker:0", 0), ("worker:1", 0)]);
    for task in ["worker:0", "worker:1"] {
        outcomes.expect_output(task, "after 40 steps, version 41");
    }
    Ok(())
}

#[test]
fn a_local_run_has_the_table_in_process() -> Result<()> {
    Run::guest("trains_sharded")?.output()?.expect(0, &["after 20 steps, version 21"]);
    Ok(())
}

#[test]
fn a_change_of_parts_that_depends_on_the_version_is_refused() -> Result<()> {
    let builder = Cluster::builder().workers(1).ps(3).guest("trains_sharded").guest_args(["1", "base"]);
    let outcomes = builder.start()?.wait_all(PATIENCE)?;
    outcomes.expect_output("worker:0", "invalid-argument: variable `table` is in `3` parts on ps:1, ps:2, ps:0");
    assert_eq!(outcomes["worker:0"].code, 1, "{}", outcomes.report());
    Ok(())
}

/// A client whose cluster has so many of the ps tasks.
fn client(cluster: &Cluster, name: &str, ps: u32) -> Result<Outcome> {
    let address = |task: &str| format!("127.0.0.1:{}", cluster.port(task));
    let ps: serde_json::Map<_, _> =
        (0..ps).map(|index| (index.to_string(), address(&format!("ps:{index}")).into())).collect();
    let spec = serde_json::json!({ "worker": [address("worker:0")], "ps": ps }).to_string();
    let module = dchost_tests::guest("trains_sharded")?.into_os_string();
    let run = Run::new(name).args(["--task", "client", "--cluster", &spec]).args(SHARED);
    run.args(["--module".into(), module]).output()
}

/// Aim: whoever initializes first cuts the variable; clients that know other ps tasks go by it, or are told which one they lack.
#[test]
fn clients_with_other_ps_tasks_go_by_how_the_table_is_held() -> Result<()> {
    let cluster = servers(1, 4).start()?;
    client(&cluster, "three", 3)?.expect(0, &["after 20 steps, version 21"]);

    let status =
        Run::new("status").args(["status", "--cluster", cluster.spec(), "--all", "--format", "json"]).output()?;
    let object: Value = serde_json::from_str(&status.stdout)?;
    let servers = object["servers"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut parts: Vec<_> = servers
        .iter()
        .flat_map(|server| server["status"]["variables"].as_array().map(Vec::as_slice).unwrap_or_default())
        .filter(|variable| variable["name"] == "table")
        .map(|variable| {
            let shard = &variable["shard"];
            let (index, count) = (&shard["index"], &shard["count"]);
            format!(
                "{index} of {count}: {} rows from {} on of {}",
                shard["rows"], shard["first_row"], variable["shape"]
            )
        })
        .collect();
    parts.sort();
    assert_eq!(
        parts,
        [
            "0 of 3: 342 rows from 0 on of [1024,256]",
            "1 of 3: 341 rows from 342 on of [1024,256]",
            "2 of 3: 341 rows from 683 on of [1024,256]"
        ]
    );
    let text = Run::new("status").args(["status", "--cluster", cluster.spec(), "--all"]).output()?;
    text.expect(0, &["f32[1024, 256], shard 0 of 3"]);

    client(&cluster, "four", 4)?.expect(0, &["after 20 steps, version 42"]);
    client(&cluster, "two", 2)?.expect(
        1,
        &["invalid-argument: variable `table` is in `3` parts on ps:1, ps:2, ps:0, but this view of the cluster lacks ps:2; give this \
           task a cluster with all tasks that hold it"],
    );
    cluster.end_servers()?;
    Ok(())
}
