//! Another task's variables over gRPC.
