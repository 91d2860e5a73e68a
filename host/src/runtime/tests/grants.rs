//! What links whatever is granted, and what is refused when it is called.

use super::*;
use crate::runtime::test_support::{Import, guest};
use crate::runtime::{NetGrant, NetHost};

/// All that `wasi:cli/imports` has.
const WASI: [&str; 27] = [
    "cli/environment",
    "cli/exit",
    "cli/stderr",
    "cli/stdin",
    "cli/stdout",
    "cli/terminal-input",
    "cli/terminal-output",
    "cli/terminal-stderr",
    "cli/terminal-stdin",
    "cli/terminal-stdout",
    "clocks/monotonic-clock",
    "clocks/wall-clock",
    "filesystem/preopens",
    "filesystem/types",
    "io/error",
    "io/poll",
    "io/streams",
    "random/insecure",
    "random/insecure-seed",
    "random/random",
    "sockets/instance-network",
    "sockets/ip-name-lookup",
    "sockets/network",
    "sockets/tcp",
    "sockets/tcp-create-socket",
    "sockets/udp",
    "sockets/udp-create-socket",
];

/// `create-tcp-socket` of IPv4 (0) or IPv6 (1), with a place for the result: failed at 0, the socket or the error at 4.
const CREATE_TCP: Import = Import {
    component: r#"
      (import "wasi:sockets/network@0.2.0" (instance $network
        (export "network" (type (sub resource)))
        (type $code' (enum "unknown" "access-denied" "not-supported" "invalid-argument" "out-of-memory" "timeout"
          "concurrency-conflict" "not-in-progress" "would-block" "invalid-state" "new-socket-limit" "address-not-bindable"
          "address-in-use" "remote-unreachable" "connection-refused" "connection-reset" "connection-aborted"
          "datagram-too-large" "name-unresolvable" "temporary-resolver-failure" "permanent-resolver-failure"))
        (export "error-code" (type (eq $code')))
        (type $family' (enum "ipv4" "ipv6"))
        (export "ip-address-family" (type (eq $family')))))
      (alias export $network "error-code" (type $socket-code))
      (alias export $network "ip-address-family" (type $socket-family))
      (import "wasi:sockets/tcp@0.2.0" (instance $tcp
        (alias outer 1 $socket-code (type $c))
        (export "error-code" (type $code (eq $c)))
        (export "tcp-socket" (type $socket (sub resource)))
        (export "[method]tcp-socket.start-listen" (func (param "self" (borrow $socket)) (result (result (error $code)))))))
      (alias export $tcp "tcp-socket" (type $tcp-socket))
      (import "wasi:sockets/tcp-create-socket@0.2.0" (instance $create
        (alias outer 1 $socket-code (type $c))
        (export "error-code" (type $code (eq $c)))
        (alias outer 1 $socket-family (type $f))
        (export "ip-address-family" (type $family (eq $f)))
        (alias outer 1 $tcp-socket (type $s))
        (export "tcp-socket" (type $socket (eq $s)))
        (export "create-tcp-socket" (func (param "address-family" $family) (result (result (own $socket) (error $code)))))))"#,
    lower: r#"(core func $create-tcp (canon lower (func $create "create-tcp-socket")
        (memory (core memory $libc "memory"))))"#,
    name: "create-tcp",
    core: "(param i32 i32)",
};

/// `start-listen`, with a place for the result: failed at 0, the error at 1; needs [`CREATE_TCP`].
const LISTEN: Import = Import {
    component: "",
    lower: r#"(core func $listen (canon lower (func $tcp "[method]tcp-socket.start-listen")
        (memory (core memory $libc "memory"))))"#,
    name: "listen",
    core: "(param i32 i32)",
};

#[tokio::test]
async fn a_component_that_imports_all_of_wasi_links_and_runs_without_a_grant() {
    for version in ["0.2.0", "0.2.3", "0.2.12"] {
        let imports: String =
            WASI.iter().map(|name| format!("(import \"wasi:{name}@{version}\" (instance))\n")).collect();
        let import = Import { component: Box::leak(imports.into_boxed_str()), lower: "", name: "", core: "" };
        // Its core module needs no more than an ordinary guest's.
        let text = r#"(func (export "run") (result i32) (i32.const 0))"#;
        assert_eq!(end(importing(&import, text)).await, RunEnd::Done, "{version}");
    }
}

/// A guest whose component imports what its core module doesn't.
fn importing(import: &Import, body: &str) -> Vec<u8> {
    let text = format!(
        r#"(component
          {}
          (core module $main (memory (export "memory") 1) {body})
          (core instance $main (instantiate $main))
          (func $run (result (result (error string)))
            (canon lift (core func $main "run") (memory (core memory $main "memory"))))
          (instance $entry (export "run" (func $run)))
          (export "dchost:worker/entry@0.1.0" (instance $entry)))"#,
        import.component
    );
    wat::parse_str(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// Aim: listening without a bind before is refused, which standard libraries never try. Method: the error's number is the
/// text of the guest's own error; whatever is granted.
#[tokio::test]
async fn listening_without_a_bind_is_refused() {
    let body = r#"(func (export "run") (result i32)
          (call $create-tcp (i32.const 0) (i32.const 64))
          (if (i32.load8_u (i32.const 64)) (then (unreachable)))
          (call $listen (i32.load (i32.const 68)) (i32.const 80))
          (if (i32.eqz (i32.load8_u (i32.const 80))) (then (return (i32.const 0))))
          (i32.store8 (i32.const 81) (i32.add (i32.load8_u (i32.const 81)) (i32.const 48)))
          (i32.store8 (i32.const 16) (i32.const 1))
          (i32.store (i32.const 20) (i32.const 81))
          (i32.store (i32.const 24) (i32.const 1))
          (i32.const 16))"#;
    let module = load(guest(&[CREATE_TCP, LISTEN], body)).await;
    let every = |address: &str, prefix_bits| NetGrant {
        host: NetHost::Network { address: address.parse().unwrap(), prefix_bits },
        port: None,
    };
    for net in [Vec::new(), vec![every("0.0.0.0", 0), every("::", 0)]] {
        let options = GuestOptions { net, ..GuestOptions::default() };
        let report = module.run(options, Fakes::new().handles(), RunWatch::new()).await;
        // access-denied is the second code.
        assert_eq!(report.end, RunEnd::WorkerError { message: "1".to_owned() });
    }
}

/// Aim: a guest that makes sockets without end gets an error before the process has no descriptors left.
#[tokio::test]
async fn sockets_are_bounded_without_a_grant_too() {
    let body = r#"(func (export "run") (result i32) (local $count i32)
          (loop
            (call $create-tcp (i32.const 1) (i32.const 64))
            (if (i32.eqz (i32.load8_u (i32.const 64))) (then
              (local.set $count (i32.add (local.get $count) (i32.const 1)))
              (br_if 1 (i32.lt_u (local.get $count) (i32.const 2000)))
              (unreachable))))
          ;; new-socket-limit
          (if (i32.ne (i32.load8_u (i32.const 68)) (i32.const 10)) (then (unreachable)))
          (i32.const 0))"#;
    assert_eq!(end(guest(&[CREATE_TCP], body)).await, RunEnd::Done);
}
