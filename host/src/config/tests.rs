//! Layers, files, environment; what a launched task is told.

use super::*;
use crate::cli::{Cli, Command};
use crate::coordinator::resolve::{Cache, Origin};
use clap::Parser as _;
use std::os::unix::ffi::OsStringExt as _;
use std::path::Path;

/// The sha256 of nothing.
const DIGEST: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

fn cli(flags: &[&str]) -> Cli {
    Cli::try_parse_from(["dchost"].iter().chain(flags)).unwrap_or_else(|error| panic!("{error}"))
}

fn environment(pairs: &[(&str, &str)]) -> Environment {
    pairs.iter().copied().collect()
}

fn settings(flags: &[&str], pairs: &[(&str, &str)]) -> Settings {
    run_settings(&cli(flags).run, &environment(pairs), None)
}

/// A configuration file in a directory of its own.
struct ConfigFile {
    _dir: tempfile::TempDir,
    path: String,
}

impl ConfigFile {
    fn new(text: &str) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("job.toml");
        std::fs::write(&path, text).expect("writes");
        ConfigFile { path: path.to_str().expect("UTF-8").to_owned(), _dir: dir }
    }
}

fn faults(settings: &Settings) -> Vec<String> {
    settings.faults.iter().map(ToString::to_string).collect()
}

#[track_caller]
fn check_fault(settings: &Settings, texts: &[&str]) {
    let faults = faults(settings);
    assert_eq!(faults.len(), 1, "{faults:?}");
    texts.iter().for_each(|text| assert!(faults[0].contains(text), "`{}` lacks `{text}`", faults[0]));
}

#[test]
fn flags_beat_the_environment_which_beats_the_file() {
    let file = ConfigFile::new("timeout = \"3s\"\nend = \"never\"\nmax-handles = 3\n");
    let config = format!("--config={}", file.path);
    let in_file = Origin::File(Path::new(&file.path).to_owned());
    let pairs = [("DCHOST_TIMEOUT", "2s"), ("DCHOST_MAX_HANDLES", "2")];
    let read = settings(&[&config, "--timeout=1s"], &pairs);
    assert_eq!(read.timeout, Setting { value: Timeout(Some(Duration::from_secs(1))), origin: Origin::Flag });
    let handles = &read.limits.max_handles;
    assert_eq!(*handles, Setting { value: 2, origin: Origin::Environment("DCHOST_MAX_HANDLES".to_owned()) });
    assert_eq!(read.end, Setting { value: EndRule::Never, origin: in_file });
    assert_eq!(read.rejoin_timeout, Setting::default(REJOIN_TIMEOUT));
    assert_eq!(read.faults, []);
}

#[test]
fn every_key_is_read_from_the_environment() {
    // Each value differs from the default, so that a twin nobody reads shows.
    for (key, value) in [
        ("module", "m"),
        ("task", "ps"),
        ("cluster", "{}"),
        ("mode", "split-client"),
        ("replication", "in-graph"),
        ("rpc-layer", "none"),
        ("bind", "::1"),
        ("insecure", "true"),
        ("no-cluster-barrier", "1"),
        ("end", "never"),
        ("connect-timeout", "1s"),
        ("rejoin-timeout", "1s"),
        ("evaluator-grace", "1s"),
        ("barrier-timeout", "1s"),
        ("timeout", "1s"),
        ("max-attempts", "2"),
        ("container", "c"),
        ("summary-dir", "d"),
        ("dir", "/;/::/a"),
        ("env", "A=1;B=2"),
        ("max-memory", "1"),
        ("max-tensor", "1"),
        ("kernel-threads", "1"),
        ("max-module-size", "1"),
        ("compile-timeout", "1s"),
        ("max-variable-bytes", "1"),
        ("cpu-timeout", "1s"),
        ("fuel", "1"),
        ("max-wasm-stack", "1"),
        ("max-handles", "1"),
        ("max-output", "1"),
        ("max-output-line", "1"),
        ("max-output-rate", "1"),
        ("max-ops", "1"),
        ("unknown-imports-trap", "true"),
        ("allow-net", "a:1"),
        ("digest", DIGEST),
        ("allow-precompiled", "true"),
        ("coredump", "d"),
        ("cache-dir", "d"),
        ("no-cache", "true"),
    ] {
        assert!(KEYS.contains(&key), "{key}");
        let read = settings(&[], &[(&twin(key), value)]);
        assert_eq!(read.faults, [], "{key}");
        assert_ne!(read, settings(&[], &[]), "{key}");
        let quoted = format!("{key} = {value:?}\n");
        let file = ConfigFile::new(&quoted);
        let read = settings(&[&format!("--config={}", file.path)], &[]);
        assert_eq!(read.faults, [], "{quoted}");
        assert_ne!(read, settings(&[], &[]), "{quoted}");
        let bad = settings(&[], &[(&twin(key), "")]);
        if !["task", "bind", "container", "cluster", "dir", "env", "allow-net"].contains(&key) {
            check_fault(&bad, &[&twin(key)]);
        }
    }
    let log = log(&LogOptions::default(), &environment(&[("DCHOST_VERBOSE", "2"), ("DCHOST_LOG_FORMAT", "json")]));
    assert_eq!(log, Ok(LogConfig { verbose: 2, format: LogFormat::Json }));
}

#[test]
fn unknown_keys_of_a_file_are_refused_with_the_nearest_name() {
    let file = ConfigFile::new("tiemout = \"3s\"\nxyzzy = 1\nlog-format = \"json\"\n");
    let faults = faults(&settings(&["--config", &file.path], &[]));
    assert!(faults[0].contains("`log-format`") && faults[0].contains("DCHOST_LOG_FORMAT"), "{faults:?}");
    assert!(faults[1].contains("`tiemout`") && faults[1].contains("`timeout`"), "{faults:?}");
    assert!(faults[2].contains("`xyzzy`"), "{faults:?}");
}

#[test]
fn files_may_have_windows_line_ends_and_a_byte_order_mark() {
    let file = ConfigFile::new("\u{feff}end = \"never\"\r\n\r\nfuel = 7\r\n");
    let read = settings(&["--config", &file.path], &[]);
    assert_eq!((read.faults, read.end.value, read.limits.fuel.value), (Vec::new(), EndRule::Never, Some(7)));
}

#[test]
fn broken_files_are_told_by_line() {
    let file = ConfigFile::new("end = \"never\"\nfuel = \n");
    check_fault(&settings(&["--config", &file.path], &[]), &["no TOML", "line 2"]);
    for (text, line) in [
        ("=", "line 1"),
        ("\n\n= 1\n", "line 3"),
        ("\u{feff}\r\n\r\n= 1\r\n", "line 3"),
        ("# \u{e9}\nend = 1\nend = 1\n", "line 3"),
        ("end = 1\n[a\n", "line 2"),
        ("a = [\n1,\n", "line 2"),
        ("a = \"\"\"\n\n", "line 2"),
    ] {
        let file = ConfigFile::new(text);
        check_fault(&settings(&["--config", &file.path], &[]), &["no TOML", &format!("in {line}")]);
    }
    let file = ConfigFile::new("fuel = [1]\n");
    check_fault(&settings(&["--config", &file.path], &[]), &["`fuel`", "array"]);
    check_fault(&settings(&["--config=/nowhere/job.toml"], &[]), &["`--config`", "/nowhere/job.toml"]);
    check_fault(&settings(&[], &[("DCHOST_CONFIG", "/nowhere/job.toml")]), &["`DCHOST_CONFIG`"]);
}

#[test]
fn a_file_may_hold_the_cluster_as_a_table() {
    let file = ConfigFile::new("task = \"worker:1\"\n[cluster]\nworker = [\"localhost:1\", \"localhost:2\"]\n");
    let config = format!("--config={}", file.path);
    let read = |flags: &[&str], pairs: &[(&str, &str)]| {
        let flags: Vec<_> = flags.iter().copied().chain([config.as_str(), "--module=m"]).collect();
        let resolved = run(&cli(&flags).run, &environment(pairs)).unwrap_or_else(|faults| panic!("{faults}")).resolved;
        (resolved.cluster.num_workers(), resolved.task.map(|task| task.to_string()).unwrap_or_default())
    };
    assert_eq!(read(&[], &[]), (2, "worker:1".to_owned()));
    // TF_CONFIG is environment: it beats the file, and needs not agree with it.
    let tf_config = r#"{"cluster":{"worker":["localhost:3"]},"task":{"type":"worker","index":0}}"#;
    assert_eq!(read(&[], &[("TF_CONFIG", tf_config)]), (1, "worker:0".to_owned()));
    assert_eq!(read(&["--task=worker:0"], &[]), (2, "worker:0".to_owned()));
}

#[test]
fn a_cluster_may_stand_in_a_file_of_its_own() {
    let file = ConfigFile::new("\u{feff}{\"worker\": [\"localhost:1\"]}\r\n");
    let read = settings(&["--cluster", &file.path], &[]).cluster.expect("a cluster").value;
    assert_eq!(read.json.trim(), "{\"worker\": [\"localhost:1\"]}");
    assert_eq!(read.file.as_deref(), Some(Path::new(&file.path)));
    check_fault(&settings(&["--cluster=w0:1"], &[]), &["`--cluster`", "neither JSON", "w0:1"]);
    let file = ConfigFile::new("{\"worker\": 7}");
    let report = run(&cli(&["--cluster", &file.path, "--task=worker", "--module=m"]).run, &Environment::default());
    assert!(report.expect_err("refused").to_string().contains("job.toml`, job `worker`"));
}

#[test]
fn values_that_are_not_text_are_refused_naming_the_variable() {
    for name in ["TF_CONFIG", "DCHOST_TIMEOUT", "DCHOST_DIR"] {
        let environment: Environment = [(name, OsString::from_vec(vec![0xff, b'a']))].into_iter().collect();
        check_fault(&run_settings(&cli(&[]).run, &environment, None), &[name, "not UTF-8"]);
    }
    // Others' variables are others' business.
    let other: Environment = [("LS_COLORS", OsString::from_vec(vec![0xff]))].into_iter().collect();
    assert_eq!(run_settings(&cli(&[]).run, &other, None).faults, []);
}

#[test]
fn misspelled_variables_are_warned_about_and_foreign_ones_are_not() {
    let pairs = [("DCHOST_TIMOUT", "1s"), ("DCHOST_PORT_2222_TCP_ADDR", "10.0.0.1"), ("DCHOST_SERVICE_HOST", "x")];
    let warnings = settings(&[], &pairs).warnings;
    assert!(matches!(warnings.as_slice(), [one] if one.contains("DCHOST_TIMOUT") && one.contains("`DCHOST_TIMEOUT`")));
}

#[test]
fn guest_variables_are_set_or_handed_over() {
    let read = settings(&["--env", "A=1=2", "--env=TOKEN"], &[("TOKEN", "secret")]);
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(read.env_values, [pair("A", "1=2"), pair("TOKEN", "secret")]);
    check_fault(&settings(&["--env=TOKEN"], &[]), &["`--env`", "`TOKEN`", "not set"]);
    let resolved =
        run(&cli(&["--module=m", "--env=TOKEN"]).run, &environment(&[("TOKEN", "secret")])).expect("resolves");
    assert!(!resolved.resolved.describe().contains("secret"));
}

#[test]
fn directories_of_the_guest_must_be_there() {
    let file = ConfigFile::new("");
    let dir = Path::new(&file.path).parent().expect("a parent").to_str().expect("UTF-8").to_owned();
    // A plan of what a run would refuse would be none.
    let faults = |flag: &str| {
        let (cli, environment) = (cli(&["--module=m", flag]), Environment::default());
        [run(&cli.run, &environment).err(), plan(&cli.run, &environment).err()]
            .map(|faults| faults.map(|f| f.to_string()))
    };
    for good in [format!("--dir={dir}::/data:ro"), format!("-Dcoredump={dir}")] {
        assert_eq!(faults(&good), [None, None], "{good}");
    }
    for (flag, path, text) in [
        ("--dir", file.path.as_str(), "no directory"),
        ("--dir", "/nowhere/data", "can't be used"),
        ("-D coredump", file.path.as_str(), "no directory"),
        ("-D coredump", "/nowhere/data", "no directory"),
    ] {
        let given = format!("{}={path}", flag.replace(' ', ""));
        for report in faults(&given) {
            let report = report.unwrap_or_else(|| panic!("`{given}` is accepted"));
            assert!(
                report.contains(&format!("`{flag}`")) && report.contains(path) && report.contains(text),
                "{report}"
            );
        }
    }
}

#[test]
fn compiled_components_are_kept_in_the_users_cache() {
    let cache = |flags: &[&str], pairs: &[(&str, &str)]| settings(flags, pairs).cache.value;
    let dir = |path: &str| Cache::Dir(path.into());
    assert_eq!(cache(&[], &[]), Cache::Off);
    assert_eq!(cache(&[], &[("HOME", "/home/u")]), dir("/home/u/.cache/dchost"));
    assert_eq!(cache(&[], &[("HOME", "/home/u"), ("XDG_CACHE_HOME", "/c")]), dir("/c/dchost"));
    assert_eq!(cache(&[], &[("HOME", "/home/u"), ("XDG_CACHE_HOME", "relative")]), dir("/home/u/.cache/dchost"));
    assert_eq!(cache(&["--no-cache"], &[("DCHOST_CACHE_DIR", "/c")]), Cache::Off);
    assert_eq!(cache(&["--cache-dir=/d"], &[("DCHOST_NO_CACHE", "true")]), dir("/d"));
}

/// Flags, variables and the text of the file; the cache that they make, with its origin.
type Said<'a> = (&'a [&'a str], &'a [(&'a str, &'a str)], &'a str, &'a str);

/// Aim: settings that exclude each other keep the order of the layers. Method: each layer says one of the two, or both.
#[test]
fn a_cache_is_where_the_highest_layer_says() {
    let off = "no-cache = true\n";
    let (dir, both) = ("cache-dir = \"/f\"\n", "no-cache = true\ncache-dir = \"/f\"\n");
    let (env_off, env_on, env_dir) = (("DCHOST_NO_CACHE", "1"), ("DCHOST_NO_CACHE", "0"), ("DCHOST_CACHE_DIR", "/e"));
    let table: [Said; 13] = [
        (&[], &[], off, "off (`no-cache` in `FILE`)"),
        (&[], &[], dir, "/f (`cache-dir` in `FILE`)"),
        (&[], &[], both, "off (`no-cache` in `FILE`)"),
        (&[], &[env_dir], off, "/e (`DCHOST_CACHE_DIR`)"),
        (&[], &[env_dir], both, "/e (`DCHOST_CACHE_DIR`)"),
        (&[], &[env_off], dir, "off (`DCHOST_NO_CACHE`)"),
        (&[], &[env_off, env_dir], dir, "off (`DCHOST_NO_CACHE`)"),
        (&[], &[env_on], off, "off (default)"),
        (&[], &[env_on], both, "/f (`cache-dir` in `FILE`)"),
        (&[], &[env_on, env_dir], off, "/e (`DCHOST_CACHE_DIR`)"),
        (&["--no-cache"], &[env_dir], dir, "off (`--no-cache`)"),
        (&["--cache-dir=/d"], &[env_off], off, "/d (`--cache-dir`)"),
        (&["--cache-dir=/d"], &[("DCHOST_NO_CACHE", "nonsense")], off, "/d (`--cache-dir`)"),
    ];
    for (flags, pairs, text, expected) in table {
        let file = ConfigFile::new(text);
        let config = format!("--config={}", file.path);
        let flags: Vec<_> = flags.iter().copied().chain([config.as_str(), "--module=m"]).collect();
        let resolved = run(&cli(&flags).run, &environment(pairs)).unwrap_or_else(|faults| panic!("{faults}")).resolved;
        let line = format!("cache-dir = {}", expected.replace("FILE", &file.path));
        assert!(resolved.describe().lines().any(|shown| shown == line), "{line} is not in\n{}", resolved.describe());
    }
}

#[test]
fn a_higher_layer_can_take_a_limit_away() {
    let file = ConfigFile::new("fuel = 9\nmax-variable-bytes = \"1GiB\"\ntimeout = \"1h\"\ncpu-timeout = \"1h\"\n");
    let config = format!("--config={}", file.path);
    let flags = ["--max-variable-bytes=none", "--timeout=none", "-Wfuel=off,cpu-timeout=none", &config];
    let names = ["DCHOST_MAX_VARIABLE_BYTES", "DCHOST_TIMEOUT", "DCHOST_CPU_TIMEOUT"];
    let pairs: Vec<_> = names.map(|name| (name, "none")).into_iter().chain([("DCHOST_FUEL", "off")]).collect();
    for read in [settings(&flags, &[]), settings(&[&config], &pairs)] {
        assert_eq!(read.faults, []);
        assert_eq!((read.limits.fuel.value, read.limits.max_variable_bytes.value), (None, SizeLimit(None)));
        assert_eq!((read.timeout.value, read.limits.cpu_timeout.value), (Timeout(None), Timeout(None)));
    }
    let written = format!("fuel = {:?}\n", "off");
    assert_eq!(settings(&[&format!("--config={}", ConfigFile::new(&written).path)], &[]).limits.fuel.value, None);
}

fn launched(flags: &[&str], pairs: &[(&str, &str)]) -> Result<LaunchConfig, Faults> {
    let Some(Command::Launch(args)) = cli(&[&["launch"], flags].concat()).command else { panic!("not a launch") };
    launch(&args, &environment(pairs))
}

#[test]
fn what_launch_was_told_reaches_its_tasks_as_flags() {
    let file = ConfigFile::new("rejoin-timeout = \"5s\"\nmax-tensor = \"1GiB\"\n");
    let config = launched(
        &[
            "--workers=2",
            "--module=-m.wasm",
            "--config",
            &file.path,
            "--dir=/::/data:ro",
            "--env=A=1",
            "--env=DCHOST_X",
            "--env=TOKEN",
            "-Wfuel=9,cpu-timeout=2s",
            "--kernel-threads=3",
            "-Wmax-ops=2,max-output-line=1KiB,max-output-rate=2KiB,unknown-imports-trap",
            "--allow-net=10.0.0.0/8:443",
            "--allow-net=[::1]:*",
            "--digest",
            DIGEST,
            "--allow-precompiled",
            "-Dcoredump=/",
            "--no-cluster-barrier",
            "--end=chief-done",
            "--",
            "--epochs",
            "3",
        ],
        &[
            ("DCHOST_CONTAINER", "mine"),
            ("TOKEN", "secret"),
            ("DCHOST_X", "x"),
            ("TF_CONFIG", "{broken"),
            ("HOME", "/h"),
        ],
    )
    .unwrap_or_else(|faults| panic!("{faults}"));
    let shown: Vec<_> = config.child_arguments.iter().map(|text| text.to_string_lossy()).collect();
    assert!(!shown.iter().any(|text| text.contains("secret")), "{shown:?}");
    assert_eq!(config.guest_args, ["--epochs", "3"]);

    // A task that gets these flags and an empty environment but for what it inherits reads the same.
    let flags: Vec<&str> = shown.iter().map(AsRef::as_ref).collect();
    let child = run_settings(&cli(&flags).run, &environment(&[("TOKEN", "secret")]), None);
    assert_eq!(child.faults, []);
    let ours = &config.settings;
    assert!(child.module.is_none() && ours.module.is_some(), "launch gives it to those that need it");
    assert_eq!(child.env_values, ours.env_values);
    assert_eq!(child.dirs.value, ours.dirs.value);
    assert_eq!(child.connect_timeout.value, LAUNCH_CONNECT_TIMEOUT);
    assert_eq!(child.rejoin_timeout.value, Duration::from_secs(5));
    assert_eq!(child.limits.max_tensor.value, 1 << 30);
    assert_eq!(child.limits.of_guest(), ours.limits.of_guest());
    assert_eq!(child.limits.of_guest().output_line_bytes_max, 1024);
    assert_eq!(child.limits.of_guest().kernel_threads, Some(3));
    assert!(child.unknown_imports_trap.value && child.allow_precompiled.value);
    assert_eq!(child.allow_net.value, ours.allow_net.value);
    assert_eq!(child.allow_net.value.len(), 2);
    assert_eq!(child.digest.map(|digest| values::digest_text(&digest.value)).as_deref(), Some(DIGEST));
    assert_eq!(child.coredump.map(|dir| dir.value).as_deref(), Some(Path::new("/")));
    assert_eq!(
        (child.limits.fuel.value, child.limits.cpu_timeout.value),
        (Some(9), Timeout(Some(Duration::from_secs(2))))
    );
    assert_eq!((child.container.value, child.end.value), ("mine".to_owned(), EndRule::ChiefDone));
    assert!(child.no_cluster_barrier.value);
    assert_eq!(child.cache.value, Cache::Dir("/h/.cache/dchost".into()));
}

#[test]
fn launch_refuses_what_does_not_fit_in_one_report() {
    let report = launched(&["--workers=1", "--mode=independent-worker", "--client"], &[]);
    let report = report.expect_err("refused");
    assert_eq!(report.0.len(), 2, "{report}");
    for text in ["`--client`", "`--module`"] {
        assert!(report.to_string().contains(text), "{report}");
    }
    let report = launched(&["--workers=1", "--module=m", "--max-attempts=2"], &[]).expect_err("refused");
    assert!(report.to_string().contains("`--max-attempts`"), "{report}");
}

#[test]
fn launch_runs_a_client_where_it_is_asked_for() {
    let client = |flags: &[&str], environment: &[(&str, &str)]| {
        let config = launched(&[&["--workers=1", "--module=m"], flags].concat(), environment).expect("accepted");
        let told = config.child_arguments.iter().any(|argument| argument == "--mode=split-client");
        assert_eq!(told, config.client, "every task hears of it");
        config.client
    };
    assert!(client(&["--client", "--max-attempts=2"], &[]));
    assert!(client(&["--mode=split-client", "--client"], &[]));
    assert!(client(&[], &[("DCHOST_MODE", "split-client")]));
    assert!(!client(&[], &[]));
    assert!(!client(&["--mode=independent-worker", "--replication=in-graph"], &[]));
}

#[test]
fn log_flags_beat_their_twins() {
    let options = LogOptions { verbose: 1, log_format: Some(LogFormat::Text) };
    let pairs = environment(&[("DCHOST_VERBOSE", "x"), ("DCHOST_LOG_FORMAT", "json")]);
    assert_eq!(log(&options, &pairs), Ok(LogConfig { verbose: 1, format: LogFormat::Text }));
    let (kept, faults) = log(&LogOptions::default(), &pairs).expect_err("refused");
    assert_eq!(kept.format, LogFormat::Json);
    assert!(faults.to_string().contains("`DCHOST_VERBOSE`"));
    let flags: Vec<_> = LogConfig { verbose: 2, format: LogFormat::Json }.child_arguments();
    assert_eq!(flags, ["--log-format=json", "-v", "-v"]);
}

#[test]
fn without_listen_fds_no_socket_is_taken() {
    assert!(take_listener(&Environment::default()).expect("no fault").is_none());
}
