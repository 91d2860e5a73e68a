//! JSON as people write it: where it breaks, and the cluster and task in it.

mod unique;

use super::address::{self, Address};
use super::fault::Fault;
use crate::cluster::{ClusterSpec, Task, TaskType};
use crate::text::{LIKENESS_MIN, nearest, shown, shown_within};
use serde_json::{Map, Value};

/// How much of the text around a syntax error is shown, in characters.
const EXCERPT_CHARS: usize = 24;

/// How much of a value that is no address, index or name is shown, in bytes.
const VALUE_BYTES_MAX: usize = 60;

/// Parses JSON.
///
/// # Errors
/// Where the text breaks and what stands there; single quotes get a hint of their own. Keys that an object has twice: one
/// of them would be lost without a word.
pub(super) fn parse(place: &str, text: &str) -> Result<Value, Fault> {
    let (value, duplicates) = unique::parse(text).map_err(|error| {
        if text.trim().is_empty() {
            return Fault::new(place, "is empty, which is no JSON", "give a JSON object, or leave it out altogether");
        }
        let line = text.lines().nth(error.line().saturating_sub(1)).unwrap_or_default();
        // The column counts bytes; the text before it may be cut anywhere.
        let before = String::from_utf8_lossy(&line.as_bytes()[..error.column().saturating_sub(1).min(line.len())]);
        let at = before.chars().count();
        let near: String = line.chars().skip(at.saturating_sub(EXCERPT_CHARS / 2)).take(EXCERPT_CHARS).collect();
        let quote = line.chars().nth(at) == Some('\'');
        let what = error.to_string();
        let reason = what.split(" at line ").next().unwrap_or_default();
        let (line, column) = (error.line(), at + 1);
        let what = format!("is no JSON: {reason} at line {line} column {column}, near `{}`", shown(&near));
        let mend =
            if quote { "JSON needs double quotes, as in {\"worker\":[\"a:2222\"]}" } else { "give a JSON object" };
        Fault::new(place, what, mend)
    })?;
    match duplicates.text() {
        None => Ok(value),
        Some(keys) => Err(Fault::new(
            place,
            format!("has keys twice: {keys}"),
            "keep one of each; join what both say where both count",
        )),
    }
}

/// A cluster as far as it could be read.
pub(super) struct Cluster {
    /// The tasks that are well-formed.
    pub(super) spec: ClusterSpec,
    /// Whether every entry is: what is missing in `spec` isn't there.
    pub(super) whole: bool,
}

/// What is taken for the address of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Addresses {
    /// What can be dialled, and together with the others: what a run needs.
    Reachable,
    /// Any text but the empty one.
    Any,
}

/// Whether a cluster value counts as not given.
pub(super) fn is_empty(value: &Value) -> bool {
    value.is_null() || value.as_object().is_some_and(Map::is_empty)
}

/// Reads a cluster: an object of job names to lists, or to maps from index to address.
///
/// # Source
/// `ClusterSpec` of TensorFlow's `server_lib.py`; string indices are read as its later versions do.
pub(super) fn cluster(place: &str, value: &Value, accepted: Addresses, faults: &mut Vec<Fault>) -> Cluster {
    let before = faults.len();
    let (spec, addresses) = (ClusterSpec::new(), Vec::new());
    let mut reader = ClusterReader { place, accepted, spec, addresses, tasks_count: 0, faults };
    match value.as_object() {
        Some(jobs) => jobs.iter().for_each(|(name, tasks)| reader.job(name, tasks)),
        None => reader.faults.push(Fault::new(
            place,
            format!("is {}, not an object of jobs", kind(value)),
            "write {\"worker\":[\"a:2222\"]}",
        )),
    }
    let ClusterReader { spec, addresses, tasks_count, faults, .. } = reader;
    for (job, acts) in [(TaskType::Chief, "the chief"), (TaskType::Evaluator, "the evaluator")] {
        if spec.num_tasks(job) > 1 {
            let tasks: Vec<_> = spec.tasks(job).collect();
            let what = format!("lists {} tasks ({})", tasks.len(), crate::cluster::list_tasks(&tasks));
            faults.push(Fault::new(format!("{place}, job `{job}`"), what, format!("only one can be {acts}")));
        }
    }
    address::check_together(place, &addresses, tasks_count, faults);
    let whole = faults.len() == before;
    Cluster { spec, whole }
}

struct ClusterReader<'a> {
    place: &'a str,
    accepted: Addresses,
    spec: ClusterSpec,
    addresses: Vec<(Task, Address)>,
    tasks_count: usize,
    faults: &'a mut Vec<Fault>,
}

impl ClusterReader<'_> {
    fn fault(&mut self, entry: &str, what: impl Into<String>, mend: impl Into<String>) {
        self.faults.push(Fault::new(format!("{}, {entry}", self.place), what, mend));
    }

    fn job(&mut self, name: &str, tasks: &Value) {
        let entry = format!("job `{}`", shown(name));
        let job = match name.parse::<TaskType>() {
            Ok(TaskType::Client) => {
                self.fault(&entry, "is listed, but a client has no place in the cluster", "leave it out");
                return;
            }
            Ok(job) => Some(job),
            Err(_) => {
                self.fault(&entry, "is unknown", unknown_job_mend(name, "rename the job"));
                None
            }
        };
        match tasks {
            Value::Array(tasks) => {
                if let Some(job) = job {
                    self.spec.insert_job(job);
                }
                for (index, address) in (0..).zip(tasks) {
                    self.task(job, name, index, address);
                }
            }
            Value::Object(tasks) => {
                if let Some(job) = job {
                    self.spec.insert_job(job);
                }
                for (key, address) in tasks {
                    match key.trim().parse::<u32>() {
                        Ok(index) if job.is_some_and(|job| self.spec.contains(Task::new(job, index))) => {
                            self.fault(&entry, format!("has index {index} twice"), "give each task its own index");
                        }
                        Ok(index) => self.task(job, name, index, address),
                        Err(_) => {
                            let what = format!("has the index `{}`, which is no whole number from 0", shown(key));
                            self.fault(&entry, what, "write {\"0\":\"a:2222\"}");
                        }
                    }
                }
            }
            other => {
                let what = format!("is {}, not a list of addresses or a map from index to address", kind(other));
                self.fault(&entry, what, format!("write {{\"{}\":[\"a:2222\"]}}", shown(name)));
            }
        }
    }

    fn task(&mut self, job: Option<TaskType>, name: &str, index: u32, address: &Value) {
        self.tasks_count += 1;
        let entry = format!("`{}:{index}`", shown(name));
        let Some(text) = address.as_str() else {
            self.fault(&entry, format!("is {}, not an address", kind(address)), "write \"a:2222\"");
            return;
        };
        if self.accepted == Addresses::Any && !text.is_empty() {
            if let Some(job) = job {
                self.spec.insert(Task::new(job, index), text);
            }
            return;
        }
        match address::parse(text) {
            Ok(parsed) => {
                if let Some(task) = job.map(|job| Task::new(job, index)) {
                    self.spec.insert(task, text);
                    self.addresses.push((task, parsed));
                }
            }
            Err((what, mend)) => self.fault(&entry, what, mend),
        }
    }
}

/// How to mend an unknown job or task type.
pub(super) fn unknown_job_mend(name: &str, verb: &str) -> String {
    if name == "master" {
        return "`master` is the old name of `chief`: rename it to `chief`".to_owned();
    }
    let known = ["chief", "worker", "ps", "evaluator"];
    match nearest(name, known, LIKENESS_MIN) {
        Some(near) => format!("did you mean `{near}`? Known are {}", known.join(", ")),
        None => format!("{verb}: known are {}", known.join(", ")),
    }
}

/// Reads a task index: a whole number from 0, also as a string or with a fraction of zero.
///
/// # Errors
/// What it is instead.
pub(super) fn index(value: &Value) -> Result<u32, String> {
    let number = match value {
        Value::Number(number) => number.as_u64().or_else(|| {
            // 1.0 is integral; the bound keeps the conversion exact.
            number.as_f64().filter(|n| n.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(n)).map(|n| n as u64)
        }),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    };
    number
        .and_then(|number| u32::try_from(number).ok())
        .ok_or_else(|| format!("index {} is no whole number from 0", shown_within(&value.to_string(), VALUE_BYTES_MAX)))
}

/// What kind of JSON value it is, with the value where it is short: ``the string `x` ``.
pub(super) fn kind(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(_) => format!("the boolean `{value}`"),
        Value::Number(_) => format!("the number `{value}`"),
        Value::String(text) => format!("the string `{}`", shown_within(text, VALUE_BYTES_MAX)),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}
