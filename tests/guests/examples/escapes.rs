//! Tries files: each guest argument is one thing to try, `HOW=PATH[,PATH]`; tells how each went, fails at nothing.

use dchost_guest::{WorkerContext, worker_fn};
use std::fs::{self, File, FileTimes, OpenOptions};
use std::io;
use std::time::{Duration, SystemTime};

#[worker_fn]
fn train(ctx: &WorkerContext) {
    for arg in ctx.args() {
        let (how, paths) = arg.split_once('=').unwrap_or((&arg, ""));
        // Too long for a command line.
        let paths = paths.replace("LONG", &"x/".repeat(100_000));
        let (path, other) = paths.split_once(',').unwrap_or((&paths, ""));
        match tried(how, path, other) {
            Ok(text) => println!("{arg}: {text}"),
            Err(error) => println!("{arg}: {:?}", error.kind()),
        }
    }
}

fn tried(how: &str, path: &str, other: &str) -> io::Result<String> {
    let done = |()| "done".to_owned();
    match how {
        "read" => Ok(format!("read {}", fs::read_to_string(path)?.trim_end())),
        "stat" => Ok(format!("{} bytes", fs::metadata(path)?.len())),
        "write" => fs::write(path, "by the guest\n").map(done),
        "append" => OpenOptions::new().append(true).open(path).map(|_| "done".to_owned()),
        "truncate" => OpenOptions::new().write(true).truncate(true).open(path).map(|_| "done".to_owned()),
        "create" => File::create_new(path).map(|_| "done".to_owned()),
        "mkdir" => fs::create_dir(path).map(done),
        "remove" => fs::remove_file(path).map(done),
        "rmdir" => fs::remove_dir(path).map(done),
        "rename" => fs::rename(path, other).map(done),
        "hard-link" => fs::hard_link(path, other).map(done),
        "symlink" => symlink(path, other).map(done),
        "read-link" => Ok(format!("to {}", fs::read_link(path)?.display())),
        "times" => {
            let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1);
            File::open(path)?.set_times(FileTimes::new().set_modified(old)).map(done)
        }
        "size" => File::open(path)?.set_len(1).map(done),
        "list" => list(path),
        "listings" => listings(path),
        "many" => many(path),
        _ => panic!("cannot try `{how}`"),
    }
}

/// `std`'s own is unstable for this target.
fn symlink(target: &str, path: &str) -> io::Result<()> {
    #[expect(deprecated)]
    fs::soft_link(target, path)
}

fn list(path: &str) -> io::Result<String> {
    let mut names = Vec::new();
    for entry in fs::read_dir(path)? {
        names.push(match entry {
            Ok(entry) => entry.file_name().to_string_lossy().into_owned(),
            Err(error) => format!("{:?}", error.kind()),
        });
    }
    names.sort();
    Ok(format!("{} entries: {}", names.len(), names.iter().take(20).cloned().collect::<Vec<_>>().join(" ")))
}

/// Begins listings and keeps them, until one is refused; at most 10000.
fn listings(path: &str) -> io::Result<String> {
    let mut held = Vec::new();
    while held.len() < 10_000 {
        match fs::read_dir(path).and_then(|mut entries| entries.next().transpose().map(|_| entries)) {
            Ok(entries) => held.push(entries),
            Err(error) => return Ok(format!("{} held, then {:?}", held.len(), error.kind())),
        }
    }
    Ok("no end".to_owned())
}

/// Opens a file again and again, until it is refused; at most 10000 times. Then closes all, and opens it once more.
fn many(path: &str) -> io::Result<String> {
    let mut files = Vec::new();
    let error = loop {
        match File::open(path) {
            Ok(_) if files.len() == 10_000 => return Ok("no end".to_owned()),
            Ok(file) => files.push(file),
            Err(error) => break error,
        }
    };
    let open = files.len();
    drop(files);
    File::open(path)?;
    Ok(format!("{open} open, then {:?}, then open again", error.kind()))
}
