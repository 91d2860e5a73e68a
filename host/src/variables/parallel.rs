//! Work on the blocks of a large value, by several threads.

use super::lock;
use std::sync::{LazyLock, Mutex};
use std::thread;

/// Bytes of a value for which another thread is worth its start, which takes as long as some 256 KiB.
const THREAD_BYTES: usize = 4 << 20;

/// Most threads, the caller's included: memory is what bounds such work, and a few of them have all of it.
const THREADS_MAX: usize = 4;

/// Asked once: it reads files.
static PROCESSORS: LazyLock<usize> =
    LazyLock::new(|| thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX));

/// Does `work` once for each item, in any order; the items are of values of `bytes` bytes together.
pub(super) fn for_each<T: Send>(items: impl Iterator<Item = T> + Send, bytes: usize, work: impl Fn(T) + Sync) {
    let threads = (bytes / THREAD_BYTES).min(*PROCESSORS);
    if threads <= 1 {
        return items.for_each(work);
    }
    let items = Mutex::new(items);
    let run = || {
        loop {
            let item = lock(&items).next();
            match item {
                Some(item) => work(item),
                None => return,
            }
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            // Where the system has no thread, the others do its part.
            let _ = thread::Builder::new().name("dchost-blocks".to_owned()).spawn_scoped(scope, run);
        }
        run();
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn each_item_is_worked_on_once() {
        for bytes in [0, THREAD_BYTES, 10 * THREAD_BYTES] {
            let mut counts: Vec<AtomicU64> = (0..1000).map(|_| AtomicU64::new(0)).collect();
            for_each(counts.iter_mut(), bytes, |count| *count.get_mut() += 1);
            assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
        }
    }
}
