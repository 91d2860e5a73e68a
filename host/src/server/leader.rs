//! The leader's service: drives rows and barriers for tasks that attend, over gRPC or in this process.
