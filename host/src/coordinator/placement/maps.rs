//! Where variables lie, as far as a run knows.

use super::groups::{Groups, Refused};
use super::{Place, PlacedVariables, spread};
use crate::cluster::{Task, TaskType, list_tasks};
use crate::error::{Error, ErrorCode, Result};
use crate::handles::{Placement, Value, Variable, VariableRef};
use crate::sync::lock;
use crate::tensor::{Tensor, TensorType};
use crate::variables::{
    AUTO_SHARD_BYTES_MIN, SHARD_BYTES_MIN, Shard, StoredShard, check_variable, shard_count, shard_map,
};
use bytes::Bytes;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

/// How a variable is held.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Map {
    Whole(Place),
    /// In parts, on these ps tasks in order.
    Parts(Arc<[u32]>),
}

impl Map {
    /// In how many parts.
    pub(super) fn count(&self) -> usize {
        match self {
            Map::Whole(_) => 1,
            Map::Parts(ps) => ps.len(),
        }
    }

    /// The error of a change that depends on a version, where the variable has one for each part.
    pub(super) fn refuse_base(&self, name: &str) -> Result<()> {
        let Map::Parts(ps) = self else { return Ok(()) };
        let (count, tasks) = (ps.len(), list_ps(ps));
        let message = format!(
            "variable `{name}` is in `{count}` parts on {tasks}, which have a version each: a change can't be made on all of them \
             only if they still have a base version; place the variable on one task, as on `{}`, or make the change without it",
            Task::new(TaskType::Ps, ps[0])
        );
        Err(Error::new(ErrorCode::InvalidArgument, message).with_names([name]))
    }
}

fn list_ps(ps: &[u32]) -> String {
    let tasks: Vec<_> = ps.iter().map(|&index| Task::new(TaskType::Ps, index)).collect();
    list_tasks(&tasks)
}

/// Names of the variables of which a call was told how they are held; each once, so that it comes to an end.
#[derive(Debug, Default)]
pub(super) struct Learned(HashSet<String>);

impl PlacedVariables {
    /// How a variable is held: as its tasks have told, else as it will be when this run initializes it.
    pub(super) fn map(&self, variable: &Variable) -> Result<Map> {
        let cluster = &self.options.cluster;
        let name = &variable.name;
        let invalid = |message| Err(Error::new(ErrorCode::InvalidArgument, message).with_names([&**name]));
        let bytes_min = match variable.placement {
            // Also that of an evaluator that the cluster doesn't list.
            Placement::On(task) if Some(task) == self.options.process_task => return Ok(Map::Whole(Place::Local)),
            Placement::On(task) if cluster.is_empty() => {
                return invalid(format!(
                    "variable `{name}` is placed on `{task}`, but a local run has no tasks; place it automatically"
                ));
            }
            Placement::On(task) if cluster.contains(task) => return Ok(Map::Whole(self.place_of(task))),
            Placement::On(task) => {
                let tasks: Vec<_> = cluster.iter().map(|(task, _)| task).collect();
                let tasks = list_tasks(&tasks);
                return invalid(format!("variable `{name}` is placed on `{task}`, but the cluster has only {tasks}"));
            }
            Placement::Auto | Placement::Sharded if cluster.is_empty() => return Ok(Map::Whole(Place::Local)),
            Placement::Auto => AUTO_SHARD_BYTES_MIN,
            Placement::Sharded => SHARD_BYTES_MIN,
        };
        if self.ps.is_empty() {
            return match cluster.leader() {
                Some(leader) => Ok(Map::Whole(self.place_of(leader))),
                None => invalid(format!(
                    "variable `{name}` has no place: this view of the cluster has neither ps nor leader; place it on a task"
                )),
            };
        }
        if self.ps.len() > 1
            && let Some(known) = lock(&self.maps).get(&**name).filter(|map| map.fits(&variable.ty))
        {
            return Ok(known.clone());
        }
        let spread = spread(name, &variable.ty, &self.ps, bytes_min);
        Ok(match *spread {
            [whole] => Map::Whole(self.place_of(Task::new(TaskType::Ps, whole))),
            _ => Map::Parts(spread),
        })
    }

    /// As [`map`](Self::map), for a write: an evaluator is chief of its own run, and the same component would otherwise reset the
    /// job's variables.
    pub(super) fn map_to_write(&self, variable: &Variable) -> Result<Map> {
        let map = self.map(variable)?;
        let written = match &map {
            // A split client runs its evaluator in another process than the evaluator's server.
            Map::Whole(Place::Local) => self.options.process_task,
            Map::Whole(Place::On(task)) => Some(*task),
            Map::Parts(ps) => Some(Task::new(TaskType::Ps, ps[0])),
        };
        match (self.options.run_task, written) {
            (Some(evaluator), Some(task)) if evaluator.job == TaskType::Evaluator && task != evaluator => {
                let on = match &map {
                    Map::Parts(ps) => list_ps(ps),
                    Map::Whole(_) => task.to_string(),
                };
                let message = format!(
                    "variable `{}` is on {on}: {evaluator} may read it, but write only its own; place what it writes on `{evaluator}`",
                    variable.name
                );
                Err(Error::new(ErrorCode::FailedPrecondition, message).with_names([&*variable.name]))
            }
            _ => Ok(map),
        }
    }

    fn place_of(&self, task: Task) -> Place {
        if Some(task) == self.options.process_task { Place::Local } else { Place::On(task) }
    }

    /// Gives each part of a variable, in order, with its place and its bytes in the variable's value.
    pub(super) fn each_part(
        &self,
        variable: &Variable,
        map: &Map,
        mut each: impl FnMut(Place, VariableRef, Range<usize>),
    ) {
        let Variable { name, ty, .. } = variable;
        match map {
            Map::Whole(place) => {
                // What overflows is refused when it is declared.
                let bytes = ty.size_bytes().unwrap_or_default();
                each(*place, VariableRef::whole(name, ty.clone()), 0..bytes);
            }
            Map::Parts(ps) => {
                let mut end = 0;
                for (shard, ty) in shard_map(ty, ps) {
                    let start = end;
                    end += ty.size_bytes().unwrap_or_default();
                    let place = self.place_of(Task::new(TaskType::Ps, ps[shard.index as usize]));
                    each(place, VariableRef { name: name.clone(), ty, shard: Some(shard) }, start..end);
                }
            }
        }
    }

    /// The parts of all variables by place, and how each variable is held.
    pub(super) fn references<'v>(
        &self,
        variables: impl IntoIterator<Item = &'v Variable>,
    ) -> Result<(Groups<VariableRef>, Vec<Map>)> {
        let (mut groups, mut maps, mut index) = (Groups::default(), Vec::new(), 0);
        for variable in variables {
            let map = self.map(variable)?;
            self.each_part(variable, &map, |place, part, _| {
                groups.add(place, index, part);
                index += 1;
            });
            maps.push(map);
        }
        Ok((groups, maps))
    }

    /// Makes the values of variables from those of their parts.
    pub(super) fn put_together<'v>(
        &self,
        variables: impl IntoIterator<Item = (&'v Variable, &'v Map)>,
        parts: Vec<Value>,
    ) -> Result<Vec<Value>> {
        let mut parts = parts.into_iter();
        let value = |(variable, map): (&Variable, &Map)| match map.count() {
            1 => parts.next().ok_or_else(too_few),
            count => {
                let mut version = u64::MAX;
                let mut data: Option<Vec<u8>> = None;
                for _ in 0..count {
                    let part = parts.next().ok_or_else(too_few)?;
                    version = version.min(part.version);
                    if !part.tensor.data.is_empty() {
                        let bytes = variable.ty.checked_size_bytes()?;
                        data.get_or_insert_with(|| self.options.spare.take(bytes)).extend_from_slice(&part.tensor.data);
                    }
                }
                let data = data.map_or_else(Bytes::new, |data| self.options.spare.lend(data));
                Ok(Value { tensor: Tensor { ty: variable.ty.clone(), data }, version })
            }
        };
        variables.into_iter().map(value).collect()
    }

    /// Whether a variable may be in parts for some run, and so may be held otherwise than this one thinks.
    fn may_differ(&self, variable: &Variable) -> bool {
        self.ps.len() > 1
            && !matches!(variable.placement, Placement::On(_))
            && shard_count(&variable.ty, self.ps.len(), SHARD_BYTES_MIN) > 1
    }

    /// Notes how variables are held: a call has succeeded that went by it.
    pub(super) fn confirm<'v>(&self, held: impl IntoIterator<Item = (&'v Variable, &'v Map)>) {
        let held: Vec<_> = held.into_iter().filter(|(variable, _)| self.may_differ(variable)).collect();
        if held.is_empty() {
            return;
        }
        let mut maps = lock(&self.maps);
        for (variable, map) in held {
            match maps.get_mut(&variable.name) {
                Some(known) => *known = map.clone(),
                None => drop(maps.insert(variable.name.clone(), map.clone())),
            }
        }
    }

    /// Makes sure of how variables are held that may be in parts, before they are written: asks for those that this run hasn't
    /// used before. What nobody has initialized is held by nobody.
    pub(super) async fn settle<'v>(&self, variables: impl IntoIterator<Item = &'v Variable>) -> Result<()> {
        let unknown: Vec<_> = {
            let known = lock(&self.maps);
            let unknown = |variable: &&Variable| self.may_differ(variable) && !known.contains_key(&*variable.name);
            variables.into_iter().filter(unknown).cloned().collect()
        };
        if unknown.is_empty() {
            return Ok(());
        }
        for variable in &unknown {
            check_variable(&variable.name, &variable.ty)?;
            // A write that isn't allowed reaches nobody.
            self.map_to_write(variable)?;
        }
        self.missing(&unknown).await.map(drop)
    }

    /// Goes by what tasks have told of how they hold variables, for this call and later ones.
    ///
    /// # Errors
    /// The call's own, where it has another cause, or was told of the same before; `invalid-argument` naming the task, where a
    /// part is on one that this view of the cluster lacks.
    pub(super) fn learn<'v>(
        &self,
        learned: &mut Learned,
        refused: Refused,
        variables: impl IntoIterator<Item = &'v Variable>,
    ) -> Result<()> {
        let (stored, error) = match refused {
            Refused::Held(stored, error) => (stored, error),
            Refused::Other(error) => return Err(error),
        };
        let by_name: HashMap<_, _> = variables
            .into_iter()
            .filter(|variable| !matches!(variable.placement, Placement::On(_)))
            .map(|variable| (&*variable.name, variable))
            .collect();
        let mut told = HashMap::<String, Map>::new();
        for (place, StoredShard { name, shard }) in stored {
            // One that the guest has placed on a task itself is its own business.
            let Some(variable) = by_name.get(&*name) else { return Err(error) };
            let map = match shard {
                None => Map::Whole(place),
                Some(shard) => self.map_of(variable, &shard)?,
            };
            match told.get(&name) {
                Some(other) if *other != map => return Err(differs(&name, other, &map)),
                Some(_) => {}
                None if learned.0.contains(&name) => return Err(error),
                None => drop(told.insert(name, map)),
            }
        }
        learned.0.extend(told.keys().cloned());
        lock(&self.maps).extend(told);
        Ok(())
    }

    /// The map that a part was cut by.
    fn map_of(&self, variable: &Variable, held: &Shard) -> Result<Map> {
        let (name, ps) = (&*variable.name, &held.ps);
        let invalid = |message| Error::new(ErrorCode::InvalidArgument, message).with_names([name]);
        let lacking: Vec<_> = ps
            .iter()
            .map(|&index| Task::new(TaskType::Ps, index))
            .filter(|&task| !self.options.cluster.contains(task) && Some(task) != self.options.process_task)
            .collect();
        if !lacking.is_empty() {
            let (tasks, lacks) = (list_ps(ps), list_tasks(&lacking));
            let message = format!(
                "variable `{name}` is in `{}` parts on {tasks}, but this view of the cluster lacks {lacks}; give this task a cluster \
                 with all tasks that hold it",
                ps.len()
            );
            return Err(invalid(message).with_tasks(lacking));
        }
        let parts = shard_map(&variable.ty, ps);
        let distinct = ps.iter().collect::<HashSet<_>>().len() == ps.len();
        if !distinct || parts.get(held.index as usize).is_none_or(|(shard, _)| shard != held) {
            let message = format!(
                "variable `{name}` is in `{}` parts on {}, cut otherwise than this version of dchost cuts `{}`; initialize it anew \
                 in another container, or run the same version everywhere",
                ps.len(),
                list_ps(ps),
                variable.ty
            );
            return Err(invalid(message));
        }
        Ok(Map::Parts(ps.clone()))
    }
}

impl Map {
    /// Whether a variable of this type may be held like this.
    fn fits(&self, ty: &TensorType) -> bool {
        match self {
            Map::Whole(_) => true,
            Map::Parts(ps) => ty.shape.first().is_some_and(|&rows| rows >= ps.len() as u64),
        }
    }

    fn describe(&self) -> String {
        match self {
            Map::Whole(Place::Local) => "as a whole in this process".to_owned(),
            Map::Whole(Place::On(task)) => format!("as a whole on {task}"),
            Map::Parts(ps) => format!("in `{}` parts on {}", ps.len(), list_ps(ps)),
        }
    }
}

/// The error of a name that stands for different things on different tasks.
fn differs(name: &str, one: &Map, other: &Map) -> Error {
    let message = format!(
        "variable `{name}` is held {}, and another of that name {}; place it where the one is that is meant, or rename one",
        one.describe(),
        other.describe()
    );
    Error::new(ErrorCode::InvalidArgument, message).with_names([name])
}

fn too_few() -> Error {
    Error::new(ErrorCode::Internal, "tasks answered with fewer parts of variables than they were asked for")
}
