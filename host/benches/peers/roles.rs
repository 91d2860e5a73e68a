//! The processes that this program starts of itself, so that a server and those who ask it never share one.

use crate::lane::{ANSWER, Process, median};
use crate::{barrier, host, plain, plain_barrier};
use dchost::coordinator::run::control_threads;
use std::fmt::Display;
use std::io::BufRead as _;
use std::process::Command;
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};

/// The first argument of such a process.
pub(crate) const ROLE: &str = "--role";

/// Calls that connect, and fill caches and the allocator.
const WARM_UP: usize = 3;

/// Calls of a question at least.
const SAMPLES_MIN: usize = 5;

/// Does what a role does.
pub(crate) fn play(args: &[String]) {
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["ps"] => host::serve(),
        ["client", task, address, way] => host::answer(number(task), address, way),
        ["plain-ps"] => plain::serve(),
        ["plain-client", address] => plain::answer(address),
        ["leader", tasks, rounds] => barrier::lead(number(tasks), number(rounds)),
        ["member", index, tasks, rounds, address] => {
            barrier::follow(number(index), number(tasks), number(rounds), address);
        }
        ["plain-leader", tasks, rounds] => plain_barrier::lead(number(tasks), number(rounds)),
        ["plain-member", rounds, address] => plain_barrier::follow(number(rounds), address),
        other => panic!("there is no role {other:?}"),
    }
}

fn number<T: std::str::FromStr>(word: &str) -> T {
    word.parse().unwrap_or_else(|_| panic!("`{word}` is no number"))
}

/// Starts this program in a role.
pub(crate) fn start(words: &[&str]) -> Process {
    let mut command = Command::new(std::env::current_exe().expect("a program knows where it is"));
    command.arg(ROLE).args(words);
    Process::start(command).expect("this program starts once more")
}

/// Starts a role that first tells an address.
pub(crate) fn start_server(words: &[&str]) -> (Process, String) {
    let mut server = start(words);
    let address = server.hear().expect("the server tells its address");
    (server, address)
}

/// Starts a leader that tells an address and then its own times, and a follower with the rest of the words for each other task;
/// the median of all times, in µs.
pub(crate) fn meet(leader: &[&str], followers: impl Fn(&str) -> Vec<Vec<String>>) -> Option<f64> {
    let (leader, address) = start_server(leader);
    let words = followers(&address);
    let mut all = vec![leader];
    all.extend(words.iter().map(|words| start(&words.iter().map(String::as_str).collect::<Vec<_>>())));
    let mut samples = Vec::new();
    for process in &mut all {
        let line = process.hear()?;
        samples.extend(line.split_whitespace().map(number::<f64>));
    }
    Some(median(&mut samples))
}

/// A runtime as dchost has for its connections, beside guests or where it only serves.
pub(crate) fn runtime(with_guests: bool) -> Runtime {
    let threads = control_threads(with_guests);
    Builder::new_multi_thread().worker_threads(threads).enable_all().build().expect("the system gives threads")
}

/// Says an answer.
pub(crate) fn say(answer: impl Display) {
    println!("{ANSWER}{answer}");
}

/// Says the times of rounds.
pub(crate) fn say_all(samples: &[f64]) {
    let words: Vec<String> = samples.iter().map(|sample| format!("{sample:.2}")).collect();
    say(words.join(" "));
}

/// Waits for the end of the input, for a server that serves as long.
pub(crate) fn wait() {
    while std::io::stdin().lock().read_line(&mut String::new()).is_ok_and(|read| read > 0) {}
}

/// A question as its words: what, how large, how long.
pub(crate) struct Asked {
    pub(crate) what: String,
    pub(crate) size: usize,
    pub(crate) seconds: f64,
}

/// The questions that come by the input.
pub(crate) fn asked() -> impl Iterator<Item = Asked> {
    std::io::stdin().lines().map_while(Result::ok).map(|line| {
        let words: Vec<&str> = line.split(' ').collect();
        let [what, size, seconds] = words.as_slice() else { panic!("`{line}` is no question") };
        Asked { what: (*what).to_owned(), size: number(size), seconds: number(seconds) }
    })
}

/// The median time of a call, in µs.
pub(crate) async fn timed(seconds: f64, mut call: impl AsyncFnMut()) -> f64 {
    for _ in 0..WARM_UP {
        call().await;
    }
    let until = Instant::now() + Duration::from_secs_f64(seconds);
    let mut samples = Vec::new();
    while samples.len() < SAMPLES_MIN || Instant::now() < until {
        let started = Instant::now();
        call().await;
        samples.push(started.elapsed().as_secs_f64() * 1e6);
    }
    median(&mut samples)
}

/// The time in which a call ends on average, in µs, of one who makes them without pause.
pub(crate) async fn paced(seconds: f64, mut call: impl AsyncFnMut()) -> f64 {
    for _ in 0..WARM_UP {
        call().await;
    }
    let started = Instant::now();
    let mut calls = 0;
    while calls < SAMPLES_MIN || started.elapsed().as_secs_f64() < seconds {
        call().await;
        calls += 1;
    }
    started.elapsed().as_secs_f64() * 1e6 / calls as f64
}

/// The times of rounds, in µs, after some that don't count.
pub(crate) async fn rounds(count: usize, mut call: impl AsyncFnMut()) -> Vec<f64> {
    for _ in 0..crate::Bounds::WARM_UP {
        call().await;
    }
    let mut samples = Vec::with_capacity(count);
    for _ in 0..count {
        let started = Instant::now();
        call().await;
        samples.push(started.elapsed().as_secs_f64() * 1e6);
    }
    samples
}
