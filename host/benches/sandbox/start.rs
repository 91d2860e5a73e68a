//! What starting and ending an instance takes.

use crate::fakes::{Lines, Room, handles};
use crate::guests;
use crate::measure::{PASSES, Series, head, row};
use crate::rig::{Rig, expect_done, runtime};
use dchost::runtime::{Module, RunWatch};
use std::sync::Arc;
use std::time::Instant;
use tokio::runtime::Runtime;

/// Starts in a pass.
const STARTS: usize = 200;

pub(crate) fn run() {
    let runtime = runtime();
    let (rust, smallest) = (guests::component(), guests::nothing());
    let mut lanes: Vec<_> = Rig::all()
        .into_iter()
        .map(|rig| {
            let modules = [rig.load(&runtime, &smallest), rig.load(&runtime, &rust)];
            (rig, modules, [Series::default(), Series::default()])
        })
        .collect();
    for _ in 0..PASSES {
        for (rig, modules, series) in &mut lanes {
            for (module, series) in modules.iter().zip(series) {
                series.pass(&starts(rig, &runtime, module));
            }
        }
    }
    head(&["setting", "smallest component, us", "Rust component, us"]);
    for (rig, _, [smallest, rust]) in &lanes {
        row(&[&rig.setting, &smallest.us(), &rust.us()]);
    }
}

/// Times from before the store is made until after it is gone, of a `worker_fn` that does nothing.
fn starts(rig: &Rig, runtime: &Runtime, module: &Module) -> Vec<u128> {
    runtime.block_on(async {
        let handles = handles(Arc::<Room>::default(), Arc::<Lines>::default());
        let mut times = Vec::with_capacity(STARTS);
        for _ in 0..STARTS {
            let (options, handles, watch) = (rig.options(&["nothing"]), handles.clone(), RunWatch::new());
            let started = Instant::now();
            let report = module.run(options, handles, watch).await;
            times.push(started.elapsed().as_nanos());
            expect_done(&report);
        }
        times
    })
}
