//! What `dchost status` shows of running clusters.

use anyhow::{Context, Result, ensure};
use dchost_tests::{Cluster, Outcome, PATIENCE, Process, Run, Signal, wait_until};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

fn status(args: &[&str]) -> Result<Outcome> {
    Run::new("status").args(["status"]).args(args.iter().copied()).output()
}

fn object(args: &[&str]) -> Result<Value> {
    let outcome = status(&[&["--format", "json"], args].concat())?;
    serde_json::from_str(&outcome.stdout).with_context(|| format!("not one object:\n{}", outcome.output))
}

/// A cluster whose chief waits for a worker that isn't started, with a variable of 4000 bytes on its ps.
fn waiting() -> Result<Cluster> {
    let cluster = Cluster::builder().workers(2).ps(1).guest("big_variable").guest_args(["4000", "ps:0"]);
    let cluster = cluster.held("worker:1").start()?;
    wait_until("worker:0 waits", PATIENCE, || {
        let object = object(&["--cluster", cluster.spec()]);
        object.is_ok_and(|object| object["servers"][0]["status"]["barriers"][0]["arrived"][0] == "worker:0")
    })
    .with_context(|| cluster.report())?;
    Ok(cluster)
}

#[test]
fn a_cluster_shows_who_waits_for_whom_and_what_is_kept_where() -> Result<()> {
    let mut cluster = waiting()?;
    let spec = cluster.spec().to_owned();
    let leader = &object(&["--cluster", &spec])?["servers"][0]["status"];
    assert_eq!((&leader["task"], &leader["job"]["mode"]), (&"worker:0".into(), &"independent-worker".into()));
    assert_eq!(leader["barriers"][0]["missing"], Value::from(vec!["worker:1"]));
    let states: Vec<_> = leader["tasks"].as_array().context("rows")?.iter().map(|row| &row["state"]).collect();
    assert_eq!(states, ["running", "running", "never-seen"], "{leader:#}");

    // Within a pod, the cluster comes from TF_CONFIG; its task doesn't count.
    let tf_config = format!(r#"{{"cluster":{spec},"task":{{"type":"worker","index":1}}}}"#);
    let run = Run::new("status").args(["status", "--task", "ps"]).env("TF_CONFIG", tf_config);
    let ps = run.args(["--format", "json"]).output()?;
    let ps: Value = serde_json::from_str(&ps.stdout).with_context(|| ps.output.clone())?;
    let ps = &ps["servers"][0]["status"];
    let variable = &ps["variables"][0];
    assert_eq!(
        (&variable["name"], &variable["shape"], &variable["bytes"]),
        (&"big".into(), &vec![1000].into(), &4000.into())
    );
    assert_eq!((&ps["sessions"][0]["task"], &ps["sessions"][0]["attached"]), (&"worker:0".into(), &true.into()));
    assert_eq!(ps["attempt"], leader["attempt"]);

    let all = status(&["--cluster", &spec, "--all"])?;
    assert_eq!((all.code, all.stderr.as_str()), (0, ""), "{}", all.output);
    let rows: Vec<Vec<&str>> = all.stdout.lines().map(|line| line.split_whitespace().collect()).collect();
    let has = |cells: &[&str]| rows.iter().any(|row| cells.iter().all(|cell| row.contains(cell)));
    for cells in [
        &["wait_for_other_workers", "default", "worker:0", "worker:1"][..],
        &["worker:1", "no", "answer:"],
        &["big", "ps:0", "f32[1000]", "3.9", "KiB", "4000"],
        &["worker:0", "ps:0", "default", "open"],
    ] {
        assert!(has(cells), "no row with {cells:?} in:\n{}", all.stdout);
    }

    cluster.start_task("worker:1")?;
    cluster.wait_all(PATIENCE)?.expect_codes([("ps:0", 0), ("worker:0", 0), ("worker:1", 0)]);
    Ok(())
}

fn watch(cluster: &Cluster, flags: &[&str]) -> Result<Process> {
    let run = Run::new("watch").args(["status", "--watch=100ms", "--cluster", cluster.spec()]);
    run.args(flags.iter().copied()).start()
}

#[test]
fn a_watch_sees_changes_and_goes_on_without_its_server() -> Result<()> {
    let mut cluster = waiting()?;
    let (text, json) = (watch(&cluster, &[])?, watch(&cluster, &["--format", "json"])?);
    text.wait_for_line("worker:1  never-seen", PATIENCE)?;
    json.wait_for_line(r#""state":"never-seen""#, PATIENCE)?;
    cluster.start_task("worker:1")?;
    cluster.wait_all(PATIENCE)?.expect_codes([("ps:0", 0), ("worker:0", 0), ("worker:1", 0)]);
    text.wait_for_line("gives no status: connection refused", PATIENCE)?;
    text.wait_for_line("the last answer came", PATIENCE)?;
    json.wait_for_lines(r#""error":"connection refused","status":null"#, 2, PATIENCE)?;
    for watch in [&text, &json] {
        watch.signal(Signal::INT);
        let outcome = watch.wait(PATIENCE)?;
        assert_eq!((outcome.code, outcome.stderr.as_str()), (0, ""));
    }
    for line in json.wait(PATIENCE)?.stdout.lines() {
        let object: Value = serde_json::from_str(line).context("each line is an object")?;
        ensure!(object["time"].is_string() && object["error"].is_null(), "{object}");
    }
    Ok(())
}

#[test]
fn a_watch_ends_with_its_reader() -> Result<()> {
    let cluster = waiting()?;
    let args = ["status", "--watch=100ms", "--format=json", "--cluster", cluster.spec()];
    let mut child = Run::new("watch").args(args).command()?.stdout(Stdio::piped()).spawn().context("start it")?;
    let mut stdout = BufReader::new(child.stdout.take().context("it is piped")?);
    let mut line = String::new();
    stdout.read_line(&mut line).context("read a line")?;
    drop(stdout);
    assert!(line.contains("worker:0"), "{line}");
    // A process that has ended has no open files any more.
    let files = PathBuf::from(format!("/proc/{}/fd/2", child.id()));
    let ended = wait_until("it ends", PATIENCE, || !files.exists());
    if ended.is_err() {
        child.kill().context("end it")?;
    }
    let end = child.wait().context("reap it")?;
    assert_eq!((ended.is_ok(), end.code()), (true, Some(0)));
    Ok(())
}

/// A port that no test is given: free ones begin far above.
const NOBODY: &str = "127.0.0.1:1";

#[test]
fn nobody_and_somebody_else_are_201_within_the_timeout() -> Result<()> {
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("bind a port")?;
    let mute = silent.local_addr().context("its port")?;
    for (address, why) in [(NOBODY.to_owned(), "connection refused"), (mute.to_string(), "no answer within 0.3 s")] {
        let outcome = status(&[&address, "--connect-timeout=300ms"])?;
        assert_eq!((outcome.code, outcome.stdout.as_str()), (201, ""), "{}", outcome.output);
        for part in [&address, why, "--connect-timeout"] {
            assert!(outcome.stderr.contains(part), "no `{part}` in:\n{}", outcome.stderr);
        }
        assert!(outcome.time < Duration::from_secs(30), "{:?}", outcome.time);
        let object = object(&[&address, "--connect-timeout=300ms"])?;
        assert_eq!(
            (&object["servers"][0]["status"], object["servers"][0]["address"].as_str()),
            (&Value::Null, Some(&*address))
        );
        assert!(object["error"].as_str().is_some_and(|error| error.contains(why)), "{object}");
    }
    let all = status(&["--all", "--cluster", &format!(r#"{{"worker":["{NOBODY}"]}}"#)])?;
    assert_eq!(all.code, 201, "{}", all.output);
    assert!(all.stdout.contains("no answer: connection refused"), "{}", all.output);
    assert!(all.stderr.contains("none of the 1 tasks of the cluster answered"), "{}", all.output);
    Ok(())
}
