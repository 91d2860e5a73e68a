//! Whom `dchost status` asks.

use super::{Fault, Faults, Purpose, Resolver, Settings, address, describe, json, task};
use crate::cluster::{ClusterSpec, Task};
use crate::coordinator::plan::jobs_text;
use crate::text::shown;

/// Which server of a cluster is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// The one at this address, whatever cluster it is in.
    Address(String),
    /// The cluster's leader.
    Leader,
    /// Another task, as `--task` names it.
    Task(String),
    /// Every task.
    All,
}

/// A server that is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The task that the cluster lists there; none for an address.
    pub task: Option<Task>,
    /// `host:port`.
    pub address: String,
}

/// Finds the servers that are asked: at least one.
///
/// Of the settings count cluster, TF_CONFIG and container. The task of TF_CONFIG or of a variable doesn't: it says who a
/// process is, and not whom it asks.
///
/// # Errors
/// Every fault that was found, those of reading first.
pub fn resolve_status(settings: &Settings, asked: &Asked) -> Result<Vec<Target>, Faults> {
    let origins = describe::Origins::default();
    let faults = settings.faults.clone();
    let mut resolver = Resolver { settings, purpose: Purpose::Plan, faults, warnings: Vec::new(), origins };
    resolver.check_values();
    let targets = resolver.targets(asked);
    match targets {
        Some(targets) if resolver.faults.is_empty() => Ok(targets),
        _ => Err(Faults(resolver.faults)),
    }
}

impl Resolver<'_> {
    fn targets(&mut self, asked: &Asked) -> Option<Vec<Target>> {
        if let Asked::Address(text) = asked {
            let address = self.asked_address(text)?;
            return Some(vec![Target { task: None, address }]);
        }
        let unreadable = !self.faults.is_empty();
        let before = self.faults.len();
        let tf_config = self.tf_config();
        let Some(chosen) = self.choose_cluster(tf_config.as_ref()) else {
            // Where the cluster may be what couldn't be read, its absence would mislead.
            if !unreadable && self.faults.len() == before {
                let mend = "give HOST:PORT of a task, or the cluster by --cluster, TF_CONFIG or --config";
                self.fault("ADDR", "is missing, and there is no cluster whose leader could be asked", mend);
            }
            return None;
        };
        let cluster = json::cluster(&chosen.place, &chosen.value, json::Addresses::Reachable, &mut self.faults);
        if !cluster.whole {
            return None;
        }
        let cluster = cluster.spec;
        match asked {
            Asked::Task(text) => self.asked_task(text, &cluster).map(|target| vec![target]),
            Asked::All => {
                let all: Vec<_> = cluster.iter().map(|(task, _)| target(task, &cluster)).collect();
                if all.is_empty() {
                    self.fault(chosen.place, "lists no task", "list those that run");
                    return None;
                }
                Some(all)
            }
            Asked::Leader | Asked::Address(_) => {
                let leader = cluster.leader();
                if leader.is_none() {
                    let what = format!("has neither chief:0 nor worker:0 among {}, so no leader", jobs_text(&cluster));
                    self.fault(chosen.place, what, "choose a task with --task, or ask --all");
                }
                leader.map(|leader| vec![target(leader, &cluster)])
            }
        }
    }

    fn asked_address(&mut self, text: &str) -> Option<String> {
        let bare = text.strip_prefix("grpc://").unwrap_or(text);
        let place = "ADDR";
        if bare.contains("://") {
            let what = format!("`{}` has a scheme that dchost doesn't speak", shown(text));
            self.fault(place, what, "give HOST:PORT or grpc://HOST:PORT");
            return None;
        }
        match address::parse(bare) {
            Ok(address) if address.port == 0 => {
                self.fault(place, format!("`{}` has port 0, which nobody listens on", shown(text)), "give HOST:PORT");
                None
            }
            Ok(_) => Some(bare.to_owned()),
            Err((what, mend)) => {
                let interval = bare.starts_with(|c: char| c.is_ascii_digit()) && super::values::duration(bare).is_ok();
                let mend = if interval { format!("{mend}; an interval is --watch={bare}") } else { mend.to_owned() };
                self.fault(place, what, mend);
                None
            }
        }
    }

    fn asked_task(&mut self, text: &str, cluster: &ClusterSpec) -> Option<Target> {
        let place = "`--task`";
        let part = task::parse(place, text);
        let found = part.and_then(|part| task::complete(place, &part, cluster));
        let found = found.map_err(|fault| self.faults.push(fault)).ok()??;
        if !cluster.contains(found) {
            let what = format!("`{found}` is not in the cluster, which has {}", jobs_text(cluster));
            self.faults.push(Fault::new(place, what, "choose one of them"));
            return None;
        }
        Some(target(found, cluster))
    }
}

fn target(task: Task, cluster: &ClusterSpec) -> Target {
    Target { task: Some(task), address: cluster.address(task).unwrap_or_default().to_owned() }
}
