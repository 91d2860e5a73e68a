//! Components in text for tests of the library, and consoles that keep what they print.

use dchost::context::WorkerContext;
use dchost::handles::{Console, Origin};
use std::sync::{Arc, Mutex};

/// What nobody should ever wait for.
pub(crate) const LONG: std::time::Duration = std::time::Duration::from_secs(90);

/// A guest that writes `hello` and ends.
pub(crate) fn hello() -> Vec<u8> {
    guest(
        r#"(data (i32.const 1024) "hello") (func $main (result i32) (call $say (i32.const 1024) (i32.const 5)) (i32.const 0))"#,
    )
}

/// A guest that writes `begun` and then computes for ever.
pub(crate) fn spins() -> Vec<u8> {
    guest(
        r#"(data (i32.const 1024) "begun")
        (func $main (result i32) (call $say (i32.const 1024) (i32.const 5)) (loop $again (br $again)) (unreachable))"#,
    )
}

/// The between-graph worker function of TensorFlow's tests: `x` begins at 10 on `ps:0` and `y` at 20 on `ps:1`, each worker
/// adds 2 to one and takes 2 from the other, and when all have, each reads both and writes `x=16 y=14`.
pub(crate) fn between_graph() -> Vec<u8> {
    guest(
        r#"(data (i32.const 1024) "xyps") (data (i32.const 1032) "x=00 y=00")
        ;; 10, 20 and 2 as f32.
        (data (i32.const 1044) "\00\00\20\41\00\00\a0\41\00\00\00\40")
        (func $main (result i32)
          (i32.store (i32.const 1056) (call $declared (i32.const 1024) (i32.const 1) (i32.const 1026) (i32.const 2) (i32.const 0)))
          (if (call $failed) (then (return (i32.const 16))))
          (i32.store (i32.const 1060) (call $declared (i32.const 1025) (i32.const 1) (i32.const 1026) (i32.const 2) (i32.const 1)))
          (if (call $failed) (then (return (i32.const 16))))
          (call $entry (i32.const 1072) (i32.load (i32.const 1056)) (i32.const 1044))
          (call $entry (i32.const 1096) (i32.load (i32.const 1060)) (i32.const 1048))
          (call $change (i32.const 1120) (i32.load (i32.const 1056)) (i32.const 1) (i32.const 1052))
          (call $change (i32.const 1168) (i32.load (i32.const 1060)) (i32.const 2) (i32.const 1052))
          (if (call $is-chief) (then
            (call $initialize (i32.const 1072) (i32.const 2) (i32.const 0) (i32.const 64))
            (if (call $failed) (then (return (i32.const 16))))))
          (call $wait (i32.const 64))
          (if (call $failed) (then (return (i32.const 16))))
          (call $update (i32.const 1120) (i32.const 2) (i32.const 0) (i32.const 0) (i32.const 64))
          (if (call $failed) (then (return (i32.const 16))))
          (call $wait (i32.const 64))
          (if (call $failed) (then (return (i32.const 16))))
          (call $read (i32.const 1056) (i32.const 2) (i32.const 0) (i64.const 0) (i32.const 0) (i64.const 0) (i32.const 0)
            (i32.const 64))
          (if (call $failed) (then (return (i32.const 16))))
          (call $digits (i32.const 1034) (call $value (i32.const 0)))
          (call $digits (i32.const 1039) (call $value (i32.const 1)))
          (call $say (i32.const 1032) (i32.const 9))
          (i32.const 0))"#,
    )
}

/// The in-graph worker function of TensorFlow's tests, of 3 workers: `x_i` begins at 10 on `worker:i`, `i` is added to it, and
/// the op `add-n`, started on `worker:0` with the three new values, adds them up and writes `adds`. Writes `sum=33`.
pub(crate) fn in_graph() -> Vec<u8> {
    let main = r#"(data (i32.const 1024) "x0x1x2worker") (data (i32.const 1036) "sum=00")
        ;; 10, 0, 1 and 2 as f32.
        (data (i32.const 1044) "\00\00\20\41\00\00\00\00\00\00\80\3f\00\00\00\40")
        (func $main (result i32)
          (local $i i32) (local $variable i32)
          (loop $next
            (local.set $variable (call $declared
              (i32.add (i32.const 1024) (i32.mul (local.get $i) (i32.const 2))) (i32.const 2)
              (i32.const 1030) (i32.const 6) (local.get $i)))
            (if (call $failed) (then (return (i32.const 16))))
            (call $entry (i32.add (i32.const 1072) (i32.mul (local.get $i) (i32.const 24))) (local.get $variable)
              (i32.const 1044))
            (call $change (i32.add (i32.const 1152) (i32.mul (local.get $i) (i32.const 48))) (local.get $variable)
              (i32.const 1) (i32.add (i32.const 1048) (i32.mul (local.get $i) (i32.const 4))))
            (local.set $i (i32.add (local.get $i) (i32.const 1)))
            (br_if $next (i32.lt_u (local.get $i) (i32.const 3))))
          (call $initialize (i32.const 1072) (i32.const 3) (i32.const 0) (i32.const 64))
          (if (call $failed) (then (return (i32.const 16))))
          (call $update (i32.const 1152) (i32.const 3) (i32.const 1) (i32.const 0) (i32.const 64))
          (if (call $failed) (then (return (i32.const 16))))
          ;; The new values are the op's inputs, each with the case `tensor` before it.
          (local.set $i (i32.const 0))
          (loop $next
            (call $tensor (i32.add (i32.const 1308) (i32.mul (local.get $i) (i32.const 24))) (call $data (local.get $i)))
            (local.set $i (i32.add (local.get $i) (i32.const 1)))
            (br_if $next (i32.lt_u (local.get $i) (i32.const 3))))
          (call $start (i32.const 1030) (i32.const 6) (i32.const 0) (i32.const 1380) (i32.const 5)
            (i32.const 1304) (i32.const 3) (i32.const 0) (i64.const 0) (i32.const 64))
          (if (call $failed) (then (return (i32.const 16))))
          (call $get (i32.load (i32.const 68)) (i32.const 64))
          (if (call $failed) (then (return (i32.const 16))))
          (call $digits (i32.const 1040) (call $value (i32.const 0)))
          (call $say (i32.const 1036) (i32.const 6))
          (i32.const 0))
        ;; The list of one name, `add-n`, is at 1400; its element at 1408.
        (data (i32.const 1380) "add-n") (data (i32.const 1388) "adds")
        (data (i32.const 1400) "\80\05\00\00\01\00\00\00\64\05\00\00\05\00\00\00")
        (func (export "list") (result i32) (i32.const 1400))
        ;; One tensor at 1424, of the data at 1448; the result is at 1456.
        (func (export "call") (param i32 i32) (param $inputs i32) (param $count i32) (result i32)
          (call $say (i32.const 1388) (i32.const 4))
          (f32.store (i32.const 1448) (f32.const 0))
          (loop $next
            (if (local.get $count) (then
              (f32.store (i32.const 1448)
                (f32.add (f32.load (i32.const 1448)) (f32.load (i32.load offset=12 (local.get $inputs)))))
              (local.set $inputs (i32.add (local.get $inputs) (i32.const 20)))
              (local.set $count (i32.sub (local.get $count) (i32.const 1)))
              (br $next))))
          (call $tensor (i32.const 1424) (i32.const 1448))
          (i32.store (i32.const 1460) (i32.const 1424)) (i32.store (i32.const 1464) (i32.const 1))
          (i32.const 1456))"#;
    component(main, OP_ENTRY)
}

/// Types that each interface with errors repeats.
const ERROR_TYPES: &str = include_str!("../../src/runtime/test_support/text/error_types.wat");

/// Types that each interface of tensors repeats.
const TENSOR_TYPES: &str = include_str!("../../src/runtime/test_support/text/tensor_types.wat");

/// Exports of a component with ops: its core code exports `list` and `call`.
const OP_ENTRY: &str = concat!(
    r#"(alias export $variables "tensor" (type $tensor))"#,
    "\n",
    include_str!("../../src/runtime/test_support/text/op_entry.wat")
);

/// What the core code imports: by name here, interface, name there and core type.
const IMPORTS: [(&str, &str, &str, &str); 9] = [
    ("log", "log", "write", "(param i32 i32 i32)"),
    ("is-chief", "context", "is-chief", "(result i32)"),
    ("wait", "context", "wait-for-other-workers", "(param i32)"),
    ("declare", "variables", "[static]variable.declare", "(param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32)"),
    ("initialize", "variables", "initialize", "(param i32 i32 i32 i32)"),
    ("read", "variables", "read", "(param i32 i32 i32 i64 i32 i64 i32 i32)"),
    ("update", "variables", "update", "(param i32 i32 i32 i32 i32)"),
    ("start", "ops", "start", "(param i32 i32 i32 i32 i32 i32 i32 i32 i64 i32)"),
    ("get", "ops", "[method]call.get", "(param i32 i32)"),
];

/// A component of core code that defines `$main`, whose result is the address of a `result<_, string>`: 0 for ok, 16 after
/// `$failed`. Text and data may be placed from 1024 to 4095; results of calls are at 64.
fn guest(main: &str) -> Vec<u8> {
    component(main, "")
}

/// The component of [`guest`], with more exports.
fn component(main: &str, exports: &str) -> Vec<u8> {
    let interfaces = format!(
        concat!(
            include_str!("../../src/runtime/test_support/text/poll.wat"),
            include_str!("../../src/runtime/test_support/text/variables.wat.in"),
            include_str!("../../src/runtime/test_support/text/ops.wat.in"),
            include_str!("../../src/runtime/test_support/text/libc.wat.in"),
        ),
        error_types = ERROR_TYPES,
        tensor_types = TENSOR_TYPES,
        pages = 1,
        top = 4096,
    );
    let entry = include_str!("../../src/runtime/test_support/text/entry.wat");
    let join = |part: &dyn Fn(&str, &str, &str, &str) -> String| {
        IMPORTS.map(|(name, interface, function, core)| part(name, interface, function, core)).join("\n")
    };
    let lowers = join(&|name, interface, function, _| {
        format!(
            r#"(core func ${name} (canon lower (func ${interface} "{function}")
            (memory (core memory $libc "memory")) (realloc (core func $libc "realloc"))))"#
        )
    });
    let cores = join(&|name, _, _, core| format!(r#"(import "host" "{name}" (func ${name} {core}))"#));
    let host = join(&|name, _, _, _| format!(r#"(export "{name}" (func ${name}))"#));
    let text = format!(
        r#"(component
      (import "dchost:worker/log@0.1.0" (instance $log
        (type $level' (enum "trace" "debug" "info" "warn" "error"))
        (export "level" (type $level (eq $level')))
        (export "write" (func (param "level" $level) (param "message" string)))))
      (import "dchost:worker/worker-context@0.1.0" (instance $context
        {ERROR_TYPES}
        (export "is-chief" (func (result bool)))
        (export "wait-for-other-workers" (func (result (result (error $error)))))))
      {interfaces}
      {lowers}
      (core module $main
        (import "libc" "memory" (memory 1))
        {cores}
        ;; Logs a text.
        (func $say (param $at i32) (param $length i32) (call $log (i32.const 2) (local.get $at) (local.get $length)))
        ;; Whether the result at 64 is an error; its message is then that of the result at 16.
        (func $failed (result i32)
          (i32.store8 (i32.const 16) (i32.const 1))
          (i32.store (i32.const 20) (i32.load (i32.const 72)))
          (i32.store (i32.const 24) (i32.load (i32.const 76)))
          (i32.load8_u (i32.const 64)))
        ;; An f32 scalar on a task.
        (func $declared (param $name i32) (param $length i32) (param $job i32) (param $job-length i32) (param $index i32)
          (result i32)
          (call $declare (local.get $name) (local.get $length) (i32.const 0) (i32.const 0) (i32.const 0)
            (i32.const 1) (local.get $job) (local.get $job-length) (local.get $index) (i32.const 64))
          (i32.load (i32.const 68)))
        (func $tensor (param $at i32) (param $data i32)
          (i32.store8 (local.get $at) (i32.const 0))
          (i32.store offset=4 (local.get $at) (i32.const 0)) (i32.store offset=8 (local.get $at) (i32.const 0))
          (i32.store offset=12 (local.get $at) (local.get $data)) (i32.store offset=16 (local.get $at) (i32.const 4)))
        ;; An element of what `initialize` takes: 24 bytes.
        (func $entry (param $at i32) (param $variable i32) (param $data i32)
          (i32.store (local.get $at) (local.get $variable))
          (call $tensor (i32.add (local.get $at) (i32.const 4)) (local.get $data)))
        ;; An element of what `update` takes: 48 bytes.
        (func $change (param $at i32) (param $variable i32) (param $kind i32) (param $data i32)
          (i32.store (local.get $at) (local.get $variable))
          (i32.store8 offset=4 (local.get $at) (local.get $kind))
          (call $tensor (i32.add (local.get $at) (i32.const 8)) (local.get $data))
          (i32.store8 offset=32 (local.get $at) (i32.const 0)))
        ;; Where the value with this number in the result at 64 has its data.
        (func $data (param $i i32) (result i32)
          (i32.load offset=12 (i32.add (i32.load (i32.const 68)) (i32.mul (local.get $i) (i32.const 32)))))
        ;; That value, as a whole number. Of an op's results only the first is found: they come without version.
        (func $value (param $i i32) (result i32)
          (i32.trunc_f32_s (f32.load (call $data (local.get $i)))))
        ;; Writes a number of two digits.
        (func $digits (param $at i32) (param $number i32)
          (i32.store8 (local.get $at) (i32.add (i32.const 48) (i32.div_u (local.get $number) (i32.const 10))))
          (i32.store8 offset=1 (local.get $at) (i32.add (i32.const 48) (i32.rem_u (local.get $number) (i32.const 10)))))
        {main}
        (func (export "run") (result i32) (call $main)))
      (core instance $host {host})
      (core instance $main (instantiate $main (with "libc" (instance $libc)) (with "host" (instance $host))))
      {entry} {exports})"#
    );
    wat::parse_str(&text).unwrap_or_else(|error| panic!("{error}"))
}

/// A console that hands each line to a closure.
pub(crate) struct Calls<F>(pub(crate) F);

impl<F: Fn(&str) + Send + Sync> Console for Calls<F> {
    fn line(&self, _: Origin, text: &str) {
        (self.0)(text);
    }

    fn progress(&self, _: u64, _: Option<u64>, _: &str) {}
}

/// The lines of all runs that were given it, each with the run's task before it.
#[derive(Clone, Default)]
pub(crate) struct Lines(Arc<Mutex<Vec<String>>>);

impl Lines {
    /// Makes the consoles of a coordinator's runs.
    pub(crate) fn consoles(&self) -> impl Fn(&WorkerContext) -> Arc<dyn Console> + Send + Sync + 'static {
        let lines = self.0.clone();
        move |context| {
            let (lines, task) = (lines.clone(), context.task.map_or_else(|| "-".to_owned(), |task| task.to_string()));
            let keep = move |text: &str| lines.lock().expect("no test panics here").push(format!("{task} {text}"));
            Arc::new(Calls(keep))
        }
    }

    /// Everything so far, in order of the text.
    pub(crate) fn sorted(&self) -> Vec<String> {
        let mut lines = self.0.lock().expect("no test panics here").clone();
        lines.sort();
        lines
    }
}
