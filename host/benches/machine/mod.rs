//! What a bench ran on.
//!
//! In a folder, since a file here would be a bench.

use std::process::Command;

/// The processor, and how busy the machine is.
pub(crate) fn description() -> String {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map_or("?", |(_, name)| name);
    let threads = std::thread::available_parallelism().map_or(0, usize::from);
    let load = read("/proc/loadavg");
    let load = load.split(' ').next().unwrap_or("?");
    let date = Command::new("date")
        .arg("-u")
        .output()
        .map_or_else(|_| "?".to_owned(), |output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    format!("{model}, {threads} threads, load {load}, {date}")
}
