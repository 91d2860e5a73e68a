//! Rows of tables.

use anyhow::Result;
use dchost_tests::{Cluster, PATIENCE, Run, guest};

#[test]
fn workers_add_to_rows_of_a_table_in_parts_and_nothing_is_lost() -> Result<()> {
    let outcomes = Cluster::builder().workers(2).ps(3).guest("scatters").start()?.wait_all(PATIENCE)?;
    outcomes.expect_codes([("ps:0", 0), ("ps:1", 0), ("ps:2", 0), ("worker:0", 0), ("worker:1", 0)]);
    for task in ["worker:0", "worker:1"] {
        outcomes.expect_output(task, "0 rows are off after 20 rounds, version 41");
    }
    Ok(())
}

#[test]
fn a_local_run_has_the_rows_in_process() -> Result<()> {
    Run::guest("scatters")?.output()?.expect(0, &["0 rows are off after 20 rounds, version 21"]);
    Ok(())
}

#[test]
fn a_row_that_is_not_there_is_named_and_changes_nothing() -> Result<()> {
    let builder = Cluster::builder().workers(1).ps(2).guest("scatters").guest_args(["1", "beyond"]);
    let outcomes = builder.start()?.wait_all(PATIENCE)?;
    let text = "out-of-range: row `1024` (number `1` of those asked for) of variable `table` is out of range: `f32[1024, 256]` has";
    outcomes.expect_output("worker:0", text);
    assert_eq!(outcomes["worker:0"].code, 1, "{}", outcomes.report());
    Ok(())
}

#[test]
fn embeddings_learn_what_ratings_are_made_of() -> Result<()> {
    let module = guest("embeddings")?.into_os_string();
    let small = "-- --users 300 --items 200 --steps 400 --batch 64 --learning-rate 0.3".split(' ');
    let launch = ["launch", "--workers", "2", "--ps", "2", "--module"];
    let outcome = Run::new("launch").args(launch).args([module]).args(small).output()?;
    assert_eq!(outcome.code, 0, "{}", outcome.output);
    let line = outcome.stdout.lines().find(|line| line.contains("nobody learned from: ")).unwrap_or_default();
    let number = |end: &str| line.split(end).next()?.rsplit(' ').next()?.parse::<f32>().ok();
    let (before, after) = (number(" before,"), number(" after"));
    let falls = before.zip(after).is_some_and(|(before, after)| before > 0.3 && after < 0.1 * before);
    assert!(falls, "{}", outcome.output);
    Ok(())
}
