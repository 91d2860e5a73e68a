//! `dchost plan`: prints what would run, without running it.

use super::print;
use super::table::aligned;
use crate::cli::{self, PlanFormat};
use crate::config::{self, Environment};
use crate::coordinator::plan::Plan;
use crate::exit::Exit;
use serde_json::{Value, json};
use std::ffi::OsString;

/// Prints the plan to stdout, as a table or as one JSON object; warnings go to the log.
///
/// Exits with 2 where the configuration is refused; the JSON object then holds the `error`.
///
/// # Errors
/// The table form's refusals; stdout can't be written.
pub fn run(args: &cli::Plan, environment: &Environment) -> anyhow::Result<Exit> {
    match (config::plan(&args.run, environment), args.format) {
        (Ok(resolved), format) => {
            for warning in &resolved.warnings {
                tracing::warn!("{warning}");
            }
            match format {
                PlanFormat::Json => print(&format!("{}\n", json_plan(&resolved.plan)))?,
                PlanFormat::Table => print(&table(&resolved.plan))?,
            }
            Ok(Exit::Done)
        }
        (Err(faults), PlanFormat::Json) => {
            print(&format!("{}\n", json_error(&faults.to_string())))?;
            Ok(Exit::Refused)
        }
        (Err(faults), PlanFormat::Table) => Err(faults.into()),
    }
}

/// Prints a usage error as JSON where the command line asked `plan` for JSON, so that programs find the `error` there
/// whatever was wrong. Returns whether it did.
pub fn print_usage_error(arguments: &[OsString], error: &clap::Error) -> bool {
    let text = |argument: &OsString| argument.to_string_lossy().into_owned();
    let arguments: Vec<_> = arguments.iter().map(text).take_while(|argument| argument != "--").collect();
    let json = arguments.iter().any(|argument| argument == "--format=json")
        || arguments.windows(2).any(|pair| pair == ["--format", "json"]);
    // Flags of the log may stand before it; none of their values is its name.
    let is_plan = arguments.iter().any(|argument| argument == "plan");
    let wanted = json && is_plan && error.use_stderr();
    wanted && print(&format!("{}\n", json_error(error.to_string().trim_end()))).is_ok()
}

/// The plan as an object: `server` (or null), `runs`, and `error` null.
fn json_plan(plan: &Plan) -> Value {
    let server = plan
        .server
        .as_ref()
        .map(|server| json!({"task": server.task.to_string(), "address": server.address, "joined": server.joined}));
    let runs: Vec<_> = plan
        .runs
        .iter()
        .map(|run| {
            json!({
                "task": run.task.map(|task| task.to_string()),
                "master_target": run.master_target,
                "num_workers": run.num_workers,
                "is_chief": run.is_chief,
                "distributed_mode": run.distributed_mode,
                "has_barrier": run.has_barrier,
            })
        })
        .collect();
    json!({"server": server, "runs": runs, "error": null})
}

fn json_error(error: &str) -> Value {
    json!({"server": null, "runs": [], "error": error})
}

/// The plan for people.
fn table(plan: &Plan) -> String {
    let server = match &plan.server {
        Some(server) => {
            let fate = if server.joined { "only serves (joined)" } else { "serves beside its run" };
            format!("{} at {}, {fate}", server.task, server.address)
        }
        None => "none".to_owned(),
    };
    let leader = plan.leader.map_or_else(|| "none".to_owned(), |leader| leader.to_string());
    let mut text = format!("server  {server}\nleader  {leader}\n");
    if plan.runs.is_empty() {
        return text + "runs    none\n";
    }
    let header = ["runs", "master target", "workers", "chief", "distributed", "barrier"].map(str::to_owned);
    let yes = |set: bool| if set { "yes" } else { "no" }.to_owned();
    let rows = plan.runs.iter().map(|run| {
        [
            run.task.map_or_else(|| "(no task)".to_owned(), |task| task.to_string()),
            run.master_target.clone(),
            run.num_workers.to_string(),
            yes(run.is_chief),
            yes(run.distributed_mode),
            yes(run.has_barrier),
        ]
    });
    let rows: Vec<_> = std::iter::once(header).chain(rows).collect();
    text.push('\n');
    text + &aligned(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;
    use expect_test::{Expect, expect};

    fn plan(line: &[&str]) -> Plan {
        let cli = cli::Cli::try_parse_from(["dchost", "plan"].iter().chain(line)).expect("parses");
        let Some(cli::Command::Plan(args)) = cli.command else { panic!("not a plan") };
        config::plan(&args.run, &Environment::default()).expect("a plan").plan
    }

    const CLUSTER: &str = r#"--cluster={"worker":["localhost:1","localhost:2"],"ps":["localhost:3"]}"#;

    fn check(actual: &str, expect: Expect) {
        expect.assert_eq(actual);
    }

    #[test]
    fn json_has_the_documented_shape() {
        check(
            &json_plan(&plan(&[CLUSTER, "--task=worker:0", "--module=m.wasm"])).to_string(),
            expect![[
                r#"{"server":{"task":"worker:0","address":"localhost:1","joined":false},"runs":[{"task":"worker:0","master_target":"grpc://localhost:1","num_workers":2,"is_chief":true,"distributed_mode":true,"has_barrier":true}],"error":null}"#
            ]],
        );
        check(
            &json_plan(&plan(&[])).to_string(),
            expect![[
                r#"{"server":null,"runs":[{"task":null,"master_target":"local","num_workers":0,"is_chief":true,"distributed_mode":false,"has_barrier":false}],"error":null}"#
            ]],
        );
        check(&json_error("a \"b\"").to_string(), expect![[r#"{"server":null,"runs":[],"error":"a \"b\""}"#]]);
    }

    #[test]
    fn the_table_shows_server_leader_and_runs() {
        check(
            &table(&plan(&[CLUSTER, "--mode=split-client"])),
            expect![[r#"
                server  none
                leader  none

                runs      master target       workers  chief  distributed  barrier
                worker:0  grpc://localhost:1  2        yes    yes          yes
                worker:1  grpc://localhost:2  2        no     yes          yes
            "#]],
        );
        check(
            &table(&plan(&[CLUSTER, "--task=ps"])),
            expect![[r#"
                server  ps:0 at localhost:3, only serves (joined)
                leader  worker:0
                runs    none
            "#]],
        );
    }
}
