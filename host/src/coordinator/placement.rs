//! Places variables on tasks, and asks many tasks in parallel.
