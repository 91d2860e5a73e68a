//! The command lines of `dchost save` and `dchost restore`.

use crate::coordinator::resolve::values;
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;

/// A cluster's variables, and the directory of a checkpoint.
#[derive(Clone, Debug, Default, Args)]
pub struct Checkpoint {
    /// Any task of the cluster, HOST:PORT or grpc://HOST:PORT; it tells where the others are. An IPv6 address stands in brackets.
    #[arg(value_name = "ADDR")]
    pub address: String,
    /// The checkpoint: a directory with safetensors files and a manifest, on this machine.
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// Whose variables. Default: default. [env: DCHOST_CONTAINER]
    #[arg(long, value_name = "NAME")]
    pub container: Option<String>,
    /// How long a task may take to answer, and may be out of reach later. Default: 5s; that of the environment is a run's and
    /// doesn't count here.
    #[arg(long, value_name = "DURATION", value_parser = values::positive_duration)]
    pub connect_timeout: Option<Duration>,
}
