//! The listening socket that another process bound and handed over.

use super::environment::Environment;
use crate::coordinator::resolve::Fault;
use crate::text::shown;
use std::net::TcpListener;

/// Takes the listening socket that systemd, `dchost launch` or a test handed over, if there is one. To be called once,
/// before other threads are started: it clears `LISTEN_FDS` and `LISTEN_PID`, so that no child takes them for its own.
///
/// A `LISTEN_PID` of another process means that the sockets aren't for this one; it may be left out, because the
/// process that starts another doesn't know its id before.
///
/// # Errors
/// Not exactly one socket, or one that is no TCP listener.
///
/// # Source
/// sd_listen_fds(3) of systemd.
pub fn take_listener(environment: &Environment) -> Result<Option<TcpListener>, Fault> {
    let Some(count) = environment.text("LISTEN_FDS")? else { return Ok(None) };
    let place = "`LISTEN_FDS`";
    let mend = "hand over one TCP listening socket as file descriptor 3, or unset it";
    let mut sockets = listenfd::ListenFd::from_env();
    if count.parse::<u32>().is_err() {
        return Err(Fault::new(place, format!("is `{}`, not a number", shown(count)), mend));
    }
    match sockets.len() {
        0 => return Ok(None),
        1 => {}
        several => return Err(Fault::new(place, format!("hands over {several} sockets"), mend)),
    }
    let fault = |error: std::io::Error| Fault::new(place, format!("the socket can't be used: {error}"), mend);
    let listener = sockets.take_tcp_listener(0).map_err(fault)?;
    if let Some(listener) = &listener {
        listener.local_addr().map_err(fault)?;
    }
    Ok(listener)
}
