//! The subcommands, one file each.

pub mod compile;
pub mod inspect;
pub mod launch;
pub mod logging;
pub mod new;
pub mod plan;
pub mod run;
pub mod status;
mod table;
