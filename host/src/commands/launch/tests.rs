//! The launcher over shell scripts in place of dchost.

use super::*;
use crate::coordinator::console::testing::{Captured, Sink, Stopped, captured};
use std::path::Path;

/// Longer than any machine needs, so that a test that hangs fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until what was written holds `pattern`.
fn wait_for(sink: &Sink, pattern: &str) {
    let deadline = Instant::now() + PATIENCE;
    while !sink.text().contains(pattern) {
        assert!(Instant::now() < deadline, "no `{pattern}` in {}", sink.text());
        thread::park_timeout(Duration::from_millis(5));
    }
}

/// A launch whose tasks run `script`, with `$task` set; it can be told to end.
struct Launch {
    options: LaunchOptions,
    screen: Screen,
    out: Sink,
    err: Sink,
    events: Sender<Event>,
    received: Receiver<Event>,
}

impl Launch {
    fn new(script: &str) -> Self {
        let Captured { screen, out, err } = captured(ProgressMode::Lines);
        let (events, received) = mpsc::channel();
        let options = LaunchOptions {
            workers: 2,
            ps: 1,
            module: Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml"),
            program: "/bin/sh".into(),
            program_args: ["-c".into(), format!("task=$2; {script}").into()].into(),
            environment: vec![("PATH".into(), "/usr/bin:/bin".into())],
            ..LaunchOptions::default()
        };
        Launch { options, screen, out, err, events, received }
    }

    fn run(self) -> (Exit, String, String) {
        let exit = run_on(&self.screen, &self.options, self.events, &self.received).expect("it was launched");
        assert!(self.screen.flush(PATIENCE));
        (exit, self.out.text(), self.err.text())
    }
}

fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort_unstable();
    lines
}

#[test]
fn every_task_gets_its_socket_its_flags_and_a_clean_environment() {
    let mut launch = Launch::new(
        "[ -S /proc/self/fd/3 ] && echo \"socket $LISTEN_FDS ${LISTEN_PID-unset} ${TF_CONFIG-unset} ${DCHOST_TASK-unset}\"
         shift 4; echo \"$task $*\"",
    );
    for name in ["TF_CONFIG", "DCHOST_TASK", "LISTEN_PID", "LISTEN_FDS"] {
        launch.options.environment.push((name.into(), "leaked".into()));
    }
    launch.options.flags = vec!["--timeout".into(), "9s".into()];
    launch.options.guest_args = vec!["--epochs".into(), "3".into()];
    let module = launch.options.module.display().to_string();
    let (exit, out, err) = launch.run();
    assert_eq!(exit, Exit::Done, "{err}");
    let worker = |index| format!("worker:{index} | worker:{index} --module {module} --timeout 9s -- --epochs 3");
    let expected = [
        "ps:0     | ps:0 --timeout 9s -- --epochs 3".to_owned(),
        "ps:0     | socket 1 unset unset unset".to_owned(),
        "worker:0 | socket 1 unset unset unset".to_owned(),
        worker(0),
        "worker:1 | socket 1 unset unset unset".to_owned(),
        worker(1),
    ];
    assert_eq!(sorted(&out), expected, "{err}");
    assert!(err.contains("task      how it ended"), "{err}");
    assert_eq!(err.matches("done").count(), 3, "{err}");
}

#[test]
fn the_cluster_lists_every_task_with_its_own_port() {
    let mut launch = Launch::new("echo \"$4\"");
    launch.options.chief = true;
    launch.options.evaluator = true;
    let (exit, out, _) = launch.run();
    assert_eq!(exit, Exit::Done);
    let specs: Vec<&str> = out.lines().filter_map(|line| line.split_once(" | ")).map(|(_, spec)| spec).collect();
    assert_eq!(specs.len(), 5);
    assert!(specs.iter().all(|spec| *spec == specs[0]), "all have the same view: {specs:?}");
    let spec: serde_json::Value = serde_json::from_str(specs[0]).expect("JSON");
    let jobs = spec.as_object().expect("an object");
    assert_eq!(jobs.keys().collect::<Vec<_>>(), ["chief", "worker", "ps", "evaluator"]);
    let mut addresses: Vec<_> =
        jobs.values().flat_map(|job| job.as_array().expect("a list")).map(|a| a.as_str().expect("text")).collect();
    addresses.sort_unstable();
    addresses.dedup();
    assert_eq!(addresses.len(), 5);
    assert!(addresses.iter().all(|address| address.starts_with("127.0.0.1:")), "{addresses:?}");
}

#[test]
fn streams_stay_apart_and_lines_are_escaped_and_bounded() {
    let mut launch = Launch::new(
        "printf 'out\\033[2J\\n\\377last without newline'; printf 'err\\n' >&2
         printf '\\036{\"progress\":{\"done\":3,\"total\":3,\"note\":\"n\"}}\\n\\036{\"later\":1}\\n' >&2",
    );
    launch.options.workers = 1;
    launch.options.ps = 0;
    let (_, out, err) = launch.run();
    assert_eq!(out, "worker:0 | out\\u{1b}[2J\nworker:0 | \u{fffd}last without newline\n");
    assert!(err.starts_with("worker:0 | err\nworker:0 | progress 3/3 n\ntask "), "{err}");
}

#[test]
fn json_lines_pass_and_others_are_wrapped() {
    let mut launch = Launch::new("echo '{\"message\":\"x\"}'; echo text");
    launch.options.workers = 1;
    launch.options.ps = 0;
    launch.options.format = LineFormat::Json;
    let (_, out, err) = launch.run();
    let lines: Vec<serde_json::Value> =
        out.lines().chain(err.lines()).map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(lines[0]["message"], "x");
    assert_eq!((&lines[1]["task"], &lines[1]["message"]), (&"worker:0".into(), &"text".into()));
    assert_eq!((&lines[2]["task"], &lines[2]["exit_code"]), (&"worker:0".into(), &0.into()));
}

#[test]
fn the_first_cause_is_the_exit_and_stands_in_the_table() {
    let launch = Launch::new("case $task in worker:1) exit 3;; *) exit 202;; esac");
    let (exit, _, err) = launch.run();
    assert_eq!(exit, Exit::Trap, "{err}");
    assert!(err.contains("worker:1  trapped (exit code 3), first cause"), "{err}");
    assert_eq!(err.matches("first cause").count(), 1, "{err}");
}

/// Aim: after a signal everything has gone within two seconds, even what ignores SIGTERM.
/// Method: tasks that ignore it and never yield; a signal once all run; the table's and the clock's word for it.
#[test]
fn a_signal_ends_even_tasks_that_ignore_sigterm() {
    let launch = Launch::new("trap '' TERM; echo up; while :; do :; done");
    let (out, events) = (launch.out.clone(), launch.events.clone());
    let running = thread::spawn(move || launch.run());
    ["worker:0 | up", "worker:1 | up", "ps:0     | up"].iter().for_each(|line| wait_for(&out, line));
    let told = Instant::now();
    events.send(Event::Signal(StopSignal::Interrupt)).expect("the launcher listens");
    let (exit, _, err) = running.join().expect("no panic");
    assert_eq!(exit, Exit::Interrupted);
    assert_eq!(err.matches("ended by launch").count(), 3, "{err}");
    // Two seconds are the promise; the rest is for a test machine that runs much else.
    assert!(told.elapsed() < Duration::from_secs(10), "{:?}", told.elapsed());
}

/// Aim: a reader that never comes keeps the launcher only until `--timeout` or a signal, whenever that comes. Method: a standard
/// output that takes nothing, or all; a clock that has run out when the tasks have ended; a signal that comes while they run.
#[test]
fn a_reader_keeps_the_launcher_no_longer_than_its_timeout_or_a_signal() {
    let (clock, signal) = (Some(Duration::ZERO), Some(StopSignal::Terminate));
    for (script, timeout, signal, is_read, expected) in [
        ("echo up", clock, None, false, Exit::Timeout),
        ("echo up", clock, None, true, Exit::Done),
        ("echo up; exit 3", clock, None, false, Exit::Trap),
        ("echo up; exec sleep 600", None, signal, false, Exit::Terminated),
    ] {
        let mut launch = Launch::new(script);
        launch.options.timeout = timeout;
        let (open, gate) = mpsc::channel();
        let stopped = Stopped(gate, launch.out.clone());
        launch.screen = Screen::over(Box::new(stopped), Box::new(launch.err.clone()), ProgressMode::Lines);
        launch.screen.line(Stream::Stdout, b"unread".to_vec());
        let _open = Some(open).filter(|_| !is_read);
        if let Some(signal) = signal {
            launch.events.send(Event::Signal(signal)).expect("the launcher listens");
        }
        let (told, ended) = mpsc::channel();
        thread::spawn(move || {
            let exit = run_on(&launch.screen, &launch.options, launch.events, &launch.received);
            // Nobody listens any more where the test has given up.
            let _ = told.send(exit.expect("it was launched"));
        });
        assert_eq!(ended.recv_timeout(PATIENCE), Ok(expected), "{script}, read: {is_read}");
    }
}

#[test]
fn peak_memory_and_time_are_measured() {
    let mut launch = Launch::new(":");
    launch.options.ps = 0;
    let (_, _, err) = launch.run();
    let rows: Vec<_> = err.lines().filter(|line| line.starts_with("worker")).collect();
    assert_eq!(rows.len(), 2, "{err}");
    for row in rows {
        let memory: f64 =
            row.split_whitespace().rev().nth(1).and_then(|mib| mib.parse().ok()).expect("a number of MiB");
        assert!(memory > 0.1, "even a shell needs memory: {row}");
    }
}

#[test]
fn what_cannot_be_launched_is_refused_before_anything_starts() {
    let check = |change: &dyn Fn(&mut LaunchOptions), exit: Exit, text: &str| {
        let mut launch = Launch::new("echo started");
        change(&mut launch.options);
        let error = run_on(&launch.screen, &launch.options, launch.events, &launch.received).expect_err("refused");
        assert_eq!(error.exit(), exit);
        assert!(error.to_string().contains(text), "{error}");
        assert_eq!(launch.out.text(), "");
    };
    check(&|options| options.workers = 0, Exit::Refused, "--workers");
    check(&|options| options.module = "no/such.wasm".into(), Exit::Refused, "`no/such.wasm`");
    check(&|options| options.module = "/".into(), Exit::Refused, "`/` is a directory");
    check(&|options| options.program = "/no/such/program".into(), Exit::Files, "worker:0 from `/no/such/program`");
}

#[test]
fn flags_environment_and_log_reach_the_tasks_as_flags() {
    use clap::Parser as _;
    let line = "dchost launch --workers 2 --ps 1 --module m.wasm --end never -v -- --epochs 3";
    let cli = cli::Cli::try_parse_from(line.split(' ')).expect("it parses");
    let Some(cli::Command::Launch(args)) = &cli.command else { panic!("no launch") };
    let environment: Environment =
        [("DCHOST_TIMEOUT", "9s"), ("NO_COLOR", "1"), ("HOME", "/nowhere"), ("TF_CONFIG", "{}")].into_iter().collect();
    let log = config::log(&cli.log, &environment).expect("no faults");
    let config = config::launch(args, &environment).expect("no faults");
    let options = options(args, config, log, &environment, "/bin/dchost".into());

    let flags: Vec<_> = options.flags.iter().map(|flag| flag.to_string_lossy().into_owned()).collect();
    for flag in ["--end=never", "--connect-timeout=1m", "--timeout=9s", "-v"] {
        assert!(flags.iter().any(|given| given == flag), "no {flag} in {flags:?}");
    }
    assert!(!flags.iter().any(|flag| flag.contains("module")), "{flags:?}");
    assert_eq!((options.workers, options.ps, options.end_never, options.color), (2, 1, true, false));
    assert_eq!(options.timeout, Some(Duration::from_secs(9)));
    assert_eq!(options.module, Path::new("m.wasm"));
    let of = |task| arguments(&options, task, "{}");
    let has_module = |args: &[OsString]| args.windows(2).any(|two| two == ["--module", "m.wasm"]);
    assert!(has_module(&of(Task::new(TaskType::Worker, 1))));
    assert!(!has_module(&of(Task::new(TaskType::Ps, 0))));
    assert_eq!(of(Task::new(TaskType::Ps, 0)).split_off(flags.len() + 5), ["--", "--epochs", "3"]);
    let inherited: Vec<_> =
        options.environment.iter().map(|(name, _)| name).filter(|name| is_inherited(name)).collect();
    assert_eq!(inherited, ["HOME", "NO_COLOR"]);
}
