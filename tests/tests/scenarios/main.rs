//! Stories told with real processes: what a user sees, and with which exit codes it ends.
//!
//! They need the dchost binary and the guests: `cargo build -p dchost` and `cargo xtask guests`.

mod failures;
mod jobs;
mod launch;
mod local;
mod refused;
