//! Attends the leader over gRPC.
