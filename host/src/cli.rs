//! The command line as structs, from which clap makes its parser. How they are filled is `read`.
//!
//! Every flag that may also come from the environment or the configuration file is an `Option` here, so that
//! [`config`](crate::config) can tell "not given" from "given as the default".

mod checkpoint;
mod read;
mod status;

pub use checkpoint::Checkpoint;
pub use status::{Status, StatusFormat};

use crate::attend::{Mode, Replication};
use crate::coordinator::resolve::values::{
    self, DebugOption, DirGrant, EndRule, EnvGrant, NetGrant, RpcLayer, SizeLimit, ThreadCount, Timeout, WasmOption,
};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{ArgAction, Args, Parser, Subcommand};
use std::path::PathBuf;
use std::time::Duration;

/// The version of the WIT package `dchost:worker` that this host serves.
pub const WIT_VERSION: &str = "0.1.0";

/// The version of the gRPC protocol `dchost.v1` that this host speaks.
pub const PROTOCOL_VERSION: u32 = crate::wire::header::PROTOCOL;

/// What `--version` prints after the name.
const VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    "\nwit: dchost:worker@0.1.0",
    "\nprotocol: dchost.v1, version 1",
    "\nwasmtime: ",
    env!("DCHOST_WASMTIME_VERSION"),
);

/// How it is called: the flags of a run or a subcommand, never both.
const USAGE: &str = "dchost [OPTIONS] [-- <GUEST_ARGS>...]\n       dchost [-v] [--log-format <FORMAT>] <COMMAND>";

/// Runs a cluster job whose logic, worker_fn, is a sandboxed WebAssembly component.
///
/// Without a subcommand it runs this process's task: alone (no cluster, no task), or as one task of a cluster.
/// Flags beat the environment, which beats the file given by --config.
#[derive(Clone, Debug, Parser)]
#[command(name = "dchost", version = VERSION, override_usage = USAGE, max_term_width = 110)]
pub struct Cli {
    /// What to do instead of running a task.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// The flags of a run.
    #[command(flatten)]
    pub run: Run,
    /// What is logged, and how.
    #[command(flatten)]
    pub log: LogOptions,
}

/// The subcommands.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Runs a whole cluster on this machine, one process for each task.
    Launch(Box<Launch>),
    /// Prints what would run with the same flags, without running it.
    Plan(Box<Plan>),
    /// Tells what a file is and whether it would run, without running it.
    Inspect(Box<Inspect>),
    /// Compiles a component ahead of time, for `--allow-precompiled`.
    Compile(Box<Compile>),
    /// Shows how a running cluster is doing: its tasks, who waits at which barrier, variables, and who uses a server.
    ///
    /// One server is asked: the one at ADDR, else the leader of the cluster that flags, environment, TF_CONFIG or file name.
    /// Only the leader knows of tasks and barriers; each server knows its own variables and sessions, and --all asks every one.
    /// Exits with 201 where no server answers in time.
    Status(Box<Status>),
    /// Saves the variables of a running cluster, with what optimizers keep beside them, as safetensors files.
    ///
    /// Each variable is whole and stands under its own name, also where it lies in parts, so that other tools read it. Each task
    /// gives what it holds at one moment: for one moment of all, save between steps, while the workers wait at a barrier. DIR
    /// appears when all is written, and replaces the checkpoint that was there; a save that fails leaves that as it was.
    /// Exits with 74 where files can't be written, with 201 where a task doesn't answer in time.
    Save(Box<Checkpoint>),
    /// Restores a checkpoint into a running cluster, for as many ps tasks as it has.
    ///
    /// All files are checked before anything is sent. A variable that exists is overwritten, others stay. Restore before the chief
    /// initializes: start the ps tasks, restore, start the rest; `initialize_if_absent` then keeps what was restored.
    /// Exits with 74 where the checkpoint is torn or can't be read, with 201 where a task doesn't answer in time.
    Restore(Box<Checkpoint>),
    /// Writes a crate with a first worker_fn, a native test and a README.
    New(New),
}

/// Compiles a component ahead of time.
///
/// The component is read, compiled and linked as for a run, so that one that a run would refuse is refused here.
#[derive(Clone, Debug, Args)]
pub struct Compile {
    /// The component.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Where the code is written. It runs with this very version of dchost only, and with `--allow-precompiled`. A file that is
    /// there is replaced, and nothing else: no directory, link, pipe or device, nor FILE itself.
    #[arg(short, long, value_name = "OUT")]
    pub output: PathBuf,
    /// Counts fuel, for runs with `-W fuel`; the same as `-W fuel=1`, whatever the number. Default: not counted.
    #[arg(long)]
    pub fuel: bool,
    /// A TOML file as runs have it, of which the settings here and `fuel` count. Default: none. [env: DCHOST_CONFIG]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// What is compiled.
    #[command(flatten)]
    pub load: LoadOptions,
    /// As for the run: fuel=N (it is counted; off), unknown-imports-trap (an import that dchost doesn't offer is no reason to
    /// refuse the component; the run needs it too; off). [env: DCHOST_FUEL, DCHOST_UNKNOWN_IMPORTS_TRAP]
    #[arg(short = 'W', value_name = "KEY=VALUE", value_delimiter = ',', value_parser = values::compile_option,
          action = ArgAction::Append)]
    pub wasm: Vec<WasmOption>,
}

/// Which components are loaded, and how long that may take.
#[derive(Clone, Debug, Default, Args)]
pub struct LoadOptions {
    /// The sha256 that the component must have, checked before it is compiled; another one is exit 2. Default: any.
    /// [env: DCHOST_DIGEST]
    #[arg(long, value_name = "sha256:HEX", value_parser = values::digest)]
    pub digest: Option<[u8; 32]>,
    /// The largest component file; a larger one is exit 2. Default: 64MiB. [env: DCHOST_MAX_MODULE_SIZE]
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    pub max_module_size: Option<u64>,
    /// How long compiling the component may take; passing it is exit 2. Default: 60s. [env: DCHOST_COMPILE_TIMEOUT]
    #[arg(long, value_name = "DURATION", value_parser = values::positive_duration)]
    pub compile_timeout: Option<Duration>,
}

/// Runs this process's task.
#[derive(Clone, Debug, Default, Args)]
pub struct Run {
    /// The component that holds worker_fn. Needed by every task that runs it. [env: DCHOST_MODULE]
    #[arg(long, value_name = "FILE")]
    pub module: Option<PathBuf>,
    /// Who this process is.
    #[command(flatten)]
    pub place: PlaceOptions,
    /// How the job behaves.
    #[command(flatten)]
    pub job: JobOptions,
    /// What the guest may use.
    #[command(flatten)]
    pub guest: GuestOptions,
    /// Marks a child of `dchost launch`: lines carry no task prefix, and the end of stdin ends the process.
    #[arg(long, hide = true)]
    pub launched: bool,
    /// Arguments of the guest; they follow `--`.
    #[arg(last = true, value_name = "GUEST_ARGS")]
    pub guest_args: Vec<String>,
}

/// Who this process is, and where it listens.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Place in the cluster")]
pub struct PlaceOptions {
    /// This process's task: `worker:0`, `ps:1`, `chief`, `evaluator`, `client`. Default: TF_CONFIG's task, else none
    /// (a local run). The index may be left out where the job has one task. [env: DCHOST_TASK]
    #[arg(long, value_name = "TYPE[:INDEX]")]
    pub task: Option<String>,
    /// The cluster, as JSON (`{"worker":["a:2222"],"ps":["b:2222"]}`; an index map for a sparse job) or a file that
    /// holds it. Default: TF_CONFIG's cluster, else none (a local run). [env: DCHOST_CLUSTER]
    #[arg(long, value_name = "JSON|FILE")]
    pub cluster: Option<String>,
    /// How runs are placed. Default: independent-worker for a named task with --module, split-client for
    /// `--task client`; a task without --module learns it from the leader. [env: DCHOST_MODE]
    #[arg(long, value_name = "MODE", value_parser = mode_parser())]
    pub mode: Option<Mode>,
    /// Whether each chief and worker runs worker_fn, or one driver for all. Default: between-graph.
    /// [env: DCHOST_REPLICATION]
    #[arg(long, value_name = "HOW", value_parser = replication_parser())]
    pub replication: Option<Replication>,
    /// Prefix of master targets: `grpc` gives `grpc://host:port`, `none` the bare address. Default: grpc.
    /// [env: DCHOST_RPC_LAYER]
    #[arg(long, value_name = "LAYER", value_parser = rpc_layer_parser())]
    pub rpc_layer: Option<RpcLayer>,
    /// Listen address, IP or IP:PORT. Default: the port of this task's entry, on loopback if the entry is loopback, else on
    /// all interfaces. Contexts show the listed address all the same. [env: DCHOST_BIND]
    #[arg(long, value_name = "ADDR")]
    pub bind: Option<String>,
    /// Allows a listen address that is not loopback although traffic is neither encrypted nor authenticated.
    /// Default: refused. [env: DCHOST_INSECURE=true]
    #[arg(long)]
    pub insecure: bool,
}

/// How the job behaves; `dchost launch` passes these on to every task.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Job")]
pub struct JobOptions {
    /// A TOML file with any of these settings, named as the flags are. Default: none, no file is looked up.
    /// [env: DCHOST_CONFIG]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Independent workers as TensorFlow had them: no barrier. Default: chief and workers have one.
    /// [env: DCHOST_NO_CLUSTER_BARRIER=true]
    #[arg(long)]
    pub no_cluster_barrier: bool,
    /// When ps and joined tasks leave: once every run has ended, once the chief's has, or never. The leader's value
    /// holds. Default: all-done. [env: DCHOST_END]
    #[arg(long, value_name = "RULE", value_parser = end_parser())]
    pub end: Option<EndRule>,
    /// How long a task that is needed may stay out of reach, as in `90s` or `10m`. Default: 10m (launch: 60s).
    /// [env: DCHOST_CONNECT_TIMEOUT]
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    pub connect_timeout: Option<Duration>,
    /// How long a task whose connection broke may take to come back. Default: 30s. [env: DCHOST_REJOIN_TIMEOUT]
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    pub rejoin_timeout: Option<Duration>,
    /// How long an evaluator may go on after training has ended. The leader's value holds. Default: 60s.
    /// [env: DCHOST_EVALUATOR_GRACE]
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    pub evaluator_grace: Option<Duration>,
    /// How long a barrier waits for missing tasks; `none`: without limit. Default: none. [env: DCHOST_BARRIER_TIMEOUT]
    #[arg(long, value_name = "DURATION|none", value_parser = values::timeout)]
    pub barrier_timeout: Option<Timeout>,
    /// Wall clock for this process; passing it is exit 124; `none`: without limit. Default: none. [env: DCHOST_TIMEOUT]
    #[arg(long, value_name = "DURATION|none", value_parser = values::positive_timeout)]
    pub timeout: Option<Timeout>,
    /// How often a local run or a split client is tried after a failure of a guest, or of a task that it needs, the first try
    /// included; each try begins without variables, and `--timeout` spans all. Independent workers: only 1 is served yet.
    /// Default: 1. [env: DCHOST_MAX_ATTEMPTS]
    #[arg(long, value_name = "N", value_parser = values::count::<u32>)]
    pub max_attempts: Option<u32>,
    /// Namespace of variables on shared servers. Default: `default`; for a split client one of its own, which ends with it,
    /// where a named one stays. [env: DCHOST_CONTAINER]
    #[arg(long, value_name = "NAME")]
    pub container: Option<String>,
    /// Lets a split client into its named container as it is, beside other clients or after them. Default: a container that
    /// another client uses is refused, and what one left is dropped. [env: DCHOST_SHARE_CONTAINER=true]
    #[arg(long)]
    pub share_container: bool,
    /// Where the chief and the evaluator write their summaries, one file a task. Default: nowhere.
    /// [env: DCHOST_SUMMARY_DIR]
    #[arg(long, value_name = "DIR")]
    pub summary_dir: Option<PathBuf>,
}

/// What the guest may use, and the limits that it can't pass.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Guest")]
pub struct GuestOptions {
    /// Shows a directory to the guest under the same path or another one, `:ro` without writing. May be repeated.
    /// Default: no files. [env: DCHOST_DIR, several separated by `;`]
    #[arg(long = "dir", value_name = "HOST[::GUEST][:ro]", value_parser = values::dir_grant, action = ArgAction::Append)]
    pub dirs: Vec<DirGrant>,
    /// Sets a variable of the guest's environment, or hands over the one of this process. May be repeated.
    /// Default: none. [env: DCHOST_ENV, several separated by `;`]
    #[arg(long = "env", value_name = "NAME[=VALUE]", value_parser = values::env_grant, action = ArgAction::Append)]
    pub env: Vec<EnvGrant>,
    /// Lets the guest connect there: a name, an address, or a network such as `10.0.0.0/8`; `*` is every port. Addresses are
    /// checked after a name is looked up. May be repeated. Default: no network. [env: DCHOST_ALLOW_NET, several separated by `;`]
    #[arg(long = "allow-net", value_name = "HOST:PORT", value_parser = values::net_grant, action = ArgAction::Append)]
    pub allow_net: Vec<NetGrant>,
    /// Which components are loaded.
    #[command(flatten)]
    pub load: LoadOptions,
    /// Loads a file of `dchost compile`, which is trusted as dchost itself is. Default: refused.
    /// [env: DCHOST_ALLOW_PRECOMPILED=true]
    #[arg(long)]
    pub allow_precompiled: bool,
    /// Memory of the guest, all memories and tables together, in bytes or with KiB, MiB, GiB. Passing it is exit 4.
    /// Default: 1GiB. [env: DCHOST_MAX_MEMORY]
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    pub max_memory: Option<u64>,
    /// All tensors of one call together. Passing more is exit 4; an answer of more is refused to the guest with
    /// resource-exhausted. Default: 256MiB. [env: DCHOST_MAX_TENSOR]
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    pub max_tensor: Option<u64>,
    /// Threads that multiply matrices for a guest, its own included; their time counts as its own. Default: all, one for each
    /// processor. [env: DCHOST_KERNEL_THREADS]
    #[arg(long, value_name = "N|all", value_parser = values::thread_count)]
    pub kernel_threads: Option<ThreadCount>,
    /// Bytes of variables that this process's server holds; more is refused to the caller with resource-exhausted; `none`:
    /// without limit. Default: none. [env: DCHOST_MAX_VARIABLE_BYTES]
    #[arg(long, value_name = "SIZE|none", value_parser = values::size_limit)]
    pub max_variable_bytes: Option<SizeLimit>,
    /// Limits of the sandbox, several separated by commas or flags: cpu-timeout=DURATION (computing, waits excluded; none),
    /// fuel=N (instructions; off), max-wasm-stack=SIZE (512KiB), max-handles=N (component handles; 10000),
    /// max-output=SIZE (what the guest prints in all; more is dropped, but for the last lines; 64MiB), max-output-line=SIZE
    /// (64KiB), max-output-rate=SIZE (each second; 4MiB), max-ops=N (calls in flight: reads, updates and ops that were
    /// started; 256), unknown-imports-trap (an import that dchost doesn't offer traps
    /// when it is called instead of being refused; off). Each is one line of the file too.
    /// [env: DCHOST_CPU_TIMEOUT, DCHOST_FUEL, DCHOST_MAX_WASM_STACK, DCHOST_MAX_HANDLES, DCHOST_MAX_OUTPUT,
    /// DCHOST_MAX_OUTPUT_LINE, DCHOST_MAX_OUTPUT_RATE, DCHOST_MAX_OPS, DCHOST_UNKNOWN_IMPORTS_TRAP]
    #[arg(short = 'W', value_name = "KEY=VALUE", value_delimiter = ',', value_parser = values::wasm_option,
          action = ArgAction::Append)]
    pub wasm: Vec<WasmOption>,
    /// For debugging: coredump=DIR (a trap or a limit leaves the guest's memory there, one file each, which holds the
    /// tenant's data; the directory must be there). Default: no dumps. [env: DCHOST_COREDUMP]
    #[arg(short = 'D', value_name = "KEY=VALUE", value_parser = values::debug_option, action = ArgAction::Append)]
    pub debug: Vec<DebugOption>,
    /// Where compiled components are kept. Default: dchost in XDG_CACHE_HOME, else in ~/.cache. [env: DCHOST_CACHE_DIR]
    #[arg(long, value_name = "DIR", conflicts_with = "no_cache")]
    pub cache_dir: Option<PathBuf>,
    /// Keeps no compiled components. Default: they are kept. [env: DCHOST_NO_CACHE=true]
    #[arg(long)]
    pub no_cache: bool,
}

/// Prints what would run, without running it. A module is not needed where --mode is given.
#[derive(Clone, Debug, Default, Args)]
pub struct Plan {
    /// The flags of the run.
    #[command(flatten)]
    pub run: Run,
    /// A table for people, or one JSON object.
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = PlanFormat::Table)]
    pub format: PlanFormat,
}

/// How `dchost plan` prints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum PlanFormat {
    /// For people.
    #[default]
    Table,
    /// For programs: one object with `server`, `runs` and `error`.
    Json,
}

/// Tells what a file is and whether it would run, without running it.
///
/// A component is compiled and linked as for a run. Shown are its world, its imports and exports, each with what it is to
/// this dchost, who made it, its size and its sha256. The limits are those of a run, and may come from the environment and the
/// file of DCHOST_CONFIG too.
#[derive(Clone, Debug, Default, Args)]
pub struct Inspect {
    /// The file.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Text for people, or one JSON object.
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = InspectFormat::Text)]
    pub format: InspectFormat,
    /// Exits with 2 where a run would refuse the file, with the same message. Default: 0 if the file can be read.
    #[arg(long)]
    pub check: bool,
    /// A TOML file as runs have it, of which the settings below count. Default: none. [env: DCHOST_CONFIG]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The limits of the run, and what the guest may use.
    #[command(flatten)]
    pub guest: GuestOptions,
}

/// How `dchost inspect` prints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum InspectFormat {
    /// For people.
    #[default]
    Text,
    /// For programs: one object, whose keys docs/inspect.md lists.
    Json,
}

/// Most tasks of a job that are launched on one machine: each is a process of some 30 MiB, a socket and four pipes.
const LAUNCH_TASKS_MAX: i64 = 500;

/// Runs a whole cluster on this machine, one process for each task.
///
/// Ports are chosen and bound here and handed over, so none can be lost in between. Settings reach the tasks as flags;
/// their environment holds neither TF_CONFIG nor DCHOST_*.
#[derive(Clone, Debug, Default, Args)]
pub struct Launch {
    /// Number of worker tasks, at most 500. Default: 0; a cluster needs a worker or a chief.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=LAUNCH_TASKS_MAX))]
    pub workers: u32,
    /// Adds a chief task; without one, worker:0 is chief.
    #[arg(long)]
    pub chief: bool,
    /// Number of ps tasks, at most 500. Default: 0; without one, variables live on the leader.
    #[arg(long, value_name = "M", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=LAUNCH_TASKS_MAX))]
    pub ps: u32,
    /// Adds an evaluator task.
    #[arg(long)]
    pub evaluator: bool,
    /// Adds a split client, which runs every worker_fn; the tasks are standard servers then. The same as --mode split-client.
    #[arg(long)]
    pub client: bool,
    /// The component that holds worker_fn. [env: DCHOST_MODULE]
    #[arg(long, value_name = "FILE")]
    pub module: Option<PathBuf>,
    /// How runs are placed: in each task (independent-worker), or all in one client beside them (split-client).
    /// Default: independent-worker, with --client split-client. [env: DCHOST_MODE]
    #[arg(long, value_name = "MODE", value_parser = mode_parser())]
    pub mode: Option<Mode>,
    /// Whether each chief and worker runs worker_fn, or one driver for all. Default: between-graph.
    /// [env: DCHOST_REPLICATION]
    #[arg(long, value_name = "HOW", value_parser = replication_parser())]
    pub replication: Option<Replication>,
    /// How the job behaves.
    #[command(flatten)]
    pub job: JobOptions,
    /// What the guests may use.
    #[command(flatten)]
    pub guest: GuestOptions,
    /// Arguments of every guest; they follow `--`.
    #[arg(last = true, value_name = "GUEST_ARGS")]
    pub guest_args: Vec<String>,
}

/// Writes a crate with a first worker_fn, a native test and a README.
#[derive(Clone, Debug, Args)]
pub struct New {
    /// Directory of the new crate; it must not exist, or be empty.
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
    /// Name of the crate, in kebab-case. Default: the last part of PATH.
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
}

/// What is logged, and how. Logs go to stderr.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Logging")]
pub struct LogOptions {
    /// Logs more: -v debug, -vv trace. Default: information, warnings and errors. [env: DCHOST_VERBOSE, a number]
    #[arg(short, long, action = ArgAction::Count, global = true)]
    pub verbose: u8,
    /// Lines for people, or one JSON object a line. Default: text. [env: DCHOST_LOG_FORMAT]
    #[arg(long, value_name = "FORMAT", value_enum, global = true)]
    pub log_format: Option<LogFormat>,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// Lines for people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

fn mode_parser() -> impl TypedValueParser<Value = Mode> {
    PossibleValuesParser::new(values::MODES).try_map(|text| values::mode(&text))
}

fn replication_parser() -> impl TypedValueParser<Value = Replication> {
    PossibleValuesParser::new(values::REPLICATIONS).try_map(|text| values::replication(&text))
}

fn rpc_layer_parser() -> impl TypedValueParser<Value = RpcLayer> {
    PossibleValuesParser::new(values::RPC_LAYERS).try_map(|text| values::rpc_layer(&text))
}

fn end_parser() -> impl TypedValueParser<Value = EndRule> {
    PossibleValuesParser::new(values::END_RULES).try_map(|text| values::end_rule(&text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn launch_has_no_more_tasks_than_a_machine_bears() {
        for job in ["--workers", "--ps"] {
            assert!(Cli::try_parse_from(["dchost", "launch", job, "500"]).is_ok());
            assert!(Cli::try_parse_from(["dchost", "launch", job, "501"]).is_err());
        }
    }

    #[test]
    fn verify_cli() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_flag_with_an_environment_twin_names_it() {
        fn check(command: &clap::Command) {
            for arg in command.get_arguments().filter(|arg| !arg.is_hide_set() && !arg.is_positional()) {
                let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
                assert!(!help.is_empty(), "{arg} of {} has no help", command.get_name());
            }
            command.get_subcommands().for_each(check);
        }
        let command = Cli::command();
        check(&command);
        for key in crate::config::KEYS {
            let twin = crate::config::twin(key);
            let named = command.get_arguments().any(|arg| {
                [arg.get_help(), arg.get_long_help()].into_iter().flatten().any(|help| help.to_string().contains(&twin))
            });
            assert!(named, "no help names {twin}");
        }
    }

    #[test]
    fn guest_arguments_follow_the_dashes() {
        let cli = Cli::try_parse_from(["dchost", "--module", "m.wasm", "--", "--epochs", "3"]).expect("parses");
        assert_eq!(cli.run.guest_args, ["--epochs", "3"]);
        let cli = Cli::try_parse_from(["dchost", "launch", "--workers", "2", "--", "-x"]).expect("parses");
        let Some(Command::Launch(launch)) = cli.command else { panic!("not a launch") };
        assert_eq!((launch.workers, launch.guest_args), (2, vec!["-x".to_owned()]));
    }

    #[test]
    fn an_unknown_sandbox_limit_is_refused_listing_the_known() {
        let error = Cli::try_parse_from(["dchost", "-W", "gas=3"]).expect_err("refused").to_string();
        for known in ["cpu-timeout", "fuel", "max-wasm-stack", "max-handles", "max-output"] {
            assert!(error.contains(known), "{error}");
        }
    }

    #[test]
    fn sandbox_limits_may_share_a_flag() {
        let cli = Cli::try_parse_from(["dchost", "-W", "fuel=7,max-handles=5", "-Wmax-output=1MiB"]).expect("parses");
        assert_eq!(
            cli.run.guest.wasm,
            [WasmOption::Fuel(Some(7)), WasmOption::MaxHandles(5), WasmOption::MaxOutput(1 << 20)]
        );
    }

    #[test]
    fn version_names_the_contracts_and_wasmtime() {
        let text = Cli::command().render_version();
        assert!(text.contains(&format!("dchost:worker@{WIT_VERSION}")), "{text}");
        assert!(text.contains(&format!("version {PROTOCOL_VERSION}")), "{text}");
        assert!(text.contains("wasmtime: 48."), "{text}");
        let contract = include_str!("../../wit/worker.wit");
        assert!(contract.contains(&format!("package dchost:worker@{WIT_VERSION};")), "{contract}");
    }
}
