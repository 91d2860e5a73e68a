//! Bytes become a command line, an environment and a configuration file.
//!
//! The input is parts, each ended by a zero byte: `F--timeout=3s` is an argument, `ENAME=VALUE` a variable, `T...` the
//! text of the file of `--config`; `L` makes it a launch. Anything else is a value, which every parser reads.

#![no_main]

use clap::Parser as _;
use dchost::cli::{self, Cli, Command, LogOptions};
use dchost::config::{self, Environment, LaunchConfig, is_inherited};
use dchost::coordinator::resolve::values::{self, WasmOption};
use dchost::coordinator::resolve::{Faults, Resolved, Settings};
use dchost_fuzz::seeds;
use dchost_fuzz::text::{check_block, check_line};
use libfuzzer_sys::fuzz_target;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::PathBuf;
use std::sync::LazyLock;

/// Longest report: 50 faults of three parts of 2000 bytes each, escaped.
const REPORT_BYTES_MAX: usize = 2 << 20;

/// Most faults that a report tells one by one.
const TOLD_MAX: usize = 50;

/// Where the configuration file is written, in memory where the machine has that: one path for all runs.
static FILE: LazyLock<PathBuf> = LazyLock::new(|| {
    let shared = PathBuf::from("/dev/shm");
    let dir = if shared.is_dir() { shared } else { std::env::temp_dir() };
    dir.join(format!("dchost-fuzz-{}.toml", std::process::id()))
});

/// What the bytes say.
#[derive(Default)]
struct Input {
    arguments: Vec<OsString>,
    variables: Vec<(OsString, OsString)>,
    file: Option<Vec<u8>>,
    launch: bool,
    values: Vec<String>,
}

fuzz_target!(init: seeds::write(seeds::config()), |data: &[u8]| {
    let input = Input::read(data);
    input.values.iter().for_each(|text| check_values(text));
    let environment: Environment = input.variables.iter().cloned().collect();
    check_log(&environment);
    let file = input.file.as_ref().map(|text| {
        std::fs::write(&*FILE, text).expect("the file is written");
        format!("--config={}", FILE.display()).into()
    });
    let launch = input.launch.then(|| "launch".into());
    let arguments = ["dchost".into()].into_iter().chain(launch).chain(file).chain(input.arguments);
    match Cli::try_parse_from(arguments) {
        Ok(Cli { command: None, run, .. }) => check_run(&run, &environment),
        Ok(Cli { command: Some(Command::Plan(plan)), .. }) => check_run(&plan.run, &environment),
        Ok(Cli { command: Some(Command::Launch(launch)), .. }) => check_launch(&launch, &environment),
        Ok(_) => {}
        // It repeats the argument, in several lines and a screen's width.
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});

impl Input {
    fn read(data: &[u8]) -> Input {
        let mut input = Input::default();
        for part in data.split(|&byte| byte == 0) {
            match part.split_first() {
                None => {}
                Some((b'F', argument)) => input.arguments.push(OsString::from_vec(argument.to_vec())),
                Some((b'E', variable)) => {
                    let mut sides = variable.splitn(2, |&byte| byte == b'=');
                    let (name, value) = (sides.next().unwrap_or_default(), sides.next().unwrap_or_default());
                    // Sockets are handed over by number: those of the fuzzer aren't for taking.
                    if !name.starts_with(b"LISTEN_") {
                        let text = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
                        input.variables.push((text(name), text(value)));
                    }
                }
                Some((b'T', text)) => input.file = Some(text.to_vec()),
                Some((b'L', _)) => input.launch = true,
                Some(_) => input.values.extend(String::from_utf8(part.to_vec())),
            }
        }
        input
    }
}

fn check_log(environment: &Environment) {
    if let Err((_, faults)) = config::log(&LogOptions::default(), environment) {
        check_faults(&faults);
    }
}

fn check_run(args: &cli::Run, environment: &Environment) {
    let read = || config::run(args, environment).map(|config| config.resolved);
    check_resolved(&read(), &read());
    let plan = || config::plan(args, environment);
    check_resolved(&plan(), &plan());
}

fn check_resolved(one: &Result<Resolved, Faults>, other: &Result<Resolved, Faults>) {
    assert_eq!(one, other, "the same configuration, read twice");
    match one {
        Ok(resolved) => resolved.warnings.iter().for_each(|warning| check_line(warning, REPORT_BYTES_MAX)),
        Err(faults) => check_faults(faults),
    }
}

fn check_faults(faults: &Faults) {
    let text = faults.to_string();
    check_block(&text, REPORT_BYTES_MAX);
    assert!(!faults.0.is_empty(), "refused without a fault");
    let lines = match faults.0.len() {
        1 => 1,
        many => 1 + many.min(TOLD_MAX) + usize::from(many > TOLD_MAX),
    };
    assert_eq!(text.lines().count(), lines, "a line for each fault: {text}");
}

/// A task that is launched must read what launch tells it, and read the same.
fn check_launch(args: &cli::Launch, environment: &Environment) {
    let launch = match config::launch(args, environment) {
        Ok(launch) => launch,
        Err(faults) => return check_faults(&faults),
    };
    let LaunchConfig { child_arguments, guest_args, settings, .. } = launch;
    let place = ["--task=worker:0".into(), "--cluster={\"worker\":[\"127.0.0.1:1\"]}".into()];
    let guest = guest_args.iter().map(OsString::from);
    let arguments = ["dchost".into()].into_iter().chain(child_arguments).chain(place).chain(["--".into()]).chain(guest);
    let child = Cli::try_parse_from(arguments).unwrap_or_else(|error| panic!("a launched task refuses: {error}"));
    let inherited = environment.variables().filter(|(name, _)| is_inherited(name));
    let environment = inherited.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let read = config::run_settings(&child.run, &environment, None);
    assert_eq!(read.faults, [], "a launched task finds faults");
    assert_eq!(shared(&read), shared(&settings), "a launched task reads something else");
}

/// What a launch and its tasks have in common, wherever each was given. The module is told apart, to those tasks that need it.
fn shared(settings: &Settings) -> impl PartialEq + std::fmt::Debug {
    let limits = &settings.limits;
    (
        (settings.replication.value, settings.no_cluster_barrier.value, settings.end.value, settings.share_container.value),
        (settings.digest.clone().map(|digest| digest.value), settings.coredump.clone().map(|dir| dir.value)),
        (settings.connect_timeout.value, settings.rejoin_timeout.value, settings.evaluator_grace.value),
        (settings.barrier_timeout.value, settings.timeout.value, settings.container.value.clone()),
        (settings.summary_dir.clone().map(|dir| dir.value), settings.dirs.value.clone(), settings.env_values.clone()),
        (limits.max_memory.value, limits.max_tensor.value, limits.max_module_size.value, limits.compile_timeout.value),
        (limits.max_variable_bytes.value, limits.cpu_timeout.value, limits.fuel.value, limits.max_wasm_stack.value),
        (limits.max_handles.value, limits.max_output.value, settings.cache.value.clone(), settings.guest_args.clone()),
    )
}

/// Every parser of a value: none panics, refusals are printable, and what is written back reads the same.
fn check_values(text: &str) {
    fn refused<T>(result: Result<T, values::ValueError>) -> Option<T> {
        result.map_err(|error| check_line(&error.to_string(), REPORT_BYTES_MAX)).ok()
    }
    if let Some(bytes) = refused(values::size(text)) {
        assert_eq!(values::size(&values::size_text(bytes)), Ok(bytes), "of `{text}`");
    }
    if let Some(timeout) = refused(values::timeout(text)) {
        assert_eq!(values::timeout(&timeout.to_string()), Ok(timeout), "of `{text}`");
    }
    if let Some(option) = refused(values::wasm_option(text)) {
        let written: WasmOption = option;
        assert_eq!(values::wasm_option(&written.to_string()), Ok(option), "of `{text}`");
    }
    if let Some(grant) = refused(values::net_grant(text)) {
        assert_eq!(values::net_grant(&grant.to_string()), Ok(grant), "of `{text}`");
    }
    if let Some(digest) = refused(values::digest(text)) {
        assert_eq!(values::digest(&values::digest_text(&digest)), Ok(digest), "of `{text}`");
    }
    if let Some(grant) = refused(values::dir_grant(text)) {
        assert!(!grant.host.as_os_str().as_bytes().is_empty(), "of `{text}`");
    }
    let _ = refused(values::env_grant(text));
    let _ = refused(values::duration(text));
    let _ = refused(values::positive_duration(text));
    let _ = refused(values::positive_timeout(text));
    let _ = refused(values::count::<u32>(text));
    let _ = refused(values::switch(text));
    let _ = refused(values::path(text));
    let _ = refused(values::debug_option(text));
    let _ = refused(values::mode(text));
    let _ = refused(values::end_rule(text));
}
