//! The program `dchost` as users have it: what a `worker_fn` sees of variables on ps and of the barrier.

#[path = "../sandbox/guests.rs"]
#[expect(dead_code, reason = "the bench `sandbox` uses the rest")]
mod guests;

use crate::lane::{Fresh, Lane, median};
use crate::question::{Bounds, Question};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// What tables call it.
pub(crate) const NAME: &str = "dchost guest";

pub(crate) fn lane(bounds: Bounds) -> Box<dyn Lane> {
    let mut setup = None;
    let answer = move |question| {
        let (tasks, ps, args) = match question {
            Question::Push(size) => (1, true, ["push".to_owned(), size.to_string(), bounds.seconds.to_string()]),
            Question::Pull(size) => (1, true, ["pull".to_owned(), size.to_string(), bounds.seconds.to_string()]),
            Question::Barrier(tasks) => {
                (tasks, false, ["barrier".to_owned(), bounds.rounds.to_string(), String::new()])
            }
            _ => return None,
        };
        let setup = setup.get_or_insert_with(|| {
            (guests::component_path(), tempfile::tempdir().expect("there is room for a directory"))
        });
        run(&setup.0, setup.1.path(), tasks, ps, &args)
    };
    Box::new(Fresh { name: NAME, knows: |question| question.is_transfer() || question.is_barrier(), answer })
}

/// Runs a job to its end; the median of the times, in ns, that its workers print, in µs.
fn run(component: &Path, cache: &Path, workers: usize, ps: bool, args: &[String]) -> Option<f64> {
    let (spec, tasks) = cluster(workers, ps);
    let children: Vec<Child> = tasks.iter().map(|task| start(task, &spec, component, cache, args)).collect();
    let mut samples = Vec::new();
    for (task, child) in tasks.iter().zip(children) {
        let output = child.wait_with_output().ok()?;
        if !output.status.success() {
            eprintln!("{task} of {NAME} failed: {}", String::from_utf8_lossy(&output.stderr));
            return None;
        }
        let text = String::from_utf8_lossy(&output.stdout);
        // A line may begin with who says it.
        samples.extend(text.split_whitespace().filter_map(|word| word.parse::<f64>().ok()));
    }
    (!samples.is_empty()).then(|| median(&mut samples) / 1e3)
}

/// A cluster spec of free ports, and its tasks.
fn cluster(workers: usize, ps: bool) -> (String, Vec<String>) {
    let bind = |_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has a free port");
    // Bound until all are: the system gives a closed port to the next who asks.
    let listeners: Vec<TcpListener> = (0..workers + usize::from(ps)).map(bind).collect();
    let address = |listener: &TcpListener| format!("\"{}\"", listener.local_addr().expect("it is bound"));
    let addresses: Vec<String> = listeners.iter().map(address).collect();
    let (worker, ps) = addresses.split_at(workers);
    let mut tasks: Vec<String> = (0..ps.len()).map(|index| format!("ps:{index}")).collect();
    tasks.extend((0..workers).map(|index| format!("worker:{index}")));
    let ps = if ps.is_empty() { String::new() } else { format!(",\"ps\":[{}]", ps.join(",")) };
    (format!("{{\"worker\":[{}]{ps}}}", worker.join(",")), tasks)
}

fn start(task: &str, spec: &str, component: &Path, cache: &Path, args: &[String]) -> Child {
    let dchost = PathBuf::from(env!("CARGO_BIN_EXE_dchost"));
    let mut command = Command::new(dchost);
    command.args(["--task", task, "--cluster", spec, "--connect-timeout", "60s", "--cache-dir"]).arg(cache);
    if task.starts_with("worker") {
        command.arg("--module").arg(component).arg("--").args(args.iter().filter(|word| !word.is_empty()));
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("dchost starts")
}
