//! What a guest reaches of files, network, environment and arguments: what it is granted, and what the log says of the rest.

use anyhow::{Context as _, Result};
use dchost_tests::{Outcome, PATIENCE, Run};
use rustix::fs::{CWD, FileType, Mode};
use std::ffi::OsString;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, UdpSocket};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::Path;
use std::thread;

/// A server on loopback: answers each line that somebody sends it, over TCP and over UDP at the same port.
struct Server {
    port: u16,
}

impl Server {
    /// Starts it; it ends with the test's process.
    fn start() -> Result<Self> {
        // One number for both: somebody may have it for UDP.
        let both = (0..100).find_map(|_| {
            let tcp = TcpListener::bind("127.0.0.1:0").ok()?;
            let udp = UdpSocket::bind(tcp.local_addr().ok()?).ok()?;
            Some((tcp, udp))
        });
        let (tcp, udp) = both.context("find a port that is free for TCP and UDP")?;
        let port = tcp.local_addr()?.port();
        thread::spawn(move || {
            for stream in tcp.incoming().map_while(Result::ok) {
                thread::spawn(move || {
                    let mut line = String::new();
                    if BufReader::new(&stream).read_line(&mut line).is_ok_and(|bytes| bytes > 0) {
                        // A guest that has gone needs no answer.
                        let _ = (&stream).write_all(format!("tcp {}", line.trim_end()).as_bytes());
                    }
                });
            }
        });
        thread::spawn(move || {
            let mut bytes = [0; 64];
            while let Ok((count, from)) = udp.recv_from(&mut bytes) {
                let _ = udp.send_to(&[b"udp ", &bytes[..count]].concat(), from);
            }
        });
        Ok(Server { port })
    }
}

/// Runs a guest that tries things; it ends well however they went.
fn tries<'a>(guest: &str, flags: &[&str], things: impl IntoIterator<Item = &'a str>) -> Result<Outcome> {
    let outcome = Run::guest(guest)?.args(flags).guest_args(things).output()?;
    assert_eq!(outcome.code, 0, "{}", outcome.output);
    Ok(outcome)
}

/// Checks how each thing went: pairs of what was tried and how it went.
fn check(outcome: &Outcome, went: &[(String, &str)]) {
    for (thing, went) in went {
        assert!(outcome.stdout.contains(&format!("{thing}: {went}\n")), "{thing}: {went}?\n{}", outcome.output);
    }
}

/// The lines of the log that contain a text.
fn logged(outcome: &Outcome, text: &str) -> usize {
    outcome.stderr.lines().filter(|line| line.contains(text)).count()
}

#[test]
fn without_a_grant_nothing_is_reached_and_the_log_names_the_flag_once() -> Result<()> {
    let Server { port } = Server::start()?;
    let tcp = format!("tcp=127.0.0.1:{port}");
    let udp = format!("udp=127.0.0.1:{port}");
    let things =
        [&tcp, &tcp, &udp, "lookup=localhost:1", "lookup=127.1:1", "listen=127.0.0.1:0", "bind-udp=127.0.0.1:0"];
    let outcome = tries("connects", &[], things)?;
    check(&outcome, &things.map(|thing| (thing.to_owned(), "PermissionDenied")));
    assert_eq!(logged(&outcome, &format!("`--allow-net 127.0.0.1:{port}`")), 1, "{}", outcome.output);
    assert_eq!(logged(&outcome, "`--allow-net HOST:PORT`"), 1, "{}", outcome.output);
    assert_eq!(logged(&outcome, "`--allow-net localhost:PORT`"), 1, "{}", outcome.output);
    assert_eq!(logged(&outcome, "asked for the addresses of `127.1`, which is neither"), 1, "{}", outcome.output);
    Ok(())
}

#[test]
fn a_granted_address_is_reached_by_the_standard_library_and_others_are_not() -> Result<()> {
    let (Server { port }, other) = (Server::start()?, Server::start()?);
    let at = |how: &str, host: &str| format!("{how}={host}:{port}");
    let elsewhere = format!("tcp=127.0.0.1:{}", other.port);
    let went = [
        (at("tcp", "127.0.0.1"), "tcp hello"),
        (at("udp", "127.0.0.1"), "udp hello on 127.0.0.1"),
        (at("udp-loopback", "127.0.0.1"), "udp hello on 127.0.0.1"),
        (elsewhere.clone(), "PermissionDenied"),
        (at("tcp", "127.0.0.2"), "PermissionDenied"),
        (at("udp", "127.0.0.2"), "PermissionDenied"),
        // The address of every interface is none to connect to, nor is an IPv4 address in IPv6 clothes.
        (at("tcp", "0.0.0.0"), "InvalidInput"),
        (at("tcp", "[::ffff:127.0.0.1]"), "InvalidInput"),
        (at("tcp", "localhost"), "PermissionDenied"),
    ];
    let grant = format!("127.0.0.1:{port}");
    let outcome = tries("connects", &["--allow-net", &grant], went.iter().map(|(thing, _)| thing.as_str()))?;
    check(&outcome, &went);
    assert_eq!(logged(&outcome, &format!("`--allow-net 127.0.0.1:{}`", other.port)), 1, "{}", outcome.output);
    Ok(())
}

#[test]
fn a_granted_name_is_looked_up_and_opens_its_port_only() -> Result<()> {
    let (Server { port }, other) = (Server::start()?, Server::start()?);
    let went = [
        (format!("tcp=localhost:{port}"), "tcp hello"),
        (format!("tcp=LOCALHOST:{port}"), "tcp hello"),
        (format!("tcp=127.0.0.1:{port}"), "tcp hello"),
        (format!("tcp=localhost:{}", other.port), "PermissionDenied"),
        ("lookup=example.com:80".to_owned(), "PermissionDenied"),
    ];
    let grant = format!("localhost:{port}");
    let outcome = tries("connects", &["--allow-net", &grant], went.iter().map(|(thing, _)| thing.as_str()))?;
    check(&outcome, &went);
    assert_eq!(logged(&outcome, "`--allow-net example.com:PORT`"), 1, "{}", outcome.output);
    assert_eq!(logged(&outcome, &format!("`--allow-net localhost:{}`", other.port)), 1, "{}", outcome.output);
    Ok(())
}

/// Aim: a guest serves nobody, and its UDP socket is on no interface that its grants don't need. Method: grants of all of
/// loopback; attempts to bind for TCP and UDP.
#[test]
fn nobody_listens_whatever_is_granted() -> Result<()> {
    let grants = ["--allow-net", "127.0.0.0/8:*", "--allow-net", "[::1]:*", "--allow-net", "localhost:*"];
    let refused =
        ["listen=0.0.0.0:0", "listen=127.0.0.1:0", "listen=[::]:0", "bind-udp=0.0.0.0:5353", "bind-udp=127.0.0.1:5353"];
    let outcome = tries("connects", &grants, refused.into_iter().chain(["bind-udp=0.0.0.0:0"]))?;
    check(&outcome, &refused.map(|thing| (thing.to_owned(), "PermissionDenied")));
    assert!(outcome.stdout.contains("bind-udp=0.0.0.0:0: bound to 127.0.0.1:"), "{}", outcome.output);
    assert_eq!(logged(&outcome, "guests connect and don't serve"), refused.len(), "{}", outcome.output);
    Ok(())
}

/// Aim: what is refused is not done, whatever the guest is told. Method: a guest tries again and again, and the kernel's tables
/// of sockets, which `ss` shows, are looked at meanwhile. That a connection would be seen is seen with a granted one.
#[test]
fn no_socket_of_a_denied_guest_has_an_address() -> Result<()> {
    const LOOKS: usize = 300;
    let Server { port } = Server::start()?;
    let (tcp, udp) = (format!("tcp=127.0.0.1:{port}"), format!("udp=127.0.0.1:{port}"));
    let serving = ["listen=0.0.0.0:0", "listen=127.0.0.1:0", "listen=[::]:0", "bind-udp=0.0.0.0:5353"];
    let looked = |grants: &[&str], things: &[&str]| -> Result<Vec<dchost_tests::Socket>> {
        let run = Run::guest("connects")?.args(grants).guest_args(things.iter().copied().chain(["again"])).start()?;
        run.wait_for_line("again", PATIENCE)?;
        let mut seen = Vec::new();
        for _ in 0..LOOKS {
            seen.extend(run.sockets()?);
        }
        run.signal(rustix::process::Signal::TERM);
        assert_eq!(run.wait(PATIENCE)?.code, 143, "{}", run.report());
        Ok(seen)
    };
    let denied: Vec<_> = [tcp.as_str(), &udp, "bind-udp=0.0.0.0:0"].into_iter().chain(serving).collect();
    assert_eq!(looked(&[], &denied)?, []);

    // All of loopback, and still nothing that listens, nor is anything on another address.
    let grants = ["--allow-net", "127.0.0.0/8:*", "--allow-net", "[::1]:*"];
    let tried: Vec<_> = ["bind-udp=0.0.0.0:0"].into_iter().chain(serving).collect();
    for socket in looked(&grants, &tried)? {
        assert!(socket.protocol == "udp" && socket.local.ip().is_loopback(), "{socket:?}");
    }

    let listener = TcpListener::bind("127.0.0.1:0").context("listen")?;
    let address = listener.local_addr()?;
    let grant = address.to_string();
    let run = Run::guest("connects")?.args(["--allow-net", &grant]).guest_args([format!("tcp={address}")]).start()?;
    let (_stream, from) = listener.accept().context("accept")?;
    let seen = run.sockets()?;
    assert!(seen.iter().any(|socket| socket.is_connected() && socket.local == from && socket.remote == address));
    assert!(seen.iter().all(|socket| !socket.is_listening()), "{seen:?}");
    run.signal(rustix::process::Signal::TERM);
    assert_eq!(run.wait(PATIENCE)?.code, 143, "{}", run.report());
    Ok(())
}

#[test]
fn sockets_of_a_run_are_bounded() -> Result<()> {
    let Server { port } = Server::start()?;
    let (grant, many) = (format!("127.0.0.1:{port}"), format!("many=127.0.0.1:{port}"));
    let outcome = tries("connects", &["--allow-net", &grant], [many.as_str()])?;
    assert!(outcome.stdout.contains(": 128 open, then "), "{}", outcome.output);
    assert_eq!(logged(&outcome, "128 sockets open"), 1, "{}", outcome.output);
    Ok(())
}

/// A folder with a granted directory `data`, one to read only `ro`, and `out`, which nobody granted.
fn folder() -> Result<tempfile::TempDir> {
    let folder = tempfile::tempdir().context("make a folder")?;
    for dir in ["data/sub", "ro", "out"] {
        fs::create_dir_all(folder.path().join(dir))?;
    }
    fs::write(folder.path().join("data/file.txt"), "hello\n")?;
    fs::write(folder.path().join("ro/file.txt"), "keep\n")?;
    fs::write(folder.path().join("out/secret.txt"), "secret\n")?;
    Ok(folder)
}

fn grants(folder: &Path) -> [String; 4] {
    let dir = || "--dir".to_owned();
    [dir(), format!("{}/data::/data", folder.display()), dir(), format!("{}/ro::/ro:ro", folder.display())]
}

/// What a folder holds: each path with its size, time of change and text.
fn snapshot(dir: &Path) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir)? {
            let path = entry?.path();
            let metadata = fs::symlink_metadata(&path)?;
            let text = if metadata.is_file() { fs::read_to_string(&path)? } else { String::new() };
            let (changed, links) = (metadata.modified()?, metadata.nlink());
            lines.push(format!("{} {} {changed:?} {links} {text}", path.display(), metadata.len()));
            if metadata.is_dir() {
                dirs.push(path);
            }
        }
    }
    lines.sort();
    Ok(lines)
}

/// Aim: no path leads out of a granted directory. Method: a secret beside it; links to it that were there before and ones
/// that the guest makes; every call that takes a path. What is outside stays as it was.
#[test]
fn no_path_leads_out_of_a_granted_directory() -> Result<()> {
    let folder = folder()?;
    let (data, out) = (folder.path().join("data"), folder.path().join("out"));
    symlink("../out/secret.txt", data.join("link"))?;
    symlink(out.join("secret.txt"), data.join("absolute"))?;
    symlink("../out", data.join("outdir"))?;
    symlink("loop", data.join("loop"))?;
    let before = snapshot(&out)?;
    let denied = [
        "read=/data/../out/secret.txt",
        "read=/data/sub/../../out/secret.txt",
        "read=/data/link",
        "read=/data/link/",
        "stat=/data/link",
        "read=/data/absolute",
        "read=/data/outdir/secret.txt",
        "stat=/data/outdir/secret.txt",
        "list=/data/outdir",
        "list=/data/outdir/",
        "read=/data/made",
        "read=/data/made/",
        "write=/data/made",
        "hard-link=/data/outdir/secret.txt,/data/stolen",
        "hard-link=/data/file.txt,/data/outdir/new.txt",
        "read=/data/hard",
        "rename=/data/outdir/secret.txt,/data/stolen",
        "rename=/data/file.txt,/data/outdir/file.txt",
        "rename=/data/file.txt,/data/../out/file.txt",
        "write=/data/outdir/new.txt",
        "create=/data/outdir/new.txt",
        "mkdir=/data/outdir/dir",
        "remove=/data/outdir/secret.txt",
        "rmdir=/data/outdir",
        "truncate=/data/link",
        "append=/data/absolute",
        "times=/data/link",
    ];
    let absolute = format!("symlink={}/secret.txt,/data/made-absolute", out.display());
    // What the host has and no grant shows is not there at all.
    let absent = [format!("read={}/secret.txt", out.display())]
        .into_iter()
        .chain(["/etc/passwd", "/proc/self/environ", "/dev/null", "/"].map(|path| format!("read={path}")));
    let absent: Vec<_> = absent.map(|thing| (thing, "NotFound")).collect();
    // Links may be made, as long as nobody follows them.
    let made = ["symlink=../../out/secret.txt,/data/made", "hard-link=/data/link,/data/hard"];
    let things =
        made.into_iter().chain(denied).chain([absolute.as_str()]).chain(absent.iter().map(|(thing, _)| thing.as_str()));
    let grants = grants(folder.path());
    let outcome = tries("escapes", &grants.each_ref().map(String::as_str), things)?;
    let denials: Vec<_> = denied.into_iter().chain([absolute.as_str()]).collect();
    for thing in denials {
        let refused =
            ["PermissionDenied", "NotADirectory"].map(|kind| outcome.stdout.contains(&format!("{thing}: {kind}\n")));
        assert!(refused.contains(&true), "{thing}\n{}", outcome.output);
    }
    check(&outcome, &absent);
    check(&outcome, &made.map(|thing| (thing.to_owned(), "done")));
    assert!(!outcome.stdout.contains("secret\n"), "{}", outcome.output);
    assert_eq!(snapshot(&out)?, before, "something outside changed");
    assert!(!data.join("stolen").exists() && data.join("file.txt").exists());
    assert_eq!(
        logged(&outcome, "asked for `link`, which leads out of `/data`; give a `--dir`"),
        1,
        "{}",
        outcome.output
    );
    Ok(())
}

/// Aim: a read-only directory stays as it is, to the byte and the second. Method: every call that changes something, also
/// between it and a directory that may be written.
#[test]
fn a_read_only_directory_stays_as_it_is() -> Result<()> {
    let folder = folder()?;
    let ro = folder.path().join("ro");
    symlink("file.txt", ro.join("link"))?;
    let before = snapshot(&ro)?;
    let things = [
        "write=/ro/file.txt",
        "write=/ro/link",
        "truncate=/ro/file.txt",
        "append=/ro/file.txt",
        "create=/ro/new.txt",
        "mkdir=/ro/dir",
        "remove=/ro/file.txt",
        "rmdir=/ro",
        "rename=/ro/file.txt,/ro/other.txt",
        "rename=/ro/file.txt,/data/moved.txt",
        "rename=/data/file.txt,/ro/file.txt",
        "hard-link=/ro/file.txt,/ro/other.txt",
        "hard-link=/ro/file.txt,/data/linked.txt",
        "hard-link=/data/file.txt,/ro/linked.txt",
        "symlink=file.txt,/ro/other",
        "times=/ro/file.txt",
        "size=/ro/file.txt",
    ];
    let grants = grants(folder.path());
    let outcome =
        tries("escapes", &grants.each_ref().map(String::as_str), things.into_iter().chain(["read=/ro/file.txt"]))?;
    check(&outcome, &things.map(|thing| (thing.to_owned(), "PermissionDenied")));
    check(&outcome, &[("read=/ro/file.txt".to_owned(), "read keep")]);
    assert_eq!(snapshot(&ro)?, before, "something changed");
    assert!(!folder.path().join("data/linked.txt").exists());
    let flag = format!("give `--dir {}::/ro` without `:ro`", ro.display());
    assert_eq!(logged(&outcome, &flag), 1, "{}", outcome.output);
    Ok(())
}

#[test]
fn a_guest_that_looks_for_files_without_any_is_told_of_and_another_is_not() -> Result<()> {
    let outcome = tries("escapes", &[], ["read=/data/file.txt", "list=/"])?;
    assert_eq!(logged(&outcome, "no directory is granted; give `--dir HOST::GUEST`"), 1, "{}", outcome.output);
    let outcome = tries("connects", &[], [])?;
    assert_eq!(logged(&outcome, "--dir"), 0, "{}", outcome.output);
    Ok(())
}

/// Aim: a pipe whose other end nobody opens holds nothing up, and a device isn't touched.
#[test]
fn pipes_and_devices_are_not_opened() -> Result<()> {
    let folder = folder()?;
    rustix::fs::mknodat(CWD, folder.path().join("data/pipe"), FileType::Fifo, Mode::from_raw_mode(0o600), 0)?;
    symlink("pipe", folder.path().join("data/to-pipe"))?;
    let [_, data, ..] = grants(folder.path());
    let things =
        ["read=/data/pipe", "write=/data/pipe", "append=/data/to-pipe", "read=/dev/zero", "read=/data/file.txt"];
    let outcome = tries("escapes", &["--dir", &data, "--dir", "/dev::/dev:ro", "--timeout", "60s"], things)?;
    let denied = &things[..4];
    check(&outcome, &denied.iter().map(|&thing| (thing.to_owned(), "PermissionDenied")).collect::<Vec<_>>());
    check(&outcome, &[("read=/data/file.txt".to_owned(), "read hello")]);
    assert_eq!(
        logged(&outcome, "asked to open `pipe`, which is a pipe, a socket or a device"),
        1,
        "{}",
        outcome.output
    );
    Ok(())
}

#[test]
fn a_path_longer_than_any_is_an_error() -> Result<()> {
    let folder = folder()?;
    let [_, data, ..] = grants(folder.path());
    let long = [
        "read=/data/LONG",
        "write=/data/LONG",
        "stat=/data/LONG",
        "mkdir=/data/LONG",
        "remove=/data/LONG",
        "read-link=/data/LONG",
        "symlink=LONG,/data/link",
        "symlink=file.txt,/data/LONG",
        "rename=/data/file.txt,/data/LONG",
        "hard-link=/data/LONG,/data/linked",
    ];
    let outcome = tries("escapes", &["--dir", &data], long)?;
    check(&outcome, &long.map(|thing| (thing.to_owned(), "InvalidFilename")));
    Ok(())
}

#[test]
fn names_that_are_not_text_are_errors_of_their_entry() -> Result<()> {
    let folder = folder()?;
    fs::write(folder.path().join("data").join(OsString::from_vec(b"bad\xff".to_vec())), "")?;
    let [_, data, ..] = grants(folder.path());
    let outcome = tries("escapes", &["--dir", &data], ["list=/data", "read=/data/file.txt"])?;
    assert!(
        outcome.stdout.contains("list=/data: 3 entries: ") && outcome.stdout.contains("file.txt sub\n"),
        "{}",
        outcome.output
    );
    Ok(())
}

#[test]
fn open_files_and_listings_of_a_run_are_bounded() -> Result<()> {
    let folder = folder()?;
    let long = "n".repeat(240);
    for index in 0..3000 {
        fs::write(folder.path().join(format!("data/sub/{long}{index}")), "")?;
    }
    let [_, data, ..] = grants(folder.path());
    let outcome = tries("escapes", &["--dir", &data], ["many=/data/file.txt", "listings=/data/sub", "list=/data/sub"])?;
    check(&outcome, &[("many=/data/file.txt".to_owned(), "256 open, then OutOfMemory, then open again")]);
    // 3000 entries of about 310 bytes, in 64 MiB.
    assert!(outcome.stdout.contains("listings=/data/sub: 72 held, then OutOfMemory\n"), "{}", outcome.output);
    assert!(outcome.stdout.contains("list=/data/sub: 3000 entries"), "listings are given back\n{}", outcome.output);
    assert_eq!(logged(&outcome, "256 files open"), 1, "{}", outcome.output);
    assert_eq!(logged(&outcome, "more than 64 MiB"), 1, "{}", outcome.output);
    assert!(outcome.peak_memory_bytes < 512 << 20, "{} bytes", outcome.peak_memory_bytes);
    Ok(())
}

#[test]
fn arguments_and_variables_that_are_not_text_are_refused_by_position_and_name() -> Result<()> {
    let bad = || OsString::from_vec(vec![b'a', 0xff]);
    let outcome = Run::guest("prints")?.args(["--env", "TOKEN"]).env("TOKEN", bad()).output()?;
    assert_eq!(outcome.code, 2, "{}", outcome.output);
    assert!(outcome.stderr.contains("`TOKEN`: is not UTF-8 from byte 1 of its value on"), "{}", outcome.output);

    // Nobody asked for this one.
    let outcome = Run::guest("prints")?.env("TOKEN", bad()).output()?;
    assert_eq!(outcome.code, 0, "{}", outcome.output);

    let outcome = Run::guest("prints")?.guest_args([OsString::from("1"), bad()]).output()?;
    assert_eq!(outcome.code, 2, "{}", outcome.output);
    // dchost --module FILE -- 1 BAD
    assert!(outcome.stderr.contains("argument 5, `a\u{fffd}`"), "{}", outcome.output);
    assert!(!outcome.output.contains("panicked"), "{}", outcome.output);
    Ok(())
}

/// A signal ends a run whose guest waits for the network, as it does any other.
#[test]
fn a_guest_that_waits_for_an_answer_is_ended_by_a_signal() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").context("listen")?;
    let address = listener.local_addr()?;
    let grant = address.to_string();
    let run = Run::guest("connects")?.args(["--allow-net", &grant]).guest_args([format!("tcp={address}")]).start()?;
    let (stream, _) = listener.accept().context("accept")?;
    let mut line = String::new();
    BufReader::new(&stream).read_line(&mut line)?;
    assert_eq!(line, "hello\n");
    run.signal(rustix::process::Signal::TERM);
    assert_eq!(run.wait(PATIENCE)?.code, 143, "{}", run.report());
    Ok(())
}
