//! Sessions: a run's lease on this server.
