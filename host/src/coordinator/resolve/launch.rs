//! What `dchost launch` refuses, and the launch line that a task without cluster is told.

use super::{Faults, Purpose, Resolver, Settings, describe};
use crate::attend::Mode;
use crate::cluster::{Task, TaskType};
use crate::text;

/// Checks what `dchost launch` can know before it has bound a port.
///
/// # Errors
/// Every fault that was found, those of reading first.
pub fn check_launch(settings: &Settings, client: bool) -> Result<(), Faults> {
    let origins = describe::Origins::default();
    let faults = settings.faults.clone();
    let mut resolver = Resolver { settings, purpose: Purpose::Run, faults, warnings: Vec::new(), origins };
    resolver.check_values();
    let stated = settings.mode.as_ref().map(|mode| mode.value);
    if client && stated == Some(Mode::IndependentWorker) {
        let mend = "leave out one of them: a client belongs to mode `split-client`";
        resolver.fault("`--client`", "does not fit mode `independent-worker`", mend);
    }
    if !client && stated != Some(Mode::SplitClient) {
        resolver.check_attempts_of_tasks();
    }
    if settings.module.is_none() {
        resolver.fault("`--module`", "is missing: every task but ps runs worker_fn", "give --module FILE");
    }
    if resolver.faults.is_empty() { Ok(()) } else { Err(Faults(resolver.faults)) }
}

impl Resolver<'_> {
    /// A command that runs a cluster with the task on this machine.
    pub(super) fn launch_line(&self, task: Task) -> String {
        let mut line = "dchost launch".to_owned();
        let workers = if task.job == TaskType::Worker { task.index.saturating_add(1) } else { 1 };
        line += &format!(" --workers {workers}");
        match task.job {
            TaskType::Chief => line += " --chief",
            TaskType::Evaluator => line += " --evaluator",
            TaskType::Ps => line += &format!(" --ps {}", task.index.saturating_add(1)),
            TaskType::Worker | TaskType::Client => {}
        }
        let module = self.settings.module.as_ref().map(|module| text::path(&module.value));
        line + " --module " + &module.map_or_else(|| "FILE".to_owned(), |module| shell_quoted(&module))
    }
}

/// Quotes a word for a POSIX shell where it needs it.
fn shell_quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-/+=:,@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}
