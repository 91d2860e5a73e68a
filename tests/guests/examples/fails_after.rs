//! Everyone passes a barrier; then the worker whose index is given (default 1) ends, and the others wait at a second
//! barrier and print how that fails. A second argument says how it ends: `error` (default), `panic`, `exit`,
//! `exit-well` or `return`.

use dchost_guest::{Result, Task, WorkerContext, worker, worker_fn};
use dchost_test_guests::arg;

#[worker_fn]
fn train(ctx: &WorkerContext) -> Result<()> {
    let failing = worker(arg(ctx, 0, 1));
    let ending: String = arg(ctx, 1, "error".to_owned());
    ctx.wait_for_other_workers()?;
    println!("passed the first barrier");
    if ctx.task() == Some(failing) {
        match ending.as_str() {
            "panic" => panic!("gone after the first barrier"),
            "exit" => std::process::exit(9),
            "exit-well" => std::process::exit(0),
            "return" => return Ok(()),
            _ => return Err("gone after the first barrier".into()),
        }
    }
    let error = match ctx.wait_for_other_workers() {
        Ok(()) => return Err("the second barrier passed without everyone".into()),
        Err(error) => error,
    };
    let tasks: Vec<String> = error.tasks.iter().map(Task::to_string).collect();
    println!("second barrier: {} [{}]", error.code, tasks.join(", "));
    Err(error)
}
