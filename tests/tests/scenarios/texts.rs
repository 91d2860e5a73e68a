//! Texts from outside: line ends and byte order marks of other systems, and text that poses as another task's.

use anyhow::{Context, Result};
use dchost_tests::{Cluster, PATIENCE, Run};

#[test]
fn files_with_crlf_and_a_byte_order_mark_are_read_as_others() -> Result<()> {
    let dir = tempfile::tempdir().context("make a directory")?;
    let config = dir.path().join("dchost.toml");
    let text = "\u{feff}# settings\r\ntimeout = \"60s\"\r\nenv = [\"GREETING=hello\"]\r\ncontainer = \"mine\"\r\n";
    std::fs::write(&config, text).context("write the file")?;
    let outcome = Run::guest("hello")?.args(["--config".into(), config.into_os_string()]).output()?;
    assert_eq!(outcome.code, 0, "{}", outcome.output);
    for text in ["timeout = 1m", "env = GREETING"] {
        assert!(outcome.stderr.contains(text), "no `{text}` in:\n{}", outcome.output);
    }
    assert!(!outcome.output.contains("\\r") && !outcome.output.contains('\r'), "{:?}", outcome.output);

    // A cluster spec as an editor of another system leaves it.
    let cluster = dir.path().join("cluster.json");
    std::fs::write(&cluster, "\u{feff}{\r\n  \"worker\": [\"127.0.0.1:2222\"]\r\n}\r\n").context("write the file")?;
    let plan = Run::new("plan").args(["plan", "--mode", "independent-worker", "--task", "worker:0", "--cluster"]);
    let outcome = plan.args([cluster.as_os_str()]).output()?;
    assert_eq!(outcome.code, 0, "{}", outcome.output);
    assert!(outcome.stdout.contains("127.0.0.1:2222"), "{}", outcome.output);
    Ok(())
}

#[test]
fn a_guests_line_cannot_pose_as_another_tasks() -> Result<()> {
    let cluster = Cluster::builder().workers(1).guest("prints").start()?;
    let outcome = cluster.task("worker:0").wait(PATIENCE)?;
    assert_eq!(outcome.code, 0, "{}", outcome.output);
    for line in outcome.output.lines() {
        let own = line.starts_with("worker:0 | ") || line.contains("worker:0") || line.contains(" INFO ");
        assert!(own && !line.starts_with("worker:1"), "whose line is `{line}`?\n{}", outcome.output);
    }
    // What the guest forged is there, as the text of its own lines.
    for text in ["worker:1 | forged on stdout", "worker:1 | forged in a log"] {
        let lines = outcome.output.lines().filter(|line| line.contains(text));
        assert_eq!(lines.filter(|line| line.contains("worker:0")).count(), 1, "{text}:\n{}", outcome.output);
    }
    Ok(())
}

#[test]
fn names_that_would_mislead_a_reader_are_refused_or_shown_escaped() -> Result<()> {
    let cluster = Cluster::builder().workers(2).guest("names").start()?;
    let outcomes = cluster.wait_all(PATIENCE)?;
    for task in ["worker:0", "worker:1"] {
        let output = &outcomes[task].output;
        // Those between turn the direction of text, which no terminal and no log is given as it is.
        for index in [0, 1, 2, 3, 4, 5, 9] {
            for of in ["barrier", "variable"] {
                let line = format!("{of} {index}: invalid-argument");
                assert!(output.contains(&line), "no `{line}` in:\n{output}");
            }
        }
        let is_harmful = |c: char| {
            (c.is_control() && c != '\n') || matches!(c, '\u{2028}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
        };
        assert!(!output.contains(is_harmful), "{output:?}");
        assert!(output.len() < 64 << 10, "a name of 1 MiB is not told whole: {} bytes", output.len());
    }
    Ok(())
}
