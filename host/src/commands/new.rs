//! `dchost new`: writes a crate with a first worker_fn, a native test and a README.
