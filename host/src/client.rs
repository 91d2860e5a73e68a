//! Typed clients to other tasks.

pub mod attend;
pub mod channel;
pub mod ops;
pub mod probe;
pub mod status;
pub mod variables;
