//! The standard server: one file for each gRPC service.

pub mod cluster;
pub mod guard;
pub mod leader;
pub mod session;
pub mod variables;
