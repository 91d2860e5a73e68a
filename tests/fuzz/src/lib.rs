//! What the fuzz targets share: a guest that turns bytes into host calls, a cluster for it, and checks of what users read.
//!
//! | target | bytes become | what must hold |
//! | --- | --- | --- |
//! | `loader` | a component file | refused in printable text, or run within its limits |
//! | `config` | command line, environment and file | a value or faults, the same each time; a child reads back what it is told |
//! | `imports` | calls of every import of `dchost:worker` | one of the documented ends, bounded memory |
//! | `wire` | messages of other hosts | an error, or a value that survives the way back |
//!
//! A panic is a finding wherever it happens: libFuzzer's hook aborts before anybody can catch it.

pub mod fit;
pub mod guest;
pub mod ops;
pub mod run;
pub mod script;
pub mod seeds;
pub mod text;
