//! Channels to tasks: connect with deadline, sessions, request headers, retry.
