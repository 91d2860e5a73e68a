//! Directories that a run needs: the one look at this machine that settings take before they are resolved.

use super::fault::Fault;
use super::settings::{Setting, Settings};

/// Checks that the directories that the guest shall see, and that of its core dumps, are there; what isn't becomes a fault.
pub fn check_directories(settings: &mut Settings) {
    for grant in &settings.dirs.value {
        let what = match std::fs::metadata(&grant.host) {
            Ok(metadata) if metadata.is_dir() => continue,
            Ok(_) => "is no directory".to_owned(),
            Err(error) => format!("can't be used: {error}"),
        };
        let what = format!("`{}` {what}", grant.host.display());
        settings.faults.push(Fault::new(settings.dirs.origin.place("dir"), what, "give a directory of this machine"));
    }
    if let Some(Setting { value: dir, origin }) = &settings.coredump
        && !dir.is_dir()
    {
        let what = format!("`{}` is no directory", dir.display());
        settings.faults.push(Fault::new(
            origin.place("coredump"),
            what,
            "make it, so that traps can leave their dumps there",
        ));
    }
}
