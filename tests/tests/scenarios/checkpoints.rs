//! Variables in files and back, by the binary and real clusters.

use crate::split_client::servers;
use anyhow::{Context, Result};
use dchost_tests::{Cluster, Outcome, PATIENCE, Process, Run, Signal, wait_until};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Clients that keep what is in the container.
const SHARED: [&str; 3] = ["--container", "kept", "--share-container"];

fn address(cluster: &Cluster, task: &str) -> String {
    format!("127.0.0.1:{}", cluster.port(task))
}

/// `dchost save` or `dchost restore`, asking a task.
fn run(what: &str, cluster: &Cluster, task: &str, dir: &Path, container: &str) -> Run {
    let args = [what, &address(cluster, task), "--container", container];
    Run::new(what).args(args).args([dir.as_os_str()])
}

fn train(cluster: &Cluster, until: &str) -> Result<Outcome> {
    cluster.client("client", "resumes")?.args(SHARED).guest_args([until]).output()
}

fn names(dir: &Path) -> Result<Vec<String>> {
    let names = std::fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let mut names = names.collect::<Result<Vec<_>>>()?;
    names.sort();
    Ok(names)
}

/// Aim: a job that is saved, ended and begun anew on fewer ps tasks ends with the very bits that an uninterrupted one ends with; and
/// Python reads the files. Method: clients that leave their variables on three ps tasks, and a job of its own on two.
#[test]
fn training_goes_on_after_a_checkpoint_on_fewer_ps_tasks() -> Result<()> {
    let base = tempfile::tempdir()?;
    let dir = base.path().join("ckpt");
    let three = servers(1, 3).start()?;
    train(&three, "5")?.expect(0, &["steps 0 to 5: "]);
    let saved = run("save", &three, "worker:0", &dir, "kept").output()?;
    let shown = dir.display().to_string();
    saved.expect(
        0,
        &["saved `kept` of ps:0, ps:1, ps:2, worker:0: 9 variables, 1 with what an optimizer keeps", &shown],
    );
    assert_eq!((saved.stderr.as_str(), names(base.path())?), ("", vec!["ckpt".to_owned()]));
    let files = ["manifest.json", "model-00000-of-00001.safetensors", "slots-00000-of-00001.safetensors"];
    assert_eq!(names(&dir)?, files);
    let whole = train(&three, "9")?;
    whole.expect(0, &["steps 5 to 9: "]);
    three.end_servers()?;

    let python = Command::new(dchost_tests::python()?)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("python/read_checkpoint.py"))
        .arg(&dir)
        .output()
        .context("start Python")?;
    assert!(python.status.success(), "{}", String::from_utf8_lossy(&python.stderr));
    assert_eq!(String::from_utf8_lossy(&python.stdout), "11 tensors\n");

    // The ps tasks first, then what was saved, then the one who would initialize.
    let mut two = Cluster::builder().workers(1).ps(2).guest("resumes").guest_args(["9"]).held("worker:0").start()?;
    let restored = run("restore", &two, "ps:1", &dir, "default").output()?;
    restored
        .expect(0, &["restored `default` on ps:0, ps:1: 9 variables, 1 with what an optimizer keeps", "1 in parts"]);
    two.start_task("worker:0")?;
    let outcomes = two.wait_all(PATIENCE)?;
    outcomes.expect_codes([("ps:0", 0), ("ps:1", 0), ("worker:0", 0)]);
    outcomes.expect_output("worker:0", whole.stdout.trim().trim_start_matches("worker:0 | "));
    Ok(())
}

fn kept() -> Result<(tempfile::TempDir, PathBuf, Cluster)> {
    let base = tempfile::tempdir()?;
    let dir = base.path().join("ckpt");
    let cluster = servers(1, 1).start()?;
    train(&cluster, "5")?.expect(0, &["steps 0 to 5: "]);
    run("save", &cluster, "ps:0", &dir, "kept").output()?.expect(0, &["saved `kept`"]);
    Ok((base, dir, cluster))
}

/// Aim: whatever ends a save, there is a whole checkpoint afterwards. Method: end it when it has begun to write, by each signal; a
/// file system that takes no more is one with a limit on the size of files.
#[test]
fn a_save_that_is_ended_leaves_a_whole_checkpoint() -> Result<()> {
    let (base, dir, cluster) = kept()?;
    for (signal, codes) in [(Signal::INT, [130, 0]), (Signal::TERM, [143, 0]), (Signal::KILL, [-9, 0])] {
        let save = run("save", &cluster, "ps:0", &dir, "kept").start()?;
        let begun = |names: Vec<String>| names.iter().any(|name| name.ends_with(".dchost-begun"));
        wait_until("it writes", PATIENCE, || names(base.path()).is_ok_and(begun) || !save.is_running())?;
        save.signal(signal);
        let outcome = save.wait(PATIENCE)?;
        // It may have been done by then.
        assert!(codes.contains(&outcome.code), "{}", outcome.output);
        if signal != Signal::KILL {
            assert_eq!(names(base.path())?, ["ckpt"], "what was begun is removed");
        }
        run("restore", &cluster, "ps:0", &dir, "kept").output()?.expect(0, &["restored `kept`"]);
    }
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -f 64; exec \"$@\"", "sh"]).arg(dchost_tests::dchost()?);
    command.args(["save", &address(&cluster, "ps:0"), "--container", "kept"]).arg(&dir);
    let full = Process::start("full", command)?.wait(PATIENCE)?;
    full.expect(74, &["can't write", "model-00000-of-00001.safetensors", "File too large"]);
    run("restore", &cluster, "ps:0", &dir, "kept").output()?.expect(0, &["restored `kept`"]);
    cluster.end_servers()?;
    Ok(())
}

/// A port that no test is given.
const NOBODY: &str = "127.0.0.1:1";

#[test]
fn what_is_wrong_is_told_with_its_code() -> Result<()> {
    let (base, dir, cluster) = kept()?;
    let path = dir.to_str().context("it is text")?;
    for what in ["save", "restore"] {
        let nobody = Run::new(what).args([what, NOBODY, path, "--connect-timeout=300ms"]).output()?;
        nobody.expect(201, &[NOBODY, "connection refused", "--connect-timeout"]);
        Run::new(what).args([what, "nonsense", path]).output()?.expect(2, &["ADDR", "has no port"]);
    }
    run("save", &cluster, "ps:0", &dir, "other").output()?.expect(2, &["container `other` has no variables"]);
    std::fs::write(base.path().join("file"), "")?;
    run("save", &cluster, "ps:0", &base.path().join("file"), "kept").output()?.expect(74, &["can't write"]);
    run("save", &cluster, "ps:0", &base.path().join("none/ckpt"), "kept").output()?.expect(74, &["No such file"]);
    run("restore", &cluster, "ps:0", &base.path().join("none"), "kept").output()?.expect(74, &["can't read"]);

    let file = dir.join("model-00000-of-00001.safetensors");
    let mut data = std::fs::read(&file)?;
    data.pop();
    std::fs::write(&file, data)?;
    let torn = run("restore", &cluster, "ps:0", &dir, "kept").output()?;
    torn.expect(
        74,
        &["checkpoint `", "can't be used: model-00000-of-00001.safetensors: it has ", "but was written with"],
    );
    std::fs::write(dir.join("notes.txt"), "mine")?;
    run("save", &cluster, "ps:0", &dir, "kept").output()?.expect(2, &["`notes.txt`"]);
    cluster.end_servers()?;
    Ok(())
}
