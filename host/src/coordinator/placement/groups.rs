//! The items of a call by place, and the answers of many places.

use super::{Place, PlacedVariables};
use crate::error::{Error, ErrorCode, Result};
use crate::handles::{BoxFuture, TaskVariables, VariableRef};
use crate::variables::{StoredShard, name_some};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::task::Poll;

/// A call's items by place.
#[derive(Clone)]
pub(super) struct Groups<T>(BTreeMap<Place, Group<T>>);

/// What one place is asked, and where the answers go.
#[derive(Clone)]
pub(super) struct Group<T> {
    /// The place of each answer among those of the call.
    pub(super) indices: Vec<usize>,
    pub(super) items: Vec<T>,
}

impl<T> Default for Groups<T> {
    fn default() -> Self {
        Groups(BTreeMap::new())
    }
}

impl<T> Default for Group<T> {
    fn default() -> Self {
        Group { indices: Vec::new(), items: Vec::new() }
    }
}

/// How long a call of several places goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Until {
    /// Until every place has answered.
    Answered,
    /// Until one says that it holds a variable otherwise: then the call is made again, and the other places need not answer
    /// this one. Not for writes.
    Known,
}

/// Why a call of several places failed.
#[derive(Debug)]
pub(super) enum Refused {
    /// Places hold variables otherwise than the call took them for: which, and how.
    Held(Vec<(Place, StoredShard)>, Error),
    /// Anything else.
    Other(Error),
}

impl<T> Groups<T> {
    /// Adds an item of a place, whose answer is that of `index`.
    pub(super) fn add(&mut self, place: Place, index: usize, item: T) {
        let group = self.0.entry(place).or_default();
        group.indices.push(index);
        group.items.push(item);
    }

    /// Asks all places at the same time. Their answers, in the order of the indices.
    pub(super) async fn ask<'f, A>(
        self,
        run: &PlacedVariables,
        until: Until,
        call: impl Fn(Arc<dyn TaskVariables>, Vec<T>) -> BoxFuture<'f, Result<Vec<A>>>,
    ) -> Result<Vec<A>, Refused> {
        let (mut indices, mut calls) = (Vec::new(), Vec::new());
        for (place, group) in self.0 {
            indices.push(group.indices);
            calls.push((place, call(run.at(place), group.items)));
        }
        in_order(indices, join(calls, until).await?).map_err(Refused::Other)
    }

    /// As [`ask`](Self::ask) until the answer is known, where each place answers for all of its items together.
    pub(super) async fn ask_each<'f, A>(
        self,
        run: &PlacedVariables,
        call: impl Fn(Arc<dyn TaskVariables>, Group<T>) -> BoxFuture<'f, Result<A>>,
    ) -> Result<Vec<A>, Refused> {
        join(self.0.into_iter().map(|(place, group)| (place, call(run.at(place), group))), Until::Known).await
    }
}

impl Group<VariableRef> {
    /// Indices of those that have one of the names.
    pub(super) fn find(&self, names: &[String]) -> Vec<usize> {
        self.only(names).indices
    }

    pub(super) fn only(&self, names: &[String]) -> Self {
        let names: HashSet<_> = names.iter().map(String::as_str).collect();
        let pairs = self.indices.iter().zip(&self.items).filter(|(_, variable)| names.contains(&*variable.name));
        let (indices, items) = pairs.map(|(&index, variable)| (index, variable.clone())).unzip();
        Group { indices, items }
    }
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

/// Runs all at the same time. All answers, or else how variables are held, or else the error that comes first in order of
/// gravity, then of place.
async fn join<'f, T>(
    futures: impl IntoIterator<Item = (Place, BoxFuture<'f, Result<T>>)>,
    until: Until,
) -> Result<Vec<T>, Refused> {
    let mut running: Vec<_> = futures.into_iter().map(|(place, future)| (place, Some(future), None)).collect();
    let mut held = false;
    std::future::poll_fn(|context| {
        let mut pending = false;
        for (_, future, result) in &mut running {
            if let Some(some) = future {
                match some.as_mut().poll(context) {
                    Poll::Ready(ready) => {
                        held |= ready.as_ref().is_err_and(|error| !error.stored.is_empty());
                        (*future, *result) = (None, Some(ready));
                    }
                    Poll::Pending => pending = true,
                }
            }
        }
        if pending && !(held && until == Until::Known) { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    let (mut answers, mut errors, mut stored) = (Vec::with_capacity(running.len()), Vec::new(), Vec::new());
    for (place, _, result) in running {
        match result {
            Some(Ok(answer)) => answers.push(answer),
            Some(Err(error)) => {
                stored.extend(error.stored.iter().cloned().map(|stored| (place, stored)));
                errors.push(error);
            }
            // It is asked again.
            None => {}
        }
    }
    if errors.is_empty() {
        return Ok(answers);
    }
    if stored.is_empty() {
        return Err(Refused::Other(gravest(errors)));
    }
    let first = errors.into_iter().find(|error| !error.stored.is_empty());
    Err(Refused::Held(stored, first.expect("what is held came with an error")))
}

/// The error that a call of several tasks ends with.
fn gravest(mut errors: Vec<Error>) -> Error {
    let cluster = [ErrorCode::PeerFailed, ErrorCode::PeerRestarted, ErrorCode::Unavailable];
    if let Some(at) = errors.iter().position(|error| cluster.contains(&error.code)) {
        return errors.swap_remove(at);
    }
    if errors.len() > 1 && errors.iter().all(|error| error.code == ErrorCode::Uninitialized) {
        let mut seen = HashSet::new();
        let names = errors.iter().flat_map(|error| error.names.iter().map(String::as_str));
        // The parts of a variable have its name.
        let names = names.filter(|&name| seen.insert(name));
        let mend = "; the chief initializes them, other workers wait until it has";
        return name_some(ErrorCode::Uninitialized, "variables are not initialized", names, mend);
    }
    errors.swap_remove(0)
}
