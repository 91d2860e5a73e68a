//! Dials a task once, to see whether it lives.
