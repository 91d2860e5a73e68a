//! What a program may say about a coordinator, and its validation.

use super::{Consoles, Coordinator, lines};
use crate::attend::{Mode, Replication};
use crate::cluster::{ClusterSpec, Task};
use crate::coordinator::plan::Plan;
use crate::coordinator::resolve::values::{EndRule, EnvGrant, RpcLayer, SizeLimit, Timeout};
use crate::coordinator::resolve::{
    Cache, ClusterText, Fault, Faults, LimitSettings, Origin, Purpose, Setting, Settings, check_directories,
    cluster_text, resolve,
};
use crate::coordinator::run::ModuleSource;
use crate::runtime::{DirGrant, EngineOptions, Limits, Module, NetGrant};
use bytes::Bytes;
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// A value that the program gave.
fn given<T>(value: T) -> Setting<T> {
    Setting { value, origin: Origin::Program }
}

/// Collects what a coordinator is to do; made by [`Coordinator::builder`].
///
/// A second call of a method replaces what the first said, but for [`args`](Self::args), [`env`](Self::env),
/// [`dir`](Self::dir) and [`allow_net`](Self::allow_net), which add. Nothing is checked before [`build`](Self::build).
///
/// Messages name flags where they say how to mend something: `--max-attempts` is [`max_attempts`](Self::max_attempts).
#[must_use = "nothing is checked before `build`, and nothing runs before the coordinator does"]
pub struct CoordinatorBuilder {
    settings: Settings,
    module: ModuleSource,
    listener: Option<TcpListener>,
    consoles: Arc<dyn Consoles>,
    limits: Limits,
    engine: EngineOptions,
    variable_bytes_max: SizeLimit,
}

impl CoordinatorBuilder {
    pub(super) fn new(replication: Replication) -> Self {
        CoordinatorBuilder {
            settings: Settings { replication: given(replication), ..Settings::default() },
            module: ModuleSource::File,
            listener: None,
            consoles: Arc::new(lines::of_run),
            limits: Limits::default(),
            engine: EngineOptions::default(),
            variable_bytes_max: SizeLimit(None),
        }
    }

    /// The cluster. An empty one counts as none.
    pub fn cluster(self, cluster: &ClusterSpec) -> Self {
        self.cluster_json(cluster_text(cluster))
    }

    /// The cluster as JSON: `{"worker":["a:2222","b:2222"],"ps":["c:2222"]}`.
    pub fn cluster_json(mut self, json: impl Into<String>) -> Self {
        self.settings.cluster = Some(given(ClusterText { json: json.into(), file: None }));
        self
    }

    /// The content of TensorFlow's variable TF_CONFIG, which a program has to read itself. It gives cluster, task and rpc
    /// layer where nothing else does; a task that disagrees with it is a fault.
    pub fn tf_config(mut self, text: impl Into<String>) -> Self {
        self.settings.tf_config = Some(text.into());
        self
    }

    /// Which task of the cluster it is. None: a local run without a cluster, a split client with one.
    pub fn task(mut self, task: Task) -> Self {
        self.settings.task = Some(given(task.to_string()));
        self
    }

    /// How runs are placed. Without it, a task with a module is an independent worker, and one without learns it from the
    /// leader.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.settings.mode = Some(given(mode));
        self
    }

    /// What stands before the addresses of master targets; `grpc://` by default.
    pub fn rpc_layer(mut self, layer: RpcLayer) -> Self {
        self.settings.rpc_layer = given(layer);
        self
    }

    /// Whether independent workers have a barrier, which they have by default; all of a job must agree.
    pub fn cluster_barrier(mut self, barrier: bool) -> Self {
        self.settings.no_cluster_barrier = given(!barrier);
        self
    }

    /// When ps and joined tasks leave; by default when all runs have ended.
    pub fn end(mut self, rule: EndRule) -> Self {
        self.settings.end = given(rule);
        self
    }

    /// Where the server listens, as `IP` or `IP:PORT`; by default at the port of its entry.
    pub fn bind(mut self, address: impl Into<String>) -> Self {
        self.settings.bind = Some(given(address.into()));
        self
    }

    /// A listening socket, instead of one that is bound at the start. It is closed at the end of the run, at the latest.
    pub fn listener(mut self, listener: TcpListener) -> Self {
        self.listener = Some(listener);
        self
    }

    /// Whether the server may listen where other machines reach it, although nothing is encrypted or authenticated.
    pub fn insecure(mut self, insecure: bool) -> Self {
        self.settings.insecure = given(insecure);
        self
    }

    /// How long a needed task may stay out of reach; 10 min by default.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.settings.connect_timeout = given(timeout);
        self
    }

    /// How long a task may take to come back; 30 s by default.
    pub fn rejoin_timeout(mut self, timeout: Duration) -> Self {
        self.settings.rejoin_timeout = given(timeout);
        self
    }

    /// How long an evaluator may go on after the training; 60 s by default.
    pub fn evaluator_grace(mut self, grace: Duration) -> Self {
        self.settings.evaluator_grace = given(grace);
        self
    }

    /// How long a barrier waits that was given no timeout of its own; without limit by default.
    pub fn barrier_timeout(mut self, timeout: Duration) -> Self {
        self.settings.barrier_timeout = given(Timeout(Some(timeout)));
        self
    }

    /// How long the run may take in all; without limit by default.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.settings.timeout = given(Timeout(Some(timeout)));
        self
    }

    /// How often a local run or a split client is tried, the first try included; once by default.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.settings.max_attempts = given(attempts);
        self
    }

    /// The namespace of variables and barriers: `default`, but for a split client, which has one of its own.
    pub fn container(mut self, name: impl Into<String>) -> Self {
        self.settings.container = given(name.into());
        self
    }

    /// Whether a split client uses its container together with others.
    pub fn share_container(mut self, share: bool) -> Self {
        self.settings.share_container = given(share);
        self
    }

    /// Where runs that should save summaries keep their scalars; nowhere by default.
    pub fn summary_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.settings.summary_dir = Some(given(dir.into()));
        self
    }

    /// The component, as a file. It is read when the run starts.
    pub fn module(self, path: impl Into<PathBuf>) -> Self {
        self.with_module(path.into(), ModuleSource::File)
    }

    /// The component, from memory. `name` stands for its path in messages, and for the guest's argv\[0\].
    pub fn module_bytes(self, name: impl Into<String>, bytes: impl Into<Bytes>) -> Self {
        let (name, bytes) = (name.into(), bytes.into());
        self.with_module(PathBuf::from(&name), ModuleSource::Bytes { name, bytes })
    }

    /// A component that was loaded before: compiled once, whichever number of coordinators run it. Its own engine's options
    /// hold instead of [`engine`](Self::engine).
    pub fn loaded_module(self, module: &Module) -> Self {
        self.with_module(PathBuf::from(module.name()), ModuleSource::Loaded(module.clone()))
    }

    fn with_module(mut self, path: PathBuf, source: ModuleSource) -> Self {
        self.settings.module = Some(given(path));
        self.module = source;
        self
    }

    /// How the component is loaded and compiled. `fuel` and `coredump` are taken from [`limits`](Self::limits) and
    /// [`coredump_dir`](Self::coredump_dir).
    pub fn engine(mut self, options: EngineOptions) -> Self {
        self.settings.cache = given(options.cache_dir.clone().map_or(Cache::Off, Cache::Dir));
        self.settings.digest = options.digest.map(given);
        self.settings.allow_precompiled = given(options.allow_precompiled);
        self.settings.unknown_imports_trap = given(options.unknown_imports_trap);
        self.engine = options;
        self
    }

    /// What a run may use.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Bytes of variables that the server holds, at most; without limit by default.
    pub fn max_variable_bytes(mut self, bytes: u64) -> Self {
        self.variable_bytes_max = SizeLimit(Some(bytes));
        self
    }

    /// Adds arguments of the guest, which has its module's name as argv\[0\].
    pub fn args<A: Into<String>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.settings.guest_args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Adds a variable to the guest's environment, which is empty else.
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        let (name, value) = (name.into(), value.into());
        self.settings.env.value.push(EnvGrant { name: name.clone(), value: Some(value.clone()) });
        self.settings.env.origin = Origin::Program;
        self.settings.env_values.push((name, value));
        self
    }

    /// Adds a directory that the guest may use.
    pub fn dir(mut self, grant: DirGrant) -> Self {
        self.settings.dirs.value.push(grant);
        self.settings.dirs.origin = Origin::Program;
        self
    }

    /// Adds addresses that the guest may connect to.
    pub fn allow_net(mut self, grant: NetGrant) -> Self {
        self.settings.allow_net.value.push(grant);
        self.settings.allow_net.origin = Origin::Program;
        self
    }

    /// Where a trap or a limit leaves the guest's memory; nowhere by default.
    pub fn coredump_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.settings.coredump = Some(given(dir.into()));
        self
    }

    /// Where the lines of each run go: a closure from a run's context to its console, or a
    /// [`ProcessConsole`](crate::coordinator::console::ProcessConsole). By default they are events of tracing, of the
    /// target `dchost::guest`.
    ///
    /// Consoles are called on threads that the run needs: they should not block for long. One that panics ends its run with
    /// [`Exit::Bug`](crate::exit::Exit::Bug).
    pub fn consoles(mut self, consoles: impl Consoles + 'static) -> Self {
        self.consoles = Arc::new(consoles);
        self
    }

    /// Plans without any effect and without looking at this machine; addresses may be any text, which a run would refuse.
    /// Without a module [`mode`](Self::mode) says how runs are placed, as with `dchost plan`.
    ///
    /// # Errors
    /// Every fault of the configuration.
    pub fn plan(&self) -> Result<Plan, Faults> {
        let (settings, _) = self.settings();
        resolve(&settings, Purpose::Sketch).map(|resolved| resolved.plan)
    }

    /// Validates everything.
    ///
    /// # Errors
    /// Every fault of the configuration. Nothing was bound or started; of this machine only directories were looked at.
    pub fn build(self) -> Result<Coordinator, Faults> {
        let (mut settings, address_fault) = self.settings();
        settings.faults.extend(address_fault);
        settings.faults.extend(self.module_faults());
        check_directories(&mut settings);
        let resolved = resolve(&settings, Purpose::Run)?;
        let CoordinatorBuilder { module, listener, consoles, .. } = self;
        Ok(Coordinator { module, consoles, ..Coordinator::resolved(resolved, listener) })
    }

    /// The settings as the command line's would be; and what is wrong with the socket.
    fn settings(&self) -> (Settings, Option<Fault>) {
        let mut settings = self.settings.clone();
        settings.limits = LimitSettings::new(&self.limits, &self.engine, self.variable_bytes_max, Origin::Program);
        let address = self.listener.as_ref().map(TcpListener::local_addr);
        let fault = match address {
            Some(Ok(address)) => {
                settings.listener = Some(given(address));
                None
            }
            Some(Err(error)) => {
                let what = format!("the socket can't be used: {error}");
                Some(Fault::new("`listener`", what, "hand over a TCP listening socket"))
            }
            None => None,
        };
        (settings, fault)
    }

    /// What a module that is loaded already can't do any more.
    fn module_faults(&self) -> Vec<Fault> {
        let ModuleSource::Loaded(module) = &self.module else { return Vec::new() };
        let mut faults = Vec::new();
        let engine = module.engine_options();
        let place = "`loaded_module`";
        if self.limits.fuel.is_some() && !engine.fuel {
            let mend = "load it by an engine with `fuel`, or leave out the limit";
            faults.push(Fault::new(place, "its engine counts no fuel, which the limits need", mend));
        }
        if self.settings.coredump.is_some() && !engine.coredump {
            let mend = "load it by an engine with `coredump`, or leave out the directory";
            faults.push(Fault::new(place, "its engine keeps nothing for core dumps", mend));
        }
        if self.engine.digest.is_some_and(|digest| digest != module.digest()) {
            faults.push(Fault::new(place, "it is another component than `digest` says", "load the right one"));
        }
        faults
    }
}
