//! In-band events: how a launched child tells its launcher what isn't a line of output.

use super::Progress;
use serde_json::{Value, json};

/// The byte that starts an event's line (ASCII record separator, as in RFC 7464). No line of output starts with it,
/// because control characters are escaped before they reach the console.
pub const EVENT_BYTE: u8 = 0x1e;

/// Something that a child tells its launcher on standard error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// How far the child's run is.
    Progress(Progress),
}

impl Event {
    /// Encodes the event as one line, without its newline: [`EVENT_BYTE`] and a JSON object.
    pub fn encode(&self) -> Vec<u8> {
        let value = match self {
            Event::Progress(Progress { done, total, note }) => {
                json!({"progress": {"done": done, "total": total, "note": note}})
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
        Some(Event::Progress(Progress {
            done: progress.get("done")?.as_u64()?,
            total: progress.get("total").and_then(Value::as_u64),
            note: progress.get("note").and_then(Value::as_str).unwrap_or_default().to_owned(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_survives_its_line() {
        for total in [None, Some(7)] {
            let event = Event::Progress(Progress { done: 3, total, note: "a \"note\"\n".to_owned() });
            let line = event.encode();
            assert!(!line.contains(&b'\n'), "an event is one line");
            assert_eq!(Event::decode(&line), Some(event));
        }
    }

    #[test]
    fn what_is_no_event_is_none() {
        for line in
            [&b""[..], b"{}", b"\x1e", b"\x1e{", b"\x1e{}", b"\x1e{\"progress\":{}}", b"\x1e{\"end\":1}", b"\xff"]
        {
            assert_eq!(Event::decode(line), None, "{line:?}");
        }
    }
}
