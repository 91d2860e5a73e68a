//! Places for components that are on their way: few in all, one for each client, and not all for one machine.

use crate::cluster::Task;
use crate::error::{Error, ErrorCode, Result};
use crate::ids::Caller;
use crate::sync::lock;
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// Components that are on their way at once, over all callers: each may take `--max-module-size` of memory, and then compiles.
const PLACES_MAX: usize = 4;

/// Those of them that come from one machine: whoever opens any number of containers there leaves a place to the others.
const PLACES_PER_MACHINE_MAX: usize = PLACES_MAX - 1;

/// How long a place is waited for: as long as a few before it may take.
const WAIT_TIMEOUT: Duration = Duration::from_secs(600);

/// Whose component it is: a task of a job, or a split client with all of its runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Who {
    container: String,
    task: Option<Task>,
    machine: Option<IpAddr>,
}

impl Who {
    /// Of a caller; `client` where its container is a split client's.
    pub(super) fn new(caller: &Caller, client: bool, address: Option<IpAddr>) -> Self {
        let (container, task) = (caller.container.clone(), caller.task.filter(|_| !client));
        Who { container, task, machine: address.map(machine) }
    }

    fn is_same_client(&self, other: &Who) -> bool {
        (&self.container, self.task) == (&other.container, other.task)
    }
}

/// The address that stands for a machine: of IPv6, where one has as many as it likes, the first of its network of 64 bits.
fn machine(address: IpAddr) -> IpAddr {
    /// What a machine may choose of its address.
    const INTERFACE_BITS: u32 = 64;
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> INTERFACE_BITS << INTERFACE_BITS).into(),
    }
}

/// Hands the places out, in the order in which they were asked for among those who may have one. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Places(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    taken: Vec<Who>,
    waiting: VecDeque<(Who, oneshot::Sender<Place>)>,
}

/// A place, free again when it is dropped.
pub(super) struct Place {
    places: Places,
    who: Who,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = lock(&self.places.0);
        if let Some(index) = state.taken.iter().position(|taken| *taken == self.who) {
            state.taken.swap_remove(index);
        }
        drop(state);
        self.places.hand_out();
    }
}

impl State {
    fn may_have(&self, who: &Who) -> bool {
        let of_machine =
            self.taken.iter().filter(|taken| who.machine.is_some() && taken.machine == who.machine).count();
        self.taken.len() < PLACES_MAX
            && of_machine < PLACES_PER_MACHINE_MAX
            && !self.taken.iter().any(|taken| taken.is_same_client(who))
    }
}

impl Places {
    /// Waits for a place.
    ///
    /// # Errors
    /// `resource-exhausted`: none became free for 10 minutes.
    ///
    /// # Cancel safety
    /// Dropping it gives up the wait.
    pub(super) async fn take(&self, task: Task, who: Who) -> Result<Place> {
        let (sender, place) = oneshot::channel();
        lock(&self.0).waiting.push_back((who, sender));
        self.hand_out();
        match timeout(WAIT_TIMEOUT, place).await {
            Ok(Ok(place)) => Ok(place),
            Ok(Err(_)) | Err(_) => {
                let message = format!(
                    "components of others have been on their way to {task} for {}, at most {PLACES_MAX} at once and one \
                     of each client: try again",
                    humantime::format_duration(WAIT_TIMEOUT)
                );
                Err(Error::new(ErrorCode::ResourceExhausted, message).with_tasks([task]))
            }
        }
    }

    /// Gives places to those who wait and may have one.
    fn hand_out(&self) {
        loop {
            let mut state = lock(&self.0);
            state.waiting.retain(|(_, waiter)| !waiter.is_closed());
            let next = state.waiting.iter().position(|(who, _)| state.may_have(who));
            let Some((who, waiter)) = next.and_then(|next| state.waiting.remove(next)) else { return };
            state.taken.push(who.clone());
            drop(state);
            // Who has given up meanwhile drops it, without the lock, and others have their turn.
            drop(waiter.send(Place { places: self.clone(), who }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::TaskType;
    use crate::ids::RunId;

    const HERE: Task = Task::new(TaskType::Ps, 0);

    fn who(container: &str, worker: u32, client: bool, address: u8) -> Who {
        let task = Some(Task::new(TaskType::Worker, worker));
        let caller = Caller { container: container.to_owned(), task, run_id: RunId(1), attempt: None };
        Who::new(&caller, client, Some(IpAddr::from([10, 0, 0, address])))
    }

    async fn take(places: &Places, who: Who) -> Place {
        timeout(Duration::from_secs(1), places.take(HERE, who)).await.expect("there is a place").expect("in time")
    }

    async fn waits(places: &Places, who: Who) -> bool {
        timeout(Duration::from_secs(1), places.take(HERE, who)).await.is_err()
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_has_one_place_for_all_of_its_runs_and_each_task_of_a_job_its_own() {
        let places = Places::default();
        let client = take(&places, who("run-1", 0, true, 1)).await;
        assert!(waits(&places, who("run-1", 1, true, 1)).await, "another run of it");
        assert!(waits(&places, who("run-1", 1, true, 2)).await, "by another way");
        let _job = take(&places, who("default", 0, false, 1)).await;
        let _other = take(&places, who("default", 1, false, 2)).await;
        drop(client);
        take(&places, who("run-1", 1, true, 1)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn one_machine_does_not_have_all_places() {
        let places = Places::default();
        let mut held = Vec::new();
        for container in ["a", "b", "c"] {
            held.push(take(&places, who(container, 0, true, 1)).await);
        }
        assert!(waits(&places, who("d", 0, true, 1)).await);
        held.push(take(&places, who("d", 0, true, 2)).await);
        assert!(waits(&places, who("e", 0, true, 3)).await, "all are taken");
        held.remove(0);
        take(&places, who("e", 0, true, 3)).await;
    }

    #[test]
    fn a_machine_is_one_whichever_of_its_addresses_it_takes() {
        let machine = |address: &str| machine(address.parse().expect("it is an address"));
        assert_eq!(machine("2001:db8:0:1::1"), machine("2001:db8:0:1:ffff::2"));
        assert_eq!(machine("::ffff:10.0.0.1"), machine("10.0.0.1"));
        assert_ne!(machine("2001:db8:0:1::1"), machine("2001:db8:0:2::1"));
        assert_ne!(machine("::ffff:10.0.0.1"), machine("10.0.0.2"));
    }

    /// Aim: who waits has its turn in the order of asking, and not for ever. Method: on a paused clock.
    #[tokio::test(start_paused = true)]
    async fn who_waits_is_served_in_order_or_told_in_time() {
        let places = Places::default();
        let first = take(&places, who("a", 0, true, 1)).await;
        let (second, third) = (places.take(HERE, who("a", 1, true, 1)), places.take(HERE, who("a", 2, true, 1)));
        tokio::pin!(second, third);
        assert!(timeout(Duration::from_secs(1), &mut second).await.is_err());
        assert!(timeout(Duration::from_secs(1), &mut third).await.is_err());
        drop(first);
        let second = second.await.expect("it was the first to wait");
        let error = third.await.err().expect("nobody makes room");
        assert_eq!(error.code, ErrorCode::ResourceExhausted);
        assert!(error.message.contains("on their way to ps:0 for 10m"), "{error}");
        // Who has given up is passed over.
        drop(second);
        take(&places, who("a", 3, true, 1)).await;
    }
}
