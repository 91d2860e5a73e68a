//! Validates what config read: one value, or every fault in one report. Pure.
//!
//! # Source
//! The first half of `run_distribute_coordinator` of TensorFlow's `distribute_coordinator.py`, and the rules that its
//! `multi_worker_util.py` and `server_lib.py` check later or not at all.

mod address;
mod describe;
mod directories;
mod fault;
mod json;
mod launch;
mod listen;
mod mode;
mod ranges;
mod settings;
mod status;
mod task;
pub mod values;

pub use describe::cluster_text;
pub use directories::check_directories;
pub use fault::{Fault, Faults};
pub use launch::check_launch;
pub use listen::Listen;
pub use settings::{
    CONNECT_TIMEOUT, CONTAINER, Cache, ClusterText, EVALUATOR_GRACE, LimitSettings, Origin, REJOIN_TIMEOUT, Setting,
    Settings,
};
pub use status::{Asked, Target, resolve_status};

use crate::attend::{Mode, Replication};
use crate::cluster::{ClusterSpec, Task, TaskType};
use crate::coordinator::plan::{Plan, PlanError, PlanInput, plan};
use crate::runtime::{EngineOptions, Limits};
use crate::server::guard::check_container;
use crate::text::{LIKENESS_MIN, did_you_mean, nearest, shown};
use json::Addresses;
use serde_json::Value;
use std::path::PathBuf;
use std::time::Duration;
use task::TaskPart;
use values::{DirGrant, EndRule, NetGrant, RpcLayer};

/// The name of TensorFlow's variable.
const TF_CONFIG: &str = "`TF_CONFIG`";

/// Keys of TF_CONFIG that launchers write and that need no warning, whether dchost uses them or not.
const TF_CONFIG_KEYS: [&str; 7] =
    ["cluster", "task", "rpc_layer", "environment", "model_dir", "service", "session_master"];

/// What the settings are resolved for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To run.
    Run,
    /// To print the plan: the module may be missing where the mode is given, and nothing listens.
    Plan,
    /// To plan without any intention to run: as [`Plan`](Purpose::Plan), with addresses that need not be any, only some text.
    Sketch,
}

/// The validated configuration of one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// The cluster; empty: a local run.
    pub cluster: ClusterSpec,
    /// This process's task; none in a local run and for a split client.
    pub task: Option<Task>,
    /// How runs are placed; none in a local run, and for a standard server that learns it from the leader.
    pub mode: Option<Mode>,
    /// One run for each chief and worker, or one driver.
    pub replication: Replication,
    /// What stands before addresses in master targets.
    pub rpc_layer: RpcLayer,
    /// Whether independent workers have a barrier.
    pub cluster_barrier: bool,
    /// What this process does.
    pub plan: Plan,
    /// The component. A ps may have one too: it is checked, and not run.
    pub module: Option<PathBuf>,
    /// Arguments of the guest, without its name.
    pub guest_args: Vec<String>,
    /// Where the server listens; none without server.
    pub listen: Option<Listen>,
    /// When ps and joined tasks leave; the leader's value holds, and a ps's own `never`.
    pub end: EndRule,
    /// How long a needed task may stay out of reach.
    pub connect_timeout: Duration,
    /// How long a task may take to come back.
    pub rejoin_timeout: Duration,
    /// How long an evaluator may go on after training; the leader's value holds.
    pub evaluator_grace: Duration,
    /// How long a barrier waits without a timeout of its own; none: without limit.
    pub barrier_timeout: Option<Duration>,
    /// Wall clock for the process; none: without limit.
    pub timeout: Option<Duration>,
    /// How often a local run or a split client is tried, the first try included; else 1.
    pub attempts_max: u32,
    /// Namespace of variables and barriers; none: a split client's own, made for it.
    pub container: Option<String>,
    /// Whether a split client uses its container together with others.
    pub share_container: bool,
    /// Where summaries go; none: nowhere.
    pub summary_dir: Option<PathBuf>,
    /// Directories that the guest sees.
    pub dirs: Vec<DirGrant>,
    /// Variables of the guest's environment.
    pub env: Vec<(String, String)>,
    /// Where the guest may connect to.
    pub net: Vec<NetGrant>,
    /// Limits of the guest.
    pub limits: Limits,
    /// Bytes of variables that this process's server holds (`--max-variable-bytes`); none: no limit.
    pub variable_bytes_max: Option<u64>,
    /// How the component is loaded and compiled.
    pub engine: EngineOptions,
    /// The sha256 that the component must have.
    pub digest: Option<[u8; 32]>,
    /// Where a trap leaves the guest's memory; none: nowhere.
    pub coredump_dir: Option<PathBuf>,
    /// Whether the process is a child of `dchost launch`.
    pub launched: bool,
    /// What is allowed but odd; each is worth one line at the start.
    pub warnings: Vec<String>,
    /// Name, value and origin of each field, for [`Resolved::describe`].
    fields: Vec<describe::Field>,
}

/// Validates settings.
///
/// # Errors
/// Every fault that was found, those of reading first. Nothing has been started or bound.
pub fn resolve(settings: &Settings, purpose: Purpose) -> Result<Resolved, Faults> {
    let mut resolver = Resolver {
        settings,
        purpose,
        faults: settings.faults.clone(),
        warnings: settings.warnings.clone(),
        origins: describe::Origins::default(),
    };
    let resolved = resolver.resolve();
    match resolved {
        Some(resolved) if resolver.faults.is_empty() => Ok(resolved),
        _ => Err(Faults(resolver.faults)),
    }
}

/// A cluster value that was chosen, and where it stands.
struct Chosen {
    place: String,
    origin: Origin,
    value: Value,
    /// Whether TF_CONFIG's task is used with it.
    with_tf_task: bool,
}

struct Resolver<'a> {
    settings: &'a Settings,
    purpose: Purpose,
    faults: Vec<Fault>,
    warnings: Vec<String>,
    origins: describe::Origins,
}

impl Resolver<'_> {
    fn fault(&mut self, place: impl Into<String>, what: impl Into<String>, mend: impl Into<String>) {
        self.faults.push(Fault::new(place, what, mend));
    }

    fn resolve(&mut self) -> Option<Resolved> {
        let unreadable = !self.faults.is_empty();
        self.check_values();
        let before = self.faults.len();
        let tf_config = self.tf_config();
        let rpc_layer = self.rpc_layer(tf_config.as_ref());
        let chosen = self.choose_cluster(tf_config.as_ref());
        let unreadable = unreadable || self.faults.len() > before;
        let part = self.task_part(tf_config.as_ref(), chosen.as_ref().is_none_or(|chosen| chosen.with_tf_task));
        let named = |part: &TaskPart| part.job.is_some_and(|job| job != TaskType::Client);
        if chosen.is_some() && part.as_ref().is_none_or(named) {
            self.check_attempts_of_tasks();
        }
        let cluster = match &chosen {
            Some(chosen) => {
                let cluster = {
                    let addresses = if self.purpose == Purpose::Sketch { Addresses::Any } else { Addresses::Reachable };
                    json::cluster(&chosen.place, &chosen.value, addresses, &mut self.faults)
                };
                if !cluster.whole {
                    return None;
                }
                self.origins.cluster = Some((chosen.origin.clone(), chosen.place.clone()));
                cluster.spec
            }
            None => ClusterSpec::new(),
        };
        let task_place = self.task_place();
        let task = match task::complete(&task_place, &part?, &cluster) {
            Ok(task) => task,
            Err(fault) => {
                self.faults.push(fault);
                return None;
            }
        };
        if chosen.is_none() && task.is_some() {
            self.check_attempts_of_tasks();
        }
        if chosen.is_none() && unreadable {
            // The cluster may be what couldn't be read: what follows from its absence would mislead.
            return None;
        }
        let mode = self.mode(&cluster, task)?;
        let settings = self.settings;
        let replication = settings.replication.value;
        let cluster_barrier = !settings.no_cluster_barrier.value;
        let input = PlanInput { cluster: &cluster, task, mode, replication, rpc_layer, cluster_barrier };
        let plan = match plan(&input) {
            Ok(plan) => plan,
            Err(error) => {
                self.plan_fault(&error, &task_place);
                return None;
            }
        };
        let listen = self.listen(&plan);
        let container = self.container(&plan);
        self.warn_about(&cluster, task, &plan);
        let task = task.filter(|task| task.job != TaskType::Client);
        let fields = describe::fields(settings, &self.origins, &cluster, task, mode, rpc_layer, listen.as_ref());
        Some(Resolved {
            task,
            mode,
            replication,
            rpc_layer,
            cluster_barrier,
            plan,
            module: settings.module.as_ref().map(|module| module.value.clone()),
            guest_args: settings.guest_args.clone(),
            listen,
            end: settings.end.value,
            connect_timeout: settings.connect_timeout.value,
            rejoin_timeout: settings.rejoin_timeout.value,
            evaluator_grace: settings.evaluator_grace.value,
            barrier_timeout: settings.barrier_timeout.value.0,
            timeout: settings.timeout.value.0,
            attempts_max: settings.max_attempts.value,
            container,
            share_container: settings.share_container.value,
            summary_dir: settings.summary_dir.as_ref().map(|dir| dir.value.clone()),
            dirs: settings.dirs.value.clone(),
            env: settings.env_values.clone(),
            net: settings.allow_net.value.clone(),
            limits: settings.limits.of_guest(),
            variable_bytes_max: settings.limits.max_variable_bytes.value.0,
            engine: settings.engine(),
            digest: settings.digest.as_ref().map(|digest| digest.value),
            coredump_dir: settings.coredump.as_ref().map(|dir| dir.value.clone()),
            launched: settings.launched,
            warnings: std::mem::take(&mut self.warnings),
            cluster,
            fields,
        })
    }

    /// Checks values that are wrong whatever the cluster is.
    fn check_values(&mut self) {
        let Setting { value: name, origin } = &self.settings.container;
        if let Err(error) = check_container(name) {
            self.fault(origin.place("container"), error.message, "");
        }
        self.faults.extend(ranges::check(self.settings));
    }

    /// The namespace of variables; none where the client is to make its own.
    fn container(&mut self, plan: &Plan) -> Option<String> {
        let Settings { container: Setting { value: name, origin }, share_container, .. } = self.settings;
        let own = plan.is_client() && *origin == Origin::Default;
        if share_container.value && own {
            let what = "is given, but no container that could be shared: each client has one of its own";
            self.fault(share_container.origin.place("share-container"), what, "name it with --container NAME");
        } else if share_container.value && !plan.is_client() {
            self.warnings
                .push("--share-container is for a split client: tasks of a job share theirs anyway".to_owned());
        }
        (!own).then(|| name.clone())
    }

    /// Refuses more than one attempt of tasks: only a local run and a split client have all of it in their own process.
    fn check_attempts_of_tasks(&mut self) {
        let Setting { value: attempts, origin } = &self.settings.max_attempts;
        // Reading refuses 0.
        if *attempts > 1 {
            let what = format!(
                "`{attempts}` attempts of independent workers are not served yet, only of a local run or a split client"
            );
            self.fault(origin.place("max-attempts"), what, "leave it out, or let the job be started anew from outside");
        }
    }

    /// Parses TF_CONFIG, even where nothing of it is used.
    fn tf_config(&mut self) -> Option<serde_json::Map<String, Value>> {
        let text = self.settings.tf_config.as_deref()?;
        let value = match json::parse(TF_CONFIG, text) {
            Ok(value) => value,
            Err(fault) => {
                self.faults.push(fault);
                return None;
            }
        };
        let Value::Object(fields) = value else {
            let what = format!("is {}, not an object", json::kind(&value));
            self.fault(TF_CONFIG, what, "write {\"cluster\":{...},\"task\":{...}}, or unset it");
            return None;
        };
        for key in fields.keys().filter(|key| !TF_CONFIG_KEYS.contains(&key.as_str())) {
            let near = did_you_mean(nearest(key, TF_CONFIG_KEYS, LIKENESS_MIN));
            self.warnings.push(format!("{TF_CONFIG} has the unknown key `{}`, ignored{near}", shown(key)));
        }
        Some(fields)
    }

    /// TF_CONFIG's rpc_layer fills in what nobody gave. TensorFlow ignored it at first and let it override later.
    fn rpc_layer(&mut self, tf_config: Option<&serde_json::Map<String, Value>>) -> RpcLayer {
        let Setting { value: given, origin } = &self.settings.rpc_layer;
        let Some(value) = tf_config.and_then(|fields| fields.get("rpc_layer")) else { return *given };
        let layer = match value {
            Value::Null => Ok(RpcLayer::None),
            Value::String(text) if text.is_empty() => Ok(RpcLayer::None),
            Value::String(text) => values::rpc_layer(text),
            other => Err(values::ValueError(json::kind(other))),
        };
        match (layer, origin) {
            (Ok(layer), Origin::Default | Origin::File(_)) => {
                self.origins.rpc_layer = Some(Origin::Environment("TF_CONFIG".to_owned()));
                layer
            }
            (Ok(_), _) => *given,
            (Err(_), _) => {
                let shown = json::kind(value);
                self.warnings.push(format!("{TF_CONFIG} has {shown} as rpc_layer, ignored: dchost speaks grpc"));
                *given
            }
        }
    }

    /// Chooses the cluster: a non-empty argument, else TF_CONFIG's, else the file's.
    fn choose_cluster(&mut self, tf_config: Option<&serde_json::Map<String, Value>>) -> Option<Chosen> {
        let mut argument = None;
        if let Some(Setting { value: text, origin }) = &self.settings.cluster {
            let place = match &text.file {
                Some(file) => format!("{}, file `{}`", origin.place("cluster"), file.display()),
                None => origin.place("cluster"),
            };
            match json::parse(&place, &text.json) {
                Ok(value) if json::is_empty(&value) => {}
                Ok(value) => {
                    let with_tf_task = matches!(origin, Origin::File(_));
                    argument = Some(Chosen { place, origin: origin.clone(), value, with_tf_task });
                }
                Err(fault) => self.faults.push(fault),
            }
        }
        if argument.as_ref().is_some_and(|argument| !argument.with_tf_task) {
            return argument;
        }
        let of_tf_config = tf_config.and_then(|fields| fields.get("cluster")).filter(|value| !json::is_empty(value));
        match of_tf_config {
            Some(value) => Some(Chosen {
                place: format!("cluster of {TF_CONFIG}"),
                origin: Origin::Environment("TF_CONFIG".to_owned()),
                value: value.clone(),
                with_tf_task: true,
            }),
            None => argument,
        }
    }

    /// Reads the task; none where what names it is faulty.
    fn task_part(
        &mut self,
        tf_config: Option<&serde_json::Map<String, Value>>,
        with_tf_task: bool,
    ) -> Option<TaskPart> {
        let before = self.faults.len();
        let mut flag = None;
        // A task in the file is weaker than TF_CONFIG's; one in a flag or a variable must agree with it.
        let mut file = None;
        if let Some(Setting { value: text, origin }) = &self.settings.task {
            let place = origin.place("task");
            match task::parse(&place, text) {
                Ok(part) if matches!(origin, Origin::File(_)) => file = Some((place, part)),
                Ok(part) => flag = Some((place, part)),
                Err(fault) => self.faults.push(fault),
            }
            self.origins.task = Some(origin.clone());
        }
        let place = format!("task of {TF_CONFIG}");
        let tf = tf_config.filter(|_| with_tf_task).and_then(|fields| fields.get("task"));
        let tf = tf.map(|value| task::from_tf_config(&place, value, &mut self.faults));
        let tf = tf.filter(|part| *part != TaskPart::default());
        if self.faults.len() > before {
            return None;
        }
        if tf.is_some() && flag.is_none() {
            self.origins.task = Some(Origin::Environment("TF_CONFIG".to_owned()));
        }
        let flag = flag.or(if tf.is_none() { file } else { None });
        let flag = flag.as_ref().map(|(place, part)| (place.as_str(), part.clone()));
        match task::join(flag, tf.map(|part| (place.as_str(), part))) {
            Ok(part) => {
                if let (None, Some(index)) = (part.job, part.index) {
                    self.warnings.push(format!("{place} has the index {index} but no type, ignored"));
                }
                Some(part)
            }
            Err(fault) => {
                self.faults.push(fault);
                None
            }
        }
    }

    fn task_place(&self) -> String {
        match &self.origins.task {
            Some(Origin::Environment(name)) if name == "TF_CONFIG" => format!("task of {TF_CONFIG}"),
            Some(origin) => origin.place("task"),
            None => "task".to_owned(),
        }
    }

    fn plan_fault(&mut self, error: &PlanError, place: &str) {
        let mend = match error {
            PlanError::TaskWithoutCluster(task) => {
                let launch = self.launch_line(*task);
                format!("give --cluster or TF_CONFIG, or start a whole cluster on this machine: {launch}")
            }
            PlanError::NoMaster { .. } => "list a chief or a worker:0".to_owned(),
            _ => "make the task and the cluster agree".to_owned(),
        };
        self.fault(place, error.to_string(), mend);
    }

    /// Finds where the server listens.
    fn listen(&mut self, plan: &Plan) -> Option<Listen> {
        let settings = self.settings;
        let Some(server) = &plan.server else {
            if let Some(bind) = &settings.bind {
                self.warnings.push(format!("{} has no effect: this process has no server", bind.origin.place("bind")));
            }
            return None;
        };
        // The cluster has been checked by now.
        let entry = address::parse(&server.address).ok()?;
        let listen = match (&settings.listener, &settings.bind) {
            (Some(listener), _) => Listen::HandedOver(listener.value),
            (None, Some(bind)) => match listen::bind(&bind.origin.place("bind"), &bind.value, entry.port) {
                Ok(listen) => listen,
                Err(fault) => {
                    self.faults.push(fault);
                    return None;
                }
            },
            (None, None) => listen::of_entry(&entry),
        };
        let (task, port) = (server.task, listen.port());
        if port != entry.port && entry.port != 0 {
            self.warnings.push(format!(
                "`{task}` listens on port {port}, but its peers dial port {}: something in between has to forward it",
                entry.port
            ));
        }
        if !listen.is_loopback() && !settings.insecure.value {
            let what = format!(
                "`{task}` would listen on {listen}, which other machines reach, and traffic is neither encrypted nor authenticated"
            );
            match self.purpose {
                Purpose::Run => {
                    let mend =
                        "give --insecure if every machine on that network may use this server, or --bind 127.0.0.1";
                    self.fault(settings.insecure.origin.place("insecure"), what, mend);
                }
                Purpose::Plan | Purpose::Sketch => self.warnings.push(format!("{what}; a run needs --insecure")),
            }
        }
        Some(listen)
    }

    fn warn_about(&mut self, cluster: &ClusterSpec, task: Option<Task>, plan: &Plan) {
        let client = plan.mode == Some(Mode::SplitClient) && plan.server.is_none();
        if !cluster.is_empty() && plan.leader.is_none() && (plan.mode != Some(Mode::SplitClient)) {
            self.warnings.push(
                "this view of the cluster has neither chief:0 nor worker:0: no task here will initialise, there is no \
                 barrier, and servers serve until they are stopped"
                    .to_owned(),
            );
        }
        if plan.server.is_none() && !client && task.is_some_and(|task| task.job == TaskType::Evaluator) {
            self.warnings.push(
                "the evaluator is not in the cluster: it runs without a server, its master target is `local`"
                    .to_owned(),
            );
        }
        let runner = |task: Task| !matches!(task.job, TaskType::Ps | TaskType::Client);
        if plan.mode.is_none() && plan.runs.is_empty() && task.is_some_and(runner) {
            self.warnings.push(
                "without --module this task only serves, which independent workers refuse: give --module to run worker_fn"
                    .to_owned(),
            );
        }
        if plan.mode == Some(Mode::SplitClient) && plan.server.is_some() && self.settings.module.is_some() {
            self.warnings.push(
                "--module is not run: under mode `split-client` a named task is a standard server, and the client runs \
                 worker_fn"
                    .to_owned(),
            );
        }
    }
}

#[cfg(test)]
#[path = "resolve/tests.rs"]
mod tests;
