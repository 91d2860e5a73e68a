//! Which task this process is: `--task`, completed field by field by TF_CONFIG's `task`.

use super::fault::Fault;
use super::json;
use super::values::digits;
use crate::cluster::{ClusterSpec, Task, TaskType};
use crate::text::shown;
use serde_json::Value;

/// A task as far as one source names it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TaskPart {
    /// The task type.
    pub(super) job: Option<TaskType>,
    /// The index.
    pub(super) index: Option<u32>,
}

impl TaskPart {
    fn text(&self) -> String {
        match (self.job, self.index) {
            (Some(job), Some(index)) => format!("{job}:{index}"),
            (Some(job), None) => job.to_string(),
            (None, Some(index)) => format!("index {index}"),
            (None, None) => "no task".to_owned(),
        }
    }
}

/// Reads `TYPE[:INDEX]`.
///
/// # Errors
/// An unknown type, with the nearest one; an index that is no whole number.
pub(super) fn parse(place: &str, text: &str) -> Result<TaskPart, Fault> {
    let (name, index) = match text.split_once(':') {
        Some((name, index)) => (name, Some(index)),
        None => (text, None),
    };
    let job = job(place, name)?;
    let index = match index {
        None => None,
        Some(index) => Some(digits(index).ok_or_else(|| {
            let what = format!("`{}` has the index `{}`, which is no whole number from 0", shown(text), shown(index));
            Fault::new(place, what, "write TYPE:INDEX, as in `worker:0`")
        })?),
    };
    Ok(TaskPart { job: Some(job), index })
}

/// Reads the `task` of TF_CONFIG: an object with `type` and `index`, each of which may be missing.
///
/// # Source
/// `run_distribute_coordinator`, which takes numeric strings as indices too. Fractions, booleans and negative numbers,
/// which Python's int() takes, are refused.
pub(super) fn from_tf_config(place: &str, value: &Value, faults: &mut Vec<Fault>) -> TaskPart {
    let Some(fields) = value.as_object() else {
        let what = format!("is {}, not an object", json::kind(value));
        faults.push(Fault::new(place, what, "write {\"type\":\"worker\",\"index\":0}"));
        return TaskPart::default();
    };
    let mut part = TaskPart::default();
    match fields.get("type") {
        None => {}
        Some(Value::String(name)) => match job(&format!("{place}, type"), name) {
            Ok(job) => part.job = Some(job),
            Err(fault) => faults.push(fault),
        },
        // TensorFlow takes a number as a name; none is a task type.
        Some(Value::Number(number)) => match job(&format!("{place}, type"), &number.to_string()) {
            Ok(job) => part.job = Some(job),
            Err(fault) => faults.push(fault),
        },
        Some(other) => {
            let what = format!("is {}, not a task type", json::kind(other));
            faults.push(Fault::new(
                format!("{place}, type"),
                what,
                "write a string such as \"worker\", or leave it out",
            ));
        }
    }
    match fields.get("index").map(json::index) {
        None => {}
        Some(Ok(index)) => part.index = Some(index),
        Some(Err(what)) => faults.push(Fault::new(format!("{place}, index"), what, "write a number such as 0")),
    }
    part
}

fn job(place: &str, name: &str) -> Result<TaskType, Fault> {
    name.parse().map_err(|_| {
        if name.is_empty() {
            return Fault::new(place, "the task type is empty", "give worker, ps, chief, evaluator or client");
        }
        let what = format!("unknown task type `{}`", shown(name));
        Fault::new(place, what, json::unknown_job_mend(name, "choose another"))
    })
}

/// Joins what the flag and TF_CONFIG say; each is a place and a part.
///
/// # Errors
/// Both say the same field differently.
pub(super) fn join(flag: Option<(&str, TaskPart)>, tf_config: Option<(&str, TaskPart)>) -> Result<TaskPart, Fault> {
    let ((flag_place, flag), (tf_place, tf)) = match (flag, tf_config) {
        (Some(flag), Some(tf)) => (flag, tf),
        (one, other) => return Ok(one.or(other).map(|(_, part)| part).unwrap_or_default()),
    };
    let differ = |a: Option<u32>, b: Option<u32>| a.is_some() && b.is_some() && a != b;
    let jobs_differ = flag.job.is_some() && tf.job.is_some() && flag.job != tf.job;
    if jobs_differ || differ(flag.index, tf.index) {
        return Err(Fault::new(
            flag_place,
            format!("says `{}`, but {tf_place} says `{}`", flag.text(), tf.text()),
            "make them agree, or leave one of them out",
        ));
    }
    Ok(TaskPart { job: flag.job.or(tf.job), index: flag.index.or(tf.index) })
}

/// Fills in a missing index: that of the job's only task; 0 for a client and for an evaluator that is not listed.
///
/// # Errors
/// The job has several tasks.
pub(super) fn complete(place: &str, part: &TaskPart, cluster: &ClusterSpec) -> Result<Option<Task>, Fault> {
    let Some(job) = part.job else { return Ok(None) };
    if let Some(index) = part.index {
        return Ok(Some(Task::new(job, index)));
    }
    let mut tasks = cluster.tasks(job);
    match (tasks.next(), tasks.next()) {
        (Some(only), None) => Ok(Some(only)),
        // Whether the task may be missing from the cluster is for the plan to say.
        (None, _) => Ok(Some(Task::new(job, 0))),
        (Some(_), Some(_)) => {
            let what = format!("task `{job}` has no index, but the cluster has {} of them", cluster.num_tasks(job));
            Err(Fault::new(place, what, format!("say which, as in `{job}:0`")))
        }
    }
}
