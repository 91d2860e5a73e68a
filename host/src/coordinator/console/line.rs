//! What a line looks like: levels, JSON objects.

use crate::handles::{Level, Origin};
use crate::text::escaped_json;
use serde_json::{Map, Value, json};
use std::time::SystemTime;

/// The level as log lines spell it.
pub(super) fn level_name(level: Level) -> &'static str {
    match level {
        Level::Trace => "TRACE",
        Level::Debug => "DEBUG",
        Level::Info => "INFO",
        Level::Warn => "WARN",
        Level::Error => "ERROR",
    }
}

/// Makes a JSON line (without newline) of a text, in the field order and spelling of tracing-subscriber's JSON lines.
/// Without an origin it is dchost itself that speaks.
pub fn json_line(task: &str, level: Level, origin: Option<Origin>, message: &str) -> String {
    let mut line = begin(task, level);
    let origin = origin.map(|origin| match origin {
        Origin::Stdout => "stdout",
        Origin::Stderr => "stderr",
        Origin::Log(_) => "log",
    });
    if let Some(origin) = origin {
        line.insert("origin".to_owned(), json!(origin));
    }
    line.insert("message".to_owned(), json!(message));
    escaped_json(&Value::Object(line).to_string()).into_owned()
}

/// Makes a JSON line of a task's progress.
pub(super) fn json_progress(task: &str, done: u64, total: Option<u64>, note: &str) -> String {
    let mut line = begin(task, Level::Info);
    line.insert("progress".to_owned(), json!({"done": done, "total": total, "note": note}));
    escaped_json(&Value::Object(line).to_string()).into_owned()
}

fn begin(task: &str, level: Level) -> Map<String, Value> {
    let mut line = Map::new();
    line.insert("timestamp".to_owned(), json!(humantime::format_rfc3339_micros(SystemTime::now()).to_string()));
    line.insert("level".to_owned(), json!(level_name(level)));
    if !task.is_empty() {
        line.insert("task".to_owned(), json!(task));
    }
    line
}

/// Puts the task into a JSON log line of tracing, which doesn't know it.
pub(super) fn with_task(task: &str, line: &str) -> String {
    match line.strip_prefix('{') {
        Some(rest) if !task.is_empty() && rest != "}" => format!("{{\"task\":{},{rest}", json!(task)),
        _ => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_lines_hold_nothing_harmful_and_all_that_was_said() {
        let said = "a\u{1b}[2J\u{9b}b\u{202e}\n";
        let lines = [json_line("ps:0", Level::Info, None, said), json_progress("ps:0", 1, None, said)];
        for (line, message) in lines.iter().zip(["/message", "/progress/note"]) {
            assert!(!line.contains(crate::text::is_harmful), "{line:?}");
            let read: Value = serde_json::from_str(line).expect("a line is JSON");
            assert_eq!(read.pointer(message), Some(&json!(said)));
        }
    }

    #[test]
    fn a_task_is_put_into_a_json_line_only() {
        assert_eq!(with_task("ps:0", "{\"a\":1}"), "{\"task\":\"ps:0\",\"a\":1}");
        assert_eq!(with_task("", "{\"a\":1}"), "{\"a\":1}");
        assert_eq!(with_task("ps:0", "{}"), "{}");
        assert_eq!(with_task("ps:0", "text"), "text");
    }
}
