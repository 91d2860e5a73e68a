//! What one run may use, and what was refused to it.

use std::fmt;
use std::time::Duration;
use wasmtime::ResourceLimiter;

/// Core instances of one store: a component is linked from a handful, an interpreter with its libraries from some dozens.
pub(super) const INSTANCES_MAX: usize = 64;

/// Memories of one store: each reserves address space, and a composed component has one for each part.
pub(super) const MEMORIES_MAX: usize = 8;

/// Tables of one store.
pub(super) const TABLES_MAX: usize = 32;

/// Host bytes that a table's element takes.
const TABLE_ELEMENT_BYTES: u64 = 8;

/// Host bytes of a call beside its largest tensor: names, shapes, WASI's own lists.
const HOSTCALL_SLACK_BYTES: u64 = 8 << 20;

/// What one run may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// All memories and tables of the run together, in bytes (`--max-memory`).
    pub memory_bytes_max: u64,
    /// Processor time of the guest, of host functions on its thread and of all threads of its kernels, waits excluded (`-W cpu-timeout`).
    pub cpu_timeout: Option<Duration>,
    /// Instructions, roughly (`-W fuel`); needs [`EngineOptions::fuel`](super::EngineOptions::fuel).
    pub fuel: Option<u64>,
    /// The tensors of one call together, in bytes (`--max-tensor`).
    pub tensor_bytes_max: u64,
    /// Component handles alive at once, and entries of the host's resource table (`-W max-handles`).
    pub handles_max: usize,
    /// One line of output or one log message, in bytes (`-W max-output-line`); the rest of a longer one is dropped.
    pub output_line_bytes_max: usize,
    /// All output, in bytes (`-W max-output`); what exceeds it is dropped and counted, but for the last lines.
    pub output_bytes_max: u64,
    /// Output of one second, in bytes (`-W max-output-rate`); what exceeds it is dropped and counted, as above.
    pub output_bytes_per_second_max: u64,
    /// Calls in flight: pendings of reads, updates and ops (`-W max-ops`).
    pub ops_max: u32,
    /// Threads that multiply matrices for the guest, its own included (`--kernel-threads`); none: as many as the process has
    /// processors.
    pub kernel_threads: Option<u32>,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            memory_bytes_max: 1 << 30,
            cpu_timeout: None,
            fuel: None,
            tensor_bytes_max: 256 << 20,
            handles_max: 10_000,
            output_line_bytes_max: 64 << 10,
            output_bytes_max: 64 << 20,
            output_bytes_per_second_max: 4 << 20,
            ops_max: 256,
            kernel_threads: None,
        }
    }
}

impl Limits {
    /// Bytes that one host call may make the host copy.
    pub(super) fn hostcall_bytes(&self) -> usize {
        usize::try_from(self.tensor_bytes_max.saturating_add(HOSTCALL_SLACK_BYTES)).unwrap_or(usize::MAX)
    }
}

/// A limit that a run has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Limit {
    /// `--max-memory`.
    Memory,
    /// `-W cpu-timeout`.
    Cpu,
    /// `-W fuel`.
    Fuel,
    /// `--max-tensor`: bytes that one host call would make the host copy.
    Tensor,
    /// `-W max-handles`.
    Handles,
    /// Random bytes of one call, which no flag sets.
    Random,
}

impl Limit {
    /// The flag that sets the limit, or that none does.
    pub const fn flag(self) -> &'static str {
        match self {
            Limit::Memory => "--max-memory",
            Limit::Cpu => "-W cpu-timeout",
            Limit::Fuel => "-W fuel",
            Limit::Tensor => "--max-tensor",
            Limit::Handles => "-W max-handles",
            Limit::Random => "no flag raises it",
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.flag())
    }
}

/// A host call passed tensors above `--max-tensor`.
#[derive(Debug, thiserror::Error)]
#[error("the tensors of a host call have {bytes} bytes")]
pub(super) struct TensorExceeded {
    pub(super) bytes: u64,
}

/// Most that a component passes to the host while it lists its ops, in bytes: as many names as may be, and their headers.
pub(super) const LIST_BYTES_MAX: usize = 1 << 20;

/// A component's list of ops is longer than [`LIST_BYTES_MAX`].
#[derive(Debug, thiserror::Error)]
#[error("the list of ops is too long")]
pub(super) struct ListExceeded;

/// Prints bytes as MiB, with two digits where they matter; little ones as they are.
pub(super) fn mib(bytes: u64) -> String {
    if bytes > 0 && bytes < 1 << 20 {
        return if bytes.is_multiple_of(1 << 10) { format!("{} KiB", bytes >> 10) } else { format!("{bytes} bytes") };
    }
    let whole = bytes >> 20;
    if bytes.is_multiple_of(1 << 20) {
        format!("{whole} MiB")
    } else {
        // A fraction for people: precision beyond f64 doesn't matter here.
        #[expect(clippy::cast_precision_loss)]
        let mib = bytes as f64 / f64::from(1 << 20);
        format!("{mib:.2} MiB")
    }
}

/// Sums the memories and tables of a store, initial sizes included.
///
/// wasmtime's own `StoreLimits` bounds each memory by itself.
#[derive(Debug)]
pub(super) struct Limiter {
    limit_bytes: u64,
    used_bytes: u64,
    /// The last growth that was allowed, taken back if it fails after all.
    last_bytes: u64,
    instantiated: bool,
    refused: Option<Refusal>,
}

/// Growth that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    /// Bytes in use when it was refused.
    pub(super) used_bytes: u64,
    /// Bytes asked for on top.
    pub(super) asked_bytes: u64,
    /// Whether it was the declared size of a memory or table, not growth.
    pub(super) initial: bool,
}

impl Limiter {
    pub(super) fn new(limit_bytes: u64) -> Self {
        Limiter { limit_bytes, used_bytes: 0, last_bytes: 0, instantiated: false, refused: None }
    }

    /// The last growth that was refused.
    pub(super) fn refused(&self) -> Option<Refusal> {
        self.refused
    }

    /// Forgets it, since a call that begins has nothing to do with it.
    pub(super) fn forget_refusal(&mut self) {
        self.refused = None;
    }

    /// Bytes in memories and tables. Memories never shrink, so it is the peak too.
    pub(super) fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    /// From now on no memory or table is at its declared size for the first time.
    pub(super) fn instantiated(&mut self) {
        self.instantiated = true;
    }

    fn grow(&mut self, current: u64, desired: u64) -> bool {
        let initial = current == 0 && !self.instantiated;
        let asked_bytes = desired.saturating_sub(current);
        let used_bytes = self.used_bytes.saturating_add(asked_bytes);
        if used_bytes > self.limit_bytes {
            // Nothing was allowed that could fail after all.
            self.last_bytes = 0;
            self.refused = Some(Refusal { used_bytes: self.used_bytes, asked_bytes, initial });
            return false;
        }
        self.used_bytes = used_bytes;
        self.last_bytes = asked_bytes;
        true
    }

    /// Forgets the growth that was allowed last, so that a failure reported for another can't take it back.
    fn refused_by_itself(&mut self) -> bool {
        self.last_bytes = 0;
        false
    }

    fn take_back(&mut self) {
        self.used_bytes -= std::mem::take(&mut self.last_bytes);
    }
}

impl ResourceLimiter for Limiter {
    fn memory_growing(&mut self, current: usize, desired: usize, maximum: Option<usize>) -> wasmtime::Result<bool> {
        // What the memory itself forbids isn't dchost's limit; wasmtime refuses it after this.
        if maximum.is_some_and(|maximum| desired > maximum) {
            return Ok(self.refused_by_itself());
        }
        Ok(self.grow(current as u64, desired as u64))
    }

    fn table_growing(&mut self, current: usize, desired: usize, maximum: Option<usize>) -> wasmtime::Result<bool> {
        if maximum.is_some_and(|maximum| desired > maximum) {
            return Ok(self.refused_by_itself());
        }
        let bytes = |elements: usize| (elements as u64).saturating_mul(TABLE_ELEMENT_BYTES);
        Ok(self.grow(bytes(current), bytes(desired)))
    }

    fn memory_grow_failed(&mut self, _error: wasmtime::Error) -> wasmtime::Result<()> {
        self.take_back();
        Ok(())
    }

    fn table_grow_failed(&mut self, _error: wasmtime::Error) -> wasmtime::Result<()> {
        self.take_back();
        Ok(())
    }

    fn instances(&self) -> usize {
        INSTANCES_MAX
    }

    fn memories(&self) -> usize {
        MEMORIES_MAX
    }

    fn tables(&self) -> usize {
        TABLES_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limiter_sums_memories_and_tables_and_remembers_a_refusal() {
        let mut limiter = Limiter::new(1000);
        assert!(limiter.memory_growing(0, 400, None).unwrap());
        assert!(limiter.memory_growing(0, 400, None).unwrap());
        assert!(limiter.table_growing(0, 20, None).unwrap());
        assert_eq!(limiter.used_bytes(), 960);
        assert_eq!(limiter.refused(), None);
        assert!(!limiter.memory_growing(400, 500, None).unwrap());
        assert_eq!(limiter.refused(), Some(Refusal { used_bytes: 960, asked_bytes: 100, initial: false }));
        assert_eq!(limiter.used_bytes(), 960);
    }

    #[test]
    fn growth_beyond_the_memorys_own_maximum_is_not_a_refusal_of_ours() {
        let mut limiter = Limiter::new(1000);
        assert!(!limiter.memory_growing(0, 400, Some(300)).unwrap());
        assert_eq!(limiter.refused(), None);
    }

    #[test]
    fn a_failed_growth_gives_back_what_was_allowed_for_it_and_nothing_else() {
        let mut limiter = Limiter::new(1000);
        assert!(limiter.memory_growing(0, 400, None).unwrap());
        assert!(limiter.memory_growing(400, 700, None).unwrap());
        limiter.memory_grow_failed(wasmtime::Error::msg("no address space")).unwrap();
        assert_eq!(limiter.used_bytes(), 400);
        // Refused growth was never allowed: a failure that follows takes nothing back, neither after our own refusal
        // nor after that of the memory's maximum.
        assert!(limiter.memory_growing(400, 500, None).unwrap());
        assert!(!limiter.memory_growing(500, 5000, None).unwrap());
        limiter.memory_grow_failed(wasmtime::Error::msg("refused")).unwrap();
        assert_eq!(limiter.used_bytes(), 500);
        assert!(limiter.table_growing(0, 10, None).unwrap());
        assert!(!limiter.table_growing(10, 20, Some(15)).unwrap());
        limiter.table_grow_failed(wasmtime::Error::msg("refused")).unwrap();
        assert_eq!(limiter.used_bytes(), 580);
    }

    #[test]
    fn sizes_print_in_mib() {
        assert_eq!(mib(256 << 20), "256 MiB");
        assert_eq!(mib((312 << 20) + (1 << 19)), "312.50 MiB");
        assert_eq!(
            (mib(0), mib(64 << 10), mib(100)),
            ("0 MiB".to_owned(), "64 KiB".to_owned(), "100 bytes".to_owned())
        );
    }
}
