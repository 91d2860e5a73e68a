//! The guest SDK.
