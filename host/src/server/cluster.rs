//! The Cluster service: attend, session, status, drain.
