//! Small components that tests run: one for each way to behave, in `examples/`. They take their parameters as guest arguments.

use dchost_guest::WorkerContext;
use std::fmt::Display;
use std::str::FromStr;

/// The guest argument number `index`, or `default` where it isn't given.
///
/// # Panics
/// Where the argument can't be read as a `T`: a mistake of the test.
pub fn arg<T>(ctx: &WorkerContext, index: usize, default: T) -> T
where
    T: FromStr,
    T::Err: Display,
{
    match ctx.args().get(index) {
        None => default,
        Some(text) => text.parse().unwrap_or_else(|error| panic!("guest argument {index}, `{text}`: {error}")),
    }
}
