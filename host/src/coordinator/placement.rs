//! Places variables on tasks, and asks many tasks in parallel.

mod check;
mod groups;
mod maps;
mod rows;
mod writes;

use crate::cluster::{ClusterSpec, Task, TaskType};
use crate::error::{Error, ErrorCode, Result};
use crate::handles::{
    BoxFuture, Change, Consistency, Gradient, GradientOptions, InitializeMode, ReadOptions, RowChange, TaskVariables,
    UpdateKind, Value, Variable, Variables, WriteOptions,
};
use crate::sync::lock;
use crate::tensor::{TensorType, TensorView};
use crate::variables::{SHARD_BYTES_MIN, Spare, check_variable, name_some, refuse_base, shard_count};
use check::{check_gradients, check_row_change, check_rows, check_value};
use groups::Until;
use maps::{Learned, Map};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::watch;
use writes::Write;

/// How long `wait_initialized` waits without a timeout of its own.
///
/// # Source
/// `max_wait_secs=7200` of `wait_for_session` in TensorFlow's `session_manager.py`.
pub const WAIT_INITIALIZED_DEFAULT: Duration = Duration::from_secs(7200);

/// Longest wait of one question to one task; then it is asked again.
const LONG_POLL: Duration = Duration::from_secs(30);

/// Pause before a place is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(20);

/// Makes the view of another task's variables.
pub type Remote = Box<dyn Fn(Task) -> Arc<dyn TaskVariables> + Send + Sync>;

/// What a run needs to place variables.
pub struct PlacementOptions {
    /// The cluster; empty in a local run.
    pub cluster: ClusterSpec,
    /// The task whose run this is: decides what an evaluator may write. None in a local run and for a driver.
    pub run_task: Option<Task>,
    /// The task that this process is, whose variables are `local`. None for a split client; the evaluator itself where it isn't
    /// listed in the cluster.
    pub process_task: Option<Task>,
    /// The variables of this process.
    pub local: Arc<dyn TaskVariables>,
    /// The variables of other tasks.
    pub remote: Remote,
    /// Set once the chief's run has ended or failed: nobody will initialize any more, so that waiting ends with this error.
    pub chief_ended: watch::Receiver<Option<Error>>,
    /// The control runtime, whose timers end waits.
    pub runtime: Handle,
    /// Memory in which the parts of variables are put together.
    pub spare: Spare,
}

/// The variables of the cluster, as one run sees them.
///
/// | placement | in a cluster | in a local run |
/// | --- | --- | --- |
/// | auto | [`place`] over the ps tasks; without ps, the leader; from [`AUTO_SHARD_BYTES_MIN`] on as if sharded | in this process |
/// | on a task | there; the cluster must have it | `invalid-argument` |
/// | sharded | in parts of at least [`SHARD_BYTES_MIN`], the first at [`place`], the others on the ps tasks after it | in this process |
///
/// How a variable is cut is settled by its first `initialize`: its tasks keep the map, and a run that took it for another one (its
/// view of the cluster has other ps tasks) goes by theirs from then on. Before a run writes a variable for the first time that may
/// be in parts, it makes sure of the map: a write that some tasks have refused and others made can't be made again.
///
/// The parts of a variable are read and written at the same time, each for itself: a part is whole at one version, and the
/// version of the variable is the least of its parts.
///
/// [`AUTO_SHARD_BYTES_MIN`]: crate::variables::AUTO_SHARD_BYTES_MIN
/// [`SHARD_BYTES_MIN`]: crate::variables::SHARD_BYTES_MIN
///
/// A call asks all its tasks at the same time and waits for all of them, so that its error doesn't depend on who was
/// faster: a task that failed or can't be reached comes before other errors, then the first task in the cluster's order.
/// Names that are uninitialized on several tasks make one error.
pub struct PlacedVariables {
    options: PlacementOptions,
    ps: Vec<Task>,
    remotes: Mutex<HashMap<Task, Arc<dyn TaskVariables>>>,
    /// Variables that may be in parts, and how their tasks hold them, by name.
    maps: Mutex<HashMap<String, Map>>,
}

/// Where a variable was found to live. Orders by the cluster's order; this process first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Place {
    Local,
    On(Task),
}

/// The place of `name` among `places` by the FNV-1a hash of 64 bits, modulo their number: the same on every task, in every
/// version. `places` must not be 0.
pub fn place(name: &str, places: usize) -> usize {
    let hash = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    usize::try_from(hash % places as u64).expect("the remainder is below `places`, a usize")
}

/// The ps tasks on which a variable lies that isn't placed on a task: one that has it whole, or several that have a part each, in
/// order. From `bytes_min` bytes on it may be in parts. `ps` must not be empty.
pub fn spread(name: &str, ty: &TensorType, ps: &[Task], bytes_min: usize) -> Arc<[u32]> {
    let count = match ty.size_bytes() {
        Some(bytes) if bytes >= bytes_min => shard_count(ty, ps.len(), SHARD_BYTES_MIN),
        _ => 1,
    };
    let first = place(name, ps.len());
    (first..first + count).map(|at| ps[at % ps.len()].index).collect()
}

impl PlacedVariables {
    /// Makes a run's view; reaches no task.
    pub fn new(options: PlacementOptions) -> Self {
        let ps = options.cluster.tasks(TaskType::Ps).collect();
        PlacedVariables { options, ps, remotes: Mutex::default(), maps: Mutex::default() }
    }

    fn at(&self, place: Place) -> Arc<dyn TaskVariables> {
        match place {
            Place::Local => self.options.local.clone(),
            Place::On(task) => {
                let make = || (self.options.remote)(task);
                lock(&self.remotes).entry(task).or_insert_with(make).clone()
            }
        }
    }

    /// Asks all places once. Answers with the indices of those that have no value, or not in all parts.
    async fn missing(&self, variables: &[Variable]) -> Result<Vec<usize>> {
        let mut learned = Learned::default();
        loop {
            let (groups, maps) = self.references(variables)?;
            let asked = groups.ask_each(self, |task, group| {
                Box::pin(async move { Ok(group.find(&task.uninitialized(group.items.clone(), Duration::ZERO).await?)) })
            });
            let mut parts: Vec<usize> = match asked.await {
                Ok(missing) => missing.into_iter().flatten().collect(),
                Err(refused) => {
                    self.learn(&mut learned, refused, variables)?;
                    continue;
                }
            };
            parts.sort_unstable();
            let (mut missing, mut there, mut end) = (Vec::new(), Vec::new(), 0);
            for (index, map) in maps.iter().enumerate() {
                let first = end;
                end += map.count();
                let found = |part| parts.partition_point(|&other| other < part);
                if found(first) < found(end) { missing.push(index) } else { there.push((&variables[index], map)) }
            }
            self.confirm(there);
            return Ok(missing);
        }
    }

    /// Waits until all have a value; asks each place again and again.
    async fn until_initialized(&self, variables: &[Variable], deadline: tokio::time::Instant) -> Result<()> {
        let mut learned = Learned::default();
        loop {
            let (groups, maps) = self.references(variables)?;
            let waited = groups.ask_each(self, |task, mut group| {
                Box::pin(async move {
                    loop {
                        let left = deadline.saturating_duration_since(tokio::time::Instant::now());
                        let names = task.uninitialized(group.items.clone(), left.min(LONG_POLL)).await?;
                        group = group.only(&names);
                        if group.items.is_empty() {
                            return Ok(());
                        }
                        if left.is_zero() {
                            // The deadline itself ends the wait, once the others had their say.
                            std::future::pending::<()>().await;
                        }
                        // A place that answers early must not be asked in a tight loop.
                        self.sleep(ASK_AGAIN).await;
                    }
                })
            });
            match waited.await {
                Ok(_) => {
                    self.confirm(variables.iter().zip(&maps));
                    return Ok(());
                }
                Err(refused) => self.learn(&mut learned, refused, variables)?,
            }
        }
    }

    fn sleep(&self, duration: Duration) -> tokio::time::Sleep {
        // The guest runtime has no timers of its own.
        let _entered = self.options.runtime.enter();
        tokio::time::sleep(duration)
    }
}

impl Variables for PlacedVariables {
    fn declare(&self, variable: &Variable) -> Result<()> {
        check_variable(&variable.name, &variable.ty)?;
        self.map(variable).map(drop)
    }

    fn initialize<'a>(
        &'a self,
        values: Vec<(Variable, TensorView<'a>)>,
        mode: InitializeMode,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            for (variable, view) in &values {
                check_value(variable, view)?;
            }
            let writes = values.into_iter().map(|(variable, value)| Write { variable, value, how: () }).collect();
            let cut = |variable, value, ()| (variable, value);
            let ask = |task: Arc<dyn TaskVariables>, values| -> BoxFuture<'a, Result<Vec<u64>>> {
                Box::pin(async move { task.initialize(values, mode).await })
            };
            self.write(writes, |_, _| Ok(()), cut, ask).await.map(drop)
        })
    }

    fn uninitialized(&self, variables: Vec<Variable>) -> BoxFuture<'_, Result<Vec<String>>> {
        Box::pin(async move {
            let missing = self.missing(&variables).await?;
            Ok(missing.into_iter().map(|index| variables[index].name.clone()).collect())
        })
    }

    fn wait_initialized(&self, variables: Vec<Variable>, timeout: Option<Duration>) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            // A wait that the guest gave no end to doesn't miss a deadline of its own.
            let code = if timeout.is_some() { ErrorCode::DeadlineExceeded } else { ErrorCode::Uninitialized };
            let timeout = timeout.unwrap_or(WAIT_INITIALIZED_DEFAULT);
            let timer = self.sleep(timeout);
            let deadline = timer.deadline();
            let mut chief_ended = self.options.chief_ended.clone();
            let ended = async move {
                loop {
                    if let Some(error) = chief_ended.borrow_and_update().clone() {
                        return error;
                    }
                    if chief_ended.changed().await.is_err() {
                        std::future::pending::<()>().await;
                    }
                }
            };
            let why = tokio::select! {
                biased;
                result = self.until_initialized(&variables, deadline) => return result,
                error = ended => error,
                () = timer => Error::new(code, format!("after {timeout:?}")),
            };
            // The last word is that of the places: what the chief initialized before it ended is there.
            let missing = self.missing(&variables).await?;
            if missing.is_empty() {
                return Ok(());
            }
            let missing = missing.into_iter().map(|index| &*variables[index].name);
            let what = format!("{}: variables are still not initialized", why.message);
            Err(name_some(why.code, &what, missing, "").with_tasks(why.tasks))
        })
    }

    fn read(&self, variables: Vec<Variable>, options: ReadOptions) -> BoxFuture<'_, Result<Vec<Value>>> {
        Box::pin(async move {
            let mut learned = Learned::default();
            loop {
                let (groups, maps) = self.references(&variables)?;
                let pull = |task: Arc<dyn TaskVariables>, items| -> BoxFuture<'static, Result<Vec<Value>>> {
                    Box::pin(async move { task.pull(items, options).await })
                };
                match groups.ask(self, Until::Known, pull).await {
                    Ok(parts) => {
                        self.confirm(variables.iter().zip(&maps));
                        return self.put_together(variables.iter().zip(&maps), parts);
                    }
                    Err(refused) => self.learn(&mut learned, refused, &variables)?,
                }
            }
        })
    }

    fn update<'a>(
        &'a self,
        changes: Vec<Change<'a, Variable>>,
        options: WriteOptions,
    ) -> BoxFuture<'a, Result<Vec<Value>>> {
        Box::pin(async move {
            for change in &changes {
                check_value(&change.variable, &change.value)?;
                if options.consistency == Consistency::Relaxed {
                    refuse_base(&change.variable.name, change.base)?;
                }
            }
            let write = |Change { variable, kind, value, base }| Write { variable, value, how: (kind, base) };
            let cut = |variable, value, (kind, base)| Change { variable, kind, value, base };
            let ask = |task: Arc<dyn TaskVariables>, changes| -> BoxFuture<'a, Result<Vec<Value>>> {
                Box::pin(async move { task.push(changes, options).await })
            };
            let check = |write: &Write<'_, (UpdateKind, Option<u64>)>, map: &Map| match write.how.1 {
                Some(_) => map.refuse_base(&write.variable.name),
                None => Ok(()),
            };
            let written = self.write(changes.into_iter().map(write).collect(), check, cut, ask).await?;
            self.put_together(written.variables.iter().zip(&written.maps), written.parts)
        })
    }

    fn apply_gradients<'a>(
        &'a self,
        gradients: Vec<Gradient<'a, Variable>>,
        options: GradientOptions,
    ) -> BoxFuture<'a, Result<Vec<Value>>> {
        Box::pin(async move {
            let options = check_gradients(&gradients, options, |variable| self.map_to_write(variable))?;
            let write = |Gradient { variable, value }| Write { variable, value, how: () };
            let cut = |variable, value, ()| Gradient { variable, value };
            let ask = |task: Arc<dyn TaskVariables>, gradients| -> BoxFuture<'a, Result<Vec<Value>>> {
                Box::pin(async move { task.apply(gradients, options).await })
            };
            let writes = gradients.into_iter().map(write).collect();
            let written = self.write(writes, |_, _| Ok(()), cut, ask).await?;
            self.put_together(written.variables.iter().zip(&written.maps), written.parts)
        })
    }

    fn gather(&self, variable: Variable, rows: Vec<u64>) -> BoxFuture<'_, Result<Value>> {
        Box::pin(async move {
            check_rows(&variable, &rows)?;
            self.gather_rows(variable, rows).await
        })
    }

    fn scatter<'a>(&'a self, change: RowChange<'a, Variable>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            check_row_change(&change)?;
            self.scatter_rows(change).await
        })
    }
}

#[cfg(test)]
mod tests;
