//! Reads flags, environment and files into one value; the only reader of the environment.
//!
//! Flags beat the environment (`DCHOST_*`, TF_CONFIG), which beats the file of `--config`. Paths in a file are relative
//! to the working directory, as those of flags are.

mod child;
mod compile;
mod environment;
mod file;
mod listener;
mod reader;
mod status;

pub use child::is_inherited;
pub use compile::{CompileConfig, compile};
pub use environment::Environment;
pub use listener::take_listener;
pub use status::{StatusConfig, checkpoint, status};

use crate::attend::{Mode, Replication};
use crate::cli::{self, GuestOptions, JobOptions, LoadOptions, LogFormat, LogOptions, PlaceOptions};
use crate::coordinator::resolve::values::{
    self, DebugOption, EndRule, RpcLayer, SizeLimit, ThreadCount, Timeout, WasmOption,
};
use crate::coordinator::resolve::{
    CONNECT_TIMEOUT, CONTAINER, EVALUATOR_GRACE, Fault, Faults, LimitSettings, Origin, Purpose, REJOIN_TIMEOUT,
    Resolved, Setting, Settings, check_directories, check_launch, resolve,
};
use crate::runtime::{EngineOptions, Limits};
use crate::text::shown;
use clap::ValueEnum as _;
use reader::Reader;
use std::ffi::OsString;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::time::Duration;

/// How long a needed task may stay out of reach where one machine starts all tasks at once.
pub const LAUNCH_CONNECT_TIMEOUT: Duration = Duration::from_secs(60);

/// Every setting that the environment and the file may hold, named as its flag is.
pub const KEYS: [&str; 44] = [
    "module",
    "task",
    "cluster",
    "mode",
    "replication",
    "rpc-layer",
    "bind",
    "insecure",
    "no-cluster-barrier",
    "end",
    "connect-timeout",
    "rejoin-timeout",
    "evaluator-grace",
    "barrier-timeout",
    "timeout",
    "max-attempts",
    "container",
    "share-container",
    "summary-dir",
    "dir",
    "env",
    "allow-net",
    "max-memory",
    "max-tensor",
    "kernel-threads",
    "max-module-size",
    "compile-timeout",
    "max-variable-bytes",
    "cpu-timeout",
    "fuel",
    "max-wasm-stack",
    "max-handles",
    "max-output",
    "max-output-line",
    "max-output-rate",
    "max-ops",
    "unknown-imports-trap",
    "digest",
    "allow-precompiled",
    "coredump",
    "cache-dir",
    "no-cache",
    "log-format",
    "verbose",
];

/// The environment twin of a setting: `max-memory` is `DCHOST_MAX_MEMORY`.
pub fn twin(key: &str) -> String {
    format!("DCHOST_{}", key.to_uppercase().replace('-', "_"))
}

/// Finds this program's own file, which `dchost launch` starts for each task.
///
/// # Errors
/// The system doesn't tell.
pub fn program() -> std::io::Result<PathBuf> {
    std::env::current_exe()
}

/// What a run needs.
#[derive(Debug)]
pub struct RunConfig {
    /// The validated configuration.
    pub resolved: Resolved,
    /// The listening socket that was handed over. Blocking, as it came.
    pub listener: Option<TcpListener>,
}

/// What `dchost launch` needs besides the numbers of tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchConfig {
    /// The component.
    pub module: PathBuf,
    /// Whether a split client runs every worker_fn.
    pub client: bool,
    /// Flags that every task gets: job, guest and limits. Without module, task, cluster, `--launched` and logging.
    pub child_arguments: Vec<OsString>,
    /// Arguments of every guest, to follow `--` at the end.
    pub guest_args: Vec<String>,
    /// Everything else that was read.
    pub settings: Settings,
}

/// What is logged, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogConfig {
    /// 0: information, warnings and errors; 1: debug; from 2: trace.
    pub verbose: u8,
    /// Lines for people or for programs.
    pub format: LogFormat,
}

impl LogConfig {
    /// Writes it as flags, for a child.
    pub fn child_arguments(&self) -> Vec<OsString> {
        let format = match self.format {
            LogFormat::Text => "--log-format=text",
            LogFormat::Json => "--log-format=json",
        };
        std::iter::once(format.into()).chain((0..self.verbose).map(|_| "-v".into())).collect()
    }
}

/// Reads what is logged, and how.
///
/// # Errors
/// A variable that doesn't fit; what the flags say comes with it, so that the error can be logged that way.
pub fn log(options: &LogOptions, environment: &Environment) -> Result<LogConfig, (LogConfig, Faults)> {
    let mut faults = Vec::new();
    let mut text = |key: &str| environment.text(&twin(key)).map_err(|fault| faults.push(fault)).ok().flatten();
    let (verbose, format) = (text("verbose"), text("log-format"));
    let mut config = LogConfig { verbose: options.verbose, format: options.log_format.unwrap_or_default() };
    if let (0, Some(text)) = (options.verbose, verbose) {
        match text.trim().parse() {
            Ok(verbose) => config.verbose = verbose,
            Err(_) => {
                let what = format!("`{}` is no number from 0 to 255", shown(text));
                faults.push(Fault::new(format!("`{}`", twin("verbose")), what, "0, 1 and 2 are the levels"));
            }
        }
    }
    if let (None, Some(text)) = (options.log_format, format) {
        match LogFormat::from_str(text, false) {
            Ok(format) => config.format = format,
            Err(_) => {
                let what = format!("`{}` is unknown, known are text, json", shown(text));
                faults.push(Fault::new(format!("`{}`", twin("log-format")), what, ""));
            }
        }
    }
    if faults.is_empty() { Ok(config) } else { Err((config, Faults(faults))) }
}

/// Reads and validates the configuration of a run, and takes the socket that was handed over.
///
/// # Errors
/// Every fault; nothing has been bound.
pub fn run(args: &cli::Run, environment: &Environment) -> Result<RunConfig, Faults> {
    let (listener, fault) = match take_listener(environment) {
        Ok(listener) => (listener, None),
        Err(fault) => (None, Some(fault)),
    };
    let address = listener.as_ref().and_then(|listener| listener.local_addr().ok());
    let mut settings = run_settings(args, environment, address);
    settings.faults.extend(fault);
    check_directories(&mut settings);
    Ok(RunConfig { resolved: resolve(&settings, Purpose::Run)?, listener })
}

/// Reads and validates the configuration that `dchost plan` prints.
///
/// # Errors
/// Every fault that a run would have, but for what [`Purpose::Plan`] allows.
pub fn plan(args: &cli::Run, environment: &Environment) -> Result<Resolved, Faults> {
    let mut settings = run_settings(args, environment, None);
    check_directories(&mut settings);
    resolve(&settings, Purpose::Plan)
}

/// Reads the settings by which `dchost inspect` judges a file; those of a place in a cluster are none of its business.
///
/// # Errors
/// Every fault of reading, and directories that aren't there.
pub fn inspect(args: &cli::Inspect, environment: &Environment) -> Result<Settings, Faults> {
    let mut reader = Reader::new(environment, args.config.as_deref());
    let job = JobOptions::default();
    let mut settings = shared(&mut reader, Some(&args.file), &job, &args.guest, CONNECT_TIMEOUT);
    (settings.faults, settings.warnings) = (reader.faults, reader.warnings);
    check_directories(&mut settings);
    if settings.faults.is_empty() { Ok(settings) } else { Err(Faults(settings.faults)) }
}

/// Reads and validates what `dchost launch` passes on.
///
/// # Errors
/// Every fault; nothing has been bound or started.
pub fn launch(args: &cli::Launch, environment: &Environment) -> Result<LaunchConfig, Faults> {
    let mut reader = Reader::new(environment, args.job.config.as_deref());
    // TF_CONFIG and the place in a cluster are other processes' business; the tasks get their own.
    let place = PlaceOptions { mode: args.mode, replication: args.replication, ..PlaceOptions::default() };
    let mode = reader.pick("mode", place.mode, values::mode);
    let replication = reader.pick_or("replication", place.replication, values::replication, Replication::BetweenGraph);
    let connect_timeout = LAUNCH_CONNECT_TIMEOUT;
    let module = args.module.as_ref();
    let mut settings = shared(&mut reader, module, &args.job, &args.guest, connect_timeout);
    (settings.mode, settings.replication) = (mode, replication);
    settings.guest_args.clone_from(&args.guest_args);
    (settings.faults, settings.warnings) = (reader.faults, reader.warnings);
    check_directories(&mut settings);
    check_launch(&settings, args.client)?;
    let client = args.client || settings.mode.as_ref().is_some_and(|mode| mode.value == Mode::SplitClient);
    let mut child_arguments = child::arguments(&settings);
    if client {
        child_arguments.push(format!("--mode={}", Mode::SplitClient.as_str()).into());
    }
    let module = settings.module.as_ref().map(|module| module.value.clone()).unwrap_or_default();
    Ok(LaunchConfig { module, client, child_arguments, guest_args: args.guest_args.clone(), settings })
}

/// Reads the settings of a run, without validating them together.
pub fn run_settings(args: &cli::Run, environment: &Environment, listener: Option<SocketAddr>) -> Settings {
    let mut reader = Reader::new(environment, args.job.config.as_deref());
    let place = &args.place;
    let tf_config = reader.keep(environment.text("TF_CONFIG")).flatten().map(str::to_owned);
    let task = reader.pick("task", place.task.clone(), values::text);
    let cluster = reader.cluster(place.cluster.clone());
    let mode = reader.pick("mode", place.mode, values::mode);
    let replication = reader.pick_or("replication", place.replication, values::replication, Replication::BetweenGraph);
    let rpc_layer = reader.pick_or("rpc-layer", place.rpc_layer, values::rpc_layer, RpcLayer::Grpc);
    let bind = reader.pick("bind", place.bind.clone(), values::text);
    let insecure = reader.switch("insecure", place.insecure);
    let shared = shared(&mut reader, args.module.as_ref(), &args.job, &args.guest, CONNECT_TIMEOUT);
    Settings {
        task,
        cluster,
        tf_config,
        mode,
        replication,
        rpc_layer,
        bind,
        insecure,
        guest_args: args.guest_args.clone(),
        launched: args.launched,
        listener: listener.map(|value| Setting { value, origin: Origin::Environment("LISTEN_FDS".to_owned()) }),
        faults: reader.faults,
        warnings: reader.warnings,
        ..shared
    }
}

/// Reads what a run and a launch have in common; the rest is as if nobody had given it.
fn shared(
    reader: &mut Reader<'_>,
    module: Option<&PathBuf>,
    job: &JobOptions,
    guest: &GuestOptions,
    connect_timeout: Duration,
) -> Settings {
    let env = reader.list("env", &guest.env, values::env_grant);
    let env_values = reader.env_values(&env);
    let module = reader.pick("module", module.cloned(), values::path);
    let cache = reader.cache(guest.cache_dir.clone(), guest.no_cache, module.is_some());
    Settings {
        module,
        no_cluster_barrier: reader.switch("no-cluster-barrier", job.no_cluster_barrier),
        end: reader.pick_or("end", job.end, values::end_rule, EndRule::AllDone),
        connect_timeout: reader.pick_or("connect-timeout", job.connect_timeout, values::duration, connect_timeout),
        rejoin_timeout: reader.pick_or("rejoin-timeout", job.rejoin_timeout, values::duration, REJOIN_TIMEOUT),
        evaluator_grace: reader.pick_or("evaluator-grace", job.evaluator_grace, values::duration, EVALUATOR_GRACE),
        barrier_timeout: reader.pick_or("barrier-timeout", job.barrier_timeout, values::timeout, Timeout(None)),
        timeout: reader.pick_or("timeout", job.timeout, values::positive_timeout, Timeout(None)),
        max_attempts: reader.pick_or("max-attempts", job.max_attempts, values::count, 1),
        container: reader.pick_or("container", job.container.clone(), values::text, CONTAINER.to_owned()),
        share_container: reader.switch("share-container", job.share_container),
        summary_dir: reader.pick("summary-dir", job.summary_dir.clone(), values::path),
        dirs: reader.list("dir", &guest.dirs, values::dir_grant),
        env,
        env_values,
        allow_net: reader.list("allow-net", &guest.allow_net, values::net_grant),
        limits: limits(reader, guest),
        digest: digest(reader, &guest.load),
        allow_precompiled: reader.switch("allow-precompiled", guest.allow_precompiled),
        unknown_imports_trap: unknown_imports_trap(reader, &guest.wasm),
        coredump: {
            let flag = last(&guest.debug, |DebugOption::Coredump(dir)| Some(dir.clone()));
            reader.pick("coredump", flag, values::path)
        },
        cache,
        ..Settings::default()
    }
}

/// The last of the options that `pick` knows: a later flag beats an earlier one.
fn last<T, V>(options: &[T], pick: impl Fn(&T) -> Option<V>) -> Option<V> {
    options.iter().rev().find_map(pick)
}

fn limits(reader: &mut Reader<'_>, guest: &GuestOptions) -> LimitSettings {
    macro_rules! wasm {
        ($variant:ident) => {
            last(&guest.wasm, |option| match option {
                WasmOption::$variant(value) => Some(*value),
                _ => None,
            })
        };
    }
    let (limits, engine) = (Limits::default(), EngineOptions::default());
    let bytes = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
    LimitSettings {
        max_memory: reader.pick_or("max-memory", guest.max_memory, values::size, limits.memory_bytes_max),
        kernel_threads: reader.pick_or(
            "kernel-threads",
            guest.kernel_threads,
            values::thread_count,
            ThreadCount(limits.kernel_threads),
        ),
        max_tensor: reader.pick_or("max-tensor", guest.max_tensor, values::size, limits.tensor_bytes_max),
        max_module_size: max_module_size(reader, &guest.load),
        compile_timeout: compile_timeout(reader, &guest.load),
        max_variable_bytes: reader.pick_or(
            "max-variable-bytes",
            guest.max_variable_bytes,
            values::size_limit,
            SizeLimit(None),
        ),
        cpu_timeout: reader.pick_or(
            "cpu-timeout",
            wasm!(CpuTimeout),
            values::positive_timeout,
            Timeout(limits.cpu_timeout),
        ),
        fuel: fuel(reader, &guest.wasm),
        max_wasm_stack: reader.pick_or(
            "max-wasm-stack",
            wasm!(MaxWasmStack),
            values::size,
            bytes(engine.wasm_stack_bytes_max),
        ),
        max_handles: reader.pick_or(
            "max-handles",
            wasm!(MaxHandles),
            values::count,
            u32::try_from(limits.handles_max).unwrap_or(u32::MAX),
        ),
        max_output: reader.pick_or("max-output", wasm!(MaxOutput), values::size, limits.output_bytes_max),
        max_output_line: reader.pick_or(
            "max-output-line",
            wasm!(MaxOutputLine),
            values::size,
            bytes(limits.output_line_bytes_max),
        ),
        max_output_rate: reader.pick_or(
            "max-output-rate",
            wasm!(MaxOutputRate),
            values::size,
            limits.output_bytes_per_second_max,
        ),
        max_ops: reader.pick_or("max-ops", wasm!(MaxOps), values::count, limits.ops_max),
    }
}

fn digest(reader: &mut Reader<'_>, load: &LoadOptions) -> Option<Setting<[u8; 32]>> {
    reader.pick("digest", load.digest, values::digest)
}

fn max_module_size(reader: &mut Reader<'_>, load: &LoadOptions) -> Setting<u64> {
    let default = EngineOptions::default().module_bytes_max;
    reader.pick_or("max-module-size", load.max_module_size, values::size, default)
}

fn compile_timeout(reader: &mut Reader<'_>, load: &LoadOptions) -> Setting<Duration> {
    let default = EngineOptions::default().compile_timeout;
    reader.pick_or("compile-timeout", load.compile_timeout, values::positive_duration, default)
}

fn fuel(reader: &mut Reader<'_>, wasm: &[WasmOption]) -> Setting<Option<u64>> {
    let flag = last(wasm, |option| match option {
        WasmOption::Fuel(count) => Some(*count),
        _ => None,
    });
    reader.pick_or("fuel", flag, values::fuel, Limits::default().fuel)
}

fn unknown_imports_trap(reader: &mut Reader<'_>, wasm: &[WasmOption]) -> Setting<bool> {
    let flag = last(wasm, |option| match option {
        WasmOption::UnknownImportsTrap(on) => Some(*on),
        _ => None,
    });
    reader.pick_or("unknown-imports-trap", flag, values::switch, false)
}

#[cfg(test)]
mod tests;
