//! A barrier among the runs of one split client, against what a central barrier over loopback TCP can do at best.
//!
//! The limit is a thread for each participant, with a connection of its own to one more thread, which reads 16 bytes from each in
//! turn and then answers each with 16 bytes: no framing, no names, nobody who could be late or fail.

use crate::fakes::{Lines, handles};
use crate::guests;
use crate::measure::{PASSES, Series, head, row};
use crate::rig::{Rig, Setting, expect_done, runtime};
use dchost::cluster::{ClusterSpec, Task, TaskType};
use dchost::context::WorkerContext;
use dchost::coordinator::siblings::{Siblings, SiblingsOptions};
use dchost::lifetime::EndRule;
use dchost::runtime::{Module, RunWatch};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use tokio::runtime::Builder;
use tokio_util::sync::CancellationToken;

/// Participants, and how often they meet in a pass.
const SIZES: [(u32, usize); 4] = [(2, 2000), (8, 1000), (64, 200), (256, 60)];

pub(crate) fn run() {
    let rig = Rig::new(Setting::Epochs);
    let module = rig.load(&runtime(), &guests::component());
    head(&["participants", "worker_fns, us", "raw TCP, us", "ratio"]);
    for (participants, rounds) in SIZES {
        let (mut own, mut limit) = (Series::default(), Series::default());
        for _ in 0..PASSES {
            own.pass(&worker_fns(&rig, &module, participants, rounds));
            limit.pass(&raw_tcp(participants, rounds));
        }
        row(&[&participants, &own.us(), &limit.us(), &own.ratio(&limit)]);
    }
}

/// Times of rounds as each `worker_fn` sees them, on as many threads as a client has for its runs.
fn worker_fns(rig: &Rig, module: &Module, participants: u32, rounds: usize) -> Vec<u128> {
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let runtime = Builder::new_multi_thread().worker_threads(threads).enable_all().build().expect("a runtime");
    let cluster =
        ClusterSpec::new().with_job(TaskType::Worker, (0..participants).map(|task| format!("127.0.0.1:{task}")));
    let context = |index| {
        Arc::new(WorkerContext {
            cluster: cluster.clone(),
            task: Some(Task::new(TaskType::Worker, index)),
            master_target: String::new(),
            num_workers: participants,
            is_chief: index == 0,
            distributed_mode: true,
            has_barrier: true,
        })
    };
    let (clock, siblings) = Siblings::new(SiblingsOptions {
        contexts: (0..participants).map(context).collect(),
        attempt: 0,
        end: EndRule::AllDone,
        evaluator_grace: Duration::ZERO,
    });
    let rounds = rounds.to_string();
    runtime.block_on(async {
        let over = CancellationToken::new();
        tokio::spawn(clock.run(over.clone()));
        let lines = Arc::<Lines>::default();
        let runs: Vec<_> = siblings
            .into_iter()
            .map(|sibling| {
                let options = rig.options(&["barrier", &rounds]);
                let (module, handles) = (module.clone(), handles(Arc::new(sibling), lines.clone()));
                tokio::spawn(async move { module.run(options, handles, RunWatch::new()).await })
            })
            .collect();
        for run in runs {
            expect_done(&run.await.expect("it doesn't panic"));
        }
        over.cancel();
        lines.numbers().concat()
    })
}

fn raw_tcp(participants: u32, rounds: usize) -> Vec<u128> {
    let warm_up = rounds / 10;
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
    let address = listener.local_addr().expect("it is bound");
    let mut message = [0; 16];
    let participant = move || {
        let mut stream = TcpStream::connect(address).expect("it listens");
        stream.set_nodelay(true).expect("TCP has it");
        let mut message = [0; 16];
        let round = |_| {
            let started = Instant::now();
            stream.write_all(&message).expect("it is open");
            stream.read_exact(&mut message).expect("it is answered");
            started.elapsed().as_nanos()
        };
        (0..warm_up + rounds).map(round).skip(warm_up).collect::<Vec<_>>()
    };
    let threads: Vec<_> = (0..participants).map(|_| thread::spawn(participant)).collect();
    let mut streams: Vec<TcpStream> = (0..participants).map(|_| listener.accept().expect("they connect").0).collect();
    for stream in &streams {
        stream.set_nodelay(true).expect("TCP has it");
    }
    for _ in 0..warm_up + rounds {
        for stream in &mut streams {
            stream.read_exact(&mut message).expect("it arrives");
        }
        for stream in &mut streams {
            stream.write_all(&message).expect("it is open");
        }
    }
    threads.into_iter().flat_map(|thread| thread.join().expect("it doesn't panic")).collect()
}
