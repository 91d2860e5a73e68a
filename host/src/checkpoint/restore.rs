//! Restores: cuts what a checkpoint has for the tasks that there are, and sends it.

use super::manifest::{Entry, Placed};
use super::reach::Reached;
use super::read::{At, Opened};
use super::{CheckpointError, CheckpointOptions};
use crate::client::status::StatusError;
use crate::client::variables::{Restore, Source};
use crate::cluster::{ClusterSpec, Task, TaskType};
use crate::coordinator::placement::spread;
use crate::error::{Error, ErrorCode};
use crate::variables::{AUTO_SHARD_BYTES_MIN, SHARD_BYTES_MIN, Saved, VariableRef, shard_map};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// What was restored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RestoreReport {
    /// The container that was saved.
    pub container: String,
    /// How many variables.
    pub variables: usize,
    /// How many of them have what an optimizer keeps beside them.
    pub with_slots: usize,
    /// How many lie in parts now.
    pub sharded: usize,
    /// Bytes of values and slots.
    pub bytes: u64,
    /// The tasks that hold them now.
    pub tasks: Vec<Task>,
    /// Variables that were placed on a task that this cluster lacks, and which: they lie where they lie by themselves.
    pub moved: Vec<(String, Task)>,
}

/// Restores all variables of a checkpoint, with what optimizers keep beside them, into a container: for the tasks that the
/// cluster has now, however many there were. A variable that exists is overwritten, as by `initialize`; others stay.
///
/// The whole checkpoint is checked before the first byte is sent, so that a torn one changes nothing. Each variable is then set
/// atomically on its task; a call that fails may have set some, and may be repeated. Holds 1 MiB of the values for each task at a
/// time. Has to be called within a tokio runtime.
///
/// # Errors
/// Every one of [`CheckpointError`].
///
/// # Cancel safety
/// Dropping it may leave some variables set, and others not.
pub async fn restore(options: &CheckpointOptions) -> Result<RestoreReport, CheckpointError> {
    let path = options.dir.clone();
    let opened = tokio::task::spawn_blocking(move || Opened::open(&path)).await;
    let opened = opened.map_err(|error| CheckpointError::reading(&options.dir, std::io::Error::other(error)))??;
    let reached = Reached::new(options).await?;
    let restored = restore_reached(Arc::new(opened), &reached).await;
    reached.close().await;
    restored
}

async fn restore_reached(opened: Arc<Opened>, reached: &Reached) -> Result<RestoreReport, CheckpointError> {
    let tasks = reached.tasks.iter().map(|&task| (task, ()));
    let held: Vec<(Task, Vec<Saved>)> =
        reached.ask(tasks, |variables, ()| async move { variables.list().await }).await?;
    let plan = plan(&opened.entries, &reached.cluster, &held)?;
    for task in plan.parts.keys() {
        if let Some((_, why)) = reached.silent.iter().find(|(silent, _)| silent == task) {
            return Err(CheckpointError::NotReached {
                task: task.to_string(),
                address: reached.cluster.address(*task).unwrap_or_default().to_owned(),
                error: Box::new(StatusError::NotReached { why: why.clone(), listens: false }),
            });
        }
    }
    let mut report = RestoreReport {
        container: opened.container.clone(),
        variables: opened.entries.len(),
        with_slots: opened.entries.iter().filter(|entry| entry.slots.is_some()).count(),
        sharded: plan.sharded,
        tasks: plan.parts.keys().copied().collect(),
        moved: plan.moved,
        bytes: 0,
    };
    let mut sent = Vec::new();
    for (task, parts) in plan.parts {
        let restore = |Part { entry, variable, begin }: Part| {
            let Entry { slots, tensors, .. } = &opened.entries[entry];
            let bytes = variable.ty.size_bytes().unwrap_or_default() as u64;
            report.bytes += bytes * tensors.len() as u64;
            let tensors = (0..tensors.len()).map(|tensor| opened.at(entry, tensor, begin)).collect();
            Restore { variable, slots: *slots, tensors }
        };
        let items: Vec<Restore<At>> = parts.into_iter().map(restore).collect();
        sent.push((task, items));
    }
    let source: Source<At> = Arc::new(move |at, range| {
        let bytes = usize::try_from(range.end - range.start).unwrap_or_default();
        opened.read(*at, range.start, bytes)
    });
    let restored = reached.ask(sent, |variables, items| {
        let source = source.clone();
        async move { variables.restore(items, &source).await }
    });
    restored.await?;
    Ok(report)
}

/// What goes where.
#[derive(Debug, Default)]
struct Plan {
    parts: BTreeMap<Task, Vec<Part>>,
    sharded: usize,
    moved: Vec<(String, Task)>,
}

/// A variable, or a part of one, on a task.
#[derive(Debug, PartialEq, Eq)]
struct Part {
    /// Its index in the checkpoint.
    entry: usize,
    variable: VariableRef,
    /// Where it begins in each tensor of the whole, in bytes.
    begin: u64,
}

/// Where a variable is to lie.
enum Place {
    Whole(Task),
    Parts(Arc<[u32]>),
}

/// Finds a place for every variable: the task that it was placed on; else where the cluster holds it now; else where a run would
/// initialize it.
///
/// # Errors
/// `invalid-argument` naming the variable: it is of another type where it would be, or two would be the same;
/// [`CheckpointError::Refused`]: the cluster has nobody to hold variables.
fn plan(entries: &[Entry], cluster: &ClusterSpec, held: &[(Task, Vec<Saved>)]) -> Result<Plan, CheckpointError> {
    let mut by_name: HashMap<&str, Vec<(Task, &Saved)>> = HashMap::new();
    for (task, saved) in held {
        for saved in saved {
            by_name.entry(&saved.variable.name).or_default().push((*task, saved));
        }
    }
    let ps: Vec<Task> = cluster.tasks(TaskType::Ps).collect();
    let mut plan = Plan::default();
    let mut taken = HashMap::new();
    for (index, entry) in entries.iter().enumerate() {
        let held = by_name.get(&*entry.name).map_or(&[][..], |held| held);
        let place = match entry.placed {
            Placed::On(task) if cluster.contains(task) => Place::Whole(task),
            placed => {
                if let Placed::On(task) = placed {
                    plan.moved.push((entry.name.clone(), task));
                }
                place(entry, cluster, &ps, held)?
            }
        };
        let mut add = |task: Task, variable: VariableRef, begin: u64| {
            let name = &*variable.name;
            if let Some((_, saved)) = held.iter().find(|(holder, _)| *holder == task) {
                check_held(task, &saved.variable, &variable)?;
            }
            if taken.insert((task, name.to_owned()), index).is_some() {
                let message = format!("two variables of the name `{name}` would both lie on {task}");
                return Err(Error::new(ErrorCode::InvalidArgument, message).with_names([name]));
            }
            plan.parts.entry(task).or_default().push(Part { entry: index, variable, begin });
            Ok(())
        };
        match place {
            Place::Whole(task) => add(task, VariableRef::whole(&entry.name, entry.ty.clone()), 0)?,
            Place::Parts(map) => {
                plan.sharded += 1;
                let mut begin = 0;
                for (shard, ty) in shard_map(&entry.ty, &map) {
                    let bytes = ty.size_bytes().unwrap_or_default() as u64;
                    let task = Task::new(TaskType::Ps, map[shard.index as usize]);
                    add(task, VariableRef { name: entry.name.clone(), ty, shard: Some(shard) }, begin)?;
                    begin += bytes;
                }
            }
        }
    }
    Ok(plan)
}

/// Where a variable lies that isn't placed on a task.
///
/// # Errors
/// [`CheckpointError::Refused`]: the cluster has nobody to hold it.
fn place(entry: &Entry, cluster: &ClusterSpec, ps: &[Task], held: &[(Task, &Saved)]) -> Result<Place, CheckpointError> {
    // The program has initialized it, and knows better.
    if let Some(shard) = held.iter().find_map(|(_, saved)| saved.variable.shard.as_ref()) {
        let there = shard.ps.iter().all(|&index| cluster.contains(Task::new(TaskType::Ps, index)));
        let rows = entry.ty.shape.first().is_some_and(|&rows| rows >= shard.ps.len() as u64);
        if there && rows {
            return Ok(Place::Parts(shard.ps.clone()));
        }
    }
    if let [(task, _)] = held {
        return Ok(Place::Whole(*task));
    }
    if ps.is_empty() {
        let lacks =
            || CheckpointError::Refused("the cluster has neither ps tasks nor a leader to hold variables".to_owned());
        return cluster.leader().map(Place::Whole).ok_or_else(lacks);
    }
    let bytes_min = if entry.placed == Placed::Sharded { SHARD_BYTES_MIN } else { AUTO_SHARD_BYTES_MIN };
    let map = spread(&entry.name, &entry.ty, ps, bytes_min);
    Ok(match *map {
        [whole] => Place::Whole(Task::new(TaskType::Ps, whole)),
        _ => Place::Parts(map),
    })
}

/// Refuses a variable that its task holds otherwise, before anything is sent; the task would.
///
/// # Errors
/// `invalid-argument` naming task and variable.
fn check_held(task: Task, held: &VariableRef, wanted: &VariableRef) -> Result<(), Error> {
    let name = &*held.name;
    let (here, ours) = (held.whole_type(), wanted.whole_type());
    let message = if here != ours {
        format!(
            "variable `{name}` is `{here}` on {task}, but `{ours}` in the checkpoint; delete it, or restore into another container"
        )
    } else if held.shard != wanted.shard {
        format!("variable `{name}` is held on {task} in another part than it would be; restore into another container")
    } else {
        return Ok(());
    };
    Err(Error::new(ErrorCode::InvalidArgument, message).with_tasks([task]).with_names([name]))
}
