//! Fakes of the handles, and components in text, for this module's tests.

use crate::cluster::ClusterSpec;
use crate::context::WorkerContext;
use crate::error::{Error, ErrorCode, Result};
use crate::handles::{
    BoxFuture, Change, Console, Handles, InitializeMode, Job, Level, Origin, Summary, UpdateKind, Value, Variable,
    Variables,
};
use crate::tensor::{Tensor, TensorView};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;

/// A console and summary that keep what they are given.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    text: Mutex<String>,
}

impl Recorder {
    /// Everything so far, one line each: `out: hello`.
    pub(crate) fn text(&self) -> String {
        self.text.lock().unwrap().clone()
    }

    fn push(&self, line: std::fmt::Arguments<'_>) {
        writeln!(self.text.lock().unwrap(), "{line}").unwrap();
    }
}

impl Console for Recorder {
    fn line(&self, origin: Origin, text: &str) {
        let origin = match origin {
            Origin::Stdout => "out",
            Origin::Stderr => "err",
            Origin::Log(Level::Trace) => "trace",
            Origin::Log(Level::Debug) => "debug",
            Origin::Log(Level::Info) => "info",
            Origin::Log(Level::Warn) => "warn",
            Origin::Log(Level::Error) => "error",
        };
        self.push(format_args!("{origin}: {text}"));
    }

    fn progress(&self, done: u64, total: Option<u64>, note: &str) {
        self.push(format_args!("progress: {done} of {total:?} {note}"));
    }
}

impl Summary for Recorder {
    fn scalar(&self, tag: &str, step: u64, value: f64) {
        self.push(format_args!("scalar: {tag} {step} {value}"));
    }
}

/// A job whose barrier does what its name says.
#[derive(Debug, Default)]
pub(crate) struct FakeJob;

impl Job for FakeJob {
    fn barrier<'a>(&'a self, name: &'a str, _timeout: Option<Duration>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            match name {
                "stuck" => std::future::pending().await,
                "boom" => panic!("the fake barrier was told to panic"),
                "failed" => Err(Error::new(ErrorCode::PeerFailed, "worker:1 has failed")),
                "late" => Err(Error::new(ErrorCode::DeadlineExceeded, "worker:1 is missing")),
                _ => Ok(()),
            }
        })
    }

    fn training_ended(&self) -> bool {
        false
    }

    fn attempt(&self) -> u32 {
        3
    }
}

/// Variables of this process, bytes only: `add` and the like are done on `u8`.
#[derive(Debug, Default)]
pub(crate) struct FakeVariables {
    values: Mutex<BTreeMap<String, Value>>,
}

impl FakeVariables {
    /// The value of a variable.
    pub(crate) fn value(&self, name: &str) -> Option<Value> {
        self.values.lock().unwrap().get(name).cloned()
    }
}

fn uninitialized(name: &str) -> Error {
    Error::new(ErrorCode::Uninitialized, format!("variable `{name}` is not initialized")).with_names([name])
}

impl Variables for FakeVariables {
    fn declare(&self, _variable: &Variable) -> Result<()> {
        Ok(())
    }

    fn initialize<'a>(
        &'a self,
        values: Vec<(Variable, TensorView<'a>)>,
        mode: InitializeMode,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let mut stored = self.values.lock().unwrap();
            for (variable, value) in values {
                if mode == InitializeMode::Overwrite || !stored.contains_key(&variable.name) {
                    let tensor = Tensor { ty: value.ty, data: Bytes::copy_from_slice(value.data) };
                    stored.insert(variable.name, Value { tensor, version: 1 });
                }
            }
            Ok(())
        })
    }

    fn uninitialized(&self, variables: Vec<Variable>) -> BoxFuture<'_, Result<Vec<String>>> {
        Box::pin(async move {
            let stored = self.values.lock().unwrap();
            Ok(variables.into_iter().map(|variable| variable.name).filter(|name| !stored.contains_key(name)).collect())
        })
    }

    fn wait_initialized(&self, variables: Vec<Variable>, _timeout: Option<Duration>) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let missing = self.uninitialized(variables).await?;
            if missing.is_empty() { Ok(()) } else { std::future::pending().await }
        })
    }

    fn read(&self, variables: Vec<Variable>) -> BoxFuture<'_, Result<Vec<Value>>> {
        Box::pin(async move {
            // A read that is not ready at once, as one over a network.
            tokio::task::yield_now().await;
            variables
                .iter()
                .map(|variable| self.value(&variable.name).ok_or_else(|| uninitialized(&variable.name)))
                .collect()
        })
    }

    fn update<'a>(
        &'a self,
        changes: Vec<Change<'a, Variable>>,
        want_values: bool,
    ) -> BoxFuture<'a, Result<Vec<Value>>> {
        Box::pin(async move {
            tokio::task::yield_now().await;
            let mut stored = self.values.lock().unwrap();
            changes
                .into_iter()
                .map(|change| {
                    let value =
                        stored.get_mut(&change.variable.name).ok_or_else(|| uninitialized(&change.variable.name))?;
                    let data = value.tensor.data.iter().zip(change.value.data).map(|(&old, &by)| match change.kind {
                        UpdateKind::Assign => by,
                        UpdateKind::Add => old.wrapping_add(by),
                        UpdateKind::Sub => old.wrapping_sub(by),
                        UpdateKind::Min => old.min(by),
                        UpdateKind::Max => old.max(by),
                    });
                    value.tensor.data = data.collect();
                    value.version += 1;
                    let mut answer = value.clone();
                    if !want_values {
                        answer.tensor.data = Bytes::new();
                    }
                    Ok(answer)
                })
                .collect()
        })
    }
}

/// Handles of fakes, and what they keep.
pub(crate) struct Fakes {
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) variables: Arc<FakeVariables>,
    pub(crate) interrupt: watch::Sender<Option<Error>>,
}

impl Fakes {
    pub(crate) fn new() -> Self {
        Fakes { recorder: Arc::default(), variables: Arc::default(), interrupt: watch::Sender::new(None) }
    }

    pub(crate) fn handles(&self) -> Handles {
        Handles {
            context: Arc::new(WorkerContext {
                cluster: ClusterSpec::new(),
                task: None,
                master_target: "local".to_owned(),
                num_workers: 2,
                is_chief: true,
                distributed_mode: false,
                has_barrier: true,
            }),
            job: Arc::new(FakeJob),
            variables: self.variables.clone(),
            console: self.recorder.clone(),
            summary: self.recorder.clone(),
            interrupt: self.interrupt.subscribe(),
        }
    }
}
