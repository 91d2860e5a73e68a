//! Memory of large values that were given up, kept for the next ones.

use bytes::Bytes;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Memory that is kept at most, in bytes: as much as one call of a guest may move by default (`--max-tensor`). Where it may move
/// less, less is kept; where more, this is enough for all but its largest values.
const SPARE_BYTES_MAX: usize = 256 << 20;

/// How much larger than a value the memory may be that it gets: a small one mustn't hold that of a large one.
const SLACK_MAX: usize = 2;

/// Buffers of values that nobody looks at any more. Cheap to clone; clones share them, and a process has one for all that it
/// reads, so that it is bounded once.
///
/// A fresh buffer of 64 MiB costs three times the copy into it: the system zeroes its pages one by one as they are first
/// touched. Programs read the same variables again and again, so their buffers are worth keeping.
#[derive(Clone)]
pub struct Spare(Arc<Inner>);

struct Inner {
    bytes_max: usize,
    /// Sorted by size.
    buffers: Mutex<Vec<Vec<u8>>>,
}

impl Default for Spare {
    /// Keeps as much as any may.
    fn default() -> Self {
        Spare::new(u64::MAX)
    }
}

impl fmt::Debug for Spare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spare").field("bytes", &self.bytes()).finish()
    }
}

impl Spare {
    /// Keeps nothing yet, and at most what one call may move, `--max-tensor`, or 256 MiB if that is less.
    pub fn new(tensor_bytes_max: u64) -> Self {
        let bytes_max = usize::try_from(tensor_bytes_max).unwrap_or(usize::MAX).min(SPARE_BYTES_MAX);
        Spare(Arc::new(Inner { bytes_max, buffers: Mutex::default() }))
    }

    /// An empty buffer with room for `bytes` bytes: the smallest that is kept and fits, or a new one.
    pub fn take(&self, bytes: usize) -> Vec<u8> {
        let fits = bytes..=bytes.saturating_mul(SLACK_MAX);
        let mut kept = self.lock();
        match kept.iter().position(|buffer| fits.contains(&buffer.capacity())) {
            Some(index) => {
                let mut buffer = kept.remove(index);
                buffer.clear();
                buffer
            }
            None => {
                drop(kept);
                Vec::with_capacity(bytes)
            }
        }
    }

    /// Makes a value of a buffer, which is kept when the value and all slices of it are dropped.
    pub fn lend(&self, buffer: Vec<u8>) -> Bytes {
        Bytes::from_owner(Lent { buffer, home: self.clone() })
    }

    /// The memory that is kept, in bytes.
    pub fn bytes(&self) -> usize {
        self.lock().iter().map(Vec::capacity).sum()
    }

    /// Keeps a buffer; smaller ones make room for it.
    pub(super) fn put(&self, buffer: Vec<u8>) {
        if buffer.capacity() > self.0.bytes_max {
            return;
        }
        let mut kept = self.lock();
        let index = kept.partition_point(|other| other.capacity() < buffer.capacity());
        kept.insert(index, buffer);
        let mut bytes: usize = kept.iter().map(Vec::capacity).sum();
        while bytes > self.0.bytes_max {
            bytes -= kept.remove(0).capacity();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Vec<u8>>> {
        // Each change of the list is one call, so a panic elsewhere leaves nothing half done.
        self.0.buffers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A value's bytes; go home with the last who looks at them.
struct Lent {
    buffer: Vec<u8>,
    home: Spare,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.buffer
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.home.put(std::mem::take(&mut self.buffer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn value(spare: &Spare, byte: u8, bytes: usize) -> Bytes {
        let mut buffer = spare.take(bytes);
        assert!(buffer.is_empty());
        buffer.resize(bytes, byte);
        spare.lend(buffer)
    }

    #[test]
    fn a_buffer_is_used_again_only_when_nobody_looks_at_it() {
        let spare = Spare::default();
        let first = value(&spare, 1, 3 * MIB);
        let (address, slice) = (first.as_ptr(), first.slice(5..10));
        drop(first);
        let second = value(&spare, 2, 3 * MIB);
        assert_ne!(second.as_ptr(), address, "a slice still looks at it");
        assert_eq!(slice, [1; 5][..]);
        drop(slice);
        let third = value(&spare, 3, 2 * MIB);
        assert_eq!(third.as_ptr(), address);
        assert!(third.len() == 2 * MIB && third.iter().all(|&byte| byte == 3), "nothing is left of the last value");
    }

    #[test]
    fn a_small_value_takes_no_large_buffer() {
        let spare = Spare::default();
        drop(value(&spare, 0, 8 * MIB));
        let small = value(&spare, 0, 3 * MIB);
        assert_eq!(spare.bytes(), 8 * MIB);
        drop(small);
        assert_eq!(spare.bytes(), 11 * MIB);
        assert_eq!(spare.take(2 * MIB).capacity(), 3 * MIB, "the smallest that fits");
    }

    #[test]
    fn what_is_kept_is_bounded_and_the_large_ones_stay() {
        for (tensor_bytes_max, bytes_max) in
            [(u64::MAX, SPARE_BYTES_MAX), (1 << 30, SPARE_BYTES_MAX), (8 << 20, 8 * MIB), (4096, 4096)]
        {
            let spare = Spare::new(tensor_bytes_max);
            // Capacity is what counts; nothing is written, so that the test needs no memory.
            for bytes in [bytes_max + 1, bytes_max / 2, bytes_max / 4, bytes_max / 2] {
                spare.put(Vec::with_capacity(bytes));
                assert!(spare.bytes() <= bytes_max);
            }
            assert_eq!(spare.bytes(), bytes_max);
        }
    }
}
