//! A whole job in one program: three workers and two parameter servers, each a coordinator, all of one compiled component.
//!
//! ```text
//! cargo xtask guests
//! cargo run -p dchost --example embed target/wasm32-wasip2/guest/counter.wasm
//! ```

#![deny(unsafe_code)]

use dchost::Coordinator;
use dchost::attend::Replication;
use dchost::cluster::{ClusterSpec, Task, TaskType};
use dchost::exit::Exit;
use dchost::handles::{Console, Origin};
use dchost::runtime::{Engine, EngineOptions};
use std::error::Error;
use std::net::TcpListener;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

/// Prints the lines of one run, each with its task.
struct Printed(Task);

impl Console for Printed {
    fn line(&self, origin: Origin, text: &str) {
        match origin {
            Origin::Stdout => println!("{} says: {text}", self.0),
            Origin::Stderr | Origin::Log(_) => eprintln!("{} logs: {text}", self.0),
        }
    }

    fn progress(&self, _done: u64, _total: Option<u64>, _note: &str) {}
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<ExitCode, Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("give a component, as target/wasm32-wasip2/guest/counter.wasm")?;

    // Sockets first: with them the cluster's ports are known, and nobody else can take them.
    let mut cluster = ClusterSpec::new();
    let mut sockets = Vec::new();
    for (job, count) in [(TaskType::Worker, 3), (TaskType::Ps, 2)] {
        for index in 0..count {
            let (task, socket) = (Task::new(job, index), TcpListener::bind("127.0.0.1:0")?);
            cluster.insert(task, format!("localhost:{}", socket.local_addr()?.port()));
            sockets.push((task, socket));
        }
    }

    // Compiled once, run by all.
    let module = Engine::new(EngineOptions::default())?.load(Path::new(&path)).await?;

    let mut runs = JoinSet::new();
    let mut stops = Vec::new();
    for (task, socket) in sockets {
        let coordinator = Coordinator::builder(Replication::BetweenGraph)
            .cluster(&cluster)
            .task(task)
            .listener(socket)
            .loaded_module(&module)
            .timeout(Duration::from_secs(300))
            .consoles(move |_: &_| -> Arc<dyn Console> { Arc::new(Printed(task)) })
            .build()?;
        stops.push(coordinator.stop_handle());
        runs.spawn(async move { (task, coordinator.run().await) });
    }
    // No signal is handled unless a coordinator is asked to: here the program does it itself, for all of them.
    tokio::spawn(async move {
        if tokio::signal::ctrl_c().await.is_ok() {
            stops.iter().for_each(|stop| stop.stop());
        }
    });

    let mut code = ExitCode::SUCCESS;
    for (task, report) in runs.join_all().await {
        let outcome = report.outcome;
        println!("{task} has ended: {}", outcome.message.unwrap_or_else(|| "all is well".to_owned()));
        if outcome.exit != Exit::Done {
            code = ExitCode::from(outcome.exit.code());
        }
    }
    Ok(code)
}
