//! Resolve, plan, run: from flags, environment and files to effects.

pub mod console;
pub mod descriptors;
pub mod embed;
pub mod execute;
pub mod launched;
pub mod local;
pub mod member;
pub mod outcome;
pub mod placement;
pub mod plan;
mod reentry;
pub mod resolve;
pub mod run;
pub mod siblings;
pub mod summary;
pub mod survey;
mod task_barriers;
