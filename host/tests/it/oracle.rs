//! TensorFlow's own coordinator as the oracle: what dchost plans is what TensorFlow did, configuration by configuration.
//!
//! Each entry of `oracle/coordinator.json` becomes a command line and a TF_CONFIG, goes through config, resolve and plan
//! with `--no-cluster-barrier`, and must come out equal, except for the departures listed here.

use clap::Parser as _;
use dchost::cli::{Cli, Command};
use dchost::cluster::TaskType;
use dchost::config::{self, Environment};
use serde_json::{Value, json};

/// What dchost does instead.
enum Instead {
    /// The configuration is refused with a message that holds this text.
    Refused(&'static str),
    /// This is planned: servers as `task joined`, runs as `task target`.
    Planned { servers: &'static [&'static str], runs: &'static [&'static str] },
}

use Instead::{Planned, Refused};

/// A configuration where dchost departs from TensorFlow on purpose.
struct Departure {
    id: &'static str,
    instead: Instead,
    why: &'static str,
}

const OUTSIDE: &str = "a task outside the cluster is refused before a server is built; the recorder took it";

const DEPARTURES: &[Departure] = &[
    Departure {
        id: "local-task-args-ignored",
        instead: Refused("task `worker:1` is named, but no cluster"),
        why: "D2: a named task without a cluster would train alone by mistake",
    },
    Departure {
        id: "env-task-only",
        instead: Refused("task `worker:0` is named, but no cluster"),
        why: "D2: a named task without a cluster would train alone by mistake",
    },
    Departure {
        id: "split-between-psonly",
        instead: Refused("no chief or worker"),
        why: "D9: TensorFlow reports success without training",
    },
    Departure {
        id: "empty-worker-list-between",
        instead: Refused("no chief or worker"),
        why: "D9: TensorFlow reports success without training",
    },
    Departure { id: "split-server-unknown-type", instead: Refused("unknown task type `gpu`"), why: OUTSIDE },
    Departure {
        id: "split-server-id-out-of-range",
        instead: Refused("job `worker` has worker:0, worker:1, worker:2"),
        why: OUTSIDE,
    },
    Departure {
        id: "split-server-no-id",
        instead: Planned { servers: &["ps:0 joined"], runs: &[] },
        why: "field rules: a missing index is that of the job's only task",
    },
    Departure {
        id: "indep-id-none",
        instead: Refused("`worker` has no index, but the cluster has 3 of them"),
        why: "field rules: TensorFlow runs worker 0 without an index, so nobody initializes",
    },
    Departure {
        id: "indep-two-chiefs",
        instead: Refused("job `chief`: lists 2 tasks"),
        why: "D3: two chiefs would both initialize",
    },
    Departure {
        id: "split-between-nested",
        instead: Planned {
            servers: &[],
            runs: &["worker:1 grpc://w1:1", "worker:2 grpc://w2:1", "worker:0 grpc://w0:1"],
        },
        why: "D14: a guest can't start a coordinator, so each run is recorded",
    },
    Departure {
        id: "env-overrides-args",
        instead: Refused("`--task`: says `ps:1`, but task of `TF_CONFIG` says `worker:0`"),
        why: "D1: where flags and TF_CONFIG disagree, neither can be known to be meant",
    },
    Departure {
        id: "unknown-job-in-cluster",
        instead: Refused("job `tpu`: is unknown"),
        why: "D3: an unknown job is mostly a misspelled one",
    },
];

/// What became of one configuration, in TensorFlow's form; order means nothing, so it is by the text of each entry.
#[derive(Debug, PartialEq)]
enum Outcome {
    Refused(String),
    Planned { servers: Vec<Value>, contexts: Vec<Value> },
}

fn sorted(mut values: Vec<Value>) -> Vec<Value> {
    values.sort_by_key(Value::to_string);
    values
}

/// Plans for one process of a configuration.
fn plan_one(input: &Value, task: Option<(String, Option<u64>)>) -> Result<dchost::coordinator::plan::Plan, String> {
    let mut line = vec!["dchost".to_owned(), "plan".to_owned(), "--no-cluster-barrier".to_owned()];
    // A cluster that isn't an object would be taken for a file name: JSON text it stays.
    if !input["cluster"].is_null() {
        line.push(format!("--cluster={}", input["cluster"]));
    }
    if let Some((kind, index)) = task {
        let index = index.map(|index| format!(":{index}")).unwrap_or_default();
        line.push(format!("--task={kind}{index}"));
    }
    line.push(format!(
        "--mode={}",
        match input["mode"].as_str().expect("a mode") {
            "standalone_client" => "split-client",
            "independent_worker" => "independent-worker",
            other => other,
        }
    ));
    let between_graph = input["between_graph"].as_bool().expect("a replication");
    line.push(format!("--replication={}", if between_graph { "between-graph" } else { "in-graph" }));
    // TensorFlow takes an empty layer for none; on a command line it would be a slip.
    let layer = input["rpc_layer"].as_str().filter(|layer| !layer.is_empty());
    line.push(format!("--rpc-layer={}", layer.unwrap_or("none")));

    let cli = Cli::try_parse_from(&line).map_err(|error| error.to_string())?;
    let Some(Command::Plan(args)) = cli.command else { panic!("not a plan: {line:?}") };
    let tf_config = match (&input["tf_config"], input["tf_config_raw"].as_str()) {
        (_, Some(raw)) => Some(raw.to_owned()),
        (Value::Null, None) => None,
        (value, None) => Some(value.to_string()),
    };
    let environment: Environment = tf_config.map(|text| ("TF_CONFIG", text)).into_iter().collect();
    config::plan(&args.run, &environment).map(|resolved| resolved.plan).map_err(|faults| faults.to_string())
}

/// Plans a whole configuration: one process, or one for each task.
fn planned(input: &Value) -> Outcome {
    let tasks: Vec<_> = if input["all_tasks"] == true {
        let jobs = input["cluster"].as_object().expect("a cluster");
        let tasks = jobs.iter().flat_map(|(job, addresses)| {
            (0..addresses.as_array().expect("a list").len()).map(move |index| Some((job.clone(), Some(index as u64))))
        });
        tasks.collect()
    } else {
        vec![input["task_type"].as_str().map(|kind| (kind.to_owned(), input["task_id"].as_u64()))]
    };
    let (mut servers, mut contexts) = (Vec::new(), Vec::new());
    for task in tasks {
        let plan = match plan_one(input, task) {
            Ok(plan) => plan,
            Err(error) => return Outcome::Refused(error),
        };
        servers.extend(plan.server.map(
            |server| json!({"task_type": server.task.job.as_str(), "task_id": server.task.index, "joined": server.joined}),
        ));
        contexts.extend(plan.runs.iter().map(|run| {
            json!({
                "cluster": cluster_json(&run.cluster),
                "distributed_mode": run.distributed_mode,
                "has_barrier": run.has_barrier,
                "is_chief": run.is_chief,
                "master_target": run.master_target,
                "num_workers": run.num_workers,
                "task_id": run.task.map(|task| task.index),
                "task_type": run.task.map(|task| task.job.as_str()),
            })
        }));
    }
    Outcome::Planned { servers: sorted(servers), contexts: sorted(contexts) }
}

fn cluster_json(cluster: &dchost::cluster::ClusterSpec) -> Value {
    if cluster.is_empty() {
        return Value::Null;
    }
    let addresses = |job: TaskType| cluster.tasks(job).filter_map(|task| cluster.address(task)).collect::<Vec<_>>();
    cluster.jobs().map(|job| (job.as_str().to_owned(), json!(addresses(job)))).collect::<serde_json::Map<_, _>>().into()
}

/// What TensorFlow did, as an outcome; what worker_fn itself did with its context is left out.
fn expected(entry: &Value) -> Outcome {
    let expected = &entry["expected"];
    if let Some(error) = expected["error"].as_str() {
        return Outcome::Refused(error.to_owned());
    }
    let list = |name: &str| expected[name].as_array().expect("a list").clone();
    let servers = list("servers").into_iter().map(
        |server| json!({"task_type": server["task_type"], "task_id": server["task_id"], "joined": server["joined"]}),
    );
    let contexts = list("contexts").into_iter().map(|mut context| {
        let fields = context.as_object_mut().expect("an object");
        fields.retain(|name, _| name != "barrier" && name != "nested");
        context
    });
    Outcome::Planned { servers: sorted(servers.collect()), contexts: sorted(contexts.collect()) }
}

fn same(ours: &Outcome, theirs: &Outcome) -> bool {
    match (ours, theirs) {
        // Python's classes of errors say nothing here.
        (Outcome::Refused(_), Outcome::Refused(_)) => true,
        _ => ours == theirs,
    }
}

fn check_departure(instead: &Instead, ours: &Outcome) -> bool {
    match (instead, ours) {
        (Refused(text), Outcome::Refused(error)) => error.contains(text),
        (Planned { servers, runs }, Outcome::Planned { servers: ours, contexts }) => {
            let shown = |server: &Value| {
                let joined = if server["joined"] == true { "joined" } else { "runs" };
                format!("{}:{} {joined}", server["task_type"].as_str().unwrap_or_default(), server["task_id"])
            };
            let run = |context: &Value| {
                let (kind, target) = (context["task_type"].as_str(), context["master_target"].as_str());
                format!("{}:{} {}", kind.unwrap_or_default(), context["task_id"], target.unwrap_or_default())
            };
            ours.iter().map(shown).eq(servers.iter().map(|&text| text.to_owned()))
                && contexts.iter().map(run).eq(runs.iter().map(|&text| text.to_owned()))
        }
        _ => false,
    }
}

#[test]
fn dchost_plans_what_tensorflow_did_except_for_the_listed_departures() {
    let entries: Vec<Value> = serde_json::from_str(include_str!("oracle/coordinator.json")).expect("JSON");
    assert_eq!(entries.len(), 62);
    let mut wrong = Vec::new();
    for entry in &entries {
        let id = entry["id"].as_str().expect("an id");
        let (ours, theirs) = (planned(&entry["input"]), expected(entry));
        let departure = DEPARTURES.iter().find(|departure| departure.id == id);
        match departure {
            None if !same(&ours, &theirs) => wrong.push(format!("{id}: {ours:?} instead of {theirs:?}")),
            Some(_) if same(&ours, &theirs) => wrong.push(format!("{id} departs no longer: {ours:?}")),
            Some(departure) if !check_departure(&departure.instead, &ours) => {
                let why = departure.why;
                wrong.push(format!("{id} departs otherwise than said ({why}): {ours:?}"));
            }
            _ => {}
        }
    }
    let unknown = DEPARTURES.iter().filter(|departure| !entries.iter().any(|entry| entry["id"] == departure.id));
    wrong.extend(unknown.map(|departure| format!("{}: no such configuration", departure.id)));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
