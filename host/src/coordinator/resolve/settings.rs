//! What config read, each value with its origin; the input of resolve.

use super::fault::Fault;
use super::values::{DirGrant, EndRule, EnvGrant, NetGrant, RpcLayer, SizeLimit, ThreadCount, Timeout};
use crate::attend::{Mode, Replication};
use crate::runtime::{EngineOptions, Limits};
use crate::text;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// How long a needed task may stay out of reach: pods of a job may be scheduled minutes apart.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(600);
/// How long a task may take to come back.
pub const REJOIN_TIMEOUT: Duration = Duration::from_secs(30);
/// How long an evaluator may go on after training.
pub const EVALUATOR_GRACE: Duration = Duration::from_secs(60);
/// Namespace of variables and barriers.
pub const CONTAINER: &str = "default";

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The command line.
    Flag,
    /// This variable of the environment.
    Environment(String),
    /// This configuration file.
    File(PathBuf),
    /// The program that embeds dchost.
    Program,
    /// Nobody gave it.
    Default,
    /// It follows from other settings.
    Inferred,
}

impl Origin {
    /// Where setting `key` stands, for a message: `` `--task` ``, `` `DCHOST_TASK` ``, `` `task` in `job.toml` ``; for a program
    /// the method that set it, whose name is the key's.
    pub fn place(&self, key: &str) -> String {
        match self {
            Origin::Flag if super::values::WASM_KEYS.contains(&key) => format!("`-W {key}`"),
            Origin::Flag if super::values::DEBUG_KEYS.contains(&key) => format!("`-D {key}`"),
            Origin::Flag => format!("`--{key}`"),
            Origin::Environment(name) => format!("`{name}`"),
            Origin::File(path) => format!("`{key}` in `{}`", text::path(path)),
            Origin::Program => format!("`{}`", key.replace('-', "_")),
            Origin::Default | Origin::Inferred => format!("default of `--{key}`"),
        }
    }

    /// Which layer it is: a greater one beats a lower one.
    pub(crate) fn rank(&self) -> u8 {
        match self {
            Origin::Default | Origin::Inferred => 0,
            Origin::File(_) => 1,
            Origin::Environment(_) => 2,
            Origin::Flag | Origin::Program => 3,
        }
    }

    /// The origin alone, for the report of the effective configuration.
    pub(super) fn describe(&self, key: &str) -> String {
        match self {
            Origin::Default => "default".to_owned(),
            Origin::Inferred => "inferred".to_owned(),
            _ => self.place(key),
        }
    }
}

/// A value and where it comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting<T> {
    /// The value.
    pub value: T,
    /// Where it comes from.
    pub origin: Origin,
}

impl<T> Setting<T> {
    /// Makes a setting that nobody gave.
    pub fn default(value: T) -> Self {
        Setting { value, origin: Origin::Default }
    }
}

/// The text of a cluster spec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterText {
    /// JSON, not looked into yet.
    pub json: String,
    /// The file that held it; none where it was given itself.
    pub file: Option<PathBuf>,
}

/// Where compiled components are kept: what `cache-dir` and `no-cache` say together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cache {
    /// Nowhere.
    Off,
    /// In this directory.
    Dir(PathBuf),
}

impl Cache {
    /// The setting that says so.
    pub fn key(&self) -> &'static str {
        match self {
            Cache::Off => "no-cache",
            Cache::Dir(_) => "cache-dir",
        }
    }
}

/// Limits of the guest and of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitSettings {
    /// Bytes of all memories and tables of one guest.
    pub max_memory: Setting<u64>,
    /// Bytes of all tensors in one call.
    pub max_tensor: Setting<u64>,
    /// Bytes of the largest component file.
    pub max_module_size: Setting<u64>,
    /// How long compiling may take.
    pub compile_timeout: Setting<Duration>,
    /// Bytes of variables that this process's server holds.
    pub max_variable_bytes: Setting<SizeLimit>,
    /// Time that a guest may compute.
    pub cpu_timeout: Setting<Timeout>,
    /// Fuel of a guest; none: not counted.
    pub fuel: Setting<Option<u64>>,
    /// Bytes of a guest's wasm stack.
    pub max_wasm_stack: Setting<u64>,
    /// Component handles and resource table entries of a guest.
    pub max_handles: Setting<u32>,
    /// Bytes that a guest may print in all.
    pub max_output: Setting<u64>,
    /// Bytes of one line that a guest prints.
    pub max_output_line: Setting<u64>,
    /// Bytes that a guest may print in a second.
    pub max_output_rate: Setting<u64>,
    /// Calls in flight: reads, updates and ops.
    pub max_ops: Setting<u32>,
    /// Threads that multiply matrices for a guest.
    pub kernel_threads: Setting<ThreadCount>,
}

/// Everything that flags, environment and files say, before it is validated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The component.
    pub module: Option<Setting<PathBuf>>,
    /// The text of `--task`.
    pub task: Option<Setting<String>>,
    /// The text of `--cluster`.
    pub cluster: Option<Setting<ClusterText>>,
    /// The text of the variable TF_CONFIG, where it is set.
    pub tf_config: Option<String>,
    /// How runs are placed, where it is stated.
    pub mode: Option<Setting<Mode>>,
    /// One run for each chief and worker, or one driver.
    pub replication: Setting<Replication>,
    /// What stands before addresses in master targets.
    pub rpc_layer: Setting<RpcLayer>,
    /// The text of `--bind`.
    pub bind: Option<Setting<String>>,
    /// Whether a listen address other than loopback is allowed without TLS.
    pub insecure: Setting<bool>,
    /// Whether independent workers do without a barrier.
    pub no_cluster_barrier: Setting<bool>,
    /// When ps and joined tasks leave.
    pub end: Setting<EndRule>,
    /// How long a needed task may stay out of reach.
    pub connect_timeout: Setting<Duration>,
    /// How long a task may take to come back.
    pub rejoin_timeout: Setting<Duration>,
    /// How long an evaluator may go on after training.
    pub evaluator_grace: Setting<Duration>,
    /// How long a barrier waits.
    pub barrier_timeout: Setting<Timeout>,
    /// Wall clock for the process.
    pub timeout: Setting<Timeout>,
    /// Number of tries.
    pub max_attempts: Setting<u32>,
    /// Namespace of variables and barriers.
    pub container: Setting<String>,
    /// Whether a split client uses its container together with others.
    pub share_container: Setting<bool>,
    /// Where summaries go.
    pub summary_dir: Option<Setting<PathBuf>>,
    /// Directories that the guest sees.
    pub dirs: Setting<Vec<DirGrant>>,
    /// Variables of the guest's environment, as they were asked for.
    pub env: Setting<Vec<EnvGrant>>,
    /// The same with their values.
    pub env_values: Vec<(String, String)>,
    /// Where the guest may connect to.
    pub allow_net: Setting<Vec<NetGrant>>,
    /// Limits.
    pub limits: LimitSettings,
    /// The sha256 that the component must have.
    pub digest: Option<Setting<[u8; 32]>>,
    /// Whether precompiled components are loaded.
    pub allow_precompiled: Setting<bool>,
    /// Whether unknown imports trap when they are called, instead of being refused.
    pub unknown_imports_trap: Setting<bool>,
    /// Where a trap leaves the guest's memory.
    pub coredump: Option<Setting<PathBuf>>,
    /// Where compiled components are kept.
    pub cache: Setting<Cache>,
    /// Arguments of the guest.
    pub guest_args: Vec<String>,
    /// Whether the process is a child of `dchost launch`.
    pub launched: bool,
    /// The address of the listening socket that was handed over.
    pub listener: Option<Setting<SocketAddr>>,
    /// What reading found wrong: values that don't parse, files that can't be read.
    pub faults: Vec<Fault>,
    /// What reading found odd.
    pub warnings: Vec<String>,
}

impl Default for LimitSettings {
    fn default() -> Self {
        LimitSettings::new(&Limits::default(), &EngineOptions::default(), SizeLimit(None), Origin::Default)
    }
}

impl LimitSettings {
    /// Takes limits that are values already. Of `engine` the size of a module, the time to compile it and the stack count.
    pub fn new(limits: &Limits, engine: &EngineOptions, variable_bytes_max: SizeLimit, origin: Origin) -> Self {
        fn set<T>(value: T, origin: &Origin) -> Setting<T> {
            Setting { value, origin: origin.clone() }
        }
        let bytes = |count: usize| set(u64::try_from(count).unwrap_or(u64::MAX), &origin);
        LimitSettings {
            max_memory: set(limits.memory_bytes_max, &origin),
            max_tensor: set(limits.tensor_bytes_max, &origin),
            max_module_size: set(engine.module_bytes_max, &origin),
            compile_timeout: set(engine.compile_timeout, &origin),
            max_variable_bytes: set(variable_bytes_max, &origin),
            cpu_timeout: set(Timeout(limits.cpu_timeout), &origin),
            fuel: set(limits.fuel, &origin),
            max_wasm_stack: bytes(engine.wasm_stack_bytes_max),
            max_handles: set(u32::try_from(limits.handles_max).unwrap_or(u32::MAX), &origin),
            max_output: set(limits.output_bytes_max, &origin),
            max_output_line: bytes(limits.output_line_bytes_max),
            max_output_rate: set(limits.output_bytes_per_second_max, &origin),
            max_ops: set(limits.ops_max, &origin),
            kernel_threads: set(ThreadCount(limits.kernel_threads), &origin),
        }
    }

    /// The limits of the guest.
    pub fn of_guest(&self) -> Limits {
        let count = |setting: &Setting<u64>| usize::try_from(setting.value).unwrap_or(usize::MAX);
        Limits {
            memory_bytes_max: self.max_memory.value,
            cpu_timeout: self.cpu_timeout.value.0,
            fuel: self.fuel.value,
            tensor_bytes_max: self.max_tensor.value,
            handles_max: usize::try_from(self.max_handles.value).unwrap_or(usize::MAX),
            output_line_bytes_max: count(&self.max_output_line),
            output_bytes_max: self.max_output.value,
            output_bytes_per_second_max: self.max_output_rate.value,
            ops_max: self.max_ops.value,
            kernel_threads: self.kernel_threads.value.0,
        }
    }
}

impl Default for Settings {
    /// What holds where nobody gives anything: the command line's defaults, and no cache.
    fn default() -> Self {
        Settings {
            module: None,
            task: None,
            cluster: None,
            tf_config: None,
            mode: None,
            replication: Setting::default(Replication::BetweenGraph),
            rpc_layer: Setting::default(RpcLayer::Grpc),
            bind: None,
            insecure: Setting::default(false),
            no_cluster_barrier: Setting::default(false),
            end: Setting::default(EndRule::AllDone),
            connect_timeout: Setting::default(CONNECT_TIMEOUT),
            rejoin_timeout: Setting::default(REJOIN_TIMEOUT),
            evaluator_grace: Setting::default(EVALUATOR_GRACE),
            barrier_timeout: Setting::default(Timeout(None)),
            timeout: Setting::default(Timeout(None)),
            max_attempts: Setting::default(1),
            container: Setting::default(CONTAINER.to_owned()),
            share_container: Setting::default(false),
            summary_dir: None,
            dirs: Setting::default(Vec::new()),
            env: Setting::default(Vec::new()),
            env_values: Vec::new(),
            allow_net: Setting::default(Vec::new()),
            limits: LimitSettings::default(),
            digest: None,
            allow_precompiled: Setting::default(false),
            unknown_imports_trap: Setting::default(false),
            coredump: None,
            cache: Setting::default(Cache::Off),
            guest_args: Vec::new(),
            launched: false,
            listener: None,
            faults: Vec::new(),
            warnings: Vec::new(),
        }
    }
}

impl Settings {
    /// How the component is loaded and compiled.
    pub fn engine(&self) -> EngineOptions {
        EngineOptions {
            cache_dir: match &self.cache.value {
                Cache::Off => None,
                Cache::Dir(dir) => Some(dir.clone()),
            },
            module_bytes_max: self.limits.max_module_size.value,
            digest: self.digest.as_ref().map(|digest| digest.value),
            compile_timeout: self.limits.compile_timeout.value,
            fuel: self.limits.fuel.value.is_some(),
            wasm_stack_bytes_max: usize::try_from(self.limits.max_wasm_stack.value).unwrap_or(usize::MAX),
            allow_precompiled: self.allow_precompiled.value,
            unknown_imports_trap: self.unknown_imports_trap.value,
            coredump: self.coredump.is_some(),
        }
    }
}
