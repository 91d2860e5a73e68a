//! The ticker: one thread of the process that makes guests yield, whichever engine they run on.
//!
//! An OS thread, since a guest that never yields can hold every thread of an executor. It starts with the first engine and
//! ends within a tick after the last one has gone.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use wasmtime::EngineWeak;

/// How often a guest yields to its executor and its CPU budget is looked at.
pub(super) const EPOCH_TICK: Duration = Duration::from_millis(10);

/// The engines of the process; the thread runs while there are any.
static ENGINES: Mutex<Ticked> = Mutex::new(Ticked { engines: Vec::new(), running: false, threads_started: 0 });

struct Ticked {
    engines: Vec<EngineWeak>,
    running: bool,
    /// So far, for tests.
    threads_started: u64,
}

/// Ticks for an engine as long as it lives.
///
/// # Errors
/// The system has no thread; a later call tries again.
pub(super) fn tick(engine: EngineWeak) -> std::io::Result<()> {
    let mut ticked = ENGINES.lock().unwrap_or_else(PoisonError::into_inner);
    ticked.engines.push(engine);
    if !ticked.running {
        std::thread::Builder::new().name("dchost-epoch".to_owned()).spawn(run)?;
        ticked.running = true;
        ticked.threads_started += 1;
    }
    Ok(())
}

/// The thread.
fn run() {
    loop {
        std::thread::sleep(EPOCH_TICK);
        let mut ticked = ENGINES.lock().unwrap_or_else(PoisonError::into_inner);
        ticked.engines.retain(|engine| match engine.upgrade() {
            Some(engine) => {
                engine.increment_epoch();
                true
            }
            None => false,
        });
        if ticked.engines.is_empty() {
            // Under the lock: whoever adds an engine next starts another thread.
            ticked.running = false;
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    /// Generous: only a hang takes this long.
    const PATIENCE: Duration = Duration::from_secs(30);

    fn watched() -> (u64, Vec<EngineWeak>) {
        let ticked = ENGINES.lock().unwrap();
        (ticked.threads_started, ticked.engines.clone())
    }

    /// Aim: one thread for all engines. Method: other tests of this process make engines too, so the test looks at whether
    /// its own are ticked by a thread that ran before, and are let go.
    #[test]
    fn one_thread_ticks_for_all_engines_and_lets_go_of_those_that_are_gone() {
        let engine = || wasmtime::Engine::new(wasmtime::Config::new().epoch_interruption(true)).unwrap();
        let (first, second) = (engine(), engine());
        tick(first.weak()).unwrap();
        let (threads, _) = watched();
        tick(second.weak()).unwrap();
        assert_eq!(watched().0, threads, "the second engine is ticked by the thread of the first");
        let is_listed = |weak: &EngineWeak| {
            watched().1.iter().any(|other| match (other.upgrade(), weak.upgrade()) {
                (Some(one), Some(other)) => wasmtime::Engine::same(&one, &other),
                _ => false,
            })
        };
        assert!(is_listed(&first.weak()) && is_listed(&second.weak()));
        let weak = first.weak();
        drop(first);
        let began = Instant::now();
        // Nobody but the ticker looks at it any more, and it takes it off its list.
        while watched().1.iter().any(|other| other.upgrade().is_none()) {
            assert!(began.elapsed() < PATIENCE, "an engine that is gone is still listed");
            std::thread::yield_now();
        }
        assert!(weak.upgrade().is_none());
        assert!(is_listed(&second.weak()), "the other is ticked on");
    }
}
