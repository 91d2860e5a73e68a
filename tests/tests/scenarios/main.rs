//! Stories told with real processes: what a user sees, and with which exit codes it ends.
//!
//! They need the dchost binary and the guests: `cargo build -p dchost` and `cargo xtask guests`.

mod burn;
mod cases;
mod checkpoints;
mod compile;
mod components;
mod consistency;
mod damaged;
mod ending;
mod failures;
mod gate;
mod grants;
mod hostile;
mod in_graph;
mod inspect;
mod jobs;
mod kernels;
mod launch;
mod launch_modes;
mod limits;
mod local;
mod networks;
mod ops;
mod optimizers;
mod overlap;
mod refused;
mod replicas;
mod responsive;
mod rows;
mod sharded;
mod simd;
mod split_client;
mod split_ends;
mod status;
mod texts;
mod traps;

/// Aim: a component that nobody runs rots. Method: each file of the test components is named in a scenario.
#[test]
fn every_test_component_has_a_scenario() -> anyhow::Result<()> {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut scenarios = String::new();
    for entry in std::fs::read_dir(root.join("tests/scenarios"))? {
        scenarios += &std::fs::read_to_string(entry?.path())?;
    }
    let mut components = 0;
    for entry in std::fs::read_dir(root.join("guests/examples"))? {
        let path = entry?.path();
        let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
        assert!(scenarios.contains(&format!("\"{name}\"")), "no scenario runs tests/guests/examples/{name}.rs");
        components += 1;
    }
    assert!(components > 0, "there are test components");
    Ok(())
}

/// Method: the list of components in text is what the compiler checks for use, so each file must be in it.
#[test]
fn every_component_in_text_is_in_the_list() -> anyhow::Result<()> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("guests/wat"))? {
        files.extend(entry?.path().file_stem().and_then(|name| name.to_str()).map(str::to_owned));
    }
    files.sort();
    assert_eq!(files, components::NAMES, "files of tests/guests/wat (left) and the list in components.rs (right)");
    Ok(())
}
