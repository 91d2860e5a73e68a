//! Attend messages.
