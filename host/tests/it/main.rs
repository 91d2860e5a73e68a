//! Integration tests of the library: one binary, a module for each subject.

mod architecture;
mod grpc;
mod oracle;
mod variables;
