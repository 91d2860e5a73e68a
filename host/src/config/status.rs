//! What `dchost status` reads.

use super::reader::Reader;
use super::{CONTAINER, Environment, run_settings};
use crate::cli;
use crate::coordinator::resolve::{Asked, Faults, Target, resolve_status, values};
use std::time::Duration;

/// How long a server may take to answer `dchost status`: a person waits.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// What `dchost status` needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusConfig {
    /// The servers that are asked, at least one.
    pub targets: Vec<Target>,
    /// In whose name they are asked.
    pub container: String,
    /// How long one may take to answer.
    pub connect_timeout: Duration,
    /// What reading found odd.
    pub warnings: Vec<String>,
}

/// Reads whom `dchost status` asks. An address given needs no cluster, and then none is read.
///
/// The connect timeout is the flag's only: that of the environment and the file is a run's, which waits for machines to come.
///
/// # Errors
/// Every fault; nobody has been asked.
pub fn status(args: &cli::Status, environment: &Environment) -> Result<StatusConfig, Faults> {
    let asked = match (&args.address, &args.task) {
        (Some(address), _) => Asked::Address(address.clone()),
        (None, Some(task)) => Asked::Task(task.clone()),
        (None, None) if args.all => Asked::All,
        (None, None) => Asked::Leader,
    };
    // As if nobody had given the rest: what a run's guest needs is not looked for here.
    let mut settings = run_settings(&cli::Run::default(), &Environment::default(), None);
    let mut reader = Reader::new(environment, args.config.as_deref());
    settings.container = reader.pick_or("container", args.container.clone(), values::text, CONTAINER.to_owned());
    if args.address.is_none() {
        settings.tf_config = reader.keep(environment.text("TF_CONFIG")).flatten().map(str::to_owned);
        settings.cluster = reader.cluster(args.cluster.clone());
    }
    (settings.faults, settings.warnings) = (reader.faults, reader.warnings);
    Ok(StatusConfig {
        targets: resolve_status(&settings, &asked)?,
        container: settings.container.value,
        connect_timeout: args.connect_timeout.unwrap_or(CONNECT_TIMEOUT),
        warnings: settings.warnings,
    })
}

/// Reads which cluster `dchost save` and `dchost restore` are about: its one target tells where the others are.
///
/// # Errors
/// Every fault; nobody has been asked.
pub fn checkpoint(args: &cli::Checkpoint, environment: &Environment) -> Result<StatusConfig, Faults> {
    let asked = cli::Status {
        address: Some(args.address.clone()),
        container: args.container.clone(),
        connect_timeout: args.connect_timeout,
        ..cli::Status::default()
    };
    status(&asked, environment)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser as _;
    use expect_test::{Expect, expect};

    const CLUSTER: &str = r#"{"worker":["a:1","b:2"],"ps":["c:3"]}"#;

    fn read(flags: &[&str], pairs: &[(&str, &str)]) -> Result<StatusConfig, String> {
        let cli =
            Cli::try_parse_from(["dchost", "status"].iter().chain(flags)).unwrap_or_else(|error| panic!("{error}"));
        let Some(Command::Status(args)) = cli.command else { panic!("not a status") };
        status(&args, &pairs.iter().copied().collect()).map_err(|faults| faults.to_string())
    }

    /// Whom it asks, one a line, or why nobody.
    #[track_caller]
    fn check(flags: &[&str], pairs: &[(&str, &str)], expect: Expect) {
        let asked = read(flags, pairs).map_or_else(
            |faults| faults,
            |config| {
                let target = |target: &Target| match target.task {
                    Some(task) => format!("{task} at {}", target.address),
                    None => target.address.clone(),
                };
                config.targets.iter().map(target).collect::<Vec<_>>().join(", ")
            },
        );
        expect.assert_eq(&asked);
    }

    #[test]
    fn an_address_needs_no_cluster_and_reads_none() {
        check(&["a:1"], &[("TF_CONFIG", "{'broken"), ("DCHOST_CLUSTER", "{")], expect!["a:1"]);
        check(&["grpc://[::1]:22"], &[], expect!["[::1]:22"]);
        for bad in ["a", "http://a:1", "::1:22", "a:0", "a:1/x", "me@a:1", "", "a\u{1b}:1", "5s"] {
            let error = read(&[bad], &[]).expect_err(bad);
            assert!(error.contains("ADDR: ") && !error.contains('\u{1b}'), "{error}");
        }
        check(
            &["5s", "--watch"],
            &[],
            expect![
                "configuration refused: ADDR: address `5s` has no port; give HOST:PORT, as in `host:2222`; an interval is --watch=5s"
            ],
        );
    }

    #[test]
    fn without_an_address_the_leader_is_asked_wherever_the_cluster_comes_from() {
        let tf_config = format!(r#"{{"cluster":{CLUSTER},"task":{{"type":"ps","index":0}}}}"#);
        let pairs = [("TF_CONFIG", tf_config.as_str()), ("DCHOST_TASK", "worker:1")];
        check(&[], &pairs, expect!["worker:0 at a:1"]);
        check(&["--task=ps"], &pairs, expect!["ps:0 at c:3"]);
        check(&["--cluster", CLUSTER, "--task=worker:1"], &[], expect!["worker:1 at b:2"]);
        check(&["--all"], &[("DCHOST_CLUSTER", CLUSTER)], expect!["ps:0 at c:3, worker:0 at a:1, worker:1 at b:2"]);
        check(&[], &[("DCHOST_CLUSTER", r#"{"worker":["a:1"],"chief":["b:1"]}"#)], expect!["chief:0 at b:1"]);
    }

    #[test]
    fn what_names_nobody_is_refused_saying_what_would() {
        check(
            &[],
            &[],
            expect![
                "configuration refused: ADDR: is missing, and there is no cluster whose leader could be asked; give HOST:PORT of a task, or the cluster by --cluster, TF_CONFIG or --config"
            ],
        );
        check(
            &[],
            &[("TF_CONFIG", "{'cluster'")],
            expect![[
                r#"configuration refused: `TF_CONFIG`: is no JSON: key must be a string at line 1 column 2, near `{'cluster'`; JSON needs double quotes, as in {"worker":["a:2222"]}"#
            ]],
        );
        check(
            &["--cluster", r#"{"ps":["c:3"]}"#],
            &[],
            expect![
                "configuration refused: `--cluster`: has neither chief:0 nor worker:0 among ps (1 task), so no leader; choose a task with --task, or ask --all"
            ],
        );
        check(
            &["--cluster", CLUSTER, "--task=ps:7"],
            &[],
            expect![
                "configuration refused: `--task`: `ps:7` is not in the cluster, which has ps (1 task), worker (2 tasks); choose one of them"
            ],
        );
        check(
            &["--cluster", CLUSTER, "--task=worker"],
            &[],
            expect![
                "configuration refused: `--task`: task `worker` has no index, but the cluster has 2 of them; say which, as in `worker:0`"
            ],
        );
        check(
            &["--cluster", r#"{"ps":[]}"#, "--all"],
            &[],
            expect!["configuration refused: `--cluster`: lists no task; list those that run"],
        );
    }

    /// A file of a run holds much that is a run's: what its guest needs isn't looked for, and its patience isn't a person's.
    #[test]
    fn of_a_runs_file_and_environment_count_cluster_and_container() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("job.toml");
        let text = "container = \"mine\"\nenv = [\"NOT_SET_HERE\"]\ndir = [\"/nowhere\"]\nconnect-timeout = \"1h\"\n\
                    task = \"ps:0\"\n[cluster]\nworker = [\"a:1\"]\nps = [\"b:1\"]\n";
        std::fs::write(&path, text).expect("writes");
        let config = format!("--config={}", path.display());
        let read = |flags: &[&str]| read(&[&[config.as_str()], flags].concat(), &[("DCHOST_CONNECT_TIMEOUT", "1h")]);
        let config = read(&[]).expect("a cluster");
        assert_eq!((config.container.as_str(), config.connect_timeout), ("mine", CONNECT_TIMEOUT));
        assert_eq!(config.targets[0].address, "a:1");
        let config = read(&["--container=other", "--connect-timeout=9s"]).expect("a cluster");
        assert_eq!((config.container.as_str(), config.connect_timeout), ("other", Duration::from_secs(9)));
        assert!(read(&["--container=-"]).is_err_and(|error| error.contains("container name")));
    }

    #[test]
    fn an_interval_follows_an_equals_sign_and_is_no_shorter_than_servers_bear() {
        let watch = |flag: &str| {
            let cli = Cli::try_parse_from(["dchost", "status", flag, "a:1"]).map_err(|error| error.to_string())?;
            let Some(Command::Status(args)) = cli.command else { panic!("not a status") };
            Ok::<_, String>((args.watch, args.address))
        };
        let address = Some("a:1".to_owned());
        assert_eq!(watch("--watch"), Ok((Some(Duration::from_secs(2)), address.clone())));
        assert_eq!(watch("--watch=100ms"), Ok((Some(Duration::from_millis(100)), address)));
        for short in ["--watch=99ms", "--watch=0s", "--watch=5"] {
            assert!(watch(short).is_err(), "{short}");
        }
    }
}
