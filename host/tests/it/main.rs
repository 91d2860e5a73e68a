//! Integration tests of the library: one binary, a module for each subject.

mod acceptance;
mod architecture;
mod checkpoint;
mod command_line;
mod embed;
mod grpc;
mod guests;
mod ops;
mod oracle;
mod security;
mod variables;
