//! The effective configuration, with the origin of each field.

use super::settings::{Cache, Origin, Setting, Settings};
use super::values::{RpcLayer, digest_text, size_text};
use super::{Listen, Resolved};
use crate::attend::Mode;
use crate::cluster::{ClusterSpec, Task};
use std::fmt::Write as _;

/// One field of the effective configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Field {
    name: &'static str,
    value: String,
    origin: String,
}

/// Origins that only resolve knows.
#[derive(Debug, Default)]
pub(super) struct Origins {
    /// Origin of the cluster, and its place.
    pub(super) cluster: Option<(Origin, String)>,
    /// Origin of the task.
    pub(super) task: Option<Origin>,
    /// Origin of the rpc layer, where it isn't the setting's.
    pub(super) rpc_layer: Option<Origin>,
}

impl Resolved {
    /// The effective configuration: one line a field, ``name = value (origin)``. Values of the guest's environment are
    /// left out, they may be secrets.
    pub fn describe(&self) -> String {
        let mut text = String::new();
        for Field { name, value, origin } in &self.fields {
            // Writing to a string doesn't fail.
            let _ = writeln!(text, "{name} = {value} ({origin})");
        }
        text
    }

    /// The fields that somebody gave or that follow from those, in one line; the rest are defaults.
    pub fn describe_given(&self) -> String {
        let given = self.fields.iter().filter(|field| field.origin != "default");
        let shown = given.map(|Field { name, value, origin }| format!("{name} = {value} ({origin})"));
        shown.collect::<Vec<_>>().join(", ")
    }
}

/// Writes a cluster as JSON: lists for dense jobs, maps for sparse ones.
pub fn cluster_text(cluster: &ClusterSpec) -> String {
    let jobs = cluster.jobs().map(|job| {
        let dense = cluster.tasks(job).zip(0..).all(|(task, index)| task.index == index);
        let entries: Vec<_> = cluster
            .tasks(job)
            .map(|task| {
                let address = serde_json::Value::from(cluster.address(task).unwrap_or_default());
                if dense { address.to_string() } else { format!("\"{}\":{address}", task.index) }
            })
            .collect();
        let (open, close) = if dense { ('[', ']') } else { ('{', '}') };
        format!("\"{job}\":{open}{}{close}", entries.join(","))
    });
    format!("{{{}}}", jobs.collect::<Vec<_>>().join(","))
}

/// Collects every field.
pub(super) fn fields(
    settings: &Settings,
    origins: &Origins,
    cluster: &ClusterSpec,
    task: Option<Task>,
    mode: Option<Mode>,
    rpc_layer: RpcLayer,
    listen: Option<&Listen>,
) -> Vec<Field> {
    let mut fields = Vec::new();
    let mut add = |name, value: String, origin: String| fields.push(Field { name, value, origin });
    let cluster_origin = origins.cluster.as_ref().map(|(_, place)| place.clone());
    add(
        "cluster",
        if cluster.is_empty() { "none".to_owned() } else { cluster_text(cluster) },
        or_default(cluster_origin),
    );
    let task_origin = origins.task.as_ref().map(|origin| origin.describe("task"));
    add("task", task.map_or_else(|| "none".to_owned(), |task| task.to_string()), or_default(task_origin));
    let (mode_value, mode_origin) = match (mode, &settings.mode) {
        _ if cluster.is_empty() => ("local", "inferred".to_owned()),
        (Some(mode), Some(stated)) => (mode.as_str(), stated.origin.describe("mode")),
        (Some(mode), None) => (mode.as_str(), Origin::Inferred.describe("mode")),
        (None, _) => ("learned from the leader", "inferred".to_owned()),
    };
    add("mode", mode_value.to_owned(), mode_origin);
    add(
        "listen",
        listen.map_or_else(|| "no server".to_owned(), ToString::to_string),
        match (listen, &settings.bind) {
            (Some(Listen::HandedOver(_)), _) => {
                or_default(settings.listener.as_ref().map(|listener| listener.origin.describe("listener")))
            }
            (Some(_), Some(bind)) => bind.origin.describe("bind"),
            _ => "inferred".to_owned(),
        },
    );
    let mut setting = |name: &'static str, value: String, origin: &Origin| add(name, value, origin.describe(name));
    let layer_origin = origins.rpc_layer.as_ref().unwrap_or(&settings.rpc_layer.origin);
    setting("rpc-layer", rpc_layer.to_string(), layer_origin);
    setting("replication", settings.replication.value.as_str().to_owned(), &settings.replication.origin);
    if let Some(Setting { value, origin }) = &settings.module {
        setting("module", value.display().to_string(), origin);
    }
    setting("insecure", settings.insecure.value.to_string(), &settings.insecure.origin);
    setting("no-cluster-barrier", settings.no_cluster_barrier.value.to_string(), &settings.no_cluster_barrier.origin);
    setting("end", settings.end.value.to_string(), &settings.end.origin);
    for (name, duration) in [
        ("connect-timeout", &settings.connect_timeout),
        ("rejoin-timeout", &settings.rejoin_timeout),
        ("evaluator-grace", &settings.evaluator_grace),
        ("compile-timeout", &settings.limits.compile_timeout),
    ] {
        setting(name, humantime::format_duration(duration.value).to_string(), &duration.origin);
    }
    for (name, timeout) in [
        ("barrier-timeout", &settings.barrier_timeout),
        ("timeout", &settings.timeout),
        ("cpu-timeout", &settings.limits.cpu_timeout),
    ] {
        setting(name, timeout.value.to_string(), &timeout.origin);
    }
    setting("container", settings.container.value.clone(), &settings.container.origin);
    setting("share-container", settings.share_container.value.to_string(), &settings.share_container.origin);
    if let Some(Setting { value, origin }) = &settings.summary_dir {
        setting("summary-dir", value.display().to_string(), origin);
    }
    setting("dir", list(&settings.dirs.value), &settings.dirs.origin);
    setting("env", list(&settings.env.value), &settings.env.origin);
    setting("allow-net", list(&settings.allow_net.value), &settings.allow_net.origin);
    if let Some(Setting { value, origin }) = &settings.digest {
        setting("digest", digest_text(value), origin);
    }
    setting("allow-precompiled", settings.allow_precompiled.value.to_string(), &settings.allow_precompiled.origin);
    let trap = &settings.unknown_imports_trap;
    setting("unknown-imports-trap", trap.value.to_string(), &trap.origin);
    if let Some(Setting { value, origin }) = &settings.coredump {
        setting("coredump", value.display().to_string(), origin);
    }
    let limits = &settings.limits;
    for (name, size) in [
        ("max-memory", &limits.max_memory),
        ("max-tensor", &limits.max_tensor),
        ("max-module-size", &limits.max_module_size),
        ("max-wasm-stack", &limits.max_wasm_stack),
        ("max-output", &limits.max_output),
        ("max-output-line", &limits.max_output_line),
        ("max-output-rate", &limits.max_output_rate),
    ] {
        setting(name, size_text(size.value), &size.origin);
    }
    setting("kernel-threads", limits.kernel_threads.value.to_string(), &limits.kernel_threads.origin);
    let variable_bytes = &limits.max_variable_bytes;
    setting("max-variable-bytes", variable_bytes.value.to_string(), &variable_bytes.origin);
    setting("max-handles", limits.max_handles.value.to_string(), &limits.max_handles.origin);
    setting("max-ops", limits.max_ops.value.to_string(), &limits.max_ops.origin);
    let fuel = limits.fuel.value.map_or_else(|| "off".to_owned(), |fuel| fuel.to_string());
    setting("fuel", fuel, &limits.fuel.origin);
    let cache = match &settings.cache.value {
        Cache::Off => "off".to_owned(),
        Cache::Dir(dir) => dir.display().to_string(),
    };
    add("cache-dir", cache, settings.cache.origin.describe(settings.cache.value.key()));
    fields
}

fn or_default(origin: Option<String>) -> String {
    origin.unwrap_or_else(|| "default".to_owned())
}

fn list<T: ToString>(items: &[T]) -> String {
    if items.is_empty() {
        return "none".to_owned();
    }
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
