//! What a measured run reaches: nothing that takes time of its own.

use bytes::Bytes;
use dchost::cluster::ClusterSpec;
use dchost::context::WorkerContext;
use dchost::coordinator::local::LocalVariables;
use dchost::coordinator::ops::NoOps;
use dchost::coordinator::placement::{PlacedVariables, PlacementOptions};
use dchost::error::{Error, ErrorCode, Result};
use dchost::handles::{
    BoxFuture, Change, Console, Gradient, GradientOptions, Handles, InitializeMode, Job, Origin, ReadOptions,
    RowChange, Summary, Value, Variable, Variables, WriteOptions,
};
use dchost::tensor::{Tensor, TensorView};
use dchost::variables::{Spare, Store};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::watch;

/// Where runs wait that are idle.
#[derive(Default)]
pub(crate) struct Room {
    arrived: AtomicUsize,
    open: watch::Sender<bool>,
}

impl Room {
    /// How many wait here.
    pub(crate) fn arrived(&self) -> usize {
        self.arrived.load(Ordering::Relaxed)
    }

    /// Lets all of them go.
    pub(crate) fn open(&self) {
        self.open.send_replace(true);
    }
}

impl Job for Room {
    fn barrier<'a>(&'a self, _name: &'a str, _timeout: Option<Duration>) -> BoxFuture<'a, Result<()>> {
        self.arrived.fetch_add(1, Ordering::Relaxed);
        let mut open = self.open.subscribe();
        Box::pin(async move {
            let opened = open.wait_for(|&open| open).await;
            opened.map(drop).map_err(|_| Error::new(ErrorCode::Cancelled, "the bench is over"))
        })
    }

    fn training_ended(&self) -> bool {
        false
    }

    fn attempt(&self) -> u32 {
        0
    }
}

/// Keeps the lines that a guest prints.
#[derive(Default)]
pub(crate) struct Lines(Mutex<Vec<String>>);

impl Lines {
    /// The lines so far, each a list of numbers.
    pub(crate) fn numbers(&self) -> Vec<Vec<u128>> {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let number = |word: &str| word.parse().unwrap_or_else(|_| panic!("the guest printed `{word}`, not a time"));
        lines.iter().map(|line| line.split(' ').map(number).collect()).collect()
    }
}

impl Console for Lines {
    fn line(&self, _origin: Origin, text: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(text.to_owned());
    }

    fn progress(&self, _done: u64, _total: Option<u64>, _note: &str) {}
}

/// Drops scalars.
struct NoSummary;

impl Summary for NoSummary {
    fn scalar(&self, _tag: &str, _step: u64, _value: f64) {}
}

/// The value of every variable but `store`; a read lends it out.
static VALUE: LazyLock<Bytes> = LazyLock::new(|| vec![1; 64 << 20].into());

/// Variables that take no time, but for one named `store`: that one is as a local run has it.
struct Boundary(PlacedVariables);

impl Boundary {
    fn real(&self, name: &str) -> Option<&PlacedVariables> {
        (name == "store").then_some(&self.0)
    }
}

impl Variables for Boundary {
    fn declare(&self, _variable: &Variable) -> Result<()> {
        Ok(())
    }

    fn initialize<'a>(
        &'a self,
        values: Vec<(Variable, TensorView<'a>)>,
        mode: InitializeMode,
    ) -> BoxFuture<'a, Result<()>> {
        match self.real(&values[0].0.name) {
            Some(real) => real.initialize(values, mode),
            None => Box::pin(async { Ok(()) }),
        }
    }

    fn uninitialized(&self, _variables: Vec<Variable>) -> BoxFuture<'_, Result<Vec<String>>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn wait_initialized(&self, _variables: Vec<Variable>, _timeout: Option<Duration>) -> BoxFuture<'_, Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn read(&self, variables: Vec<Variable>, options: ReadOptions) -> BoxFuture<'_, Result<Vec<Value>>> {
        if let Some(real) = self.real(&variables[0].name) {
            return real.read(variables, options);
        }
        let value = |variable: Variable| {
            let bytes = variable.ty.size_bytes().expect("sizes of the bench are small");
            Value { tensor: Tensor { ty: variable.ty, data: VALUE.slice(..bytes) }, version: 1 }
        };
        Box::pin(async move { Ok(variables.into_iter().map(value).collect()) })
    }

    fn update<'a>(
        &'a self,
        changes: Vec<Change<'a, Variable>>,
        options: WriteOptions,
    ) -> BoxFuture<'a, Result<Vec<Value>>> {
        if let Some(real) = self.real(&changes[0].variable.name) {
            return real.update(changes, options);
        }
        let value = |change: Change<'a, Variable>| Value {
            tensor: Tensor { ty: change.value.ty, data: Bytes::new() },
            version: 2,
        };
        Box::pin(async move { Ok(changes.into_iter().map(value).collect()) })
    }

    fn apply_gradients<'a>(
        &'a self,
        gradients: Vec<Gradient<'a, Variable>>,
        options: GradientOptions,
    ) -> BoxFuture<'a, Result<Vec<Value>>> {
        self.0.apply_gradients(gradients, options)
    }

    fn gather(&self, variable: Variable, rows: Vec<u64>) -> BoxFuture<'_, Result<Value>> {
        self.0.gather(variable, rows)
    }

    fn scatter<'a>(&'a self, change: RowChange<'a, Variable>) -> BoxFuture<'a, Result<()>> {
        self.0.scatter(change)
    }
}

/// Handles that take no time. Must be called within a runtime.
pub(crate) fn handles(job: Arc<dyn Job>, lines: Arc<Lines>) -> Handles {
    let real = PlacedVariables::new(PlacementOptions {
        cluster: ClusterSpec::new(),
        run_task: None,
        process_task: None,
        local: Arc::new(LocalVariables::new(Store::default(), "default", None, Handle::current())),
        remote: Box::new(|task| unreachable!("a local run reaches no {task}")),
        chief_ended: watch::Sender::new(None).subscribe(),
        runtime: Handle::current(),
        spare: Spare::default(),
    });
    Handles {
        context: Arc::new(WorkerContext {
            cluster: ClusterSpec::new(),
            task: None,
            master_target: "local".to_owned(),
            num_workers: 3,
            is_chief: true,
            distributed_mode: false,
            has_barrier: true,
        }),
        job,
        variables: Arc::new(Boundary(real)),
        ops: Arc::new(NoOps::local()),
        console: lines,
        summary: Arc::new(NoSummary),
        interrupt: watch::Sender::new(None).subscribe(),
    }
}
