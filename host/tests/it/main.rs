//! Integration tests of the library: one binary, a module for each subject.

mod architecture;
mod command_line;
mod grpc;
mod ops;
mod oracle;
mod security;
mod variables;
