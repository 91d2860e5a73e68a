//! What a child of `dchost launch` does about its launcher: it ends when the launcher has gone.
//!
//! The launcher holds the other end of the child's standard input and writes nothing. However the launcher ends, even by
//! SIGKILL, the system closes that end, so no task outlives the command that started it.

use std::io::Read;
use std::thread;
use tokio::sync::oneshot;

/// Waits until the launcher has gone, that is until this process's standard input ends.
///
/// Only for a process with the hidden `--launched` flag: then the end of standard input means what SIGTERM means.
///
/// # Cancel safety
/// Dropping the future forgets the wait; its thread stays until standard input ends.
pub async fn launcher_gone() {
    gone(std::io::stdin()).await;
}

async fn gone(mut stdin: impl Read + Send + 'static) {
    let (ended, wait) = oneshot::channel::<()>();
    // A thread of its own: a blocking read on the runtime's pool would hold up the runtime's end.
    let spawned = thread::Builder::new().name("launcher-watch".to_owned()).spawn(move || {
        let mut bytes = [0; 64];
        loop {
            match stdin.read(&mut bytes) {
                Ok(0) => break,
                Err(error) if error.kind() != std::io::ErrorKind::Interrupted => break,
                Ok(_) | Err(_) => {}
            }
        }
        drop(ended);
    });
    match spawned {
        // An error is what a dropped sender gives: the input has ended.
        Ok(_) => drop(wait.await),
        Err(error) => {
            tracing::warn!("cannot watch the launcher, this task may outlive it: {error}");
            std::future::pending().await
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// On the paused clock, which runs on as soon as nothing else can: the hour passes without the thread that reads.
    #[tokio::test(start_paused = true)]
    async fn the_end_of_standard_input_is_the_launchers_end() {
        let (read, write) = std::io::pipe().expect("a pipe");
        let mut wait = std::pin::pin!(gone(read));
        let early = tokio::time::timeout(Duration::from_secs(3600), wait.as_mut()).await;
        assert!(early.is_err(), "the launcher lives");
        drop(write);
        wait.await;
    }
}
