//! What `dchost status` prints.

use super::*;
use crate::attend::{Cause, Mode, Replication, TaskState};
use crate::cluster::{ClusterSpec, Task, TaskType};
use crate::error::{Error, ErrorCode};
use crate::ids::{Attempt, Incarnation, RunId};
use crate::status::{JobStatus, Listed, ServerStatus, SessionStatus, TaskStatus, VariableStatus, WaitedBarrier};
use crate::tensor::{DType, TensorType};
use crate::variables::Shard;
use expect_test::{Expect, expect};
use std::time::UNIX_EPOCH;

const CHIEF: Task = Task::new(TaskType::Worker, 0);
const SECOND: Task = Task::new(TaskType::Worker, 1);
const PS: Task = Task::new(TaskType::Ps, 0);

fn listed<T>(rows: Vec<T>) -> Listed<T> {
    Listed { rows, left_out: 0, strange: 0 }
}

fn empty(task: Task, incarnation: u64) -> ServerStatus {
    ServerStatus {
        incarnation: Incarnation(incarnation),
        task: Some(task),
        version: "0.1.0".into(),
        attempt: Some(Attempt { leader: Incarnation(0xabc), number: 0 }),
        job: None,
        tasks: Listed::default(),
        barriers: Listed::default(),
        variables: Listed::default(),
        variable_bytes: 0,
        variable_bytes_max: None,
        cluster: ClusterSpec::new(),
        sessions: Listed::default(),
    }
}

fn row(task: Task, state: TaskState) -> TaskStatus {
    TaskStatus {
        task,
        address: Some(format!("{}-{}:2222", task.job, task.index)),
        state,
        since: Duration::from_millis(12_345),
        incarnation: Some(Incarnation(0xabc)),
        last_seen: Some(Duration::from_millis(250)),
        message: String::new(),
        runner: task.job == TaskType::Worker,
        exit_code: None,
    }
}

fn leader() -> ServerStatus {
    ServerStatus {
        job: Some(JobStatus {
            mode: Some(Mode::IndependentWorker),
            replication: Replication::BetweenGraph,
            training_ended: false,
            cause: None,
        }),
        tasks: listed(vec![
            row(PS, TaskState::Running),
            row(CHIEF, TaskState::Running),
            TaskStatus {
                incarnation: None,
                last_seen: None,
                message: "connection refused".into(),
                ..row(SECOND, TaskState::NeverSeen)
            },
        ]),
        barriers: listed(vec![WaitedBarrier {
            container: "default".into(),
            name: String::new(),
            generation: 3,
            arrived: vec![CHIEF],
            missing: vec![SECOND],
            since: Duration::from_secs(72),
        }]),
        ..empty(CHIEF, 0xabc)
    }
}

fn ps() -> ServerStatus {
    let variable = |name: &str, shape: &[u64], bytes, version| VariableStatus {
        container: "default".into(),
        name: name.into(),
        ty: TensorType::new(DType::F32, shape),
        shard: None,
        bytes,
        version,
        partial_writes: 0,
        slot_bytes: 0,
        stale_gradients: 0,
        dropped_gradients: 0,
    };
    let part = Shard { index: 1, first_row: 784, whole_rows: 1568, ps: [0, 1].into() };
    let weights = VariableStatus { shard: Some(part), ..variable("weights", &[784, 1000], 3_136_000, 42) };
    ServerStatus {
        variables: listed(vec![variable("bias", &[], 4, 1), weights]),
        variable_bytes: 3_136_004,
        variable_bytes_max: Some(4 << 30),
        sessions: listed(vec![
            SessionStatus {
                container: "default".into(),
                task: Some(CHIEF),
                run_id: RunId(0x77),
                since: Duration::from_secs(3 * 3600 + 60),
                attached: Some(true),
                op_instances: 0,
            },
            SessionStatus {
                container: "run-1".into(),
                task: None,
                run_id: RunId(0x78),
                since: Duration::from_secs(200_000),
                attached: Some(false),
                op_instances: 2,
            },
        ]),
        ..empty(PS, 0xdef)
    }
}

fn seen(task: Option<Task>, outcome: Result<ServerStatus, StatusError>) -> Seen {
    Seen { target: Target { task, address: "a.example:2222".into() }, outcome }
}

fn not_reached() -> StatusError {
    StatusError::NotReached { why: "connection refused".into(), listens: false }
}

fn check(actual: &str, expect: Expect) {
    expect.assert_eq(actual);
}

#[test]
fn a_leader_shows_tasks_and_who_waits() {
    check(
        &text::text(&[seen(Some(CHIEF), Ok(leader()))], false),
        expect![[r#"
            worker:0 at a.example:2222, incarnation 0000000000000abc, dchost 0.1.0
            attempt 0 of leader 0000000000000abc
            independent-worker, between-graph; training goes on

            tasks     state       since  last seen  incarnation       address        message
            ps:0      running     12s    0.2s ago   0000000000000abc  ps-0:2222
            worker:0  running     12s    0.2s ago   0000000000000abc  worker-0:2222
            worker:1  never-seen  12s    -          -                 worker-1:2222  connection refused

            barriers                container  generation  since   arrived   missing
            wait_for_other_workers  default    3           1m 12s  worker:0  worker:1

            variables  none

            sessions  none
        "#]],
    );
}

#[test]
fn a_ps_shows_what_it_holds_and_for_whom() {
    check(
        &text::text(&[seen(None, Ok(ps()))], false),
        expect![[r#"
            ps:0 at a.example:2222, incarnation 0000000000000def, dchost 0.1.0
            attempt 0 of leader 0000000000000abc

            variables  container  type                           size     bytes    version
            bias       default    f32[]                          4 B      4        1
            weights    default    f32[1568, 1000], shard 1 of 2  3.0 MiB  3136000  42
              3.0 MiB in all (3136004 bytes), at most 4.0 GiB

            sessions  container  run               since  stream  op instances
            worker:0  default    0000000000000077  3h 1m  open    0
            client    run-1      0000000000000078  2d 7h  broken  2
        "#]],
    );
}

#[test]
fn a_variable_with_parts_of_updates_says_so_beside_its_version() {
    let mut status = ps();
    for (row, writes) in status.variables.rows.iter_mut().zip([1, 20]) {
        row.partial_writes = writes;
    }
    let text = text::text(&[seen(None, Ok(status))], false);
    let rows: Vec<_> = text.lines().filter(|line| line.contains("partial")).collect();
    assert_eq!(
        rows,
        [
            "bias       default    f32[]                          4 B      4        1, 1 partial write",
            "weights    default    f32[1568, 1000], shard 1 of 2  3.0 MiB  3136000  42, 20 partial writes",
        ]
    );
}

#[test]
fn gradients_that_came_too_late_stand_beside_the_version() {
    let mut status = ps();
    for (row, (stale, dropped)) in status.variables.rows.iter_mut().zip([(1, 0), (2, 30)]) {
        (row.stale_gradients, row.dropped_gradients) = (stale, dropped);
    }
    let text = text::text(&[seen(None, Ok(status))], false);
    let rows: Vec<_> = text.lines().filter(|line| line.contains("gradient")).collect();
    assert_eq!(
        rows,
        [
            "bias       default    f32[]                          4 B      4        1, 1 stale gradient",
            "weights    default    f32[1568, 1000], shard 1 of 2  3.0 MiB  3136000  42, 2 stale gradients, 30 dropped gradients",
        ]
    );
}

#[test]
fn slots_of_optimizers_have_a_column_where_there_are_some() {
    let mut status = ps();
    status.variables.rows[1].slot_bytes = 2 * 3_136_000;
    status.variable_bytes += 2 * 3_136_000;
    status.sessions = Listed::default();
    check(
        &text::text(&[seen(None, Ok(status))], false),
        expect![[r#"
        ps:0 at a.example:2222, incarnation 0000000000000def, dchost 0.1.0
        attempt 0 of leader 0000000000000abc

        variables  container  type                           size     bytes    version  slots
        bias       default    f32[]                          4 B      4        1        -
        weights    default    f32[1568, 1000], shard 1 of 2  3.0 MiB  3136000  42       6.0 MiB
          9.0 MiB in all (9408004 bytes), at most 4.0 GiB

        sessions  none
    "#]],
    );
}

#[test]
fn a_cluster_is_one_picture_with_those_that_do_not_answer() {
    let seen = [
        seen(Some(PS), Ok(ps())),
        seen(Some(CHIEF), Ok(leader())),
        seen(Some(SECOND), Err(not_reached())),
        seen(Some(Task::new(TaskType::Worker, 2)), Ok(empty(SECOND, 1))),
    ];
    check(
        &text::text(&seen, true),
        expect![[r#"
            attempt 0 of leader 0000000000000abc
            independent-worker, between-graph; training goes on

            tasks     state       since  last seen  incarnation       address        message
            ps:0      running     12s    0.2s ago   0000000000000abc  ps-0:2222
            worker:0  running     12s    0.2s ago   0000000000000abc  worker-0:2222
            worker:1  never-seen  12s    -          -                 worker-1:2222  connection refused

            barriers                container  generation  since   arrived   missing
            wait_for_other_workers  default    3           1m 12s  worker:0  worker:1

            servers   address         incarnation       dchost  variables  bytes    sessions  note
            ps:0      a.example:2222  0000000000000def  0.1.0   2          3.0 MiB  2
            worker:0  a.example:2222  0000000000000abc  0.1.0   0          0 B      0
            worker:1  a.example:2222  -                 -       -          -        -         no answer: connection refused
            worker:2  a.example:2222  0000000000000001  0.1.0   0          0 B      0         worker:1 answers there

            variables  on    container  type                           size     bytes    version
            bias       ps:0  default    f32[]                          4 B      4        1
            weights    ps:0  default    f32[1568, 1000], shard 1 of 2  3.0 MiB  3136000  42
              3.0 MiB in all (3136004 bytes), at most 4.0 GiB

            sessions  on    container  run               since  stream  op instances
            worker:0  ps:0  default    0000000000000077  3h 1m  open    0
            client    ps:0  run-1      0000000000000078  2d 7h  broken  2
        "#]],
    );
}

#[test]
fn a_failed_job_tells_the_first_cause_and_every_end() {
    let mut status = leader();
    let cause = Cause { task: SECOND, exit_code: 3, message: "trap: unreachable\n  at train".into() };
    let job = JobStatus { training_ended: true, cause: Some(cause), ..status.job.expect("it leads") };
    status.job = Some(job);
    status.barriers = Listed::default();
    let ended = |task, code| TaskStatus { exit_code: Some(code), ..row(task, TaskState::Ended) };
    status.tasks = listed(vec![ended(CHIEF, 0), ended(SECOND, 3), row(PS, TaskState::Suspect)]);
    check(
        &text::text(&[seen(None, Ok(status))], false),
        expect![[r#"
            worker:0 at a.example:2222, incarnation 0000000000000abc, dchost 0.1.0
            attempt 0 of leader 0000000000000abc
            independent-worker, between-graph; training has failed: worker:1 with exit code 3: trap: unreachable\n  at train

            tasks     state               since  last seen  incarnation       address        message
            worker:0  ended, exit code 0  12s    0.2s ago   0000000000000abc  worker-0:2222
            worker:1  ended, exit code 3  12s    0.2s ago   0000000000000abc  worker-1:2222
            ps:0      suspect             12s    0.2s ago   0000000000000abc  ps-0:2222

            barriers  none

            variables  none

            sessions  none
        "#]],
    );
}

#[test]
fn what_is_left_out_is_counted() {
    let mut status = ps();
    status.variables.left_out = 1234;
    status.sessions.strange = 2;
    let first = status.variables.rows[0].clone();
    status.variables.rows = vec![first; 1010];
    let text = text::text(&[seen(None, Ok(status))], false);
    for told in ["  and 10 more, see --format json\n", "  and 1234 more, for which", "  and 2 that this dchost can't"] {
        assert!(text.contains(told), "no `{told}` in:\n{text}");
    }
    assert!(text.lines().count() < 1020);
}

/// What a server says is anybody's text: names of a guest, messages of another host.
#[test]
fn nothing_that_a_server_says_drives_the_terminal() {
    let evil = "\u{1b}[2J\r\nworker:9\t\u{202e}";
    let mut status = leader();
    status.version = evil.into();
    for task in &mut status.tasks.rows {
        task.address = Some(evil.into());
        task.message = evil.repeat(10_000);
    }
    status.barriers.rows[0].name = evil.into();
    status.barriers.rows[0].container = evil.into();
    status.variables = ps().variables;
    status.variables.rows[0].name = evil.into();
    status.variables.rows[0].container = evil.into();
    status.sessions = ps().sessions;
    status.sessions.rows[0].container = evil.into();
    let cause = Cause { task: SECOND, exit_code: 3, message: evil.into() };
    status.job = Some(JobStatus { cause: Some(cause), ..status.job.expect("it leads") });
    let lines = text::text(&[seen(Some(CHIEF), Ok(leader()))], false).lines().count();
    let seen = [seen(Some(CHIEF), Ok(status)), seen(None, Err(StatusError::Foreign(evil.into())))];
    for together in [false, true] {
        let text = text::text(&seen, together);
        assert!(!text.replace('\n', "").contains(crate::text::is_harmful), "{text}");
        assert!(text.lines().count() < lines + 30 && text.len() < 10_000, "{text}");
    }
    let line = json::line(UNIX_EPOCH, &seen, None);
    assert!(!line.trim_end().contains(crate::text::is_harmful), "{line}");
    let object: serde_json::Value = serde_json::from_str(&line).expect("it is JSON");
    assert_eq!(object["servers"][0]["status"]["version"], evil);
}

#[test]
fn the_object_has_the_documented_shape() {
    let mut status = leader();
    (status.variables, status.sessions) = (ps().variables, ps().sessions);
    status.tasks.rows.remove(0);
    status.tasks.left_out = 1;
    status.variables.rows.remove(0);
    status.sessions.rows.remove(0);
    let line = json::line(UNIX_EPOCH, &[seen(Some(CHIEF), Ok(status))], None);
    assert_eq!(line.matches('\n').count(), 1);
    let object: serde_json::Value = serde_json::from_str(&line).expect("it is JSON");
    check(
        &serde_json::to_string_pretty(&object).expect("it was JSON"),
        expect![[r#"
            {
              "time": "1970-01-01T00:00:00.000Z",
              "servers": [
                {
                  "asked": "worker:0",
                  "address": "a.example:2222",
                  "error": null,
                  "status": {
                    "task": "worker:0",
                    "incarnation": "0000000000000abc",
                    "version": "0.1.0",
                    "attempt": {
                      "leader_incarnation": "0000000000000abc",
                      "number": 0
                    },
                    "job": {
                      "mode": "independent-worker",
                      "replication": "between-graph",
                      "training_ended": false,
                      "cause": null
                    },
                    "tasks": [
                      {
                        "task": "worker:0",
                        "address": "worker-0:2222",
                        "state": "running",
                        "since_ms": 12345,
                        "incarnation": "0000000000000abc",
                        "last_seen_ms": 250,
                        "runner": true,
                        "exit_code": null,
                        "message": ""
                      },
                      {
                        "task": "worker:1",
                        "address": "worker-1:2222",
                        "state": "never-seen",
                        "since_ms": 12345,
                        "incarnation": null,
                        "last_seen_ms": null,
                        "runner": true,
                        "exit_code": null,
                        "message": "connection refused"
                      }
                    ],
                    "tasks_left_out": 1,
                    "barriers": [
                      {
                        "name": "",
                        "container": "default",
                        "generation": 3,
                        "since_ms": 72000,
                        "arrived": [
                          "worker:0"
                        ],
                        "missing": [
                          "worker:1"
                        ]
                      }
                    ],
                    "barriers_left_out": 0,
                    "variables": [
                      {
                        "name": "weights",
                        "container": "default",
                        "dtype": "f32",
                        "shape": [
                          1568,
                          1000
                        ],
                        "shard": {
                          "index": 1,
                          "count": 2,
                          "first_row": 784,
                          "rows": 784
                        },
                        "bytes": 3136000,
                        "version": 42,
                        "partial_writes": 0,
                        "slot_bytes": 0,
                        "stale_gradients": 0,
                        "dropped_gradients": 0
                      }
                    ],
                    "variables_left_out": 0,
                    "variable_bytes": 0,
                    "variable_bytes_max": null,
                    "sessions": [
                      {
                        "task": null,
                        "run_id": "0000000000000078",
                        "container": "run-1",
                        "since_ms": 200000000,
                        "attached": false,
                        "op_instances": 2
                      }
                    ],
                    "sessions_left_out": 0
                  }
                }
              ],
              "error": null
            }"#]],
    );
    check(
        &json::line(UNIX_EPOCH, &[seen(None, Err(not_reached()))], Some("why")),
        expect![[r#"
            {"time":"1970-01-01T00:00:00.000Z","servers":[{"asked":null,"address":"a.example:2222","error":"connection refused","status":null}],"error":"why"}
        "#]],
    );
}

#[test]
fn the_exit_code_says_whether_asking_again_makes_sense() {
    let target = Target { task: Some(CHIEF), address: "a:1".into() };
    let check = |error: StatusError, exit, expect: Expect| {
        let error = NoStatus::Server { target: target.clone(), error, patience: Duration::from_secs(5) };
        assert_eq!(error.exit(), exit);
        expect.assert_eq(&error.to_string());
    };
    check(
        not_reached(),
        Exit::Unreachable,
        expect![
            "worker:0 at `a:1` was not reached within 5s: connection refused; is it running, and is that its address? See --connect-timeout"
        ],
    );
    check(
        StatusError::Foreign("it speaks SMTP".into()),
        Exit::Unreachable,
        expect!["worker:0 at `a:1` gives no status: it speaks SMTP; give the address of a dchost task"],
    );
    let denied = Error::new(ErrorCode::PermissionDenied, "no");
    check(
        StatusError::Refused(denied),
        Exit::Refused,
        expect!["worker:0 at `a:1` gives no status: the server refuses: permission-denied: no"],
    );
}

#[test]
fn ages_and_sizes_are_short() {
    for (seconds, expected) in [(0.04, "0.0s"), (9.96, "10.0s"), (59.9, "59s"), (61.0, "1m 1s"), (7260.0, "2h 1m")] {
        assert_eq!(text::age(Duration::from_secs_f64(seconds)), expected);
    }
    assert_eq!(text::age(Duration::MAX), "213503982334601d 7h");
}

#[test]
fn a_terminal_is_redrawn_with_as_much_as_it_shows() {
    let text = "one\ntwo\nthree\nfour\n";
    assert_eq!(
        redrawn(text, true, (5, 80)),
        "\u{1b}[2J\u{1b}[Hone\u{1b}[K\ntwo\u{1b}[K\nthree\u{1b}[K\nfour\u{1b}[K\n\u{1b}[J"
    );
    assert_eq!(redrawn(text, false, (4, 80)), "\u{1b}[Hone\u{1b}[K\ntwo\u{1b}[K\n... 2 more lines\u{1b}[K\n\u{1b}[J");
    // `three` takes two rows of a narrow terminal.
    assert!(redrawn(text, false, (5, 4)).contains("... 2 more lines"), "{}", redrawn(text, false, (5, 4)));
}
