//! What servers answered, for people.

use super::server_name;
use crate::barrier::display_name;
use crate::cluster::{Task, list_tasks};
use crate::commands::table::aligned;
use crate::coordinator::survey::Seen;
use crate::status::{JobStatus, Listed, ServerStatus, VariableStatus};
use crate::text::{shown, shown_within};
use crate::variables::whole_type;
use std::time::Duration;

/// Rows of one table: more is for programs, and for `--format json`.
const ROWS_MAX: usize = 1000;

/// Tasks that are named in one cell; it counts the rest.
const TASKS_MAX: usize = 16;

/// How much of a message is shown, in bytes: messages of a guest's own have up to 4 KiB.
const MESSAGE_BYTES_MAX: usize = 1000;

/// What stands where nothing is known.
const NONE: &str = "-";

/// Everything that the servers told. `together`: as one picture of a cluster.
pub(super) fn text(seen: &[Seen], together: bool) -> String {
    let answers = || seen.iter().filter_map(|seen| Some((seen, seen.outcome.as_ref().ok()?)));
    let mut parts = Vec::new();
    for seen in seen.iter().filter(|_| !together) {
        parts.push(match &seen.outcome {
            Ok(status) => heading(seen, status),
            Err(error) => format!("{} gives no status: {}\n", server_name(&seen.target), shown(&error.to_string())),
        });
    }
    for (_, status) in answers() {
        if let Some(job) = &status.job {
            if together {
                parts.push(attempt(status) + &self::job(job));
            }
            parts.push(tasks(status));
            parts.push(barriers(status));
        }
    }
    if together {
        parts.push(servers(seen));
    }
    let held: Vec<_> = answers().map(|(seen, status)| (server_cell(seen, status), status)).collect();
    parts.push(variables(&held, together));
    parts.push(sessions(&held, together));
    if held.is_empty() {
        parts.truncate(1);
    }
    parts.join("\n")
}

/// How long ago, or how long: `4.2s`, `12m 5s`, `3h 20m`, `2d 4h`.
pub(super) fn age(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..10 => format!("{:.1}s", duration.as_secs_f64()),
        10..60 => format!("{seconds}s"),
        60..3600 => format!("{}m {}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h {}m", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{}d {}h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

/// Bytes in the unit that a person reads best.
fn size(bytes: u64) -> String {
    let units = [(1_u64 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.into_iter().find(|&(unit, _)| bytes >= unit) {
        // A fraction for people: precision beyond f64 doesn't matter here.
        #[expect(clippy::cast_precision_loss)]
        Some((unit, name)) => format!("{:.1} {name}", bytes as f64 / unit as f64),
        None => format!("{bytes} B"),
    }
}

fn heading(seen: &Seen, status: &ServerStatus) -> String {
    let address = shown(&seen.target.address);
    let name = status.task.map_or_else(|| "a server".to_owned(), |task| task.to_string());
    let mut text = format!("{name} at {address}, incarnation {}", status.incarnation);
    if !status.version.is_empty() {
        text += &format!(", dchost {}", shown(&status.version));
    }
    if let Some(asked) = seen.target.task.filter(|&asked| status.task.is_some_and(|task| task != asked)) {
        text += &format!("; the cluster lists {asked} there");
    }
    format!("{text}\n{}{}", attempt(status), status.job.as_ref().map(job).unwrap_or_default())
}

fn attempt(status: &ServerStatus) -> String {
    match status.attempt {
        Some(attempt) => format!("attempt {} of leader {}\n", attempt.number, attempt.leader),
        None => "no attempt has been heard of\n".to_owned(),
    }
}

fn job(job: &JobStatus) -> String {
    let Some(mode) = job.mode else { return "it leads no job: it runs without --module\n".to_owned() };
    let mut text = format!("{}, {}; ", mode.as_str(), job.replication.as_str());
    text += match (job.training_ended, &job.cause) {
        (false, _) => "training goes on",
        (true, None) => "training has ended well",
        (true, Some(_)) => "training has failed",
    };
    if let Some(cause) = &job.cause {
        let message = shown_within(&cause.message, MESSAGE_BYTES_MAX);
        text += &format!(": {} with exit code {}: {message}", cause.task, cause.exit_code);
    }
    text + "\n"
}

fn tasks(status: &ServerStatus) -> String {
    let header = ["tasks", "state", "since", "last seen", "incarnation", "address", "message"];
    let rows = status.tasks.rows.iter().map(|row| {
        let state = row
            .exit_code
            .map_or_else(|| row.state.as_str().to_owned(), |code| format!("{}, exit code {code}", row.state.as_str()));
        vec![
            row.task.to_string(),
            state,
            age(row.since),
            row.last_seen.map_or_else(|| NONE.to_owned(), |seen| format!("{} ago", age(seen))),
            row.incarnation.map_or_else(|| NONE.to_owned(), |incarnation| incarnation.to_string()),
            row.address.as_deref().map_or_else(|| NONE.to_owned(), shown),
            shown_within(&row.message, MESSAGE_BYTES_MAX),
        ]
    });
    table(&header, rows, &[More::of(&status.tasks)])
}

fn barriers(status: &ServerStatus) -> String {
    let header = ["barriers", "container", "generation", "since", "arrived", "missing"];
    let rows = status.barriers.rows.iter().map(|row| {
        vec![
            if row.name.is_empty() { display_name("") } else { shown(&row.name) },
            shown(&row.container),
            row.generation.to_string(),
            age(row.since),
            some_tasks(&row.arrived),
            some_tasks(&row.missing),
        ]
    });
    table(&header, rows, &[More::of(&status.barriers)])
}

fn servers(seen: &[Seen]) -> String {
    let header = ["servers", "address", "incarnation", "dchost", "variables", "bytes", "sessions", "note"];
    let rows = seen.iter().map(|one| {
        let asked = one.target.task.map_or_else(|| NONE.to_owned(), |task| task.to_string());
        let address = shown(&one.target.address);
        match &one.outcome {
            Ok(status) => {
                let note = status.task.filter(|&task| one.target.task.is_some_and(|asked| asked != task));
                vec![
                    asked,
                    address,
                    status.incarnation.to_string(),
                    if status.version.is_empty() { NONE.to_owned() } else { shown(&status.version) },
                    count(&status.variables).to_string(),
                    size(status.variable_bytes),
                    count(&status.sessions).to_string(),
                    note.map(|task| format!("{task} answers there")).unwrap_or_default(),
                ]
            }
            Err(error) => {
                let mut row = vec![asked, address];
                row.resize(header.len() - 1, NONE.to_owned());
                row.push(format!("no answer: {}", shown(&error.to_string())));
                row
            }
        }
    });
    table(&header, rows, &[])
}

/// The variable's type, and which part of it is there.
fn variable_type(row: &VariableStatus) -> String {
    match &row.shard {
        None => row.ty.to_string(),
        Some(shard) => format!("{}, {shard}", whole_type(&row.ty, Some(shard))),
    }
}

fn variables(held: &[(String, &ServerStatus)], together: bool) -> String {
    let mut header = vec!["variables", "on", "container", "type", "size", "bytes", "version"];
    // Only where an optimizer keeps something.
    let with_slots = held.iter().any(|(_, status)| status.variables.rows.iter().any(|row| row.slot_bytes > 0));
    header.extend(with_slots.then_some("slots"));
    let rows = held.iter().flat_map(|(server, status)| {
        status.variables.rows.iter().map(move |row| {
            let mut cells = vec![
                shown(&row.name),
                server.clone(),
                shown(&row.container),
                variable_type(row),
                size(row.bytes),
                row.bytes.to_string(),
                version(row),
            ];
            cells.extend(with_slots.then(|| if row.slot_bytes > 0 { size(row.slot_bytes) } else { NONE.to_owned() }));
            cells
        })
    });
    let more: Vec<_> = held.iter().map(|(server, status)| More::of(&status.variables).on(server, together)).collect();
    let mut text = on_table(&header, rows, &more, together);
    let sum = held.iter().fold(0_u64, |sum, (_, status)| sum.saturating_add(status.variable_bytes));
    if held.iter().any(|(_, status)| count(&status.variables) > 0) {
        let max = held.iter().filter_map(|(_, status)| status.variable_bytes_max).reduce(u64::saturating_add);
        let max = max.map(|max| format!(", at most {}", size(max))).unwrap_or_default();
        let exact = if sum < 1024 { String::new() } else { format!(" ({sum} bytes)") };
        text += &format!("  {} in all{exact}{max}\n", size(sum));
    }
    text
}

/// The version, and what didn't become a part of it as it was meant to, if anything.
fn version(row: &VariableStatus) -> String {
    let count = |count: u64, what: &str| match count {
        0 => String::new(),
        1 => format!(", 1 {what}"),
        count => format!(", {count} {what}s"),
    };
    let mut text = row.version.to_string();
    text += &count(row.partial_writes, "partial write");
    text += &count(row.stale_gradients, "stale gradient");
    text + &count(row.dropped_gradients, "dropped gradient")
}

fn sessions(held: &[(String, &ServerStatus)], together: bool) -> String {
    let header = ["sessions", "on", "container", "run", "since", "stream", "op instances"];
    let rows = held.iter().flat_map(|(server, status)| {
        status.sessions.rows.iter().map(move |row| {
            vec![
                row.task.map_or_else(|| "client".to_owned(), |task| task.to_string()),
                server.clone(),
                shown(&row.container),
                row.run_id.to_string(),
                age(row.since),
                row.attached.map_or(NONE, |attached| if attached { "open" } else { "broken" }).to_owned(),
                row.op_instances.to_string(),
            ]
        })
    });
    let more: Vec<_> = held.iter().map(|(server, status)| More::of(&status.sessions).on(server, together)).collect();
    on_table(&header, rows, &more, together)
}

/// The server of a row where several are shown together.
fn server_cell(seen: &Seen, status: &ServerStatus) -> String {
    seen.target.task.or(status.task).map_or_else(|| NONE.to_owned(), |task| task.to_string())
}

fn count<T>(listed: &Listed<T>) -> u64 {
    (listed.rows.len() as u64).saturating_add(listed.left_out).saturating_add(listed.strange)
}

fn some_tasks(tasks: &[Task]) -> String {
    let named = list_tasks(tasks.iter().take(TASKS_MAX));
    match tasks.len().checked_sub(TASKS_MAX) {
        None | Some(0) if tasks.is_empty() => NONE.to_owned(),
        None | Some(0) => named,
        Some(more) => format!("{named} and {more} more"),
    }
}

/// Rows that a server has and a table lacks.
struct More {
    left_out: u64,
    strange: u64,
    on: String,
}

impl More {
    fn of<T>(listed: &Listed<T>) -> Self {
        More { left_out: listed.left_out, strange: listed.strange, on: String::new() }
    }

    fn on(mut self, server: &str, together: bool) -> Self {
        if together {
            self.on = format!(" on {server}");
        }
        self
    }
}

/// A table whose second column, the server, is only shown where several are.
fn on_table(header: &[&str], rows: impl Iterator<Item = Vec<String>>, more: &[More], together: bool) -> String {
    if together {
        return table(header, rows, more);
    }
    let header: Vec<_> = header.iter().enumerate().filter(|(column, _)| *column != 1).map(|(_, cell)| *cell).collect();
    let without = |mut row: Vec<String>| {
        row.remove(1);
        row
    };
    table(&header, rows.map(without), more)
}

fn table(header: &[&str], rows: impl Iterator<Item = Vec<String>>, more: &[More]) -> String {
    let header: Vec<String> = header.iter().map(|&cell| cell.to_owned()).collect();
    let mut table: Vec<Vec<String>> = Vec::new();
    let mut beyond = 0_u64;
    for row in rows {
        if table.len() < ROWS_MAX { table.push(row) } else { beyond += 1 }
    }
    let mut text = if table.is_empty() {
        format!("{}  none\n", header[0])
    } else {
        table.insert(0, header);
        aligned(&table)
    };
    if beyond > 0 {
        text += &format!("  and {beyond} more, see --format json\n");
    }
    for More { left_out, strange, on } in more {
        if *left_out > 0 {
            text += &format!("  and {left_out} more{on}, for which the answer had no room\n");
        }
        if *strange > 0 {
            text += &format!("  and {strange}{on} that this dchost can't make sense of\n");
        }
    }
    text
}
