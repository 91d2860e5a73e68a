//! Runs components: wasmtime's engine, bindings, limits, and one file for each imported WIT interface.
