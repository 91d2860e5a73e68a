//! In-band events: how a launched child tells its launcher what isn't a line of output.

use super::Progress;
use crate::cluster::Task;
use serde_json::{Value, json};

/// The byte that starts an event's line (ASCII record separator, as in RFC 7464). No line of output starts with it,
/// because control characters are escaped before they reach the console.
pub const EVENT_BYTE: u8 = 0x1e;

/// Something that a child tells its launcher on standard error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// How far a run of the child is. A split client has several; none: its only one.
    Progress(Option<Task>, Progress),
}

impl Event {
    /// Encodes the event as one line, without its newline: [`EVENT_BYTE`] and a JSON object.
    pub fn encode(&self) -> Vec<u8> {
        let value = match self {
            Event::Progress(None, Progress { done, total, note }) => {
                json!({"progress": {"done": done, "total": total, "note": note}})
            }
            Event::Progress(Some(task), Progress { done, total, note }) => {
                json!({"progress": {"task": task.to_string(), "done": done, "total": total, "note": note}})
            }
        };
        let mut line = vec![EVENT_BYTE];
        line.extend_from_slice(value.to_string().as_bytes());
        line
    }

    /// Decodes a line without its newline; none where it is no event, or one of a newer dchost.
    pub fn decode(line: &[u8]) -> Option<Event> {
        let (&EVENT_BYTE, json) = line.split_first()? else { return None };
        let value: Value = serde_json::from_slice(json).ok()?;
        let progress = value.get("progress")?;
        let task = match progress.get("task") {
            None => None,
            Some(task) => Some(as_task(task.as_str()?)?),
        };
        let progress = Progress {
            done: progress.get("done")?.as_u64()?,
            total: progress.get("total").and_then(Value::as_u64),
            note: progress.get("note").and_then(Value::as_str).unwrap_or_default().to_owned(),
        };
        Some(Event::Progress(task, progress))
    }
}

/// Reads `worker:1`.
fn as_task(text: &str) -> Option<Task> {
    let (job, index) = text.split_once(':')?;
    Some(Task::new(job.parse().ok()?, index.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::TaskType;

    #[test]
    fn an_event_survives_its_line() {
        for (task, total) in [(None, None), (None, Some(7)), (Some(Task::new(TaskType::Worker, 1)), Some(7))] {
            let event = Event::Progress(task, Progress { done: 3, total, note: "a \"note\"\n".to_owned() });
            let line = event.encode();
            assert!(!line.contains(&b'\n'), "an event is one line");
            assert_eq!(Event::decode(&line), Some(event));
        }
    }

    #[test]
    fn what_is_no_event_is_none() {
        for line in [
            &b""[..],
            b"{}",
            b"\x1e",
            b"\x1e{",
            b"\x1e{}",
            b"\x1e{\"progress\":{}}",
            b"\x1e{\"end\":1}",
            b"\xff",
            b"\x1e{\"progress\":{\"task\":\"x\",\"done\":1}}",
        ] {
            assert_eq!(Event::decode(line), None, "{line:?}");
        }
    }
}
