//! Adds to rows of a table of 1024 rows of 256 f32, in parts on the ps tasks, from all workers at once; then each row must have
//! exactly what all of them added. Arguments: the number of rounds (default 20); `beyond` to name a row that isn't there.

use dchost_guest::{Result, WorkerContext, worker_fn};
use dchost_test_guests::arg;

const ROWS: usize = 1024;
const COLUMNS: usize = 256;

/// The rows of a round: strewn over all parts, some twice, the ends always.
fn rows(round: usize) -> Vec<usize> {
    let strewn = (0..60).map(|at| (at * at * 7 + round * 131) % ROWS);
    strewn.chain([0, ROWS - 1, 0]).collect()
}

#[worker_fn]
fn train(ctx: &WorkerContext) -> Result<()> {
    let rounds: usize = arg(ctx, 0, 20);
    let table = ctx.variable::<f32>("table").shape([ROWS, COLUMNS]).sharded().declare()?;
    if ctx.is_chief() {
        table.initialize(0.0)?;
    }
    table.wait_initialized(None)?;
    if ctx.args().get(1).is_some_and(|arg| arg == "beyond") {
        table.scatter_add([5, ROWS], 1.0)?;
    }

    let mut expected = vec![0.0; ROWS];
    for round in 0..rounds {
        let rows = rows(round);
        let values: Vec<f32> = (1..=rows.len()).flat_map(|number| [number as f32; COLUMNS]).collect();
        for (&row, number) in rows.iter().zip(1..) {
            expected[row] += number as f32 * ctx.num_workers().max(1) as f32;
        }
        table.scatter_add(&rows, &values)?;
        // Others may have added more by now, nobody less.
        let seen = table.gather(&rows)?;
        if seen.shape() != [rows.len(), COLUMNS] || seen.iter().zip(&values).any(|(seen, added)| seen < added) {
            return Err(format!("round {round}: rows {:?} lack what was added", seen.shape()).into());
        }
    }
    if ctx.has_barrier() {
        ctx.wait_for_other_workers()?;
    }
    let backwards: Vec<usize> = (0..ROWS).rev().collect();
    let value = table.gather(&backwards)?;
    let off =
        backwards.iter().zip(value.chunks(COLUMNS)).filter(|&(&row, all)| all.iter().any(|&of| of != expected[row]));
    let off = off.count();
    println!("{off} rows are off after {rounds} rounds, version {}", value.version());
    if off == 0 { Ok(()) } else { Err(format!("{off} rows are off").into()) }
}
