//! The Variables service.
