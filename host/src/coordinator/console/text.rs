//! What a line looks like: escapes, levels, JSON objects.

use crate::handles::{Level, Origin};
use crate::text::is_harmful;
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use std::fmt::Write;
use std::time::SystemTime;

/// Replaces control characters and direction marks by visible escapes (`\u{1b}`), so that no output can drive a terminal or forge an event.
///
/// Tabs stay. With `keep_colors` the sequences that only set colours (`ESC [ digits m`) stay too.
pub fn escape_controls(text: &str, keep_colors: bool) -> Cow<'_, str> {
    if !text.contains(is_harmful) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let color = if keep_colors { color_sequence(rest) } else { None };
        if let Some(len) = color {
            escaped.push_str(&rest[..len]);
            rest = &rest[len..];
            continue;
        }
        if is_harmful(c) {
            write!(escaped, "\\u{{{:x}}}", u32::from(c)).expect("writing to a string cannot fail");
        } else {
            escaped.push(c);
        }
        rest = &rest[c.len_utf8()..];
    }
    Cow::Owned(escaped)
}

/// Bytes of the colour sequence that `text` starts with.
fn color_sequence(text: &str) -> Option<usize> {
    let inner = text.strip_prefix("\u{1b}[")?;
    let len = inner.find(|c: char| !c.is_ascii_digit() && c != ';')?;
    inner[len..].starts_with('m').then_some("\u{1b}[".len() + len + 1)
}

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
    Value::Object(line).to_string()
}

/// Makes a JSON line of a task's progress.
pub(super) fn json_progress(task: &str, done: u64, total: Option<u64>, note: &str) -> String {
    let mut line = begin(task, Level::Info);
    line.insert("progress".to_owned(), json!({"done": done, "total": total, "note": note}));
    Value::Object(line).to_string()
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
    fn control_characters_become_visible() {
        let check = |text: &str, plain: &str, colored: &str| {
            assert_eq!(escape_controls(text, false), plain);
            assert_eq!(escape_controls(text, true), colored);
        };
        check("plain\ttext é", "plain\ttext é", "plain\ttext é");
        check("\u{1b}]0;owned\u{7}", "\\u{1b}]0;owned\\u{7}", "\\u{1b}]0;owned\\u{7}");
        check("a\rb\u{9b}2J\u{7f}", "a\\u{d}b\\u{9b}2J\\u{7f}", "a\\u{d}b\\u{9b}2J\\u{7f}");
        check("\u{1b}[1;31mred\u{1b}[0m", "\\u{1b}[1;31mred\\u{1b}[0m", "\u{1b}[1;31mred\u{1b}[0m");
        check("\u{1b}[2J\u{1b}[", "\\u{1b}[2J\\u{1b}[", "\\u{1b}[2J\\u{1b}[");
    }

    #[test]
    fn a_task_is_put_into_a_json_line_only() {
        assert_eq!(with_task("ps:0", "{\"a\":1}"), "{\"task\":\"ps:0\",\"a\":1}");
        assert_eq!(with_task("", "{\"a\":1}"), "{\"a\":1}");
        assert_eq!(with_task("ps:0", "{}"), "{}");
        assert_eq!(with_task("ps:0", "text"), "text");
    }
}
