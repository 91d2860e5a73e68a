//! A panic in a host function is told as a bug of ours, whatever kind of function it is, and spares engine and process.

use super::*;
use crate::error::Result;
use crate::handles::{
    BoxFuture, Change, Console, Gradient, GradientOptions, Handles, InitializeMode, Job, Origin, ReadOptions,
    RowChange, Summary, Value, Variable, Variables, WriteOptions,
};
use crate::runtime::test_support::{BARRIER, Import, LOG, STDOUT, WRITE, guest, variables_guest, waits_at};
use crate::tensor::{Tensor, TensorView};
use bytes::Bytes;

/// The number of `u8` in the WIT's `dtype`.
const U8: u8 = 4;

/// `attempt()`, a function that answers at once.
const ATTEMPT: Import = Import {
    component: r#"
      (import "dchost:worker/worker-context@0.1.0" (instance $context
        (export "attempt" (func (result u32)))
        (export "training-ended" (func (result bool)))))"#,
    lower: r#"(core func $attempt (canon lower (func $context "attempt")))"#,
    name: "attempt",
    core: "(result i32)",
};

/// `training-ended()`; needs [`ATTEMPT`].
const TRAINING_ENDED: Import = Import {
    component: "",
    lower: r#"(core func $training-ended (canon lower (func $context "training-ended")))"#,
    name: "training-ended",
    core: "(result i32)",
};

/// `scalar(tag, step, value)`.
const SCALAR: Import = Import {
    component: r#"
      (import "dchost:worker/summary@0.1.0" (instance $summary
        (export "scalar" (func (param "tag" string) (param "step" u64) (param "value" float64)))
        (export "progress" (func (param "done" u64) (param "total" (option u64)) (param "note" string)))))"#,
    lower: r#"(core func $scalar (canon lower (func $summary "scalar") (memory (core memory $libc "memory"))))"#,
    name: "scalar",
    core: "(param i32 i32 i64 f64)",
};

/// `progress(done, total, note)`; needs [`SCALAR`].
const PROGRESS: Import = Import {
    component: "",
    lower: r#"(core func $progress (canon lower (func $summary "progress") (memory (core memory $libc "memory"))))"#,
    name: "progress",
    core: "(param i64 i32 i64 i32 i32)",
};

/// A handle whose every function panics with its name.
struct Panics;

impl Console for Panics {
    fn line(&self, _origin: Origin, _text: &str) {
        panic!("panic in line")
    }

    fn progress(&self, _done: u64, _total: Option<u64>, _note: &str) {
        panic!("panic in progress")
    }
}

impl Summary for Panics {
    fn scalar(&self, _tag: &str, _step: u64, _value: f64) {
        panic!("panic in scalar")
    }
}

impl Job for Panics {
    fn barrier<'a>(&'a self, _name: &'a str, _timeout: Option<Duration>) -> BoxFuture<'a, Result<()>> {
        panic!("panic in barrier")
    }

    fn training_ended(&self) -> bool {
        panic!("panic in training-ended")
    }

    fn attempt(&self) -> u32 {
        panic!("panic in attempt")
    }
}

/// Variables that panic in the function of this name, before it waits or, as `later`, after.
struct PanickingVariables(&'static str);

impl PanickingVariables {
    fn call<T: Send + 'static>(&self, name: &str, value: T) -> BoxFuture<'static, Result<T>> {
        assert_ne!(self.0, name, "panic in {name}");
        let later = self.0.strip_suffix(" later") == Some(name);
        Box::pin(async move {
            tokio::task::yield_now().await;
            assert!(!later, "panic after a wait");
            Ok(value)
        })
    }
}

impl Variables for PanickingVariables {
    fn declare(&self, _variable: &Variable) -> Result<()> {
        assert_ne!(self.0, "declare", "panic in declare");
        Ok(())
    }

    fn initialize<'a>(
        &'a self,
        _values: Vec<(Variable, TensorView<'a>)>,
        _mode: InitializeMode,
    ) -> BoxFuture<'a, Result<()>> {
        self.call("initialize", ())
    }

    fn uninitialized(&self, _variables: Vec<Variable>) -> BoxFuture<'_, Result<Vec<String>>> {
        self.call("uninitialized", Vec::new())
    }

    fn wait_initialized(&self, _variables: Vec<Variable>, _timeout: Option<Duration>) -> BoxFuture<'_, Result<()>> {
        self.call("wait-initialized", ())
    }

    fn read(&self, _variables: Vec<Variable>, _options: ReadOptions) -> BoxFuture<'_, Result<Vec<Value>>> {
        self.call("read", Vec::new())
    }

    fn update<'a>(
        &'a self,
        _changes: Vec<Change<'a, Variable>>,
        _options: WriteOptions,
    ) -> BoxFuture<'a, Result<Vec<Value>>> {
        self.call("update", Vec::new())
    }

    fn apply_gradients<'a>(
        &'a self,
        _gradients: Vec<Gradient<'a, Variable>>,
        _options: GradientOptions,
    ) -> BoxFuture<'a, Result<Vec<Value>>> {
        self.call("apply-gradients", Vec::new())
    }

    fn gather(&self, variable: Variable, _rows: Vec<u64>) -> BoxFuture<'_, Result<Value>> {
        let tensor = Tensor { ty: variable.ty, data: Bytes::new() };
        self.call("gather", Value { tensor, version: 1 })
    }

    fn scatter<'a>(&'a self, _change: RowChange<'a, Variable>) -> BoxFuture<'a, Result<()>> {
        self.call("scatter", ())
    }
}

/// Variables that panic when the last handle to them goes.
struct PanicsInDrop(PanickingVariables);

impl Drop for PanicsInDrop {
    fn drop(&mut self) {
        panic!("panic in drop");
    }
}

impl Variables for PanicsInDrop {
    fn declare(&self, variable: &Variable) -> Result<()> {
        self.0.declare(variable)
    }

    fn initialize<'a>(
        &'a self,
        values: Vec<(Variable, TensorView<'a>)>,
        mode: InitializeMode,
    ) -> BoxFuture<'a, Result<()>> {
        self.0.initialize(values, mode)
    }

    fn uninitialized(&self, variables: Vec<Variable>) -> BoxFuture<'_, Result<Vec<String>>> {
        self.0.uninitialized(variables)
    }

    fn wait_initialized(&self, variables: Vec<Variable>, timeout: Option<Duration>) -> BoxFuture<'_, Result<()>> {
        self.0.wait_initialized(variables, timeout)
    }

    fn read(&self, variables: Vec<Variable>, options: ReadOptions) -> BoxFuture<'_, Result<Vec<Value>>> {
        self.0.read(variables, options)
    }

    fn update<'a>(
        &'a self,
        changes: Vec<Change<'a, Variable>>,
        options: WriteOptions,
    ) -> BoxFuture<'a, Result<Vec<Value>>> {
        self.0.update(changes, options)
    }

    fn apply_gradients<'a>(
        &'a self,
        gradients: Vec<Gradient<'a, Variable>>,
        options: GradientOptions,
    ) -> BoxFuture<'a, Result<Vec<Value>>> {
        self.0.apply_gradients(gradients, options)
    }

    fn gather(&self, variable: Variable, rows: Vec<u64>) -> BoxFuture<'_, Result<Value>> {
        self.0.gather(variable, rows)
    }

    fn scatter<'a>(&'a self, change: RowChange<'a, Variable>) -> BoxFuture<'a, Result<()>> {
        self.0.scatter(change)
    }
}

/// Runs a guest with these handles and checks that its end is a bug of ours that names `words`; then, that the engine and
/// the module are as good as before.
async fn check(bytes: Vec<u8>, handles: Handles, words: &str) {
    let module = load(bytes).await;
    let run = module.run(GuestOptions::default(), handles, RunWatch::new());
    let report = tokio::time::timeout(DEADLINE, run).await.unwrap();
    let RunEnd::HostBug { message } = report.end else { panic!("{words}: {report:?}") };
    assert!(message.contains(words) && message.contains("a bug in dchost, please report it"), "{message}");
    let again = module.run(GuestOptions::default(), Fakes::new().handles(), RunWatch::new());
    let again = tokio::time::timeout(DEADLINE, again).await.unwrap();
    assert!(!matches!(again.end, RunEnd::HostBug { .. }), "{words}: {again:?}");
}

/// The handles of fakes, all but the variables replaced with ones that panic.
fn panicking() -> Handles {
    let panics = Arc::new(Panics);
    Handles { job: panics.clone(), console: panics.clone(), summary: panics, ..Fakes::new().handles() }
}

fn calls(call: &str) -> String {
    format!(r#"(data (i32.const 1024) "w") (func (export "run") (result i32) {call} (i32.const 0))"#)
}

#[tokio::test]
async fn functions_that_answer_at_once_may_panic() {
    let context = || [ATTEMPT, TRAINING_ENDED];
    check(guest(&context(), &calls("(drop (call $attempt))")), panicking(), "panic in attempt").await;
    check(guest(&context(), &calls("(drop (call $training-ended))")), panicking(), "panic in training-ended").await;
    let log = "(call $log (i32.const 3) (i32.const 1024) (i32.const 1))";
    check(guest(&[LOG], &calls(log)), panicking(), "panic in line").await;
    let summary = || [SCALAR, PROGRESS];
    let scalar = "(call $scalar (i32.const 1024) (i32.const 1) (i64.const 0) (f64.const 0))";
    check(guest(&summary(), &calls(scalar)), panicking(), "panic in scalar").await;
    let progress = "(call $progress (i64.const 0) (i32.const 0) (i64.const 0) (i32.const 1024) (i32.const 1))";
    check(guest(&summary(), &calls(progress)), panicking(), "panic in progress").await;
}

#[tokio::test]
async fn a_waiting_function_may_panic_before_it_waits() {
    check(guest(&[BARRIER], &waits_at("free")), panicking(), "panic in barrier").await;
}

#[tokio::test]
async fn a_start_function_may_meet_a_panic() {
    let body = r#"(func $begin (drop (call $attempt))) (start $begin)
        (func (export "run") (result i32) (i32.const 0))"#;
    check(guest(&[ATTEMPT], body), panicking(), "panic in attempt").await;
}

/// The console is met by a write in WASI, and by what is left without a newline when the guest has returned.
#[tokio::test]
async fn a_console_may_panic_on_a_guests_output() {
    for text in ["whole line\\n", "last words"] {
        let length = text.replace("\\n", "\n").len();
        let body = format!(
            r#"(data (i32.const 1024) "{text}") (func (export "run") (result i32)
            (call $write (call $stdout) (i32.const 1024) (i32.const {length}) (i32.const 64)) (i32.const 0))"#
        );
        check(guest(&[STDOUT, WRITE], &body), panicking(), "panic in line").await;
    }
}

#[tokio::test]
async fn variables_may_panic_before_and_after_a_wait() {
    let main = r#"(func $main (result i32)
        (drop (call $declared (i32.const 0)))
        (call $initialize (i32.const 1056) (i32.const 1) (i32.const 0) (i32.const 128))
        (call $read (i32.const 1056) (i32.const 1) (i32.const 0) (i64.const 0) (i32.const 0) (i64.const 0) (i32.const 0)
          (i32.const 256))
        (call $update (i32.const 1104) (i32.const 1) (i32.const 1) (i32.const 0) (i32.const 192))
        (i32.const 0))"#;
    for (function, words) in [
        ("declare", "panic in declare"),
        ("initialize", "panic in initialize"),
        ("initialize later", "panic after a wait"),
        ("read", "panic in read"),
        ("read later", "panic after a wait"),
        ("update", "panic in update"),
        ("update later", "panic after a wait"),
    ] {
        let handles = Handles { variables: Arc::new(PanickingVariables(function)), ..Fakes::new().handles() };
        check(variables_guest(U8, main), handles, words).await;
    }
}

/// A started update runs in a task of its own; its panic comes with its answer.
#[tokio::test]
async fn a_started_call_may_panic() {
    let main = r#"(func $main (result i32)
        (drop (call $declared (i32.const 0)))
        (call $start-update (i32.const 1104) (i32.const 1) (i32.const 1) (i32.const 0) (i32.const 192))
        (call $get (i32.load (i32.const 196)) (i32.const 256))
        (i32.const 0))"#;
    for (function, words) in [("update", "panic in update"), ("update later", "panic after a wait")] {
        let handles = Handles { variables: Arc::new(PanickingVariables(function)), ..Fakes::new().handles() };
        check(variables_guest(U8, main), handles, words).await;
    }
}

#[tokio::test]
async fn what_a_store_holds_may_panic_when_it_goes() {
    let variables = Arc::new(PanicsInDrop(PanickingVariables("nothing")));
    let handles = Handles { variables, ..Fakes::new().handles() };
    check(guest(&[], &calls("")), handles, "panic in drop").await;
}

/// All that this file tests needs panics that unwind: no profile may have the host abort. That of components does.
#[test]
fn the_host_is_built_to_unwind() {
    let unwinds = cfg!(panic = "unwind");
    assert!(unwinds, "the library's promise that a panic of the host spares the process");
    let manifest = include_str!("../../../../Cargo.toml");
    let profiles = manifest.split("\n[profile.").skip(1);
    let aborting: Vec<_> = profiles
        .filter(|profile| profile.lines().any(|line| line.starts_with("panic") && line.contains("abort")))
        .filter_map(|profile| profile.split(']').next())
        .collect();
    assert_eq!(aborting, ["guest"]);
}
