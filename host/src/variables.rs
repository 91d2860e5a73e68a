//! Variables: named state in containers, the rules of its updates, and writes that are applied once.
//!
//! A [`Store`] is the state of one server, a [`Container`] one namespace in it. Everything here is thread-safe and knows no
//! socket: the server and the local handles call the same functions.
//!
//! | rule | where |
//! | --- | --- |
//! | a value is blocks of at most 1 MiB; reads share them, writes copy only what is shared | [`Blocks`] |
//! | an update is atomic for its variable, a read sees whole updates | [`Container`] |
//! | what a task holds may be a part of a variable, with a type and a version of its own | [`Shard`] |
//! | a new attempt begins with an empty container, an older one is refused | [`Store::open`] |
//! | gradients are applied by the variable's task, which keeps an optimizer's slots beside it | [`Container::apply`], [`Optimizer`] |
//! | or collected for a step of synchronous replicas, and their mean applied once | [`Container::join`] |
//! | rows are read at one moment, and changed in order, all or none | [`Container::gather`], [`Container::scatter`] |
//! | all of a container is read at once, and set again, with what stands beside it | [`Container::save`], [`Container::restore`] |
//! | a write is applied once for each run and sequence | [`Ledger`] |
//! | memory of values that were read is used again for the next ones | [`Spare`] |
//! | incoming bytes are staged and applied when they are complete | [`Staging`] |
//! | or, by relaxed consistency, applied as they come, each piece once | [`RelaxedWrite`] |
//!
//! # Source
//! The resource variables of TensorFlow's servers: kept in the task that hosts them by container and name, shared by all
//! sessions, updated under one lock each (`resource_variable_ops.cc`, `resource_mgr.h`). Versions, base versions and writes
//! that are applied once are ours.

mod blocks;
mod clip;
mod container;
mod kernel;
mod ledger;
mod optimizer;
mod options;
mod parallel;
mod rows;
mod shard;
mod slots;
mod spare;
mod staging;
mod store;

pub use blocks::{BLOCK_BYTES, Blocks};
pub use clip::{clip_scale, no_floats};
pub use container::{
    Container, Gathered, Joined, Payload, RELAXED_BYTES, RelaxedValue, RelaxedWrite, Restored, Saved, Snapshot,
    TryApply, TryJoin, TryPush, TryScatter, Update, VARIABLES_MAX, check_variable, name_some, partly_applied,
    refuse_base, saved_order, tensor_count,
};
pub use ledger::{Applying, Begin, Ledger, Remembered, Ticket};
pub use optimizer::{Adam, Optimizer};
pub use options::{ApplyOptions, Consistency, REPLICAS_MAX, ReadOptions, SyncStep, WriteOptions};
pub use rows::{ROWS_MAX, check_row_count, check_rows, row_bytes};
pub use shard::{
    AUTO_SHARD_BYTES_MIN, SHARD_BYTES_MIN, SHARDS_MAX, Shard, StoredShard, shard_count, shard_map, shard_rows,
};
pub use slots::{STEP_MAX, SlotLayout, SlotState};
pub use spare::Spare;
pub use staging::{STAGING, Staging};
pub use store::{CONTAINERS_MAX, Store, StoreOptions, VariableStatus};

use crate::sync::lock;
use crate::tensor::TensorType;

/// What `initialize` does with a variable that has a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InitializeMode {
    /// Sets the value.
    Overwrite,
    /// Leaves the value as it is.
    IfAbsent,
}

/// How an update changes the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UpdateKind {
    /// Sets it.
    Assign,
    /// Adds to it.
    Add,
    /// Subtracts from it.
    Sub,
    /// Takes the smaller of both, element by element.
    Min,
    /// Takes the greater of both, element by element.
    Max,
}

/// A variable as the task that holds it knows it: a whole one, or a part.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct VariableRef {
    /// Its name within the container.
    pub name: String,
    /// Element type and extents of what the task holds.
    ///
    /// To all that happens to a value on its task, a part is a variable like any other, of this type.
    pub ty: TensorType,
    /// Which part of the variable it is; none: all.
    pub shard: Option<Shard>,
}

impl VariableRef {
    /// Names a variable that lies on one task.
    pub fn whole(name: impl Into<String>, ty: TensorType) -> Self {
        VariableRef { name: name.into(), ty, shard: None }
    }

    /// Element type and extents of the whole variable.
    pub fn whole_type(&self) -> TensorType {
        whole_type(&self.ty, self.shard.as_ref())
    }
}

/// The type of the variable that a value of type `ty` is a part of, if it is one.
pub fn whole_type(ty: &TensorType, shard: Option<&Shard>) -> TensorType {
    shard.map_or_else(|| ty.clone(), |shard| ty.with_rows(shard.whole_rows))
}

/// Values from this size on are dropped on a thread of their own: giving memory back takes the system about 0.1 s for
/// each GiB, in which a server's threads would answer nobody.
const DROP_BYTES_MIN: usize = 16 << 20;

/// Drops `value`, which holds about `bytes` bytes, without keeping the caller waiting.
fn drop_large(bytes: usize, value: impl Send + 'static) {
    if bytes >= DROP_BYTES_MIN {
        // Where there is no thread, the value is dropped here with the closure.
        let _ = std::thread::Builder::new().name("dchost-free".to_owned()).spawn(move || drop(value));
    }
}

#[cfg(test)]
mod tests;
