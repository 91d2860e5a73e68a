//! A query of the context against an empty host call of the same engine.

use crate::guests;
use crate::measure::{PASSES, Series, head, row};
use crate::rig::{Rig, runtime};
use bytes::Bytes;
use std::time::Instant;
use tokio::runtime::Runtime;
use wasmtime::Store;
use wasmtime::component::{Component, InstancePre, Linker};

/// Calls of one sample: starting the instance is below a hundredth of their time.
const CALLS: usize = 300_000;

/// Samples of a pass.
const SAMPLES: usize = 3;

/// The interface of the empty functions, which dchost doesn't have.
const EMPTY: &str = "bench:host/empty";

/// Queries of the context, and their results in WIT.
const QUERIES: [(&str, &str); 3] = [("is-chief", "bool"), ("num-workers", "u32"), ("training-ended", "bool")];

pub(crate) fn run() {
    let runtime = runtime();
    let context = "dchost:worker/worker-context@0.1.0";
    let queries = QUERIES.map(|(name, result)| guests::calling(context, name, result, CALLS));
    let mut lanes: Vec<_> = Rig::all()
        .into_iter()
        .map(|rig| {
            let modules = queries.each_ref().map(|query| rig.load(&runtime, query));
            let [empty, empty_async] =
                ["sync", "async"].map(|name| empty(&rig, &guests::calling(EMPTY, name, "", CALLS)));
            (rig, modules, [empty, empty_async], [(); 2 + QUERIES.len()].map(|()| Series::default()))
        })
        .collect();
    for _ in 0..PASSES {
        for (rig, modules, empties, series) in &mut lanes {
            let (of_empty, of_queries) = series.split_at_mut(2);
            for (empty, series) in empties.iter().zip(of_empty) {
                series.pass(&samples(|| call_empty(rig, &runtime, empty)));
            }
            for (module, series) in modules.iter().zip(of_queries) {
                series.pass(&samples(|| {
                    rig.run(&runtime, module, &[]);
                }));
            }
        }
    }
    head(&[
        "setting",
        "empty, ns",
        "empty async, ns",
        "is-chief, ns",
        "ratio",
        "num-workers, ns",
        "ratio",
        "training-ended, ns",
        "ratio",
    ]);
    for (rig, _, _, [empty, empty_async, chief, workers, ended]) in &lanes {
        row(&[
            &rig.setting,
            &empty.ns(),
            &empty_async.ns(),
            &chief.ns(),
            &chief.ratio(empty),
            &workers.ns(),
            &workers.ratio(empty),
            &ended.ns(),
            &ended.ratio(empty),
        ]);
    }
}

/// The time of one call in each of some runs.
fn samples(mut run: impl FnMut()) -> [u128; SAMPLES] {
    [(); SAMPLES].map(|()| {
        let started = Instant::now();
        run();
        started.elapsed().as_nanos() / CALLS as u128
    })
}

/// Links a component to functions that do nothing, on the very engine that dchost's runs use.
fn empty(rig: &Rig, component: &Bytes) -> InstancePre<()> {
    let engine = rig.engine.wasmtime();
    let component = Component::from_binary(engine, component).expect("the component is valid");
    let mut linker = Linker::new(engine);
    let mut host = linker.instance(EMPTY).expect("the name is good");
    host.func_wrap("sync", |_, (): ()| Ok(())).expect("it is the only one");
    host.func_wrap_async("async", |_, (): ()| Box::new(async { Ok(()) })).expect("it is the only one");
    linker.instantiate_pre(&component).expect("the component imports nothing else")
}

/// One run, as dchost does it: a store, an instance, a call.
fn call_empty(rig: &Rig, runtime: &Runtime, pre: &InstancePre<()>) {
    runtime.block_on(async {
        let mut store = Store::new(rig.engine.wasmtime(), ());
        rig.prepare(&mut store);
        let instance = pre.instantiate_async(&mut store).await.expect("it starts");
        let entry = instance.get_export_index(&mut store, None, "dchost:worker/entry@0.1.0");
        let run = instance.get_export_index(&mut store, entry.as_ref(), "run").expect("it is exported");
        let run = instance.get_typed_func::<(), (Result<(), String>,)>(&mut store, run).expect("it has this type");
        let (answer,) = run.call_async(&mut store, ()).await.expect("it doesn't trap");
        answer.expect("it says ok");
    });
}
