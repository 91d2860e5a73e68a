//! How many files and sockets this process may have open.

use rustix::process::{Resource, getrlimit, setrlimit};

/// Raises the limit on open files (`ulimit -n`) to what the system allows this process, usually from 1024: each task of a
/// cluster keeps up to five connections. Processes started from here inherit it.
///
/// Where that fails all goes on with the limit as it is.
pub fn raise() {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return;
    }
    let before = limit.current;
    limit.current = limit.maximum;
    match setrlimit(Resource::Nofile, limit) {
        Ok(()) => tracing::debug!(?before, now = ?limit.maximum, "raised the limit on open files"),
        Err(error) => tracing::debug!(?before, "can't raise the limit on open files: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_becomes_the_hard_one() {
        let hard = getrlimit(Resource::Nofile).maximum;
        raise();
        let limit = getrlimit(Resource::Nofile);
        assert_eq!((limit.current, limit.maximum), (hard, hard));
    }
}
