//! What links whatever is granted, and what is refused when it is called.

use super::*;
use crate::runtime::test_support::{Import, guest, guest_with_memory};
use crate::runtime::{DirGrant, NetGrant, NetHost};

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

/// `get-directories`, with a place for the list.
const DIRECTORIES: Import = Import {
    component: concat!(
        include_str!("../test_support/text/streams.wat"),
        r#"
      (import "wasi:filesystem/types@0.2.0" (instance $files
        (alias outer 1 $out (type $o))
        (export "output-stream" (type $out (eq $o)))
        (type $code' (enum "access" "would-block" "already" "bad-descriptor" "busy" "deadlock" "quota" "exist"
          "file-too-large" "illegal-byte-sequence" "in-progress" "interrupted" "invalid" "io" "is-directory" "loop"
          "too-many-links" "message-size" "name-too-long" "no-device" "no-entry" "no-lock" "insufficient-memory"
          "insufficient-space" "not-directory" "not-empty" "not-recoverable" "unsupported" "no-tty" "no-such-device"
          "overflow" "not-permitted" "pipe" "read-only" "invalid-seek" "text-file-busy" "cross-device"))
        (export "error-code" (type $code (eq $code')))
        (type $path-flags' (flags "symlink-follow"))
        (export "path-flags" (type $path-flags (eq $path-flags')))
        (type $open-flags' (flags "create" "directory" "exclusive" "truncate"))
        (export "open-flags" (type $open-flags (eq $open-flags')))
        (type $flags' (flags "read" "write" "file-integrity-sync" "data-integrity-sync" "requested-write-sync"
          "mutate-directory"))
        (export "descriptor-flags" (type $flags (eq $flags')))
        (export "descriptor" (type $descriptor (sub resource)))
        (export "[method]descriptor.open-at" (func (param "self" (borrow $descriptor)) (param "path-flags" $path-flags)
          (param "path" string) (param "open-flags" $open-flags) (param "flags" $flags)
          (result (result (own $descriptor) (error $code)))))
        (export "[method]descriptor.write-via-stream" (func (param "self" (borrow $descriptor)) (param "offset" u64)
          (result (result (own $out) (error $code)))))))
      (alias export $files "descriptor" (type $descriptor))
      (import "wasi:filesystem/preopens@0.2.0" (instance $preopens
        (alias outer 1 $descriptor (type $d))
        (export "descriptor" (type $descriptor (eq $d)))
        (export "get-directories" (func (result (list (tuple (own $descriptor) string)))))))"#
    ),
    lower: r#"(core func $directories (canon lower (func $preopens "get-directories")
        (memory (core memory $libc "memory")) (realloc (core func $libc "realloc"))))"#,
    name: "directories",
    core: "(param i32)",
};

/// `open-at`, with a place for the result; needs [`DIRECTORIES`].
const OPEN: Import = Import {
    component: "",
    lower: r#"(core func $open (canon lower (func $files "[method]descriptor.open-at")
        (memory (core memory $libc "memory"))))"#,
    name: "open",
    core: "(param i32 i32 i32 i32 i32 i32 i32)",
};

/// `write-via-stream`, with a place for the result; needs [`DIRECTORIES`].
const WRITER: Import = Import {
    component: "",
    lower: r#"(core func $writer (canon lower (func $files "[method]descriptor.write-via-stream")
        (memory (core memory $libc "memory"))))"#,
    name: "writer",
    core: "(param i32 i64 i32)",
};

/// `write` of a stream, with a place for the result; needs [`DIRECTORIES`].
const WRITE_SOON: Import = Import {
    component: "",
    lower: r#"(core func $write-soon (canon lower (func $streams "[method]output-stream.write")
        (memory (core memory $libc "memory"))))"#,
    name: "write-soon",
    core: "(param i32 i32 i32 i32)",
};

/// Aim: a write to a file that is larger than `check-write` allows ends the run, as `wasi:io` has it, instead of being held by
/// the host. Method: one of as much as is allowed, and one of a byte more, which no standard library makes.
#[tokio::test]
async fn a_write_to_a_file_beyond_its_permit_is_a_trap() {
    let body = |bytes: u32| {
        format!(
            r#"(data (i32.const 1024) "f")
            (func (export "run") (result i32)
              (call $directories (i32.const 64))
              ;; Create it, to write.
              (call $open (i32.load (i32.load (i32.const 64))) (i32.const 0) (i32.const 1024) (i32.const 1) (i32.const 1)
                (i32.const 2) (i32.const 80))
              (if (i32.load8_u (i32.const 80)) (then (unreachable)))
              (call $writer (i32.load (i32.const 84)) (i64.const 0) (i32.const 96))
              (if (i32.load8_u (i32.const 96)) (then (unreachable)))
              (call $write-soon (i32.load (i32.const 100)) (i32.const 8192) (i32.const {bytes}) (i32.const 112))
              (if (i32.load8_u (i32.const 112)) (then (unreachable)))
              (i32.const 0))"#
        )
    };
    for (bytes, allowed) in [(64 << 10, true), ((64 << 10) + 1, false)] {
        let dir = tempfile::tempdir().unwrap();
        let grant = DirGrant { host: dir.path().to_owned(), guest: "/data".to_owned(), read_only: false };
        let options = GuestOptions { dirs: vec![grant], ..GuestOptions::default() };
        let guest = guest_with_memory(3, &[DIRECTORIES, OPEN, WRITER, WRITE_SOON], &body(bytes));
        let (report, _) = run_on(&ENGINE, guest, options).await;
        match report.end {
            RunEnd::Done if allowed => {}
            RunEnd::Trap { kind, .. } if !allowed => {
                let told = "a write of 65537 bytes to a file, but `check-write` allows 65536 at most";
                assert!(kind.contains(told), "{kind}");
            }
            end => panic!("a write of {bytes} bytes: {end:?}"),
        }
    }
}
