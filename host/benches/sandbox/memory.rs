//! Resident memory of instances that wait, each number in a process of its own.

use crate::fakes::{Lines, Room, handles};
use crate::guests;
use crate::measure::{head, row};
use crate::rig::{Rig, Setting, expect_done, runtime};
use dchost::runtime::RunWatch;
use std::process::Command;
use std::sync::Arc;

/// The argument by which this program starts itself.
pub(crate) const CHILD: &str = "--idle";

pub(crate) fn run() {
    // Built once here, so that the children find it.
    guests::component();
    head(&["setting", "idle instances", "resident, KiB each", "own memories and tables, KiB each", "process, MiB"]);
    for setting in [Some(Setting::Epochs), Setting::named("epochs+pool")].into_iter().flatten() {
        for count in [1, 100, 1000] {
            let program = std::env::current_exe().expect("this program has a path");
            let output = Command::new(program).args([CHILD, &setting.to_string(), &count.to_string()]).output();
            let output = output.expect("it starts");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            let text = String::from_utf8_lossy(&output.stdout);
            let numbers: Vec<u64> =
                text.split_whitespace().map(|word| word.parse().expect("it prints numbers")).collect();
            let [before_kib, after_kib, own_bytes] = numbers[..] else { panic!("it printed `{text}`") };
            let each = after_kib.saturating_sub(before_kib) as f64 / f64::from(count);
            row(&[&setting, &count, &format!("{each:.0}"), &(own_bytes >> 10), &(after_kib >> 10)]);
        }
    }
}

/// Prints resident memory before and with so many idle instances in KiB, and the own memory of one in bytes.
pub(crate) fn child(args: &[String]) {
    let [setting, count] = args else { panic!("usage: {CHILD} SETTING COUNT") };
    let setting = Setting::named(setting).expect("the parent knows the settings");
    let count: usize = count.parse().expect("the parent gives a number");
    let (runtime, rig) = (runtime(), Rig::new(setting));
    let module = rig.load(&runtime, &guests::component());
    runtime.block_on(async {
        // What is made once for all comes with the first: pages of the program, of the component's code, of the allocator.
        let room = Arc::<Room>::default();
        room.open();
        let handles = handles(room, Arc::<Lines>::default());
        expect_done(&module.run(rig.options(&["idle"]), handles, RunWatch::new()).await);
    });
    let before = resident_kib();
    runtime.block_on(async {
        let room = Arc::<Room>::default();
        let handles = handles(room.clone(), Arc::<Lines>::default());
        let runs: Vec<_> = (0..count)
            .map(|_| {
                let (module, options, handles) = (module.clone(), rig.options(&["idle"]), handles.clone());
                tokio::spawn(async move { module.run(options, handles, RunWatch::new()).await })
            })
            .collect();
        while room.arrived() < count {
            assert!(!runs.iter().any(tokio::task::JoinHandle::is_finished), "an idle instance ended");
            tokio::task::yield_now().await;
        }
        let after = resident_kib();
        room.open();
        let mut own = 0;
        for run in runs {
            let report = run.await.expect("it doesn't panic");
            expect_done(&report);
            own = report.memory_bytes_peak;
        }
        println!("{before} {after} {own}");
    });
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("this is Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("Linux tells it");
    line.split_whitespace().next().and_then(|word| word.parse().ok()).expect("it is a number")
}
