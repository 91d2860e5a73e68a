//! Reads and updates with options, as a host serves them.

use crate::{Change, ErrorCode, MockCluster, Read, Result, WorkerContext, ps, wait_any, worker};
use std::time::Duration;

/// Long enough for any machine; only a failing test waits so long.
const GENEROUS: Duration = Duration::from_secs(60);

fn pair() -> MockCluster {
    MockCluster::builder().workers(2).ps(1).build()
}

#[test]
fn a_read_waits_for_the_version_that_another_run_makes() {
    let run = pair().run(|ctx| -> Result<u64> {
        let w = ctx.variable::<i64>("w").declare()?;
        if ctx.is_chief() {
            w.initialize(0)?;
            ctx.wait_for_other_workers()?;
            (0..9).try_for_each(|_| w.add(1).map(drop))?;
            return Ok(10);
        }
        let missing = w.read_with(Read::new().min_version(1)).err().map(|error| error.code);
        assert!(missing.is_none_or(|code| code == ErrorCode::Uninitialized));
        ctx.wait_for_other_workers()?;
        let pending = ctx.start_read_with([&w], Read::new().min_version(10))?;
        let [begun] = pending.get()?;
        let value = w.read_with(Read::new().min_version(7))?;
        assert_eq!((begun.scalar(), value.scalar()), (9, 9));
        Ok(value.version())
    });
    assert_eq!(run.unwrap(), [10, 10]);
}

#[test]
fn a_started_read_lets_its_run_write_the_version() {
    MockCluster::local()
        .run(|ctx| -> Result<()> {
            let w = ctx.variable::<i64>("w").declare()?;
            w.initialize(0)?;
            let pending = ctx.start_read_with([&w], Read::new().min_version(3))?;
            assert!(!pending.is_ready());
            w.add(1)?;
            assert!(!pending.is_ready());
            w.add(1)?;
            assert!(pending.is_ready());
            assert_eq!(wait_any([&pending]), Some(0));
            let [value] = pending.get()?;
            assert_eq!((value.scalar(), value.version()), (2, 3));

            let nobody = ctx.start_read_with([&w], Read::new().min_version(9))?;
            assert!(!nobody.is_ready());
            assert_eq!(wait_any([&nobody]), Some(0));
            assert_eq!(nobody.get().map(drop).unwrap_err().code, ErrorCode::Cancelled);
            Ok(())
        })
        .unwrap();
}

#[test]
fn an_older_value_serves_and_own_writes_show() {
    let run = pair().run(|ctx| -> Result<Vec<i64>> {
        let w = ctx.variable::<i64>("w").on(ps(0)).declare()?;
        let near = ctx.variable::<i64>("near").on(worker(1)).declare()?;
        if ctx.is_chief() {
            ctx.initialize([Change::assign(&w, 1), Change::assign(&near, 1)])?;
            ctx.wait_for_other_workers()?;
            ctx.wait_for_other_workers()?;
            ctx.update([Change::add(&w, 1), Change::add(&near, 1)])?;
            ctx.wait_for_other_workers()?;
            return Ok(vec![]);
        }
        ctx.wait_for_other_workers()?;
        let old = Read::new().max_age(GENEROUS);
        let read = |read| Ok::<_, crate::Error>(ctx.read_with([&w, &near], read)?.map(|value| value.scalar()));
        let mut seen = read(old)?.to_vec();
        ctx.wait_for_other_workers()?;
        ctx.wait_for_other_workers()?;
        // What is on the run's own task is never old.
        seen.extend(read(old)?);
        seen.extend(read(old.min_version(2))?);
        w.add(1)?;
        seen.extend(read(old)?);
        seen.push(w.read_with(Read::new().max_age(Duration::ZERO))?.scalar());
        Ok(seen)
    });
    assert_eq!(run.result(&worker(1)).as_ref().unwrap(), &[1, 1, 1, 2, 2, 2, 3, 2, 3]);
}

#[test]
fn relaxed_updates_refuse_a_base_version_and_add_up() {
    MockCluster::local()
        .run(|ctx| -> Result<()> {
            let w = ctx.variable::<f32>("w").shape([3]).declare()?;
            w.initialize(1.0)?;
            assert_eq!(ctx.update_relaxed([Change::add(&w, 1.0)])?, [2]);
            assert_eq!(ctx.start_update_relaxed([Change::add(&w, 1.0)])?.get()?, [3]);
            let error = ctx.update_relaxed([Change::add(&w, 1.0).if_version(3)]).unwrap_err();
            assert_eq!(error.code, ErrorCode::InvalidArgument, "{error}");
            let error = ctx.update([Change::add(&w, 1.0).if_version(2)]).unwrap_err();
            assert_eq!(error.code, ErrorCode::Aborted);
            assert!(error.message.contains("version 3") && error.message.contains("version 2"), "{error}");
            assert_eq!(w.read_with(Read::new().relaxed())?[..], [3.0; 3]);
            Ok(())
        })
        .unwrap();
}

/// A run may fail while another waits for its version: the wait ends with the failure.
#[test]
fn a_wait_ends_with_the_failure_of_another_run() {
    let run = pair().run(|ctx: &WorkerContext| -> Result<()> {
        let w = ctx.variable::<i64>("w").declare()?;
        if ctx.is_chief() {
            w.initialize(0)?;
            ctx.wait_for_other_workers()?;
            return Err("lost".into());
        }
        ctx.wait_for_other_workers()?;
        w.read_with(Read::new().min_version(2)).map(drop)
    });
    assert_eq!(run.failure(&worker(1)).error().code, ErrorCode::PeerFailed);
}
