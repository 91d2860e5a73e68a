//! From the start of the process to the first line of `worker_fn`, with the program as users have it.

use crate::guests;
use crate::measure::{PASSES, Series, head, row};
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

/// Starts in a pass.
const STARTS: usize = 5;

pub(crate) fn run() {
    let component = guests::component_path();
    let cache = tempfile::tempdir().expect("there is room for a directory");
    let warm = ["--cache-dir", cache.path().to_str().expect("the path is text")];
    first_line(&component, &warm);
    // The cache is written by a thread that the process doesn't wait for.
    while std::fs::read_dir(cache.path()).map_or(0, Iterator::count) == 0 {
        first_line(&component, &warm);
    }
    let [mut with_cache, mut without, mut bare] = [(); 3].map(|()| Series::default());
    for _ in 0..PASSES {
        with_cache.pass(&[(); STARTS].map(|()| first_line(&component, &warm)));
        without.pass(&[(); STARTS].map(|()| first_line(&component, &["--no-cache"])));
        bare.pass(&[(); STARTS].map(|()| version()));
    }
    head(&["warm cache, ms", "compiled anew, ms", "`dchost --version`, ms"]);
    row(&[&with_cache.ms(), &without.ms(), &bare.ms()]);
}

/// From the start to the first line.
fn first_line(component: &Path, args: &[&str]) -> u128 {
    let started = Instant::now();
    let mut child = Command::new(env!("CARGO_BIN_EXE_dchost"))
        .args(args)
        .arg("--module")
        .arg(component)
        .args(["--", "line"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("dchost starts");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("it is a pipe")).read_line(&mut line).expect("dchost says something");
    let elapsed = started.elapsed().as_nanos();
    assert!(line.contains("here"), "the first line is `{line}`");
    assert!(child.wait().expect("dchost ends").success(), "dchost failed");
    elapsed
}

/// What starting the program and ending it takes by itself.
fn version() -> u128 {
    let started = Instant::now();
    let output = Command::new(env!("CARGO_BIN_EXE_dchost")).arg("--version").output().expect("dchost starts");
    assert!(output.status.success(), "dchost failed");
    started.elapsed().as_nanos()
}
