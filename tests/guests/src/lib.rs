//! Small components that tests run.
