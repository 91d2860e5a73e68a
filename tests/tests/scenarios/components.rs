//! The components in text, of `tests/guests/wat`. One that no scenario runs is dead code, which does not compile.

#![deny(dead_code)]

use dchost_tests::Wat;

macro_rules! components {
    ($($name:ident)*) => {
        $(pub(crate) fn $name() -> Wat {
            const TEXT: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/guests/wat/", stringify!($name), ".wat"));
            Wat::new(stringify!($name), TEXT)
        })*

        /// Every name of the list.
        pub(super) const NAMES: &[&str] = &[$(stringify!($name)),*];
    };
}

components! {
    allocates_for_host
    answers
    asks
    cleans_up
    computes
    declares
    fills
    forges_names
    grows_tables
    handles
    logs
    polls
    randomizes
    scalars
    starts
}
