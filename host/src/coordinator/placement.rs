//! Places variables on tasks, and asks many tasks in parallel.

use crate::cluster::{ClusterSpec, Task, TaskType, list_tasks};
use crate::error::{Error, ErrorCode, Result};
use crate::handles::{
    ApplyOptions, BoxFuture, Change, Consistency, Gradient, GradientOptions, InitializeMode, Placement, ReadOptions,
    RowChange, TaskVariables, Value, Variable, VariableRef, Variables, WriteOptions,
};
use crate::sync::lock;
use crate::tensor::{DType, TensorView, check_data};
use crate::variables::{check_rows as rows_in_range, check_variable, clip_scale, name_some, no_floats, refuse_base};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::watch;

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
}

/// The variables of the cluster, as one run sees them.
///
/// | placement | in a cluster | in a local run |
/// | --- | --- | --- |
/// | auto | [`place`] over the ps tasks; without ps, the leader | in this process |
/// | on a task | there; the cluster must have it | `invalid-argument` |
/// | sharded | `unimplemented` | in this process |
///
/// A call asks all its tasks at the same time and waits for all of them, so that its error doesn't depend on who was
/// faster: a task that failed or can't be reached comes before other errors, then the first task in the cluster's order.
/// Names that are uninitialized on several tasks make one error.
pub struct PlacedVariables {
    options: PlacementOptions,
    ps: Vec<Task>,
    remotes: Mutex<HashMap<Task, Arc<dyn TaskVariables>>>,
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

impl PlacedVariables {
    /// Makes a run's view; reaches no task.
    pub fn new(options: PlacementOptions) -> Self {
        let ps = options.cluster.tasks(TaskType::Ps).collect();
        PlacedVariables { options, ps, remotes: Mutex::default() }
    }

    fn place(&self, variable: &Variable) -> Result<Place> {
        let PlacementOptions { cluster, process_task, .. } = &self.options;
        let invalid = |message| Err(Error::new(ErrorCode::InvalidArgument, message).with_names([&*variable.name]));
        let name = &variable.name;
        let task = match variable.placement {
            // Also that of an evaluator that the cluster doesn't list.
            Placement::On(task) if Some(task) == *process_task => task,
            Placement::On(task) if cluster.is_empty() => {
                return invalid(format!(
                    "variable `{name}` is placed on `{task}`, but a local run has no tasks; place it automatically"
                ));
            }
            Placement::On(task) if cluster.contains(task) => task,
            Placement::On(task) => {
                let tasks: Vec<_> = cluster.iter().map(|(task, _)| task).collect();
                let tasks = list_tasks(&tasks);
                return invalid(format!("variable `{name}` is placed on `{task}`, but the cluster has only {tasks}"));
            }
            Placement::Auto | Placement::Sharded if cluster.is_empty() => return Ok(Place::Local),
            Placement::Sharded => {
                let message = format!("variable `{name}` is sharded, which is not served yet; place it automatically");
                return Err(Error::new(ErrorCode::Unimplemented, message).with_names([&**name]));
            }
            Placement::Auto if !self.ps.is_empty() => self.ps[place(name, self.ps.len())],
            Placement::Auto => match cluster.leader() {
                Some(leader) => leader,
                None => {
                    return invalid(format!(
                        "variable `{name}` has no place: this view of the cluster has neither ps nor leader; place it on a task"
                    ));
                }
            },
        };
        Ok(if Some(task) == *process_task { Place::Local } else { Place::On(task) })
    }

    /// As `place`, for a write: an evaluator is chief of its own run, and the same component would otherwise reset the
    /// job's variables.
    fn place_write(&self, variable: &Variable) -> Result<Place> {
        let place = self.place(variable)?;
        // A split client runs its evaluator in another process than the evaluator's server.
        let written = match place {
            Place::On(task) => Some(task),
            Place::Local => self.options.process_task,
        };
        match (self.options.run_task, written) {
            (Some(evaluator), Some(task)) if evaluator.job == TaskType::Evaluator && task != evaluator => {
                let message = format!(
                    "variable `{}` is on {task}: {evaluator} may read it, but write only its own; place what it writes on `{evaluator}`",
                    variable.name
                );
                Err(Error::new(ErrorCode::FailedPrecondition, message).with_names([&*variable.name]))
            }
            _ => Ok(place),
        }
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

    /// Asks all places once, waiting at each up to `wait`. Answers with the indices of those that have no value.
    async fn missing(&self, groups: &Groups<VariableRef>, wait: Duration) -> Result<Vec<usize>> {
        let tasks = self.tasks(groups);
        let ask = |(task, group): (&'_ Arc<dyn TaskVariables>, &Group<VariableRef>)| {
            let (task, group) = (task.clone(), group.clone());
            let ask = async move {
                let names = task.uninitialized(group.items.clone(), wait).await?;
                Ok(group.find(&names))
            };
            Box::pin(ask) as BoxFuture<'_, Result<Vec<usize>>>
        };
        let mut missing: Vec<_> =
            join(tasks.iter().zip(groups.0.values()).map(ask)).await?.into_iter().flatten().collect();
        missing.sort_unstable();
        Ok(missing)
    }

    /// Waits until all have a value; asks each place again and again.
    async fn until_initialized(&self, groups: &Groups<VariableRef>, deadline: tokio::time::Instant) -> Result<()> {
        let tasks = self.tasks(groups);
        let wait = |(task, group): (&'_ Arc<dyn TaskVariables>, &Group<VariableRef>)| {
            let (task, mut group) = (task.clone(), group.clone());
            let wait = async move {
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
            };
            Box::pin(wait) as BoxFuture<'_, Result<()>>
        };
        join(tasks.iter().zip(groups.0.values()).map(wait)).await.map(drop)
    }

    fn sleep(&self, duration: Duration) -> tokio::time::Sleep {
        // The guest runtime has no timers of its own.
        let _entered = self.options.runtime.enter();
        tokio::time::sleep(duration)
    }

    fn tasks<T>(&self, groups: &Groups<T>) -> Vec<Arc<dyn TaskVariables>> {
        groups.0.keys().map(|&place| self.at(place)).collect()
    }

    fn group<T>(&self, items: impl IntoIterator<Item = T>, place: impl Fn(&T) -> Result<Place>) -> Result<Groups<T>> {
        let mut groups = BTreeMap::<Place, Group<T>>::new();
        for (index, item) in items.into_iter().enumerate() {
            let group = groups.entry(place(&item)?).or_default();
            group.indices.push(index);
            group.items.push(item);
        }
        Ok(Groups(groups))
    }
}

/// A call's items by place.
struct Groups<T>(BTreeMap<Place, Group<T>>);

/// What one place is asked, and where the answers go.
#[derive(Clone)]
struct Group<T> {
    indices: Vec<usize>,
    items: Vec<T>,
}

impl<T> Default for Group<T> {
    fn default() -> Self {
        Group { indices: Vec::new(), items: Vec::new() }
    }
}

impl<T> Groups<T> {
    fn map<U>(self, map: impl Fn(T) -> U + Copy) -> Groups<U> {
        let convert =
            |Group { indices, items }: Group<T>| Group { indices, items: items.into_iter().map(map).collect() };
        Groups(self.0.into_iter().map(|(place, group)| (place, convert(group))).collect())
    }

    /// Gives the items away, and keeps where their answers go.
    fn split(self) -> (Vec<Vec<usize>>, Vec<Vec<T>>) {
        self.0.into_values().map(|Group { indices, items }| (indices, items)).unzip()
    }
}

impl Group<VariableRef> {
    /// Indices of those that have one of the names.
    fn find(&self, names: &[String]) -> Vec<usize> {
        self.only(names).indices
    }

    fn only(&self, names: &[String]) -> Self {
        let names: HashSet<_> = names.iter().map(String::as_str).collect();
        let pairs = self.indices.iter().zip(&self.items).filter(|(_, variable)| names.contains(&*variable.name));
        let (indices, items) = pairs.map(|(&index, variable)| (index, variable.clone())).unzip();
        Group { indices, items }
    }
}

fn reference(variable: Variable) -> VariableRef {
    VariableRef { name: variable.name, ty: variable.ty }
}

/// Puts the answers of all places in the call's order.
fn in_order<T>(indices: Vec<Vec<usize>>, answers: Vec<Vec<T>>) -> Result<Vec<T>> {
    let asked: usize = indices.iter().map(Vec::len).sum();
    let mut pairs: Vec<_> = indices.into_iter().flatten().zip(answers.into_iter().flatten()).collect();
    if pairs.len() != asked {
        return Err(Error::new(
            ErrorCode::Internal,
            "a task answered with another number of values than it was asked for",
        ));
    }
    pairs.sort_unstable_by_key(|(index, _)| *index);
    Ok(pairs.into_iter().map(|(_, answer)| answer).collect())
}

/// Runs all at the same time until each is done. All answers, or the error that comes first in order of gravity, then of place.
async fn join<'f, T>(futures: impl IntoIterator<Item = BoxFuture<'f, Result<T>>>) -> Result<Vec<T>> {
    let mut running: Vec<_> = futures.into_iter().map(|future| (Some(future), None)).collect();
    std::future::poll_fn(|context| {
        let mut pending = false;
        for (future, result) in &mut running {
            if let Some(some) = future {
                match some.as_mut().poll(context) {
                    Poll::Ready(ready) => (*future, *result) = (None, Some(ready)),
                    Poll::Pending => pending = true,
                }
            }
        }
        if pending { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    let (mut answers, mut errors) = (Vec::with_capacity(running.len()), Vec::new());
    for (_, result) in running {
        match result.expect("every future has completed") {
            Ok(answer) => answers.push(answer),
            Err(error) => errors.push(error),
        }
    }
    if errors.is_empty() { Ok(answers) } else { Err(gravest(errors)) }
}

/// The error that a call of several tasks ends with.
fn gravest(mut errors: Vec<Error>) -> Error {
    let cluster = [ErrorCode::PeerFailed, ErrorCode::PeerRestarted, ErrorCode::Unavailable];
    if let Some(at) = errors.iter().position(|error| cluster.contains(&error.code)) {
        return errors.swap_remove(at);
    }
    if errors.len() > 1 && errors.iter().all(|error| error.code == ErrorCode::Uninitialized) {
        let names = errors.iter().flat_map(|error| error.names.iter().map(String::as_str));
        let mend = "; the chief initializes them, other workers wait until it has";
        return name_some(ErrorCode::Uninitialized, "variables are not initialized", names, mend);
    }
    errors.swap_remove(0)
}

impl Variables for PlacedVariables {
    fn declare(&self, variable: &Variable) -> Result<()> {
        check_variable(&variable.name, &variable.ty)?;
        self.place(variable).map(drop)
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
            let groups = self.group(values, |(variable, _)| self.place_write(variable))?;
            let tasks = self.tasks(&groups);
            let (_, items) = groups.map(|(variable, view)| (reference(variable), view)).split();
            join(tasks.iter().zip(items).map(|(task, items)| task.initialize(items, mode))).await.map(drop)
        })
    }

    fn uninitialized(&self, variables: Vec<Variable>) -> BoxFuture<'_, Result<Vec<String>>> {
        Box::pin(async move {
            let names: Vec<_> = variables.iter().map(|variable| variable.name.clone()).collect();
            let groups = self.group(variables, |variable| self.place(variable))?.map(reference);
            let missing = self.missing(&groups, Duration::ZERO).await?;
            Ok(missing.into_iter().map(|index| names[index].clone()).collect())
        })
    }

    fn wait_initialized(&self, variables: Vec<Variable>, timeout: Option<Duration>) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let names: Vec<_> = variables.iter().map(|variable| variable.name.clone()).collect();
            let groups = self.group(variables, |variable| self.place(variable))?.map(reference);
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
                result = self.until_initialized(&groups, deadline) => return result,
                error = ended => error,
                () = timer => Error::new(code, format!("after {timeout:?}")),
            };
            // The last word is that of the places: what the chief initialized before it ended is there.
            let missing = self.missing(&groups, Duration::ZERO).await?;
            if missing.is_empty() {
                return Ok(());
            }
            let missing = missing.into_iter().map(|index| &*names[index]);
            let what = format!("{}: variables are still not initialized", why.message);
            Err(name_some(why.code, &what, missing, "").with_tasks(why.tasks))
        })
    }

    fn read(&self, variables: Vec<Variable>, options: ReadOptions) -> BoxFuture<'_, Result<Vec<Value>>> {
        Box::pin(async move {
            let groups = self.group(variables, |variable| self.place(variable))?;
            let tasks = self.tasks(&groups);
            let (indices, items) = groups.map(reference).split();
            in_order(indices, join(tasks.iter().zip(items).map(|(task, items)| task.pull(items, options))).await?)
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
            let groups = self.group(changes, |change| self.place_write(&change.variable))?;
            let tasks = self.tasks(&groups);
            let (indices, items) = groups
                .map(|Change { variable, kind, value, base }: Change<'a, Variable>| Change {
                    variable: reference(variable),
                    kind,
                    value,
                    base,
                })
                .split();
            let futures = tasks.iter().zip(items).map(|(task, items)| task.push(items, options));
            in_order(indices, join(futures).await?)
        })
    }

    fn apply_gradients<'a>(
        &'a self,
        gradients: Vec<Gradient<'a, Variable>>,
        options: GradientOptions,
    ) -> BoxFuture<'a, Result<Vec<Value>>> {
        Box::pin(async move {
            let options = check_gradients(&gradients, options)?;
            let groups = self.group(gradients, |gradient| self.place_write(&gradient.variable))?;
            let tasks = self.tasks(&groups);
            let to_reference = |Gradient { variable, value }: Gradient<'a, Variable>| Gradient {
                variable: reference(variable),
                value,
            };
            let (indices, items) = groups.map(to_reference).split();
            let futures = tasks.iter().zip(items).map(|(task, items)| task.apply(items, options));
            in_order(indices, join(futures).await?)
        })
    }

    fn gather(&self, variable: Variable, rows: Vec<u64>) -> BoxFuture<'_, Result<Value>> {
        Box::pin(async move {
            check_rows(&variable, &rows)?;
            let task = self.at(self.place(&variable)?);
            task.gather(reference(variable), rows).await
        })
    }

    fn scatter<'a>(&'a self, change: RowChange<'a, Variable>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let RowChange { variable, rows, kind, value } = change;
            check_rows(&variable, &rows)?;
            let ty = variable.ty.with_rows(rows.len() as u64);
            if value.ty != ty {
                let name = &*variable.name;
                let message =
                    format!("`{}` rows of variable `{name}` are `{ty}`, but the value is `{}`", rows.len(), value.ty);
                return Err(Error::new(ErrorCode::InvalidArgument, message).with_names([name]));
            }
            check_data(&variable.name, &value.ty, value.data.len())?;
            let task = self.at(self.place_write(&variable)?);
            task.scatter(RowChange { variable: reference(variable), rows, kind, value }).await.map(drop)
        })
    }
}

/// Checks gradients before any is sent, and finds out by how much they are scaled.
fn check_gradients(gradients: &[Gradient<'_, Variable>], options: GradientOptions) -> Result<ApplyOptions> {
    let GradientOptions { optimizer, clip_norm, sync, write } = options;
    optimizer.check()?;
    let mut names = HashSet::new();
    for Gradient { variable, value } in gradients {
        check_value(variable, value)?;
        if !matches!(variable.ty.dtype, DType::F32 | DType::F64) {
            return Err(no_floats(&variable.name, variable.ty.dtype));
        }
        if !names.insert(&*variable.name) {
            let message = format!("variable `{}` has two gradients in one call; add them up", variable.name);
            return Err(Error::new(ErrorCode::InvalidArgument, message).with_names([&*variable.name]));
        }
    }
    let scale = match clip_norm {
        Some(norm_max) => {
            let gradients = gradients.iter().map(|gradient| (&*gradient.variable.name, &gradient.value));
            clip_scale(gradients, norm_max)?
        }
        None => 1.0,
    };
    Ok(ApplyOptions { optimizer, scale, sync, write })
}

/// Checks rows against the declared type, before anything is sent.
fn check_rows(variable: &Variable, rows: &[u64]) -> Result<()> {
    check_variable(&variable.name, &variable.ty)?;
    rows_in_range(&variable.name, &variable.ty, rows)
}

/// A value must have its variable's type, not only its size.
fn check_value(variable: &Variable, value: &TensorView<'_>) -> Result<()> {
    let name = &*variable.name;
    check_variable(name, &variable.ty)?;
    if value.ty != variable.ty {
        let message = format!("variable `{name}` is declared as `{}`, but the value is `{}`", variable.ty, value.ty);
        return Err(Error::new(ErrorCode::InvalidArgument, message).with_names([name]));
    }
    check_data(name, &value.ty, value.data.len())
}

#[cfg(test)]
mod tests;
