//! `dchost status`: how a running cluster is doing.

mod json;
mod text;

use crate::cli::{self, StatusFormat};
use crate::client::status::StatusError;
use crate::config::{self, Environment, StatusConfig};
use crate::coordinator::descriptors;
use crate::coordinator::resolve::{Fault, Faults, Target};
use crate::coordinator::survey::{Seen, Survey};
use crate::exit::Exit;
use crate::text::shown;
use console::Term;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, SystemTime};
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;

/// Why there is nothing to show.
#[derive(Debug, thiserror::Error)]
pub enum NoStatus {
    /// The server that was asked gave none.
    #[error("{}", no_answer(.target, .error, *.patience))]
    Server {
        /// Who was asked.
        target: Target,
        /// Why it gave none; the text has it before what may mend it.
        error: StatusError,
        /// How long it was asked.
        patience: Duration,
    },
    /// No task of the cluster gave one.
    #[error("none of the {tasks} tasks of the cluster answered; is the job running?")]
    Cluster {
        /// How many were asked.
        tasks: usize,
    },
}

impl NoStatus {
    /// The exit code of a process that ends so.
    pub fn exit(&self) -> Exit {
        match self {
            NoStatus::Server { error: StatusError::Refused(_), .. } => Exit::Refused,
            NoStatus::Server { error: StatusError::NotReached { .. } | StatusError::Foreign(_), .. }
            | NoStatus::Cluster { .. } => Exit::Unreachable,
        }
    }
}

/// Asks, and prints what is told to stdout, as text or as one JSON object; with `--watch` again and again.
///
/// # Errors
/// The settings are refused ([`Faults`]); [`NoStatus`]; stdout can't be written. The
/// JSON object then holds the `error`, as far as it can be written.
pub fn run(args: &cli::Status, environment: &Environment) -> anyhow::Result<Exit> {
    let result = config::status(args, environment).map_err(Into::into).and_then(|config| {
        for warning in &config.warnings {
            tracing::warn!("{warning}");
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let result = runtime.block_on(ask(args, config, &runtime));
        // A look-up of a name or a write that hangs ends with the process.
        runtime.shutdown_background();
        result
    });
    result.inspect_err(|error| {
        if args.format == StatusFormat::Json && error.downcast_ref::<NoStatus>().is_none() {
            // The error itself is told all the same.
            let _ = print(&json::line(SystemTime::now(), &[], Some(&format!("{error:#}"))));
        }
    })
}

async fn ask(args: &cli::Status, config: StatusConfig, runtime: &Runtime) -> anyhow::Result<Exit> {
    let StatusConfig { targets, container, connect_timeout, warnings: _ } = config;
    // A watch asks again anyway; where several are asked, one that isn't there must not hold up what the others tell.
    let again = args.watch.is_none() && !args.all;
    if targets.len() > 1 {
        descriptors::raise();
    }
    // Reading has checked the addresses; what it let pass and can't be dialled is a fault like any other.
    let survey = Survey::new(targets, &container, connect_timeout, again)
        .map_err(|error| Faults(vec![Fault::new("address", error.message, "give HOST:PORT")]))?;
    match args.watch {
        Some(interval) => watch(args, &survey, interval, runtime).await,
        None => once(args, &survey.take().await, connect_timeout),
    }
}

fn once(args: &cli::Status, seen: &[Seen], patience: Duration) -> anyhow::Result<Exit> {
    let failure = match seen {
        [Seen { target, outcome: Err(error) }] if !args.all => {
            Some(NoStatus::Server { target: target.clone(), error: error.clone(), patience })
        }
        seen if seen.iter().all(|seen| seen.outcome.is_err()) => Some(NoStatus::Cluster { tasks: seen.len() }),
        _ => None,
    };
    match (args.format, &failure) {
        (StatusFormat::Json, failure) => {
            let error = failure.as_ref().map(ToString::to_string);
            print(&json::line(SystemTime::now(), seen, error.as_deref()))?;
        }
        (StatusFormat::Text, Some(NoStatus::Server { .. })) => {}
        (StatusFormat::Text, _) => print(&text::text(seen, args.all))?,
    }
    failure.map_or(Ok(Exit::Done), |failure| Err(failure.into()))
}

/// Shows it until SIGINT, SIGTERM, or nobody reads any more.
async fn watch(args: &cli::Status, survey: &Survey, interval: Duration, runtime: &Runtime) -> anyhow::Result<Exit> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let shown = async {
        let terminal = args.format == StatusFormat::Text && io::stdout().is_terminal();
        let mut answered = None;
        let mut first = true;
        loop {
            let began = Instant::now();
            let seen = survey.take().await;
            if seen.iter().any(|seen| seen.outcome.is_ok()) {
                answered = Some(Instant::now());
            }
            let time = SystemTime::now();
            let document = match args.format {
                StatusFormat::Json => json::line(time, &seen, None),
                StatusFormat::Text => {
                    let clock = humantime::format_rfc3339_seconds(time);
                    let mut document = text::text(&seen, args.all);
                    if seen.iter().all(|seen| seen.outcome.is_err())
                        && let Some(answered) = answered
                    {
                        document += &format!("the last answer came {} ago\n", text::age(answered.elapsed()));
                    }
                    if terminal {
                        let every = humantime::format_duration(interval);
                        redrawn(&format!("{clock}, every {every}, Ctrl-C ends\n\n{document}"), first, terminal_size())
                    } else {
                        format!("{}--- {clock}\n{document}", if first { "" } else { "\n" })
                    }
                }
            };
            first = false;
            // On a thread of its own: a reader that has stopped must not keep signals from ending this.
            if !runtime.spawn_blocking(move || print_open(&document)).await?? {
                return Ok(Exit::Done);
            }
            tokio::time::sleep_until(began + interval).await;
        }
    };
    tokio::select! {
        shown = shown => shown,
        // It is how a watch ends.
        _ = interrupt.recv() => Ok(Exit::Done),
        _ = terminate.recv() => Ok(Exit::Terminated),
    }
}

/// Rows and columns of the terminal.
fn terminal_size() -> (usize, usize) {
    let (rows, columns) = Term::stdout().size();
    (usize::from(rows).max(2), usize::from(columns).max(1))
}

/// The text as it replaces the one before: as much as the terminal shows, each line's old rest wiped.
fn redrawn(text: &str, first: bool, (rows, columns): (usize, usize)) -> String {
    let lines: Vec<&str> = text.lines().collect();
    // A long line takes several rows. One row is left for the cursor, and one for what doesn't fit.
    let height = |line: &&str| line.chars().count().div_ceil(columns).max(1);
    let fits = lines.iter().map(height).sum::<usize>() < rows;
    let mut room = if fits { rows } else { rows.saturating_sub(2) };
    let mut drawn = if first { "\x1b[2J\x1b[H" } else { "\x1b[H" }.to_owned();
    let mut told = 0;
    for line in &lines {
        let Some(rest) = room.checked_sub(height(line)) else { break };
        room = rest;
        drawn.extend([line, "\x1b[K\n"]);
        told += 1;
    }
    if told < lines.len() {
        drawn += &format!("... {} more lines\x1b[K\n", lines.len() - told);
    }
    drawn + "\x1b[J"
}

/// Says why a server gave no status, and what may mend it.
fn no_answer(target: &Target, error: &StatusError, patience: Duration) -> String {
    let server = server_name(target);
    let patience = humantime::format_duration(patience);
    match error {
        StatusError::NotReached { why, listens: false } => format!(
            "{server} was not reached within {patience}: {why}; is it running, and is that its address? See --connect-timeout"
        ),
        StatusError::NotReached { why, listens: true } | StatusError::Foreign(why) => {
            format!("{server} gives no status: {why}; give the address of a dchost task")
        }
        StatusError::Refused(_) => format!("{server} gives no status: {error}"),
    }
}

/// A server that was asked: ``worker:0 at `a:2222` ``.
fn server_name(target: &Target) -> String {
    let address = shown(&target.address);
    target.task.map_or_else(|| format!("`{address}`"), |task| format!("{task} at `{address}`"))
}

fn print(text: &str) -> io::Result<()> {
    print_open(text).map(drop)
}

/// Writes to stdout; answers whether somebody still reads it.
fn print_open(text: &str) -> io::Result<bool> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(true),
        // The reader has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;
