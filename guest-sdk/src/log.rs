//! The log.

/// Severity of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Finest detail.
    Trace,
    /// For finding faults.
    Debug,
    /// What a user wants to see.
    Info,
    /// Something to look at.
    Warn,
    /// Something failed.
    Error,
}

/// Logs a formatted line at level trace: `trace!(ctx, "batch {batch}")`.
#[macro_export]
macro_rules! trace {
    ($ctx:expr, $($message:tt)+) => { $ctx.log($crate::Level::Trace, &::std::format!($($message)+)) };
}

/// Logs a formatted line at level debug: `debug!(ctx, "gradient norm {norm}")`.
#[macro_export]
macro_rules! debug {
    ($ctx:expr, $($message:tt)+) => { $ctx.log($crate::Level::Debug, &::std::format!($($message)+)) };
}

/// Logs a formatted line at level info: `info!(ctx, "step {step}: loss {loss:.3}")`.
#[macro_export]
macro_rules! info {
    ($ctx:expr, $($message:tt)+) => { $ctx.log($crate::Level::Info, &::std::format!($($message)+)) };
}

/// Logs a formatted line at level warn: `warn!(ctx, "{skipped} rows skipped")`.
#[macro_export]
macro_rules! warn {
    ($ctx:expr, $($message:tt)+) => { $ctx.log($crate::Level::Warn, &::std::format!($($message)+)) };
}

/// Logs a formatted line at level error: `error!(ctx, "shard {shard} is damaged")`.
#[macro_export]
macro_rules! error {
    ($ctx:expr, $($message:tt)+) => { $ctx.log($crate::Level::Error, &::std::format!($($message)+)) };
}
