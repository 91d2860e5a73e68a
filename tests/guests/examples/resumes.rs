//! Trains a table in parts on the ps tasks with Adam, and goes on where a checkpoint has left off. Argument: up to which step
//! (default 5).
//!
//! Variables of every type with known values stand beside it, for those that read the checkpoint with other tools. Prints a checksum
//! of the table's bits.

use dchost_guest::{Change, Optimizer, Result, WorkerContext, worker_fn};
use dchost_test_guests::arg;

const ROWS: usize = 1024;
const COLUMNS: usize = 256;

#[worker_fn]
fn train(ctx: &WorkerContext) -> Result<()> {
    let until: i64 = arg(ctx, 0, 5);
    let table = ctx.variable::<f32>("table").shape([ROWS, COLUMNS]).declare()?;
    let step = ctx.variable::<i64>("step").declare()?;
    // Keeps what was restored.
    ctx.initialize_if_absent([Change::assign(&table, 0.0), Change::assign(&step, 0)])?;
    known(ctx)?;

    let gradient: Vec<f32> = (0..ROWS * COLUMNS).map(|at| (at / COLUMNS) as f32 / ROWS as f32 + 0.5).collect();
    let first = step.read()?.scalar();
    for _ in first..until {
        ctx.apply_gradients(&Optimizer::adam(0.01), [(&table, &gradient)])?;
        step.add(1)?;
    }
    let value = table.read()?;
    let checksum = value.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, value| {
        (hash ^ u64::from(value.to_bits())).wrapping_mul(0x0000_0100_0000_01b3)
    });
    println!("steps {first} to {until}: {checksum:016x}");
    Ok(())
}

fn known(ctx: &WorkerContext) -> Result<()> {
    let f32s = ctx.variable::<f32>("known/f32").shape([2, 3]).declare()?;
    let f64 = ctx.variable::<f64>("known/f64").declare()?;
    let s32s = ctx.variable::<i32>("known/s32").shape([3]).declare()?;
    let s64s = ctx.variable::<i64>("known/s64").shape([1]).declare()?;
    let u8s = ctx.variable::<u8>("known/u8").shape([3]).declare()?;
    let empty = ctx.variable::<f32>("known/empty").shape([0, 4]).declare()?;
    let unicode = ctx.variable::<f64>("known/größe").shape([2]).declare()?;
    ctx.initialize_if_absent([
        Change::assign(&f32s, &[0.0, 0.5, 1.0, 1.5, 2.0, 2.5]),
        Change::assign(&f64, 0.1),
        Change::assign(&s32s, &[-1, 2, i32::MAX]),
        Change::assign(&s64s, &[i64::MIN]),
        Change::assign(&u8s, &[0, 7, 255]),
        Change::assign(&empty, &[]),
        Change::assign(&unicode, &[1.0, 2.0]),
    ])
}
