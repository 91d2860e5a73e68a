//! The command line of `dchost status`.

use crate::coordinator::resolve::values;
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;

/// Shows how a running cluster is doing.
#[derive(Clone, Debug, Default, Args)]
pub struct Status {
    /// The server that is asked, HOST:PORT or grpc://HOST:PORT; an IPv6 address stands in brackets. Default: the leader of the
    /// cluster.
    #[arg(value_name = "ADDR", conflicts_with_all = ["task", "cluster", "all"])]
    pub address: Option<String>,
    /// Asks this task of the cluster instead of its leader: `ps:1`, `worker:0`. Default: the leader, whatever task
    /// TF_CONFIG or DCHOST_TASK names.
    #[arg(long, value_name = "TYPE[:INDEX]", conflicts_with = "all")]
    pub task: Option<String>,
    /// Asks every task of the cluster; those that don't answer are shown as such. Default: one is asked.
    #[arg(long)]
    pub all: bool,
    /// The cluster, as JSON or a file that holds it, as for a run. Default: TF_CONFIG's cluster. [env: DCHOST_CLUSTER]
    #[arg(long, value_name = "JSON|FILE")]
    pub cluster: Option<String>,
    /// A TOML file of a run, whose cluster and container count here. Default: none. [env: DCHOST_CONFIG]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Whose attempt a server shows that isn't the leader. Default: default. [env: DCHOST_CONTAINER]
    #[arg(long, value_name = "NAME")]
    pub container: Option<String>,
    /// How long a server may take to answer. Meanwhile one that isn't there is tried again, but with --all and --watch, which
    /// show it so. Default: 5s; those of the environment and of the file are a run's and don't count here.
    #[arg(long, value_name = "DURATION", value_parser = values::positive_duration)]
    pub connect_timeout: Option<Duration>,
    /// Text for people, or one JSON object.
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = StatusFormat::Text)]
    pub format: StatusFormat,
    /// Asks again and again, at this interval, and goes on while a server is away, until SIGINT. Redraws a terminal; elsewhere
    /// a new text or a line of JSON follows. An interval follows an equals sign. Default: once; without an interval every 2s.
    #[arg(long, value_name = "INTERVAL", num_args = 0..=1, require_equals = true, default_missing_value = "2s",
          value_parser = values::interval)]
    pub watch: Option<Duration>,
}

/// How `dchost status` prints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum StatusFormat {
    /// For people.
    #[default]
    Text,
    /// For programs: one object a line, whose keys docs/status.md lists.
    Json,
}
