//! The rules of resolve: the tables of precedence and fields, and configurations that people ran into.

use super::*;
use crate::cli::Cli;
use crate::config::{Environment, run_settings};
use clap::Parser as _;
use proptest::prelude::*;

/// Resolves a command line and TF_CONFIG. The flags get `--insecure` where they don't speak of it.
fn resolve_line(flags: &[&str], tf_config: Option<&str>, purpose: Purpose) -> Result<Resolved, Faults> {
    let cli = Cli::try_parse_from(["dchost"].iter().chain(flags)).unwrap_or_else(|error| panic!("{error}"));
    // Somebody's home: without one there is a warning more.
    let home = ("HOME", "/home/somebody");
    let environment: Environment = tf_config.map(|text| ("TF_CONFIG", text)).into_iter().chain([home]).collect();
    resolve(&run_settings(&cli.run, &environment, None), purpose)
}

#[track_caller]
fn good(flags: &[&str], tf_config: &str) -> Resolved {
    let flags: Vec<_> = flags.iter().copied().chain(["--insecure"]).collect();
    resolve_line(&flags, Some(tf_config), Purpose::Run).unwrap_or_else(|faults| panic!("{faults}"))
}

/// Checks that the configuration is refused with as many faults as there are lists, each holding its texts.
#[track_caller]
fn refused(flags: &[&str], tf_config: Option<&str>, faults: &[&[&str]]) -> String {
    let flags: Vec<_> = flags.iter().copied().chain(["--insecure"]).collect();
    let report = resolve_line(&flags, tf_config, Purpose::Run).expect_err("it is refused");
    assert_eq!(report.0.len(), faults.len(), "{report}");
    for (fault, texts) in report.0.iter().zip(faults) {
        let fault = fault.to_string();
        texts.iter().for_each(|text| assert!(fault.contains(text), "`{fault}` lacks `{text}`"));
    }
    report.to_string()
}

const MODULE: &str = "--module=m.wasm";

fn run(resolved: &Resolved) -> &crate::context::WorkerContext {
    match resolved.plan.runs.as_slice() {
        [run] => run,
        runs => panic!("{} runs", runs.len()),
    }
}

// Configurations that people ran into, by the number of the case log.

#[test]
fn a1_worker_0_acts_as_the_missing_chief() {
    let tf_config = |index| {
        format!(
            r#"{{"cluster":{{"worker":["a:2222","b:2222"],"ps":["c:2222"]}},"task":{{"type":"worker","index":{index}}}}}"#
        )
    };
    let (first, second) = (good(&[MODULE], &tf_config(0)), good(&[MODULE], &tf_config(1)));
    assert!(run(&first).is_chief && !run(&second).is_chief);
    assert_eq!((run(&first).num_workers, run(&second).num_workers), (2, 2));
}

#[test]
fn a2_the_old_name_master_is_refused_saying_chief() {
    let tf_config = r#"{"cluster":{"master":["a:2222"],"worker":["b:2222"]},"task":{"type":"master","index":0}}"#;
    refused(
        &[MODULE],
        Some(tf_config),
        &[&["`master`", "rename it to `chief`"], &["job `master`", "rename it to `chief`"]],
    );
}

#[test]
fn a3_a_chief_task_without_chief_job_is_told_who_acts_as_chief() {
    let tf_config = r#"{"cluster":{"worker":["a:2222","a:2223"]},"task":{"type":"chief","index":0}}"#;
    refused(&[MODULE], Some(tf_config), &[&["`chief:0`", "worker (2 tasks)", "worker:0 acts as chief"]]);
}

#[test]
fn a4_an_unlisted_evaluator_runs_without_server_and_says_so() {
    let tf_config =
        r#"{"cluster":{"chief":["a:2222"],"worker":["b:2222"],"ps":["c:2222"]},"task":{"type":"evaluator","index":0}}"#;
    let resolved = good(&[MODULE], tf_config);
    let context = run(&resolved);
    assert_eq!((context.master_target.as_str(), context.is_chief, context.distributed_mode), ("local", true, false));
    assert_eq!((&resolved.plan.server, &resolved.listen), (&None, &None));
    assert!(resolved.warnings.iter().any(|warning| warning.contains("`local`")), "{:?}", resolved.warnings);
}

#[test]
fn a5_contexts_do_not_depend_on_whether_the_evaluator_is_listed() {
    let flags = |task, evaluator| {
        let cluster = format!(r#"--cluster={{"chief":["z:1"],"worker":["a:1","b:1"],"ps":["c:1"]{evaluator}}}"#);
        let resolved = resolve_line(&[&cluster, task, MODULE, "--insecure"], None, Purpose::Run).expect("resolves");
        let mut context = run(&resolved).clone();
        context.cluster = ClusterSpec::new();
        context
    };
    for task in ["--task=worker:0", "--task=worker:1", "--task=chief"] {
        let context = flags(task, "");
        assert_eq!(context, flags(task, r#","evaluator":["d:2222"]"#));
        assert_eq!(context.num_workers, 3);
    }
}

#[test]
fn a7_job_names_taken_from_flags_are_refused_with_the_nearest_names() {
    let tf_config = r#"{"cluster":{"chief":["a:2222"],"ps_hosts":["b:2222"],"worker_hosts":["c:2222"]},"task":{"type":"worker","index":0}}"#;
    refused(&[MODULE], Some(tf_config), &[&["`ps_hosts`", "`ps`"], &["`worker_hosts`", "`worker`"]]);
}

#[test]
fn a8_every_missing_host_is_reported_in_one_run() {
    let tf_config = r#"{"cluster":{"chief":[""],"ps":"b:2222"},"task":{"type":"chief","index":0}}"#;
    refused(&[MODULE], Some(tf_config), &[&["`chief:0`", "empty"], &["job `ps`", "the string `b:2222`", "list"]]);
}

#[test]
fn a9_single_quotes_are_pointed_at_and_never_fall_back_to_local() {
    let tf_config = "{'cluster':{'ps':'','worker':'a:2222,b:2222'},'task':{'index':0,'type':''}}";
    refused(&[MODULE], Some(tf_config), &[&["`TF_CONFIG`", "line 1 column 2", "double quotes"]]);
}

#[test]
fn a11_a_sparse_view_is_accepted_with_a_warning() {
    let tf_config =
        r#"{"cluster":{"ps":["a:2222","b:2222"],"worker":{"1":"c:2222"}},"task":{"type":"worker","index":1}}"#;
    let resolved = good(&[MODULE], tf_config);
    let context = run(&resolved);
    assert_eq!((context.master_target.as_str(), context.num_workers, context.is_chief), ("grpc://c:2222", 1, false));
    assert!(!context.has_barrier);
    assert!(resolved.warnings.iter().any(|warning| warning.contains("no task here will initialise")));
}

#[test]
fn a14_a_login_name_is_refused_naming_character_and_entry() {
    let tf_config = r#"{"cluster":{"worker":["me@a:8080","me@b:8080"]},"task":{"type":"worker","index":0}}"#;
    refused(&[MODULE], Some(tf_config), &[&["`worker:0`", "`@`", "me@a:8080"], &["`worker:1`", "`@`"]]);
}

#[test]
fn a15_a_stray_dot_is_refused_and_a_final_dot_of_a_name_is_not() {
    let tf_config =
        r#"{"cluster":{"worker":["10.0.0.232.:2223","10.0.0.233:2223"]},"task":{"type":"worker","index":0}}"#;
    refused(&[MODULE], Some(tf_config), &[&["`worker:0`", "stray dot"]]);
    good(&[MODULE], r#"{"cluster":{"worker":["a.example.:2223","b:1"]},"task":{"type":"worker","index":0}}"#);
}

#[test]
fn a16_tasks_with_one_address_are_named() {
    let tf_config = r#"{"cluster":{"ps":["a:2223"],"worker":["b:2223","A.:2223"]},"task":{"type":"worker","index":0}}"#;
    refused(&[MODULE], Some(tf_config), &[&["`ps:0`", "`worker:1`", "`a:2223`"]]);
}

#[test]
fn a17_the_effective_configuration_shows_each_origin() {
    let tf_config = r#"{"cluster":{"worker":["localhost:1"]},"task":{"type":"worker","index":0}}"#;
    let text = good(&[MODULE, "--timeout=5m", "-Wfuel=9"], tf_config).describe();
    for line in [
        r#"cluster = {"worker":["localhost:1"]} (cluster of `TF_CONFIG`)"#,
        "task = worker:0 (`TF_CONFIG`)",
        "mode = independent-worker (inferred)",
        "listen = 127.0.0.1:1 (inferred)",
        "timeout = 5m (`--timeout`)",
        "fuel = 9 (`-W fuel`)",
        "max-memory = 1GiB (default)",
    ] {
        assert!(text.lines().any(|shown| shown == line), "no line `{line}` in\n{text}");
    }
}

#[test]
fn a18_a_cluster_without_task_is_the_client_only_where_it_says_so() {
    let cluster = r#"--cluster={"chief":["a:1"],"worker":["b:1","c:1"]}"#;
    for flags in [[cluster, MODULE, "--mode=split-client"], [cluster, MODULE, "--task=client"]] {
        let resolved = resolve_line(&flags, None, Purpose::Run).expect("resolves");
        assert_eq!((resolved.mode, resolved.task), (Some(Mode::SplitClient), None));
        assert_eq!(resolved.plan.runs.len(), 3);
    }
    let both: &[&str] = &["no task", "--task", "--mode split-client"];
    refused(&[cluster, MODULE], None, &[both]);
    refused(&[cluster, MODULE, "--mode=independent-worker"], None, &[both]);
}

#[test]
fn a19_a_cluster_without_task_never_waits() {
    let tf_config = r#"{"cluster":{"worker":["a:15000","b:15000"]}}"#;
    refused(&[MODULE], Some(tf_config), &[&["no task", "--task TYPE:INDEX", "split client"]]);
    refused(&[], Some(tf_config), &[&["no task"]]);
}

#[test]
fn a21_slurm_variables_alone_leave_a_plain_local_run() {
    let cli = Cli::try_parse_from(["dchost", MODULE]).expect("parses");
    let environment: Environment = [("SLURM_JOB_ID", "7"), ("SLURM_PROCID", "1")].into_iter().collect();
    let resolved = resolve(&run_settings(&cli.run, &environment, None), Purpose::Run).expect("resolves");
    assert!(resolved.plan.is_local());
}

#[test]
fn a22_loopback_mixed_with_other_hosts_is_refused() {
    let tf_config = r#"{"cluster":{"chief":["localhost:2222"],"worker":["10.0.0.5:2222"]},"task":{"type":"chief"}}"#;
    refused(&[MODULE], Some(tf_config), &[&["`chief:0` at `localhost:2222`", "`worker:0` at `10.0.0.5:2222`"]]);
}

#[test]
fn b3_port_0_is_for_a_cluster_of_one() {
    let tf_config = r#"{"cluster":{"ps":["localhost:0"],"worker":["localhost:0"]},"task":{"type":"worker","index":0}}"#;
    refused(&[MODULE], Some(tf_config), &[&["`ps:0`", "port 0"], &["`worker:0`", "port 0"]]);
    let alone = good(&[MODULE], r#"{"cluster":{"worker":["localhost:0"]},"task":{"type":"worker","index":0}}"#);
    assert_eq!(alone.listen.map(|listen| listen.port()), Some(0));
}

#[test]
fn b4_contexts_show_the_listed_address_wherever_the_server_listens() {
    let cluster = r#"--cluster={"worker":["a:2222","b:2222"]}"#;
    let resolved = resolve_line(&[cluster, "--task=worker:0", MODULE, "--bind=127.0.0.1:9"], None, Purpose::Run)
        .expect("resolves");
    assert_eq!(run(&resolved).master_target, "grpc://a:2222");
    assert_eq!(resolved.listen, Some(Listen::Address("127.0.0.1:9".parse().expect("address"))));
    assert!(resolved.warnings.iter().any(|warning| warning.contains("2222")), "{:?}", resolved.warnings);
}

// Who wins: rows of the precedence table.

const CLUSTER_W2: &str = r#"--cluster={"worker":["localhost:1","localhost:2"]}"#;
const TF_W2_PS1: &str =
    r#"{"cluster":{"worker":["localhost:3","localhost:4"],"ps":["localhost:5"]},"task":{"type":"ps","index":0}}"#;

#[test]
fn p1_a_cluster_argument_leaves_tf_config_unused_but_parsed() {
    let resolved = good(&[CLUSTER_W2, "--task=worker:1", MODULE], TF_W2_PS1);
    assert_eq!(resolved.task, Some(Task::new(TaskType::Worker, 1)));
    assert!(!resolved.cluster.has_job(TaskType::Ps));
    refused(&[CLUSTER_W2, MODULE], Some(TF_W2_PS1), &[&["no task"]]);
    good(&[CLUSTER_W2, "--task=worker:1", MODULE], r#"{"cluster":[1],"task":7}"#);
}

#[test]
fn p2_an_empty_argument_is_none() {
    for flags in [&["--cluster={}"][..], &[]] {
        let flags: Vec<_> = flags.iter().copied().chain(["--task=worker:1", MODULE]).collect();
        for task in ["", r#","task":{}"#] {
            let tf_config = format!(r#"{{"cluster":{{"worker":["localhost:3","localhost:4"]}}{task}}}"#);
            assert_eq!(good(&flags, &tf_config).task, Some(Task::new(TaskType::Worker, 1)));
        }
    }
}

#[test]
fn p3_tf_config_fills_in_field_by_field_and_must_agree() {
    let tf = |task| format!(r#"{{"cluster":{{"worker":["localhost:3","localhost:4"]}},"task":{task}}}"#);
    let worker_1 = Some(Task::new(TaskType::Worker, 1));
    for (flag, task) in [
        ("--task=worker", r#"{"index":1}"#),
        ("--task=worker", r#"{"type":"worker","index":1}"#),
        ("--task=worker:1", r#"{"type":"worker"}"#),
        ("--task=worker:1", r#"{"type":"worker","index":"1"}"#),
    ] {
        assert_eq!(good(&[flag, MODULE], &tf(task)).task, worker_1, "{flag} {task}");
    }
    for (flag, task) in [
        ("--task=worker:0", r#"{"type":"worker","index":1}"#),
        ("--task=ps:1", r#"{"type":"worker","index":1}"#),
        ("--task=worker:0", r#"{"index":1}"#),
    ] {
        refused(&[flag, MODULE], Some(&tf(task)), &[&["`--task`", "says `", "TF_CONFIG"]]);
    }
}

#[test]
fn p4_p5_without_cluster_a_run_is_local_unless_a_task_is_named() {
    assert!(good(&[MODULE], "{}").plan.is_local());
    assert!(good(&[MODULE], r#"{"cluster":{},"task":{}}"#).plan.is_local());
    assert!(resolve_line(&[MODULE], None, Purpose::Run).expect("resolves").plan.is_local());
    refused(&[MODULE], Some(r#"{"task":{"type":"worker","index":0}}"#), &[&["`worker:0`", "no cluster"]]);
    refused(&[MODULE, "--task=client"], None, &[&["`client:0`", "no cluster"]]);
}

#[test]
fn p6_tf_config_is_parsed_even_where_nothing_of_it_is_used() {
    for text in ["", " ", "{not json"] {
        refused(&[CLUSTER_W2, "--task=worker:0", MODULE], Some(text), &[&["`TF_CONFIG`", "no JSON"]]);
        refused(&[MODULE], Some(text), &[&["`TF_CONFIG`", "no JSON"]]);
    }
}

#[test]
fn a_task_without_cluster_is_told_a_launch_line_that_parses() {
    for (task, numbers) in [
        ("worker:0", "--workers 1"),
        ("worker:2", "--workers 3"),
        ("ps:1", "--workers 1 --ps 2"),
        ("chief", "--workers 1 --chief"),
        ("evaluator", "--workers 1 --evaluator"),
    ] {
        let report = refused(&["--module=my mods/m.wasm", "--task", task], None, &[&["no cluster"]]);
        let line = format!("dchost launch {numbers} --module 'my mods/m.wasm'");
        assert!(report.ends_with(&line), "{report}");
        let words = line.replace("'my mods/m.wasm'", "m.wasm");
        Cli::try_parse_from(words.split(' ')).unwrap_or_else(|error| panic!("{error}"));
    }
}

// Field rules of TF_CONFIG.

#[test]
fn the_top_level_is_an_object() {
    for text in ["[]", "null", "1", "\"a\""] {
        refused(&[MODULE], Some(text), &[&["`TF_CONFIG`", "not an object"]]);
    }
}

#[test]
fn the_cluster_is_an_object_of_lists_or_index_maps_of_strings() {
    for (cluster, texts) in [
        (r#"["a:1"]"#, vec!["a list", "not an object"]),
        (r#""a:1""#, vec!["the string `a:1`"]),
        (r#""""#, vec!["the string ``"]),
        ("[]", vec!["a list"]),
        (r#"{"worker":5}"#, vec!["job `worker`", "the number `5`"]),
        (r#"{"worker":[7]}"#, vec!["`worker:0`", "the number `7`"]),
        (r#"{"worker":[null]}"#, vec!["`worker:0`", "null"]),
        (r#"{"worker":{"x":"a:1"}}"#, vec!["job `worker`", "index `x`"]),
        (r#"{"worker":{"-1":"a:1"}}"#, vec!["index `-1`"]),
        (r#"{"worker":{"1":"a:1","01":"b:1"}}"#, vec!["index 1 twice"]),
        (r#"{"client":["a:1"]}"#, vec!["job `client`", "leave it out"]),
        (r#"{"Worker":["a:1"]}"#, vec!["job `Worker`", "`worker`"]),
        (r#"{"chief":["a:1","b:1"]}"#, vec!["job `chief`", "chief:0, chief:1", "only one"]),
        (r#"{"evaluator":["a:1","b:1"]}"#, vec!["job `evaluator`", "only one"]),
    ] {
        let tf_config = format!(r#"{{"cluster":{cluster},"task":{{"type":"worker","index":0}}}}"#);
        refused(&[MODULE], Some(&tf_config), &[&texts]);
    }
}

#[test]
fn the_task_is_an_object_with_a_known_type_and_a_whole_index() {
    for (task, texts) in [
        ("7", vec!["the number `7`", "not an object"]),
        ("null", vec!["null", "not an object"]),
        ("[]", vec!["a list"]),
        (r#"{"type":"worker","index":1.7}"#, vec!["index 1.7"]),
        (r#"{"type":"worker","index":true}"#, vec!["index true"]),
        (r#"{"type":"worker","index":"abc"}"#, vec!["index \"abc\""]),
        (r#"{"type":"worker","index":null}"#, vec!["index null"]),
        (r#"{"type":"worker","index":""}"#, vec!["index \"\""]),
        (r#"{"type":"worker","index":-1}"#, vec!["index -1"]),
        (r#"{"type":"worker","index":1e99}"#, vec!["index 1e+99"]),
        (r#"{"type":"worker"}"#, vec!["`worker` has no index", "2 of them"]),
        (r#"{"type":"","index":0}"#, vec!["empty"]),
        (r#"{"type":123456,"index":0}"#, vec!["`123456`"]),
        (r#"{"type":null,"index":0}"#, vec!["null"]),
        (r#"{"type":"gpu","index":0}"#, vec!["unknown task type `gpu`"]),
        (r#"{"type":"worker","index":2}"#, vec!["`worker:2`", "worker:0, worker:1"]),
    ] {
        let tf_config = format!(r#"{{"cluster":{{"worker":["a:1","b:1"]}},"task":{task}}}"#);
        refused(&[MODULE], Some(&tf_config), &[&texts]);
    }
}

#[test]
fn integral_indices_are_taken_in_every_form() {
    for index in ["1", "\"1\"", "1.0", "\" 1 \""] {
        let tf_config =
            format!(r#"{{"cluster":{{"worker":["a:1","b:1"]}},"task":{{"type":"worker","index":{index}}}}}"#);
        assert_eq!(good(&[MODULE], &tf_config).task, Some(Task::new(TaskType::Worker, 1)), "{index}");
    }
}

#[test]
fn a_missing_index_is_that_of_the_only_task() {
    let tf = |cluster, task| format!(r#"{{"cluster":{cluster},"task":{{"type":"{task}"}}}}"#);
    for (cluster, task, expected) in [
        (r#"{"worker":["a:1"],"ps":["b:1","c:1"]}"#, "worker", "worker:0"),
        (r#"{"worker":{"3":"a:1"},"ps":["b:1"]}"#, "worker", "worker:3"),
        (r#"{"worker":["a:1"]}"#, "evaluator", "evaluator:0"),
    ] {
        let resolved = good(&[MODULE], &tf(cluster, task));
        assert_eq!(resolved.task.map(|task| task.to_string()).as_deref(), Some(expected));
    }
    assert_eq!(good(&[MODULE], &tf(r#"{"worker":["a:1"]}"#, "client")).mode, Some(Mode::SplitClient));
}

#[test]
fn unknown_keys_are_warned_about_and_launchers_own_are_not() {
    let tf_config = r#"{"cluster":{"worker":["localhost:1"]},"task":{"type":"worker","index":0},"environment":"cloud","model_dir":"x","tasks":1}"#;
    let warnings = good(&[MODULE], tf_config).warnings;
    assert!(matches!(warnings.as_slice(), [one] if one.contains("`tasks`") && one.contains("`task`")), "{warnings:?}");
}

#[test]
fn tf_config_rpc_layer_fills_in_and_foreign_ones_are_ignored_with_a_warning() {
    let tf =
        |layer| format!(r#"{{"cluster":{{"worker":["localhost:1"]}},"task":{{"type":"worker"}},"rpc_layer":{layer}}}"#);
    assert_eq!(good(&[MODULE], &tf(r#""none""#)).rpc_layer, RpcLayer::None);
    assert_eq!(good(&[MODULE, "--rpc-layer=grpc"], &tf(r#""none""#)).rpc_layer, RpcLayer::Grpc);
    let other = good(&[MODULE], &tf(r#""cake""#));
    assert_eq!(run(&other).master_target, "grpc://localhost:1");
    assert!(other.warnings.iter().any(|warning| warning.contains("`cake`")));
}

// Modes.

#[test]
fn modes_follow_from_task_and_module() {
    let cluster = r#"--cluster={"worker":["localhost:1","localhost:2"],"ps":["localhost:3"]}"#;
    for (flags, mode, joined, runs) in [
        (&["--task=worker:1", MODULE][..], Some(Mode::IndependentWorker), Some(false), 1),
        (&["--task=worker:1"], None, Some(true), 0),
        (&["--task=ps:0"], None, Some(true), 0),
        (&["--task=ps:0", MODULE], None, Some(true), 0),
        (&["--task=worker:1", MODULE, "--mode=split-client"], Some(Mode::SplitClient), Some(true), 0),
        (&["--task=evaluator", MODULE], Some(Mode::IndependentWorker), None, 1),
        (&["--task=client", MODULE], Some(Mode::SplitClient), None, 2),
        (
            &["--task=worker:1", "--replication=in-graph", "--mode=independent-worker"],
            Some(Mode::IndependentWorker),
            Some(true),
            0,
        ),
    ] {
        let flags: Vec<_> = [cluster].iter().chain(flags).copied().collect();
        let resolved = resolve_line(&flags, None, Purpose::Run).unwrap_or_else(|faults| panic!("{flags:?}: {faults}"));
        assert_eq!(resolved.mode, mode, "{flags:?}");
        assert_eq!(resolved.plan.server.map(|server| server.joined), joined, "{flags:?}");
        assert_eq!(resolved.plan.runs.len(), runs, "{flags:?}");
    }
    let split = resolve_line(&[cluster, "--task=worker:1", MODULE, "--mode=split-client"], None, Purpose::Run);
    assert!(matches!(split.expect("resolves").warnings.as_slice(), [one] if one.contains("--module is not run")));
    refused(&[cluster, "--task=worker:0", "--mode=independent-worker"], None, &[&["`worker:0` runs without --module"]]);
    refused(&[cluster, "--task=client", MODULE, "--mode=independent-worker"], None, &[&["`client`"]]);
    refused(&[cluster, "--task=evaluator"], None, &[&["evaluator", "no run"]]);
    refused(&[cluster, "--task=client"], None, &[&["--module"]]);
    refused(&[], None, &[&["--module"]]);
}

#[test]
fn a_plan_needs_no_module_where_the_mode_is_given() {
    let cluster = r#"--cluster={"worker":["a:1","b:1"]}"#;
    let plan = |flags: &[&str]| resolve_line(flags, None, Purpose::Plan).map(|resolved| resolved.plan.runs.len());
    assert_eq!(plan(&[cluster, "--task=worker:1", "--mode=independent-worker"]), Ok(1));
    assert_eq!(plan(&[cluster, "--mode=split-client"]), Ok(2));
    assert_eq!(plan(&[cluster, "--task=worker:1"]), Ok(0));
    assert_eq!(plan(&[]), Ok(1));
    assert!(plan(&[cluster]).is_err());
}

#[test]
fn in_graph_without_master_is_refused() {
    let cluster = r#"--cluster={"ps":["localhost:1"]}"#;
    refused(&[cluster, MODULE, "--task=client", "--replication=in-graph"], None, &[&["no chief or worker"]]);
    refused(&[cluster, MODULE, "--task=client"], None, &[&["no chief or worker"]]);
    refused(&[r#"--cluster={"worker":[]}"#, MODULE, "--task=client"], None, &[&["no chief or worker"]]);
}

// Listening.

#[test]
fn open_listen_addresses_need_insecure_in_a_run_and_are_warned_about_in_a_plan() {
    let flags = [r#"--cluster={"worker":["a:1","b:1"]}"#, "--task=worker:0", MODULE];
    let report = resolve_line(&flags, None, Purpose::Run).expect_err("refused").to_string();
    assert!(report.contains("all interfaces") && report.contains("--insecure"), "{report}");
    let plan = resolve_line(&flags, None, Purpose::Plan).expect("resolves");
    assert!(matches!(plan.warnings.as_slice(), [one] if one.contains("--insecure")), "{:?}", plan.warnings);
    let insecure: Vec<_> = flags.iter().copied().chain(["--insecure"]).collect();
    let resolved = resolve_line(&insecure, None, Purpose::Run).expect("resolves");
    assert_eq!(resolved.listen, Some(Listen::AllInterfaces { port: 1 }));
    let bound: Vec<_> = flags.iter().copied().chain(["--bind=0.0.0.0"]).collect();
    assert!(resolve_line(&bound, None, Purpose::Run).is_err());
}

#[test]
fn a_socket_that_was_handed_over_is_where_the_server_listens() {
    let cli = Cli::try_parse_from(["dchost", CLUSTER_W2, "--task=worker:0", MODULE]).expect("parses");
    let address = "127.0.0.1:1".parse().expect("address");
    let settings = run_settings(&cli.run, &Environment::default(), Some(address));
    let resolved = resolve(&settings, Purpose::Run).expect("resolves");
    assert_eq!(resolved.listen, Some(Listen::HandedOver(address)));
    let open = run_settings(&cli.run, &Environment::default(), Some("0.0.0.0:1".parse().expect("address")));
    assert!(resolve(&open, Purpose::Run).is_err());
}

#[test]
fn a_local_run_and_a_split_client_may_be_tried_more_than_once() {
    assert_eq!(good(&[MODULE, "--max-attempts=3"], "{}").attempts_max, 3);
    assert_eq!(good(&[MODULE], "{}").attempts_max, 1);
    assert_eq!(good(&[MODULE, CLUSTER_W2, "--task=worker:0", "--max-attempts=1"], "{}").attempts_max, 1);
    assert_eq!(good(&[MODULE, CLUSTER_W2, "--task=client", "--max-attempts=3"], "{}").attempts_max, 3);
    let what: &[&str] = &["`--max-attempts`", "independent workers are not served yet"];
    refused(&[MODULE, CLUSTER_W2, "--task=worker:0", "--max-attempts=2"], None, &[what]);
}

#[test]
fn a_client_has_a_container_of_its_own_unless_it_is_named() {
    let client: &[&str] = &[MODULE, CLUSTER_W2, "--mode=split-client"];
    let container = |flags: &[&str]| good(&[client, flags].concat(), "{}").container;
    assert_eq!(container(&[]), None);
    assert_eq!(container(&["--container=c"]).as_deref(), Some("c"));
    assert_eq!(container(&["--container=default", "--share-container"]).as_deref(), Some("default"));
    assert_eq!(good(&[MODULE, CLUSTER_W2, "--task=worker:0"], "{}").container.as_deref(), Some("default"));
    refused(&[client, &["--share-container"]].concat(), None, &[&["`--share-container`", "--container NAME"]]);
    let server = good(&[CLUSTER_W2, "--task=worker:0", "--share-container"], "{}");
    assert!(server.warnings.iter().any(|warning| warning.contains("split client")), "{:?}", server.warnings);
}

#[test]
fn faults_of_different_kinds_come_in_one_report() {
    let tf_config = r#"{"cluster":{"worker":["a","a@b:1"]},"task":{"type":"gpu"}}"#;
    refused(
        &[MODULE, "--max-attempts=3", "--container=a b"],
        Some(tf_config),
        &[
            &["`--container`", "`a b`"],
            &["task of `TF_CONFIG`", "`gpu`"],
            &["`--max-attempts`", "not served yet"],
            &["`worker:0`", "no port"],
            &["`worker:1`", "`@`"],
        ],
    );
}

/// Any JSON.
fn json_value() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        any::<f64>().prop_map(Into::into),
        "\\PC{0,12}".prop_map(Into::into),
        "[a-c]:[0-9]{1,6}".prop_map(Into::into),
    ];
    let key = prop_oneof![
        "\\PC{0,6}",
        "[0-9]{1,3}",
        prop::sample::select(vec![
            "cluster",
            "task",
            "type",
            "index",
            "worker",
            "chief",
            "ps",
            "evaluator",
            "rpc_layer"
        ])
        .prop_map(str::to_owned),
    ];
    leaf.prop_recursive(5, 64, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Into::into),
            prop::collection::vec((key.clone(), inner), 0..5)
                .prop_map(|pairs| serde_json::Value::Object(pairs.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn no_json_panics(tf_config in json_value(), cluster in json_value(), task in "\\PC{0,8}", with_cluster: bool) {
        let (tf_config, cluster) = (tf_config.to_string(), format!("--cluster={cluster}"));
        let task = format!("--task={task}");
        let flags = if with_cluster { vec![cluster.as_str(), &task, MODULE] } else { vec![MODULE] };
        for purpose in [Purpose::Run, Purpose::Plan] {
            if let Err(faults) = resolve_line(&flags, Some(&tf_config), purpose) {
                prop_assert!(!faults.0.is_empty());
            }
        }
    }

    #[test]
    fn no_text_panics(tf_config in "\\PC{0,40}|[{}\\[\\]\":, a-z'\n\u{e9}]{0,40}", bind in "\\PC{0,12}") {
        let bind = format!("--bind={bind}");
        let _ = resolve_line(&[MODULE, CLUSTER_W2, "--task=worker:0", &bind], Some(&tf_config), Purpose::Run);
    }

    #[test]
    fn good_clusters_resolve_for_each_task(workers in 1_u32..6, ps in 0_u32..4, chief: bool, evaluator: bool) {
        let mut port = 1;
        let mut list = |count: u32| -> Vec<String> {
            (0..count).map(|_| { port += 1; format!("localhost:{port}") }).collect()
        };
        let mut spec = ClusterSpec::new().with_job(TaskType::Worker, list(workers));
        if ps > 0 { spec = spec.with_job(TaskType::Ps, list(ps)); }
        if chief { spec = spec.with_job(TaskType::Chief, list(1)); }
        if evaluator { spec = spec.with_job(TaskType::Evaluator, list(1)); }
        let cluster = format!("--cluster={}", describe::cluster_text(&spec));
        for (task, address) in spec.iter() {
            let flag = format!("--task={task}");
            let resolved = resolve_line(&[&cluster, &flag, MODULE], None, Purpose::Run).map_err(|faults| TestCaseError::fail(faults.to_string()))?;
            prop_assert_eq!(&resolved.cluster, &spec);
            prop_assert_eq!(resolved.plan.server.map(|server| server.address), Some(address.to_owned()));
        }
    }
}
