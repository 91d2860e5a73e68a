//! Learns what users and items have in common from ratings alone: each is a row of numbers, and a rating is the product of two rows.
//!
//! A batch names few of many rows, so that a worker reads these rows and adds to them, and the tables never travel.

#![deny(unsafe_code)]

mod options;
mod ratings;

use dchost_guest::{Result, Variable, WorkerContext, worker_fn};
use options::Options;
use ratings::{Rating, Ratings};
use std::time::Instant;

/// Numbers in a row: four times as many as those that the ratings were made of.
const WIDTH: usize = 16;

/// Ratings that nobody learns from, to see what was learned.
const HELD_OUT: usize = 4096;

#[worker_fn]
fn run(ctx: &WorkerContext) -> Result<()> {
    let options = Options::parse(&ctx.args())?;
    train(ctx, &options).map(drop)
}

/// The mean square error of the held-out ratings before and after; the chief's are those of all.
fn train(ctx: &WorkerContext, options: &Options) -> Result<(f32, f32)> {
    let users = ctx.variable::<f32>("users").shape([options.users, WIDTH]).sharded().declare()?;
    let items = ctx.variable::<f32>("items").shape([options.items, WIDTH]).sharded().declare()?;
    let tables = Tables { users, items };
    if ctx.is_chief() {
        let mut random = Ratings::new(options, 0);
        tables.users.initialize(&random.noise(options.users * WIDTH))?;
        tables.items.initialize(&random.noise(options.items * WIDTH))?;
    }
    tables.users.wait_initialized(None)?;
    tables.items.wait_initialized(None)?;
    let held_out = Ratings::new(options, u64::MAX).take(HELD_OUT).collect::<Vec<_>>();
    let before = tables.error(&held_out)?;
    meet(ctx, "begin")?;

    let begun = Instant::now();
    let task = ctx.task().map_or(0, |task| task.index);
    let mut ratings = Ratings::new(options, 1 + u64::from(task));
    for step in 1..=options.steps {
        let batch: Vec<_> = ratings.by_ref().take(options.batch).collect();
        let error = tables.learn(&batch, options.learning_rate)?;
        if ctx.is_chief() {
            ctx.progress(step as u64, Some(options.steps as u64), &format!("mean square error {error:.4}"));
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    meet(ctx, "done")?;

    let after = tables.error(&held_out)?;
    if ctx.is_chief() {
        // Read and added to, of both tables.
        let rows = 4 * options.batch * WIDTH * size_of::<f32>();
        let whole = 2 * (options.users + options.items) * WIDTH * size_of::<f32>();
        println!(
            "mean square error of {HELD_OUT} ratings that nobody learned from: {before:.4} before, {after:.4} after"
        );
        println!(
            "{} steps of {} ratings in {seconds:.2} s: {:.1} MB of rows; the tables would have been {:.1} MB",
            options.steps,
            options.batch,
            megabytes(rows * options.steps),
            megabytes(whole * options.steps)
        );
    }
    Ok((before, after))
}

/// A driver of all, and a local run, have nobody to meet.
fn meet(ctx: &WorkerContext, name: &str) -> Result<()> {
    if ctx.has_barrier() { ctx.barrier(name, None) } else { Ok(()) }
}

fn megabytes(bytes: usize) -> f64 {
    bytes as f64 / 1e6
}

struct Tables {
    users: Variable<f32>,
    items: Variable<f32>,
}

impl Tables {
    /// The rows of a batch, of users and items, as they are now.
    fn rows(&self, batch: &[Rating]) -> Result<[Vec<f32>; 2]> {
        let users = self.users.gather(users(batch))?;
        let items = self.items.gather(items(batch))?;
        Ok([users.into_vec(), items.into_vec()])
    }

    fn error(&self, batch: &[Rating]) -> Result<f32> {
        let [users, items] = self.rows(batch)?;
        let squares =
            pairs(&users, &items).zip(batch).map(|((user, item), rating)| (rating.value - product(user, item)).powi(2));
        Ok(squares.sum::<f32>() / batch.len() as f32)
    }

    /// Takes a step against the error of a batch; answers with that error. Rows that it names several times take all their steps.
    fn learn(&self, batch: &[Rating], learning_rate: f32) -> Result<f32> {
        let [users_now, items_now] = self.rows(batch)?;
        let mut steps = [Vec::with_capacity(users_now.len()), Vec::with_capacity(items_now.len())];
        let mut squares = 0.0;
        for ((user, item), rating) in pairs(&users_now, &items_now).zip(batch) {
            let off = rating.value - product(user, item);
            squares += off * off;
            steps[0].extend(item.iter().map(|item| learning_rate * off * item));
            steps[1].extend(user.iter().map(|user| learning_rate * off * user));
        }
        self.users.scatter_add(users(batch), &steps[0])?;
        self.items.scatter_add(items(batch), &steps[1])?;
        Ok(squares / batch.len() as f32)
    }
}

fn users(batch: &[Rating]) -> Vec<usize> {
    batch.iter().map(|rating| rating.user).collect()
}

fn items(batch: &[Rating]) -> Vec<usize> {
    batch.iter().map(|rating| rating.item).collect()
}

fn pairs<'a>(users: &'a [f32], items: &'a [f32]) -> impl Iterator<Item = (&'a [f32], &'a [f32])> {
    users.chunks_exact(WIDTH).zip(items.chunks_exact(WIDTH))
}

fn product(user: &[f32], item: &[f32]) -> f32 {
    user.iter().zip(item).map(|(user, item)| user * item).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use dchost_guest::MockCluster;

    /// Ratings vary by 0.44 around 0, which is the error of whoever knows nothing.
    #[test]
    fn the_error_falls_alone_and_in_company() {
        let options = Options { users: 300, items: 200, steps: 400, batch: 64, learning_rate: 0.3 };
        for cluster in [MockCluster::local(), MockCluster::builder().workers(3).ps(2).build()] {
            for (before, after) in cluster.run(|ctx| train(ctx, &options)).unwrap() {
                assert!((0.3..0.6).contains(&before) && after < 0.1 * before, "{before} before, {after} after");
            }
        }
    }

    #[test]
    fn mistakes_are_told() {
        let failed = MockCluster::builder().workers(1).args(["--users", "0"]).build().run(run);
        assert_eq!(failed.tasks[0].result.as_ref().unwrap_err().to_string(), "`--users 0`: a number from 1 is needed");
    }
}
