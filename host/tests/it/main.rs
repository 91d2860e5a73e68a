//! Integration tests of the library: one binary, a module for each subject.

mod command_line;
mod oracle;
