//! Lists and reads the files of a directory (default `/data`), then tries to write one; tells of everything, fails at nothing.

use dchost_guest::{WorkerContext, worker_fn};
use dchost_test_guests::arg;
use std::fs;
use std::path::Path;

#[worker_fn]
fn train(ctx: &WorkerContext) {
    let dir: String = arg(ctx, 0, "/data".to_owned());
    let mut paths: Vec<_> = match fs::read_dir(&dir) {
        Ok(entries) => entries.filter_map(|entry| Some(entry.ok()?.path())).collect(),
        Err(error) => {
            println!("cannot list {dir}: {:?}", error.kind());
            return;
        }
    };
    paths.sort();
    for path in paths {
        match fs::read_to_string(&path) {
            Ok(text) => println!("{}: {}", path.display(), text.trim_end()),
            Err(error) => println!("{}: {:?}", path.display(), error.kind()),
        }
    }
    match fs::write(Path::new(&dir).join("written.txt"), "by the guest\n") {
        Ok(()) => println!("wrote {dir}/written.txt"),
        Err(error) => println!("cannot write to {dir}: {:?}", error.kind()),
    }
}
