//! Matrix products in a component against the same source natively.

use crate::guests;
use crate::measure::{PASSES, Series, head, row};
use crate::rig::{Rig, Setting, runtime};
use std::path::Path;
use std::process::Command;

/// Rows and columns of the matrices, as text: all three fit into a second-level cache of 4 MiB.
const SIZE: &str = "512";

/// Products in a pass.
const ROUNDS: &str = "3";

const KERNELS: [&str; 3] = ["plain", "unrolled", "blocked"];

pub(crate) fn run() {
    let runtime = runtime();
    let builds = [
        ("as built", guests::component()),
        ("one vector a turn", guests::short_turns()),
        ("no SIMD", guests::scalar()),
    ];
    let natives = [("native, any x86-64", guests::native()), ("native, this machine", guests::native_cpu())];
    let rigs = Rig::all();
    let mut lanes = Vec::new();
    for (build, component) in &builds {
        for rig in &rigs {
            // What limits cost the other builds is seen in two settings.
            if *build == "as built" || [Setting::Off, Setting::Epochs].contains(&rig.setting) {
                lanes.push((build, rig, rig.load(&runtime, component), KERNELS.map(|_| Series::default())));
            }
        }
    }
    let mut of_natives = natives.each_ref().map(|_| KERNELS.map(|_| Series::default()));
    for _ in 0..PASSES {
        for (index, kernel) in KERNELS.iter().enumerate() {
            for ((_, program), series) in natives.iter().zip(&mut of_natives) {
                series[index].pass(&native(program, kernel));
            }
            for (_, rig, module, series) in &mut lanes {
                let printed = rig.run(&runtime, module, &["matmul", kernel, SIZE, ROUNDS]);
                series[index].pass(&printed[0]);
            }
        }
    }
    let [reference, _] = &of_natives;
    let [plain, _, blocked] = reference;
    head(&["build", "setting", "kernel", "ms", "/ native plain", "/ native same kernel", "/ native blocked"]);
    let print = |build: &str, setting: &str, series: &[Series; KERNELS.len()]| {
        for ((kernel, series), same) in KERNELS.iter().zip(series).zip(reference) {
            row(&[
                &build,
                &setting,
                kernel,
                &series.ms(),
                &series.ratio(plain),
                &series.ratio(same),
                &series.ratio(blocked),
            ]);
        }
    };
    for ((name, _), series) in natives.iter().zip(&of_natives) {
        print(name, "", series);
    }
    for (build, rig, _, series) in &lanes {
        print(build, &rig.setting.to_string(), series);
    }
}

fn native(program: &Path, kernel: &str) -> Vec<u128> {
    let output = Command::new(program).args([kernel, SIZE, ROUNDS]).output().expect("the native twin runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    text.split_whitespace().map(|word| word.parse().expect("it prints times")).collect()
}
