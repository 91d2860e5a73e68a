//! The mock cluster keeps the host's rules.

use crate::{Change, Error, ErrorCode, Level, MockCluster, Result, WorkerContext, chief, evaluator, info, ps, worker};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Long enough for any machine; only a failing test waits so long.
const GENEROUS: Duration = Duration::from_secs(60);

fn describe(ctx: &WorkerContext) -> Result<String> {
    Ok(format!(
        "{} {} {} chief={} distributed={} barrier={} save={}",
        ctx.task().map_or("none".to_owned(), |task| task.to_string()),
        ctx.master_target(),
        ctx.num_workers(),
        ctx.is_chief(),
        ctx.distributed_mode(),
        ctx.has_barrier(),
        ctx.should_checkpoint() && ctx.should_save_summary(),
    ))
}

#[test]
fn contexts_have_the_values_of_independent_workers() {
    let table: [(MockCluster, &[&str]); 5] = [
        (MockCluster::local(), &["none local 0 chief=true distributed=false barrier=false save=true"]),
        (
            MockCluster::builder().workers(2).ps(1).build(),
            &[
                "worker:0 grpc://worker-0.mock:2222 2 chief=true distributed=true barrier=true save=true",
                "worker:1 grpc://worker-1.mock:2222 2 chief=false distributed=true barrier=true save=false",
            ],
        ),
        (
            MockCluster::builder().workers(1).chief(true).evaluator(true).build(),
            &[
                "chief:0 grpc://chief-0.mock:2222 2 chief=true distributed=true barrier=true save=true",
                "worker:0 grpc://worker-0.mock:2222 2 chief=false distributed=true barrier=true save=false",
                "evaluator:0 grpc://evaluator-0.mock:2222 2 chief=true distributed=false barrier=false save=true",
            ],
        ),
        (
            MockCluster::builder().workers(2).evaluator(true).in_graph(true).build(),
            &[
                "none grpc://worker-0.mock:2222 2 chief=true distributed=true barrier=false save=true",
                "evaluator:0 grpc://evaluator-0.mock:2222 2 chief=true distributed=false barrier=false save=true",
            ],
        ),
        (
            MockCluster::builder().barrier(false).build(),
            &["worker:0 grpc://worker-0.mock:2222 1 chief=true distributed=true barrier=false save=true"],
        ),
    ];
    for (cluster, expected) in table {
        assert_eq!(cluster.run(describe).unwrap(), expected);
    }
}

#[test]
fn the_cluster_spec_and_arguments_are_copies() {
    let cluster = MockCluster::builder().workers(2).ps(1).args(["--steps", "3"]).build();
    let seen = cluster.run(|ctx| Ok::<_, Error>((ctx.cluster_spec(), ctx.args(), ctx.attempt()))).unwrap();
    let (spec, args, attempt) = &seen[1];
    assert_eq!(spec.jobs().collect::<Vec<_>>(), ["ps", "worker"]);
    assert_eq!(spec.tasks("worker"), [worker(0), worker(1)]);
    assert_eq!(spec.address(&ps(0)), Some("ps-0.mock:2222"));
    assert_eq!(spec.address(&ps(1)), None);
    assert_eq!((args.as_slice(), *attempt), (["--steps".to_owned(), "3".to_owned()].as_slice(), 0));
}

/// Everyone counts itself in each round; whoever passes must see all of the round and nobody of the next but one.
#[test]
fn nobody_passes_a_generation_before_all_have_arrived() {
    const ROUNDS: u32 = 50;
    let arrivals = AtomicU32::new(0);
    let cluster = MockCluster::builder().workers(4).chief(true).build();
    let round = |ctx: &WorkerContext| -> Result<()> {
        for round in 1..=ROUNDS {
            arrivals.fetch_add(1, Ordering::SeqCst);
            ctx.barrier("round", GENEROUS)?;
            let seen = arrivals.load(Ordering::SeqCst);
            assert!((round * 5..=round * 5 + 4).contains(&seen), "round {round} passed with {seen} arrivals");
        }
        Ok(())
    };
    cluster.run(round).unwrap();
    assert_eq!(arrivals.load(Ordering::SeqCst), ROUNDS * 5);
}

#[test]
fn barriers_of_different_names_are_independent() {
    let cluster = MockCluster::builder().workers(2).build();
    let run = cluster
        .run(|ctx| if ctx.is_chief() { ctx.barrier("a", None) } else { ctx.barrier("b", Duration::from_millis(20)) });
    let late = run.failure(&worker(1)).error();
    assert_eq!((late.code, late.tasks.as_slice()), (ErrorCode::DeadlineExceeded, [worker(0)].as_slice()));
    // The chief hears of that failure, because a run that ends in an error ends the job.
    let told = run.failure(&worker(0)).error();
    assert_eq!((told.code, told.tasks.as_slice()), (ErrorCode::PeerFailed, [worker(1)].as_slice()));
}

#[test]
fn a_deadline_ends_the_generation_for_all_and_the_late_one_is_told() {
    let cluster = MockCluster::builder().workers(3).build();
    let run = cluster.run(|ctx| -> Result<ErrorCode> {
        let timed_out = match ctx.task() {
            Some(task) if task == worker(2) => {
                // Arrives only after the others have given up.
                let failed = ctx.variable::<i32>("failed").declare()?;
                failed.wait_initialized(GENEROUS)?;
                while failed.read()?.scalar() < 2 {
                    std::thread::yield_now();
                }
                ctx.barrier("late", None)
            }
            _ => {
                let failed = ctx.variable::<i32>("failed").declare()?;
                failed.initialize_if_absent(0)?;
                let timeout = if ctx.is_chief() { Some(Duration::from_millis(50)) } else { None };
                let result = ctx.barrier("late", timeout);
                failed.add(1)?;
                result
            }
        }
        .unwrap_err();
        // On a slow machine worker:1 may be late as well.
        assert!(timed_out.tasks.contains(&worker(2)), "{timed_out}");
        // All three are in the same generation again.
        ctx.barrier("late", GENEROUS)?;
        Ok(timed_out.code)
    });
    assert_eq!(run.unwrap(), [ErrorCode::DeadlineExceeded; 3]);
}

#[test]
fn a_participant_that_ends_without_arriving_aborts_the_barrier() {
    let cluster = MockCluster::builder().workers(3).build();
    let run = cluster.run(|ctx| if ctx.task() == Some(worker(2)) { Ok(()) } else { ctx.wait_for_other_workers() });
    for index in [0, 1] {
        let error = run.failure(&worker(index)).error();
        // The first to be told ends with an error itself, which the other may hear of first.
        match error.code {
            ErrorCode::Aborted => assert_eq!(error.tasks, [worker(2)]),
            code => assert_eq!((code, error.tasks.as_slice()), (ErrorCode::PeerFailed, [worker(1 - index)].as_slice())),
        }
    }
    assert!(run.result(&worker(2)).is_ok());
    let codes = [0, 1].map(|index| run.failure(&worker(index)).error().code);
    assert!(codes.contains(&ErrorCode::Aborted), "{codes:?}");
}

#[test]
fn a_panic_is_its_tasks_error_and_reaches_the_others_by_name() {
    let cluster = MockCluster::builder().workers(3).build();
    let run = cluster.run(|ctx| -> Result<()> {
        assert_ne!(ctx.task(), Some(worker(1)), "loss is NaN");
        ctx.wait_for_other_workers()
    });
    let failure = run.failure(&worker(1)).to_string();
    assert!(failure.starts_with("panicked: ") && failure.contains("loss is NaN"), "{failure}");
    let first = run.failure(&worker(0)).error();
    assert_eq!((first.code, first.tasks.as_slice()), (ErrorCode::PeerFailed, [worker(1)].as_slice()));
    assert!(first.message.contains("loss is NaN"), "{first}");
}

#[test]
fn there_is_no_barrier_for_evaluator_local_run_and_by_option() {
    let clusters = [
        MockCluster::local(),
        MockCluster::builder().barrier(false).build(),
        MockCluster::builder().evaluator(true).build(),
    ];
    let expected = [
        "no barrier in this context (cluster none, task type none, task id none)",
        "no barrier in this context (cluster {worker: 1}, task type worker, task id 0)",
        "no barrier in this context (cluster {evaluator: 1, worker: 1}, task type evaluator, task id 0)",
    ];
    for (cluster, expected) in clusters.iter().zip(expected) {
        let run = cluster.run(|ctx| match ctx.wait_for_other_workers() {
            Err(error) => Ok((error.code, error.message)),
            Ok(()) => Err("a participant"),
        });
        let last = run.tasks.last().unwrap().result.as_ref().unwrap();
        assert_eq!(*last, (ErrorCode::FailedPrecondition, expected.to_owned()));
    }
}

#[test]
fn updates_of_all_workers_are_counted_once_each() {
    let cluster = MockCluster::builder().workers(4).ps(2).build();
    let versions = cluster.run(|ctx| -> Result<u64> {
        let floats = ctx.variable::<f32>("floats").shape([3]).on(ps(1)).declare()?;
        let bytes = ctx.variable::<u8>("bytes").on(ps(0)).declare()?;
        if ctx.is_chief() {
            ctx.initialize([Change::assign(&floats, &[1.0, 2.0, 3.0]), Change::assign(&bytes, 250)])?;
        }
        ctx.wait_initialized((&floats, &bytes), None)?;
        for _ in 0..25 {
            ctx.update([Change::sub(&floats, 0.5), Change::add(&bytes, 1)])?;
        }
        ctx.wait_for_other_workers()?;
        let (floats, bytes) = ctx.start_read((&floats, &bytes))?.get()?;
        assert_eq!(&floats[..], [-49.0, -48.0, -47.0]);
        assert_eq!(bytes.scalar(), 94, "250 + 100 wraps around");
        Ok(floats.version())
    });
    assert_eq!(versions.unwrap(), [101; 4]);
    assert_eq!(cluster.value_on::<u8>(&ps(0), "bytes"), Some(vec![94]));
    assert_eq!(cluster.value_on::<u8>(&ps(1), "bytes"), None);
}

#[test]
fn operations_give_versions_and_values() {
    let run = MockCluster::local().run(|ctx| -> Result<()> {
        let w = ctx.variable::<i64>("w").shape([2]).declare()?;
        assert!(!w.is_initialized()?);
        w.initialize_if_absent(&[1, 2])?;
        w.initialize_if_absent(7)?;
        assert_eq!((w.read()?.version(), &w.read()?[..]), (1, &[1_i64, 2][..]));
        assert_eq!(w.assign(&vec![10, 20])?, 2);
        assert_eq!(w.add(5)?, 3);
        assert_eq!(w.sub(&w.read()?)?, 4);
        assert_eq!(&w.add_and_read(&[-3, 3])?[..], [-3, 3]);
        assert_eq!(ctx.update([Change::min(&w, 0), Change::max(&w, -1)])?, [6, 7]);
        let mut buffer = [0; 2];
        assert_eq!(w.read_into(&mut buffer)?, 7);
        assert_eq!(buffer, [-1, 0]);
        let stale = ctx.update([Change::assign(&w, 0).if_version(6)]).unwrap_err();
        assert_eq!(
            (stale.code, &*stale.message),
            (ErrorCode::Aborted, "`w` is at version 7, the change is based on version 6")
        );
        assert_eq!(ctx.start_update([Change::assign(&w, 0).if_version(7)])?.get()?, [8]);
        w.initialize(1)?;
        let [a, b] = ctx.read(&[&w, &w])?;
        assert_eq!((a.version(), a.into_vec(), b.into_tensor().shape()), (9, vec![1, 1], &[2][..]));
        Ok(())
    });
    run.unwrap();
}

#[test]
fn mistakes_have_their_codes_and_say_what_is_wrong() {
    type Case = fn(&WorkerContext) -> Result<()>;
    let cases: [(Case, ErrorCode, &str); 12] = [
        (|ctx| ctx.barrier("", None), ErrorCode::InvalidArgument, "the barrier name is empty"),
        (|ctx| ctx.barrier("a\n", None), ErrorCode::InvalidArgument, "the barrier name `a\\n` has control characters"),
        (
            |ctx| ctx.variable::<f32>("v".repeat(257)).declare().map(drop),
            ErrorCode::InvalidArgument,
            "has 257 bytes, at most 256 are allowed",
        ),
        (|ctx| ctx.variable::<f32>("").declare().map(drop), ErrorCode::InvalidArgument, "the variable name is empty"),
        (
            |ctx| ctx.variable::<f32>("w").on(ps(3)).declare().map(drop),
            ErrorCode::InvalidArgument,
            "`w` can't live on ps:3: the cluster is {ps: 1, worker: 1}",
        ),
        (
            |ctx| ctx.variable::<f32>("w").shape([usize::MAX, 2]).declare().map(drop),
            ErrorCode::InvalidArgument,
            "overflows",
        ),
        (
            |ctx| ctx.variable::<f32>("w").shape([2, 2]).declare()?.initialize(&[0.0; 3]),
            ErrorCode::InvalidArgument,
            "`w` of shape [2, 2] has 4 elements, 3 are given",
        ),
        (
            |ctx| ctx.variable::<f32>("w").shape([2]).declare()?.initialize(&crate::Tensor::vector(&[1_i32, 2])),
            ErrorCode::InvalidArgument,
            "`w` is f32[2], the value is s32[2]",
        ),
        (
            |ctx| ctx.variable::<f32>("v").declare()?.read().map(drop),
            ErrorCode::Uninitialized,
            "`v` without a value: initialize first",
        ),
        (|ctx| ctx.variable::<f32>("v").declare()?.add(1.0).map(drop), ErrorCode::Uninitialized, "`v` without a value"),
        (
            |ctx| {
                ctx.variable::<f32>("twice").shape([2]).declare()?.initialize(0.0)?;
                ctx.variable::<i32>("twice").shape([3]).declare()?.read().map(drop)
            },
            ErrorCode::InvalidArgument,
            "`twice` is f32[2], but is declared here as s32[3]",
        ),
        (
            |ctx| ctx.variable::<f32>("v").declare()?.wait_initialized(Duration::from_millis(10)),
            ErrorCode::DeadlineExceeded,
            "`v` still without a value; the chief initializes",
        ),
    ];
    for (case, code, text) in cases {
        let run = MockCluster::builder().ps(1).build().run(case);
        let error = run.failure(&worker(0)).error();
        assert_eq!(error.code, code, "{error}");
        assert!(error.message.contains(text), "`{error}` should say `{text}`");
    }
    let local = MockCluster::local().run(|ctx| ctx.variable::<f32>("w").on(ps(0)).declare().map(drop));
    assert_eq!(local.tasks[0].result.as_ref().unwrap_err().error().code, ErrorCode::InvalidArgument);
}

#[test]
fn waiting_for_variables_ends_when_the_chief_has_ended_without_them() {
    let cluster = MockCluster::builder().workers(2).chief(true).build();
    let begun = Instant::now();
    let run = cluster.run(|ctx| -> Result<()> {
        if ctx.is_chief() {
            return Ok(());
        }
        let error = ctx.variable::<f32>("never").declare()?.wait_initialized(None).unwrap_err();
        assert_eq!(
            (error.code, &*error.message),
            (ErrorCode::Uninitialized, "`never` without a value, and the chief's run has ended")
        );
        Ok(())
    });
    run.unwrap();
    assert!(begun.elapsed() < GENEROUS);
}

#[test]
fn an_evaluator_reads_training_variables_writes_its_own_and_sees_the_end() {
    let cluster = MockCluster::builder().workers(2).ps(1).evaluator(true).build();
    let run = cluster.run(|ctx| -> Result<f32> {
        let w = ctx.variable::<f32>("w").declare()?;
        if ctx.task() != Some(evaluator()) {
            assert!(!ctx.training_ended());
            w.initialize_if_absent(4.0)?;
            return Ok(0.0);
        }
        let own = ctx.variable::<f32>("own").on(evaluator()).declare()?;
        w.wait_initialized(GENEROUS)?;
        for error in [w.initialize(0.0).unwrap_err(), w.add(1.0).unwrap_err()] {
            assert_eq!(error.code, ErrorCode::FailedPrecondition);
            assert!(error.message.starts_with("evaluator:0 may read `w` but not write it"), "{error}");
        }
        own.initialize(w.read()?.scalar() * 2.0)?;
        while !ctx.training_ended() {
            std::thread::yield_now();
        }
        ctx.scalar("w", 1, f64::from(w.read()?.scalar()));
        Ok(own.read()?.scalar())
    });
    assert_eq!(run.unwrap(), [0.0, 0.0, 8.0]);
    assert_eq!(cluster.value_on::<f32>(&evaluator(), "own"), Some(vec![8.0]));
    assert_eq!(cluster.scalars().len(), 1);
}

#[test]
fn after_a_failed_training_an_evaluator_is_cancelled() {
    let cluster = MockCluster::builder().chief(true).workers(1).evaluator(true).build();
    let run = cluster.run(|ctx| -> Result<()> {
        match ctx.task().map(|task| task.job).as_deref() {
            Some("worker") => Err("bad shard 7".into()),
            Some("chief") => ctx.wait_for_other_workers(),
            _ => ctx.variable::<f32>("never").declare()?.wait_initialized(GENEROUS),
        }
    });
    assert_eq!(run.failure(&worker(0)).to_string(), "bad shard 7");
    assert_eq!(run.failure(&chief()).to_string(), "peer-failed: worker:0 failed: bad shard 7");
    let evaluator = run.failure(&evaluator()).error();
    assert_eq!(
        (evaluator.code, &*evaluator.message),
        (ErrorCode::Cancelled, "the training has ended: worker:0 failed: bad shard 7")
    );
}

#[test]
fn a_driver_trains_and_fails_alone() {
    let cluster = MockCluster::builder().chief(true).workers(1).evaluator(true).in_graph(true).build();
    let run = cluster.run(|ctx| -> Result<()> {
        if ctx.task().is_some() {
            return ctx.variable::<f32>("never").declare()?.wait_initialized(GENEROUS);
        }
        assert!(!ctx.training_ended());
        ctx.variable::<f32>("v").declare()?.initialize(1.0)?;
        Err("bad shard 7".into())
    });
    assert_eq!(cluster.value_on::<f32>(&chief(), "v"), Some(vec![1.0]));
    assert_eq!(
        run.failure(&evaluator()).to_string(),
        "cancelled: the training has ended: the driver failed: bad shard 7"
    );
}

#[test]
fn variables_outlive_a_run_and_logs_are_kept() {
    let cluster = MockCluster::builder().workers(2).build();
    for round in 1..=2 {
        let run = cluster.run(|ctx| -> Result<()> {
            let runs = ctx.variable::<i32>("runs").declare()?;
            runs.initialize_if_absent(0)?;
            ctx.wait_for_other_workers()?;
            runs.add(1)?;
            if ctx.should_save_summary() {
                info!(ctx, "round {round}");
            }
            // Only who should save summaries is kept.
            ctx.scalar("round", 0, f64::from(round));
            Ok(())
        });
        run.unwrap();
    }
    assert_eq!(cluster.value::<i32>("runs"), Some(vec![4]));
    let logs: Vec<_> = cluster.logs().into_iter().map(|line| (line.task, line.level, line.message)).collect();
    assert_eq!(logs, [1, 2].map(|round| (Some(worker(0)), Level::Info, format!("round {round}"))));
    assert_eq!(cluster.scalars().iter().map(|scalar| scalar.value).collect::<Vec<_>>(), [1.0, 2.0]);
}

#[test]
fn variables_in_parts_are_whole_to_programs_and_in_parts_on_tasks() {
    let cluster = MockCluster::builder().workers(2).ps(3).build();
    let rows = |ctx: &WorkerContext| -> Result<()> {
        // 3 MiB and 12 bytes: too many rows to come out even.
        let table = ctx.variable::<f32>("table").shape([262_145, 3]).sharded().declare()?;
        let small = ctx.variable::<f32>("small").shape([100]).sharded().declare()?;
        let auto = ctx.variable::<f64>("auto").shape([131_072]).declare()?;
        if ctx.is_chief() {
            table.initialize(&(0..786_435).map(|at| (at / 3) as f32).collect::<Vec<_>>())?;
            small.initialize(1.0)?;
            auto.initialize(1.0)?;
        }
        ctx.wait_for_other_workers()?;
        table.add(1.0)?;
        ctx.wait_for_other_workers()?;
        let value = table.read()?;
        assert!(value.iter().zip(0..).all(|(&found, at)| found == (at / 3) as f32 + 2.0));
        assert_eq!(value.version(), 3);
        let error = ctx.update([Change::add(&table, 1.0).if_version(3)]).unwrap_err();
        assert_eq!(error.code, ErrorCode::InvalidArgument);
        assert!(error.message.contains("`table` is in 3 parts on ps:1, ps:2, ps:0"), "{error}");
        let on = ctx.variable::<f32>("table").shape([262_145, 3]).on(ps(2)).declare()?;
        assert_eq!(on.read().unwrap_err().code, ErrorCode::InvalidArgument);
        Ok(())
    };
    cluster.run(rows).unwrap();
    let part = |task: u32, name: &str| cluster.value_on::<f32>(&ps(task), name);
    let lens = |name: &str| [0, 1, 2].map(|task| part(task, name).map(|part| part.len()));
    assert_eq!(lens("table"), [Some(3 * 87_381), Some(3 * 87_382), Some(3 * 87_382)]);
    assert_eq!(part(1, "table").unwrap()[0], 2.0);
    assert_eq!(part(2, "table").unwrap()[0], 87_384.0);
    assert_eq!(lens("small").iter().flatten().count(), 1);
    assert_eq!([0, 1, 2].map(|task| cluster.value_on::<f64>(&ps(task), "auto").is_some()), [true; 3]);
    assert_eq!(cluster.value::<f32>("table").unwrap().len(), 786_435);
}
