//! The binary as a user meets it: exit codes, streams, and a socket that is handed over. Nothing here starts a guest.

use command_fds::{CommandFdExt as _, FdMapping};
use serde_json::Value;
use std::net::TcpListener;
use std::process::{Command, Output};

/// The binary, without what the environment of the test says about clusters.
fn dchost(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dchost"));
    for name in ["TF_CONFIG", "LISTEN_FDS", "LISTEN_PID"] {
        command.env_remove(name);
    }
    command.args(arguments);
    command
}

fn output(command: &mut Command) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = command.output().expect("dchost starts");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (status.code(), text(stdout), text(stderr))
}

#[test]
fn plans_go_to_stdout_and_refusals_are_exit_2_with_the_error_in_the_object() {
    let cluster = r#"--cluster={"worker":["a:1","b:1"]}"#;
    let (code, stdout, stderr) =
        output(&mut dchost(&["plan", cluster, "--task=worker:1", "--mode=independent-worker", "--format=json"]));
    let plan: Value = serde_json::from_str(&stdout).expect("one object");
    assert_eq!(
        (code, &plan["error"], &plan["runs"][0]["master_target"]),
        (Some(0), &Value::Null, &"grpc://b:1".into())
    );
    assert!(stderr.contains("--insecure"), "{stderr}");

    // A refusal, and what the command line itself doesn't take.
    for flags in [["--task=worker:7", "--mode=independent-worker"], ["--task=worker:0", "--mode=bogus"]] {
        let (code, stdout, _) = output(&mut dchost(&["plan", cluster, flags[0], flags[1], "--format", "json"]));
        let plan: Value = serde_json::from_str(&stdout).expect("one object");
        assert_eq!((code, &plan["server"], &plan["runs"]), (Some(2), &Value::Null, &Value::Array(Vec::new())));
        assert!(plan["error"].as_str().is_some_and(|error| !error.is_empty()), "{plan}");
    }
    let (code, stdout, stderr) = output(&mut dchost(&["plan", cluster, "--task=worker:7"]));
    assert_eq!((code, stdout.as_str()), (Some(2), ""));
    assert!(stderr.starts_with("error: configuration refused"), "{stderr}");
}

#[test]
fn a_status_that_names_nobody_is_exit_2_with_the_error_in_the_object() {
    for flags in [&["status"][..], &["status", "a.example"], &["status", "--cluster", "{"]] {
        let (code, stdout, stderr) = output(&mut dchost(flags));
        assert_eq!((code, stdout.as_str()), (Some(2), ""));
        assert!(stderr.starts_with("error: configuration refused: "), "{stderr}");
        let (code, stdout, _) = output(&mut dchost(&[flags, &["--format=json"]].concat()));
        let object: Value = serde_json::from_str(&stdout).expect("one object");
        assert_eq!((code, &object["servers"]), (Some(2), &Value::Array(Vec::new())));
        assert!(object["error"].as_str().is_some_and(|error| stderr.contains(error)), "{object}");
    }
    for flags in [["a:1", "--all"], ["a:1", "--task=ps"], ["--all", "--task=ps"], ["--watch=1ms", "a:1"]] {
        let (code, _, stderr) = output(dchost(&["status"]).args(flags));
        assert_eq!(code, Some(2), "{stderr}");
    }
}

#[test]
fn a_malformed_tf_config_is_exit_2() {
    let (code, stdout, stderr) = output(dchost(&["--module=m.wasm"]).env("TF_CONFIG", "{'cluster':"));
    assert_eq!((code, stdout.as_str()), (Some(2), ""));
    assert!(stderr.contains("`TF_CONFIG`") && stderr.contains("double quotes"), "{stderr}");
}

#[test]
fn what_is_not_served_yet_is_exit_2() {
    let cluster = r#"--cluster={"worker":["localhost:1"]}"#;
    let (code, _, stderr) = output(&mut dchost(&[cluster, "--module=m.wasm", "--task=worker", "--max-attempts=2"]));
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("not served yet"), "{stderr}");
}

#[test]
fn the_log_may_be_json_and_holds_the_refusal_then() {
    let (code, _, stderr) = output(&mut dchost(&["--log-format=json", "--task=worker:0", "--module=m.wasm"]));
    assert_eq!(code, Some(2));
    let lines: Vec<Value> = stderr.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert!(lines.iter().any(|line| line["message"].as_str().is_some_and(|text| text.contains("dchost launch"))));
}

#[test]
fn help_and_version_go_to_stdout() {
    let (code, stdout, stderr) = output(&mut dchost(&["--version"]));
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    assert!(stdout.contains("wasmtime: ") && stdout.contains("dchost:worker@"), "{stdout}");
    let (code, stdout, _) = output(&mut dchost(&["--help"]));
    assert_eq!(code, Some(0));
    assert!(stdout.contains("DCHOST_MAX_MEMORY"), "{stdout}");
}

/// Runs a task whose module is missing, with sockets handed over as descriptors from 3, and returns its end.
fn with_sockets(sockets: Vec<TcpListener>, port: u16, pid: Option<&str>) -> (Option<i32>, String) {
    let cluster = format!(r#"--cluster={{"worker":["127.0.0.1:{port}"]}}"#);
    let mut command = dchost(&[&cluster, "--task=worker:0", "--module=/nowhere/m.wasm", "--no-cache"]);
    command.env("LISTEN_FDS", sockets.len().to_string());
    if let Some(pid) = pid {
        command.env("LISTEN_PID", pid);
    }
    let mappings = (3..).zip(sockets).map(|(child_fd, socket)| FdMapping { parent_fd: socket.into(), child_fd });
    command.fd_mappings(mappings.collect()).expect("no descriptor twice");
    let (code, _, stderr) = output(&mut command);
    (code, stderr)
}

#[test]
fn a_listening_socket_is_taken_over_unless_it_is_for_another_process() {
    let socket = || TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = |socket: &TcpListener| socket.local_addr().expect("an address").port();
    let ours = socket();
    let number = port(&ours);
    let (_, stderr) = with_sockets(vec![ours], number, None);
    assert!(stderr.contains(&format!("listen = 127.0.0.1:{number} (socket handed over)")), "{stderr}");
    let others = socket();
    let number = port(&others);
    let (_, stderr) = with_sockets(vec![others], number, Some("1"));
    assert!(stderr.contains(&format!("listen = 127.0.0.1:{number} (inferred)")), "{stderr}");
    let (code, stderr) = with_sockets(vec![socket(), socket()], 1, None);
    assert_eq!(code, Some(2));
    assert!(stderr.contains("hands over 2 sockets"), "{stderr}");
}
