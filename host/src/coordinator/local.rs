//! Adapters of domain state in this process to handles.
