//! `wasi:sockets/ip-name-lookup`: names are looked up only where `--allow-net` lists them, few at once and not for ever.
//!
//! wasmtime-wasi's own looks up everything or nothing.

use super::network::Network;
use crate::runtime::grants::lookup_name;
use crate::runtime::state::State;
use std::io;
use std::net::{IpAddr, Ipv6Addr, ToSocketAddrs as _};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::task::JoinHandle;
use wasmtime::component::{Linker, Resource, ResourceType};
use wasmtime_wasi::p2::bindings::sockets::network::{ErrorCode, IpAddress};
use wasmtime_wasi::p2::{DynPollable, Network as NetworkHandle, Pollable};

/// How long a look-up may take; resolvers of systems try some servers some times, for 5 s each.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(15);

/// Longest name of the DNS, in bytes.
const NAME_BYTES_MAX: usize = 254;

/// Addresses of one answer; more than any resolver gives.
const ANSWER_ADDRESSES_MAX: usize = 64;

/// An answer: none yet, addresses, or why there are none.
type Answer = Option<Result<Vec<IpAddr>, ErrorCode>>;

/// A look-up under way or answered. Dropping it gives it up.
struct LookUp {
    answer: watch::Receiver<Answer>,
    /// Addresses that were handed out.
    taken: usize,
    task: Option<JoinHandle<()>>,
}

impl Drop for LookUp {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

/// What a pollable of a [`LookUp`] waits for. Nobody's child, so that a guest may drop either first.
struct Waiter(watch::Receiver<Answer>);

#[wasmtime_wasi::async_trait]
impl Pollable for Waiter {
    async fn ready(&mut self) {
        // A closed channel means that the look-up is gone: whoever polls must not wait for it.
        let _ = self.0.wait_for(Option::is_some).await;
    }
}

/// Links the interface; the version is the newest that this host knows, and older ones of 0.2 fit it.
pub(super) fn add_to_linker(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    let mut instance = linker.instance("wasi:sockets/ip-name-lookup@0.2.12")?;
    instance.resource("resolve-address-stream", ResourceType::host::<LookUp>(), |mut store, rep| {
        store.data_mut().table.delete(Resource::<LookUp>::new_own(rep))?;
        Ok(())
    })?;
    instance.func_wrap("resolve-addresses", |mut store, (network, name): (Resource<NetworkHandle>, String)| {
        let state = store.data_mut();
        state.table.get(&network)?;
        Ok((match begin(&state.network, &name) {
            Ok(look_up) => Ok(state.table.push(look_up)?),
            Err(code) => Err(code),
        },))
    })?;
    instance.func_wrap(
        "[method]resolve-address-stream.resolve-next-address",
        |mut store, (look_up,): (Resource<LookUp>,)| {
            let look_up = store.data_mut().table.get_mut(&look_up)?;
            let next = match &*look_up.answer.borrow() {
                None => Err(ErrorCode::WouldBlock),
                Some(Ok(addresses)) => Ok(addresses.get(look_up.taken).copied()),
                Some(Err(code)) => Err(*code),
            };
            if let Ok(Some(_)) = next {
                look_up.taken += 1;
            }
            Ok((next.map(|address| address.map(IpAddress::from)),))
        },
    )?;
    instance.func_wrap(
        "[method]resolve-address-stream.subscribe",
        |mut store, (look_up,): (Resource<LookUp>,)| -> wasmtime::Result<(Resource<DynPollable>,)> {
            let state = store.data_mut();
            let waiter = Waiter(state.table.get(&look_up)?.answer.clone());
            let waiter = state.table.push(waiter)?;
            Ok((wasmtime_wasi::p2::subscribe(&mut state.table, waiter)?,))
        },
    )
}

/// Begins a look-up, or refuses it.
fn begin(network: &Arc<Network>, name: &str) -> Result<LookUp, ErrorCode> {
    if name.len() > NAME_BYTES_MAX {
        return Err(ErrorCode::InvalidArgument);
    }
    // An address is its own answer; whether it is granted is asked when it is used.
    if let Some(address) = literal(name) {
        let (_, answer) = watch::channel(Some(Ok(vec![address])));
        return Ok(LookUp { answer, taken: 0, task: None });
    }
    let name = lookup_name(name);
    if !network.looks_up(&name) {
        return Err(ErrorCode::AccessDenied);
    }
    let Ok(permit) = Arc::clone(&network.lookups).try_acquire_owned() else {
        network
            .denials
            .tell("the guest looks up many names at once, some look-ups fail until others have ended".to_owned());
        return Err(ErrorCode::TemporaryResolverFailure);
    };
    let (sender, answer) = watch::channel(None);
    let network = Arc::clone(network);
    let task = tokio::spawn(async move {
        let answer = look_up(&network, name, permit, system_addresses).await;
        sender.send_replace(Some(answer));
    });
    Ok(LookUp { answer, taken: 0, task: Some(task) })
}

/// Asks `resolve` on a thread of its own, as long as a look-up may take, and remembers what it finds.
async fn look_up(
    network: &Network,
    name: String,
    permit: OwnedSemaphorePermit,
    resolve: impl FnOnce(&str) -> io::Result<Vec<IpAddr>> + Send + 'static,
) -> Result<Vec<IpAddr>, ErrorCode> {
    let asked = name.clone();
    let resolver = tokio::task::spawn_blocking(move || {
        let found = resolve(&asked);
        // Kept until the thread is free again, even where nobody waits for it any more.
        drop(permit);
        found
    });
    match tokio::time::timeout(LOOKUP_TIMEOUT, resolver).await {
        Ok(Ok(Ok(found))) => {
            let mut addresses: Vec<IpAddr> = Vec::new();
            for address in found {
                if !addresses.contains(&address) {
                    addresses.push(address);
                }
            }
            network.remember(&name, &addresses);
            Ok(addresses)
        }
        Ok(Ok(Err(error))) => {
            tracing::debug!("the name `{name}` can't be looked up: {error}");
            Err(ErrorCode::NameUnresolvable)
        }
        Ok(Err(_)) | Err(_) => Err(ErrorCode::TemporaryResolverFailure),
    }
}

/// What the system's resolver finds; blocks until it answers.
fn system_addresses(name: &str) -> io::Result<Vec<IpAddr>> {
    let found = (name, 0).to_socket_addrs()?;
    Ok(found.map(|found| found.ip().to_canonical()).take(ANSWER_ADDRESSES_MAX).collect())
}

/// An address in its usual form; the odd forms that C libraries read as well, such as `0x7f.1`, are names that nobody grants.
fn literal(name: &str) -> Option<IpAddr> {
    if let Some(address) = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
        return address.parse::<Ipv6Addr>().ok().map(IpAddr::V6);
    }
    name.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::grants::{NetGrant, NetHost};

    fn network(names: &[&str]) -> Arc<Network> {
        let grants = names.iter().map(|name| NetGrant { host: NetHost::Name((*name).to_owned()), port: None });
        Arc::new(Network::new(grants.collect(), Arc::default()))
    }

    async fn answer(network: &Arc<Network>, name: &str) -> Result<Vec<IpAddr>, ErrorCode> {
        let mut look_up = begin(network, name)?;
        let answer = look_up.answer.wait_for(Option::is_some).await.unwrap().clone();
        answer.unwrap()
    }

    #[tokio::test]
    async fn a_granted_name_is_looked_up_whatever_its_case() {
        let network = network(&["localhost"]);
        for name in ["localhost", "LocalHost", "localhost."] {
            let addresses = answer(&network, name).await.unwrap();
            assert!(!addresses.is_empty() && addresses.iter().all(IpAddr::is_loopback), "{name}: {addresses:?}");
        }
    }

    #[tokio::test]
    async fn other_names_and_odd_numbers_are_refused_without_a_look_up() {
        let network = network(&["example.com"]);
        for name in ["localhost", "sub.example.com", "example.com.evil", "", "127.1", "0x7f.0.0.1", "2130706433", "a b"]
        {
            assert!(matches!(answer(&network, name).await, Err(ErrorCode::AccessDenied)), "{name:?}");
        }
    }

    #[tokio::test]
    async fn a_name_longer_than_any_is_refused() {
        let long = "a".repeat(NAME_BYTES_MAX + 1);
        assert!(matches!(answer(&network(&[&long]), &long).await, Err(ErrorCode::InvalidArgument)));
    }

    #[tokio::test]
    async fn an_address_is_its_own_answer() {
        let network = network(&[]);
        for (text, address) in [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("[::1]", "::1")] {
            assert_eq!(answer(&network, text).await.unwrap(), [address.parse::<IpAddr>().unwrap()]);
        }
    }

    /// Aim: a resolver that never answers costs a guest 15 s, and the host one of a run's eight places until it does.
    /// Method: the paused clock, which a thread that waits holds, so that the test moves it.
    #[tokio::test(start_paused = true)]
    async fn a_look_up_without_an_answer_is_given_up_and_keeps_its_place() {
        let network = network(&["localhost"]);
        let places = network.lookups.available_permits();
        let permit = Arc::clone(&network.lookups).try_acquire_owned().unwrap();
        let (release, hung) = std::sync::mpsc::channel::<()>();
        let asked = tokio::spawn({
            let network = Arc::clone(&network);
            async move {
                let resolve = move |_: &str| {
                    let _ = hung.recv();
                    Ok(vec![IpAddr::from([127, 0, 0, 1])])
                };
                look_up(&network, "localhost".to_owned(), permit, resolve).await
            }
        });
        tokio::task::yield_now().await;
        tokio::time::advance(LOOKUP_TIMEOUT - Duration::from_millis(1)).await;
        assert!(!asked.is_finished());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(matches!(asked.await.unwrap(), Err(ErrorCode::TemporaryResolverFailure)));
        assert_eq!(network.lookups.available_permits(), places - 1);
        drop(release);
        while network.lookups.available_permits() < places {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn look_ups_at_once_are_bounded_and_one_that_is_dropped_frees_its_place() {
        let network = network(&["localhost"]);
        let held: Vec<_> = std::iter::from_fn(|| Arc::clone(&network.lookups).try_acquire_owned().ok()).collect();
        assert!(matches!(begin(&network, "localhost"), Err(ErrorCode::TemporaryResolverFailure)));
        let places = held.len();
        assert_eq!(places, 8);
        drop(held);
        for _ in 0..2 * places {
            drop(begin(&network, "localhost"));
            while network.lookups.available_permits() < places {
                tokio::task::yield_now().await;
            }
        }
    }
}
