//! What a push takes of the server's memory: the kernel notes the most that was resident.

use crate::roles;
use std::fs;

/// Bytes of resident memory.
pub(crate) struct Growth {
    /// The most during the push over what was there before it, the variable's value included.
    pub(crate) growth: f64,
    /// The most during the push over what an empty server has.
    pub(crate) peak: f64,
}

/// Measures one push to a variable of a new server; `None` where the kernel doesn't tell.
pub(crate) fn measure(size: usize) -> Option<Growth> {
    let (ps, address) = roles::start_server(&["ps"]);
    let mut worker = roles::start(&["client", "0", &address, crate::host::NAME]);
    // Small ones first: a connection and a session, and what the allocator keeps, are no part of it.
    worker.ask("push 4096 0.05")?;
    let empty = resident(ps.id(), "VmRSS:")?;
    worker.ask(&format!("initialize {size} 0"))?;
    let before = resident(ps.id(), "VmRSS:")?;
    // Forgets the most so far.
    fs::write(format!("/proc/{}/clear_refs", ps.id()), "5").ok()?;
    worker.ask(&format!("push-once {size} 0"))?;
    let most = resident(ps.id(), "VmHWM:")?;
    drop(worker);
    Some(Growth { growth: most - before, peak: most - empty })
}

fn resident(process: u32, which: &str) -> Option<f64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(which))?;
    line.trim().strip_suffix(" kB")?.parse::<f64>().ok().map(|kib| kib * 1024.0)
}
