//! Scenarios with real processes.
