//! Reads flags, environment and files into one value; the only reader of the environment.

/// Every setting that the environment and the file may hold, named as its flag is.
pub const KEYS: [&str; 34] = [
    "module",
    "task",
    "cluster",
    "mode",
    "replication",
    "rpc-layer",
    "bind",
    "insecure",
    "no-cluster-barrier",
    "end",
    "connect-timeout",
    "rejoin-timeout",
    "evaluator-grace",
    "barrier-timeout",
    "timeout",
    "max-attempts",
    "container",
    "summary-dir",
    "dir",
    "env",
    "max-memory",
    "max-tensor",
    "max-module-size",
    "compile-timeout",
    "max-variable-bytes",
    "cpu-timeout",
    "fuel",
    "max-wasm-stack",
    "max-handles",
    "max-output",
    "cache-dir",
    "no-cache",
    "log-format",
    "verbose",
];

/// The environment twin of a setting: `max-memory` is `DCHOST_MAX_MEMORY`.
pub fn twin(key: &str) -> String {
    format!("DCHOST_{}", key.to_uppercase().replace('-', "_"))
}
