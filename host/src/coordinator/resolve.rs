//! Validates what config read: one value, or every fault in one report.

pub mod values;
