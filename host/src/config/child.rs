//! Settings as flags again, for the processes that `dchost launch` starts.

use crate::coordinator::resolve::values::{Timeout, WasmOption, digest_text, size_text};
use crate::coordinator::resolve::{Cache, Origin, Setting, Settings};
use std::ffi::{OsStr, OsString};
use std::time::Duration;

/// Writes what the tasks of a launched cluster share as flags of `dchost`: everything that somebody gave, wherever, and
/// the defaults that are launch's own. Without the task, the cluster, the
/// module, which not every task needs, and the guest's arguments.
pub(super) fn arguments(settings: &Settings) -> Vec<OsString> {
    let mut flags = Flags(Vec::new());
    let Settings { limits, .. } = settings;
    flags.given("--replication", &settings.replication, |replication| replication.as_str().to_owned());
    flags.switch("--no-cluster-barrier", &settings.no_cluster_barrier);
    flags.given("--end", &settings.end, |end| end.to_string());
    flags.add("--connect-timeout", duration(settings.connect_timeout.value));
    flags.given("--rejoin-timeout", &settings.rejoin_timeout, |&value| duration(value));
    flags.given("--evaluator-grace", &settings.evaluator_grace, |&value| duration(value));
    flags.given("--barrier-timeout", &settings.barrier_timeout, Timeout::to_string);
    flags.given("--timeout", &settings.timeout, Timeout::to_string);
    flags.given("--container", &settings.container, String::clone);
    flags.switch("--share-container", &settings.share_container);
    if let Some(dir) = &settings.summary_dir {
        flags.add("--summary-dir", dir.value.as_os_str());
    }
    for grant in &settings.dirs.value {
        let mut text = grant.host.clone().into_os_string();
        text.push(format!("::{}{}", grant.guest, if grant.read_only { ":ro" } else { "" }));
        flags.add("--dir", text);
    }
    for (grant, (name, value)) in settings.env.value.iter().zip(&settings.env_values) {
        // A value that the child inherits stays out of its command line, which others may read. What launch takes out
        // of the child's environment has to go there.
        let by_name = grant.value.is_none() && is_inherited(OsStr::new(name));
        flags.add("--env", if by_name { name.clone() } else { format!("{name}={value}") });
    }
    for grant in &settings.allow_net.value {
        flags.add("--allow-net", grant.to_string());
    }
    if let Some(digest) = &settings.digest {
        flags.add("--digest", digest_text(&digest.value));
    }
    flags.switch("--allow-precompiled", &settings.allow_precompiled);
    if let Some(dir) = &settings.coredump {
        let mut text = OsString::from("coredump=");
        text.push(&dir.value);
        flags.add("-D", text);
    }
    flags.given("--max-memory", &limits.max_memory, |&value| size_text(value));
    flags.given("--max-tensor", &limits.max_tensor, |&value| size_text(value));
    flags.given("--kernel-threads", &limits.kernel_threads, ToString::to_string);
    flags.given("--max-module-size", &limits.max_module_size, |&value| size_text(value));
    flags.given("--compile-timeout", &limits.compile_timeout, |&value| duration(value));
    flags.given("--max-variable-bytes", &limits.max_variable_bytes, ToString::to_string);
    flags.given("-W", &limits.cpu_timeout, |&value| WasmOption::CpuTimeout(value).to_string());
    flags.given("-W", &limits.fuel, |&value| WasmOption::Fuel(value).to_string());
    flags.given("-W", &limits.max_wasm_stack, |&value| WasmOption::MaxWasmStack(value).to_string());
    flags.given("-W", &limits.max_handles, |&value| WasmOption::MaxHandles(value).to_string());
    flags.given("-W", &limits.max_output, |&value| WasmOption::MaxOutput(value).to_string());
    flags.given("-W", &limits.max_output_line, |&value| WasmOption::MaxOutputLine(value).to_string());
    flags.given("-W", &limits.max_output_rate, |&value| WasmOption::MaxOutputRate(value).to_string());
    flags.given("-W", &limits.max_ops, |&value| WasmOption::MaxOps(value).to_string());
    flags.given("-W", &settings.unknown_imports_trap, |&value| WasmOption::UnknownImportsTrap(value).to_string());
    match &settings.cache.value {
        Cache::Off => flags.0.push("--no-cache".into()),
        Cache::Dir(dir) => flags.add("--cache-dir", dir.as_os_str()),
    }
    flags.0
}

/// Whether a task's process gets the variable: nothing that names a cluster, configures dchost or hands over sockets.
pub fn is_inherited(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    name != "TF_CONFIG" && !["DCHOST_", "LISTEN_"].iter().any(|prefix| name.starts_with(prefix))
}

struct Flags(Vec<OsString>);

impl Flags {
    /// Adds a flag and its value. Long flags are joined to it, so that a value may begin with a dash.
    fn add(&mut self, flag: &str, value: impl Into<OsString>) {
        let mut text = OsString::from(flag);
        if flag.starts_with("--") {
            text.push("=");
        }
        text.push(value.into());
        self.0.push(text);
    }

    fn given<T>(&mut self, flag: &str, setting: &Setting<T>, text: impl Fn(&T) -> String) {
        if setting.origin != Origin::Default {
            self.add(flag, text(&setting.value));
        }
    }

    fn switch(&mut self, flag: &str, setting: &Setting<bool>) {
        if setting.value {
            self.0.push(flag.into());
        }
    }
}

fn duration(value: Duration) -> String {
    humantime::format_duration(value).to_string()
}
