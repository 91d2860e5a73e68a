//! Which threads are a coordinator's own: what a run calls must not start another coordinator.
//!
//! A callback (a line for a console, for instance) is called on a thread that a run needs. A coordinator started there would
//! hold it up until its own end, and perhaps wait for the very run that it holds up.
//!
//! # Source
//! `_WorkerContext.__enter__` of TensorFlow's `distribute_coordinator.py` refuses a coordinator inside of a worker function,
//! but in some modes only after servers or threads were started, and in one not at all.

use std::cell::Cell;

thread_local! {
    static OWN: Cell<bool> = const { Cell::new(false) };
}

/// Whether the present thread is a coordinator's own.
pub(super) fn is_own_thread() -> bool {
    OWN.get()
}

/// Marks the present thread for as long as it lives: for the threads of a coordinator's runtimes.
pub(super) fn mark_thread() {
    OWN.set(true);
}

/// The present thread is a coordinator's own until this is dropped.
#[derive(Debug)]
pub(super) struct Own(());

impl Own {
    /// Marks the present thread; none where it is marked already.
    pub(super) fn enter() -> Option<Own> {
        (!OWN.replace(true)).then(|| Own(()))
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        OWN.set(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_marked_once_and_until_the_mark_is_dropped() {
        let mark = Own::enter().expect("a fresh thread");
        assert!(is_own_thread() && Own::enter().is_none() && is_own_thread());
        let other = std::thread::spawn(is_own_thread).join().expect("it doesn't panic");
        assert!(!other, "other threads are their own business");
        drop(mark);
        assert!(!is_own_thread());
        mark_thread();
        assert!(Own::enter().is_none());
    }
}
