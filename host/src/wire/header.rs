//! Request and response headers, tasks, identities.
