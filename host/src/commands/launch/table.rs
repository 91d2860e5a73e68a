//! The closing table: task, how it ended, time, peak memory.

use super::TaskEnd;
use super::child::Child;
use super::supervise::{Ending, Supervisor};
use crate::coordinator::console::LineFormat;
use crate::exit::Exit;
use serde_json::json;
use std::time::Duration;

/// Makes the rows, in the order of the children.
pub(super) fn rows(supervisor: &Supervisor, children: &[Child]) -> Vec<TaskEnd> {
    let cause = supervisor.cause().map(|end| end.task);
    let row = |child: &Child| {
        let end = supervisor.ends().iter().find(|end| end.task == child.task);
        let used = child.ended();
        TaskEnd {
            task: child.task,
            ending: end.map(|end| end.ending),
            by_launcher: end.is_some_and(|end| end.by_launcher),
            is_cause: cause == Some(child.task),
            time: used.map_or(Duration::ZERO, |used| used.time),
            peak_memory_bytes: used.map_or(0, |used| used.peak_memory_bytes),
        }
    };
    children.iter().map(row).collect()
}

/// Says how a process ended.
pub(super) fn in_words(ending: Ending) -> String {
    let code = match ending {
        Ending::Signalled(0) => return "has gone".to_owned(),
        Ending::Signalled(signal) => return format!("ended by signal {signal}{}", signal_name(signal)),
        Ending::Exited(code) => code,
    };
    let words = match Exit::from_code(code) {
        Some(Exit::Done) => return "done".to_owned(),
        Some(Exit::WorkerError) => "failed in worker_fn",
        Some(Exit::Refused) => "refused to run",
        Some(Exit::Trap) => "trapped",
        Some(Exit::Limit) => "reached a limit",
        Some(Exit::Bug) | None => "failed by a bug in dchost",
        Some(Exit::Files) => "could not use its files",
        Some(Exit::Timeout) => "timed out",
        Some(Exit::Interrupted) => "was interrupted",
        Some(Exit::Terminated) => "was terminated",
        Some(Exit::Bind) => "could not bind",
        Some(Exit::Unreachable) => "could not reach its peers",
        Some(Exit::PeerFailed) => "lost a peer",
    };
    format!("{words} (exit code {code})")
}

fn signal_name(signal: i32) -> &'static str {
    match signal {
        2 => " (SIGINT)",
        6 => " (SIGABRT)",
        9 => " (SIGKILL)",
        11 => " (SIGSEGV)",
        15 => " (SIGTERM)",
        _ => "",
    }
}

/// Renders the rows as lines, or as one JSON object each.
pub(super) fn render(rows: &[TaskEnd], format: LineFormat) -> Vec<String> {
    if format == LineFormat::Json {
        return rows.iter().map(as_json).collect();
    }
    let mut cells = vec![["task", "how it ended", "time", "peak memory"].map(str::to_owned)];
    for row in rows {
        let mut words = row.ending.map_or_else(|| "still runs".to_owned(), in_words);
        if row.by_launcher {
            words = "ended by launch".to_owned();
        } else if row.is_cause {
            words.push_str(", first cause");
        }
        let time = format!("{:.1} s", row.time.as_secs_f64());
        let memory = format!("{:.1} MiB", row.peak_memory_bytes as f64 / f64::from(1 << 20));
        cells.push([row.task.to_string(), words, time, memory]);
    }
    let width = |column: usize| cells.iter().map(|row| row[column].len()).max().unwrap_or_default();
    let [task, words, time, memory] = [0, 1, 2, 3].map(width);
    let line =
        |row: &[String; 4]| format!("{:task$}  {:words$}  {:>time$}  {:>memory$}", row[0], row[1], row[2], row[3]);
    cells.iter().map(line).collect()
}

fn as_json(row: &TaskEnd) -> String {
    let (code, signal) = match row.ending {
        Some(Ending::Exited(code)) => (Some(code), None),
        Some(Ending::Signalled(signal)) => (None, Some(signal)),
        None => (None, None),
    };
    json!({
        "task": row.task.to_string(),
        "exit_code": code,
        "signal": signal,
        "ended_by_launch": row.by_launcher,
        "first_cause": row.is_cause,
        "seconds": row.time.as_secs_f64(),
        "peak_memory_bytes": row.peak_memory_bytes,
    })
    .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{Task, TaskType};
    use expect_test::expect;

    fn rows() -> Vec<TaskEnd> {
        let row = |job, ending, by_launcher, is_cause| TaskEnd {
            task: Task::new(job, 0),
            ending: Some(ending),
            by_launcher,
            is_cause,
            time: Duration::from_millis(12_345),
            peak_memory_bytes: 50 << 20,
        };
        vec![
            row(TaskType::Chief, Ending::Exited(0), false, false),
            row(TaskType::Worker, Ending::Exited(1), false, true),
            row(TaskType::Ps, Ending::Exited(143), true, false),
            row(TaskType::Evaluator, Ending::Signalled(9), false, false),
        ]
    }

    #[test]
    fn the_table_says_how_each_task_ended() {
        expect![[r#"
            task         how it ended                                      time  peak memory
            chief:0      done                                            12.3 s     50.0 MiB
            worker:0     failed in worker_fn (exit code 1), first cause  12.3 s     50.0 MiB
            ps:0         ended by launch                                 12.3 s     50.0 MiB
            evaluator:0  ended by signal 9 (SIGKILL)                     12.3 s     50.0 MiB
        "#]]
        .assert_eq(&(render(&rows(), LineFormat::Text).join("\n") + "\n"));
    }

    #[test]
    fn the_table_is_an_object_a_task_in_json() {
        expect![[r#"{"task":"worker:0","exit_code":1,"signal":null,"ended_by_launch":false,"first_cause":true,"seconds":12.345,"peak_memory_bytes":52428800}"#]]
        .assert_eq(&render(&rows(), LineFormat::Json)[1]);
    }
}
