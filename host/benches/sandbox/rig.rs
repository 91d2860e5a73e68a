//! An engine of one setting, and runs on it.

use crate::fakes::{Lines, Room, handles};
use bytes::Bytes;
use dchost::runtime::{Engine, EngineOptions, GuestOptions, Limits, Module, RunEnd, RunReport, RunWatch};
use std::fmt;
use std::sync::Arc;
use tokio::runtime::Runtime;

/// Enough for every run of the bench.
const FUEL: u64 = u64::MAX / 2;

/// Memory of a run, in bytes: two tensors of 64 MiB and what allocating them leaves.
const MEMORY_BYTES_MAX: u64 = 1 << 30;

/// Settings of an engine that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Setting {
    /// Neither epochs nor fuel: a guest that never yields can't be stopped.
    Off,
    /// dchost's own.
    Epochs,
    /// Fuel instead of epochs.
    Fuel,
    /// dchost's own with `-W fuel`.
    Both,
    /// dchost's own, with memories and stacks of a pool.
    #[cfg(feature = "other-settings")]
    Pooled,
    /// dchost's own, with concurrent calls of one instance.
    #[cfg(feature = "other-settings")]
    Concurrent,
}

impl Setting {
    /// Those of this build.
    pub(crate) const ALL: &[Setting] = &[
        Setting::Off,
        Setting::Epochs,
        Setting::Fuel,
        Setting::Both,
        #[cfg(feature = "other-settings")]
        Setting::Pooled,
        #[cfg(feature = "other-settings")]
        Setting::Concurrent,
    ];

    /// The setting of this name.
    pub(crate) fn named(name: &str) -> Option<Setting> {
        Setting::ALL.iter().copied().find(|setting| setting.to_string() == name)
    }

    fn fuel(self) -> bool {
        matches!(self, Setting::Fuel | Setting::Both)
    }

    fn tune(self, config: &mut wasmtime::Config) {
        match self {
            Setting::Off | Setting::Fuel => {
                config.epoch_interruption(false);
            }
            Setting::Epochs | Setting::Both => {}
            #[cfg(feature = "other-settings")]
            Setting::Pooled => {
                let mut pool = wasmtime::PoolingAllocationConfig::new();
                // The 1000 idle instances, and the several core instances that each of them is linked from.
                pool.total_component_instances(1100)
                    .total_core_instances(8 * 1100)
                    .total_memories(1100)
                    .total_tables(4 * 1100)
                    .total_stacks(1100);
                config.allocation_strategy(wasmtime::InstanceAllocationStrategy::Pooling(pool));
            }
            #[cfg(feature = "other-settings")]
            Setting::Concurrent => {
                config.concurrency_support(true);
            }
        }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Setting::Off => "off",
            Setting::Epochs => "epochs",
            Setting::Fuel => "fuel",
            Setting::Both => "epochs+fuel",
            #[cfg(feature = "other-settings")]
            Setting::Pooled => "epochs+pool",
            #[cfg(feature = "other-settings")]
            Setting::Concurrent => "epochs+concurrency",
        })
    }
}

/// A runtime such as guests have: nothing but guests runs on it.
pub(crate) fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("the system gives a runtime")
}

/// An engine of one setting.
pub(crate) struct Rig {
    pub(crate) setting: Setting,
    pub(crate) engine: Engine,
}

impl Rig {
    pub(crate) fn new(setting: Setting) -> Rig {
        let options = EngineOptions { fuel: setting.fuel(), ..EngineOptions::default() };
        let engine = Engine::tuned(options, |config| setting.tune(config))
            .unwrap_or_else(|error| panic!("setting `{setting}`: {error:?}"));
        Rig { setting, engine }
    }

    /// One of each setting.
    pub(crate) fn all() -> Vec<Rig> {
        Setting::ALL.iter().copied().map(Rig::new).collect()
    }

    /// What a store of this setting needs, if it isn't dchost's.
    pub(crate) fn prepare<T>(&self, store: &mut wasmtime::Store<T>) {
        if self.setting.fuel() {
            store.set_fuel(FUEL).expect("this setting counts fuel");
        }
        store.set_epoch_deadline(1);
        store.epoch_deadline_callback(|_| {
            Ok(wasmtime::UpdateDeadline::YieldCustom(1, Box::pin(tokio::task::yield_now())))
        });
    }

    pub(crate) fn load(&self, runtime: &Runtime, component: &Bytes) -> Module {
        let loaded = runtime.block_on(self.engine.load_bytes("bench.wasm", component.clone()));
        loaded.unwrap_or_else(|error| panic!("setting `{}`: {error}", self.setting))
    }

    /// Options of a run with these arguments.
    pub(crate) fn options(&self, args: &[&str]) -> GuestOptions {
        let fuel = self.setting.fuel().then_some(FUEL);
        let limits = Limits { fuel, memory_bytes_max: MEMORY_BYTES_MAX, ..Limits::default() };
        GuestOptions { args: args.iter().map(|&word| word.to_owned()).collect(), limits, ..GuestOptions::default() }
    }

    /// Runs a module to its end; what it printed, as numbers.
    pub(crate) fn run(&self, runtime: &Runtime, module: &Module, args: &[&str]) -> Vec<Vec<u128>> {
        self.run_with(runtime, module, self.options(args))
    }

    /// As [`run`](Rig::run), of whatever is granted.
    pub(crate) fn run_with(&self, runtime: &Runtime, module: &Module, options: GuestOptions) -> Vec<Vec<u128>> {
        let lines = Arc::<Lines>::default();
        runtime.block_on(async {
            let handles = handles(Arc::<Room>::default(), lines.clone());
            expect_done(&module.run(options, handles, RunWatch::new()).await);
        });
        lines.numbers()
    }
}

/// Panics if a run ended in any other way than well.
pub(crate) fn expect_done(report: &RunReport) {
    assert_eq!(report.end, RunEnd::Done, "a measured run failed");
}
