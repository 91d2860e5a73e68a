//! Fakes of the handles, and components in text, for this module's tests.

mod ops;
mod variables;

use crate::cluster::ClusterSpec;
use crate::context::WorkerContext;
use crate::error::{Error, ErrorCode, Result};
use crate::handles::{BoxFuture, Console, Handles, Job, Level, Origin, Summary};
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;

pub(crate) use ops::{FakeOps, byte_tensor, has_listed_ops, has_ops, starts_ops};
pub(crate) use variables::FakeVariables;

/// A console and summary that keep what they are given.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    text: Mutex<String>,
}

impl Recorder {
    /// Everything so far, one line each: `out: hello`.
    pub(crate) fn text(&self) -> String {
        self.text.lock().unwrap().clone()
    }

    fn push(&self, line: std::fmt::Arguments<'_>) {
        writeln!(self.text.lock().unwrap(), "{line}").unwrap();
    }
}

impl Console for Recorder {
    fn line(&self, origin: Origin, text: &str) {
        assert_ne!(text, "boom", "the fake console was told to panic");
        let origin = match origin {
            Origin::Stdout => "out",
            Origin::Stderr => "err",
            Origin::Log(Level::Trace) => "trace",
            Origin::Log(Level::Debug) => "debug",
            Origin::Log(Level::Info) => "info",
            Origin::Log(Level::Warn) => "warn",
            Origin::Log(Level::Error) => "error",
        };
        self.push(format_args!("{origin}: {text}"));
    }

    fn progress(&self, done: u64, total: Option<u64>, note: &str) {
        self.push(format_args!("progress: {done} of {total:?} {note}"));
    }
}

impl Summary for Recorder {
    fn scalar(&self, tag: &str, step: u64, value: f64) {
        self.push(format_args!("scalar: {tag} {step} {value}"));
    }
}

/// A job whose barrier does what its name says.
#[derive(Debug, Default)]
pub(crate) struct FakeJob;

impl Job for FakeJob {
    fn barrier<'a>(&'a self, name: &'a str, _timeout: Option<Duration>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            match name {
                "stuck" => std::future::pending().await,
                "boom" => panic!("the fake barrier was told to panic"),
                "failed" => Err(Error::new(ErrorCode::PeerFailed, "worker:1 has failed")),
                "late" => Err(Error::new(ErrorCode::DeadlineExceeded, "worker:1 is missing")),
                _ => Ok(()),
            }
        })
    }

    fn training_ended(&self) -> bool {
        false
    }

    fn attempt(&self) -> u32 {
        3
    }
}

/// Handles of fakes, and what they keep.
pub(crate) struct Fakes {
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) variables: Arc<FakeVariables>,
    pub(crate) ops: Arc<FakeOps>,
    pub(crate) interrupt: watch::Sender<Option<Error>>,
}

impl Fakes {
    pub(crate) fn new() -> Self {
        Fakes {
            recorder: Arc::default(),
            variables: Arc::default(),
            ops: Arc::default(),
            interrupt: watch::Sender::new(None),
        }
    }

    pub(crate) fn handles(&self) -> Handles {
        Handles {
            context: Arc::new(WorkerContext {
                cluster: ClusterSpec::new(),
                task: None,
                master_target: "local".to_owned(),
                num_workers: 2,
                is_chief: true,
                distributed_mode: false,
                has_barrier: true,
            }),
            job: Arc::new(FakeJob),
            variables: self.variables.clone(),
            ops: self.ops.clone(),
            console: self.recorder.clone(),
            summary: self.recorder.clone(),
            interrupt: self.interrupt.subscribe(),
        }
    }
}

/// An import of a host function, lowered to core.
macro_rules! lowered {
    ($name:literal, $interface:literal, $function:literal, $core:literal, $component:expr) => {
        Import {
            component: $component,
            lower: concat!(
                "(core func $",
                $name,
                " (canon lower (func $",
                $interface,
                " \"",
                $function,
                "\") (memory (core memory $libc \"memory\")) (realloc (core func $libc \"realloc\"))))"
            ),
            name: $name,
            core: $core,
        }
    };
}

use lowered;

/// One imported function of a guest in text: how the component imports it and how its core module does.
pub(crate) struct Import {
    /// Of the component: interfaces and aliases.
    pub(crate) component: &'static str,
    /// The lowered function, `(core func $NAME ...)`.
    pub(crate) lower: &'static str,
    /// Its name in the core module's `host`.
    pub(crate) name: &'static str,
    /// Its core type.
    pub(crate) core: &'static str,
}

/// `barrier(name, timeout)`.
pub(crate) const BARRIER: Import = Import {
    component: concat!(
        r#"(import "dchost:worker/worker-context@0.1.0" (instance $context"#,
        "\n",
        include_str!("test_support/text/error_types.wat"),
        r#"(export "barrier"
          (func (param "name" string) (param "timeout" (option u64)) (result (result (error $error)))))))"#
    ),
    lower: r#"(core func $barrier (canon lower (func $context "barrier") (memory (core memory $libc "memory")) (realloc (core func $libc "realloc"))))"#,
    name: "barrier",
    core: "(param i32 i32 i32 i64 i32)",
};

/// `log.write(level, message)`.
pub(crate) const LOG: Import = Import {
    component: r#"
      (import "dchost:worker/log@0.1.0" (instance $log
        (type $level' (enum "trace" "debug" "info" "warn" "error"))
        (export "level" (type $level (eq $level')))
        (export "write" (func (param "level" $level) (param "message" string)))))"#,
    lower: r#"(core func $log (canon lower (func $log "write") (memory (core memory $libc "memory"))))"#,
    name: "log",
    core: "(param i32 i32 i32)",
};

/// WASI's `exit(status)`: 0 for success, 1 for failure.
pub(crate) const EXIT: Import = Import {
    component: r#"
      (import "wasi:cli/exit@0.2.0" (instance $exit (export "exit" (func (param "status" (result))))))"#,
    lower: r#"(core func $exit (canon lower (func $exit "exit")))"#,
    name: "exit",
    core: "(param i32)",
};

/// WASI's `exit-with-code(code)`.
pub(crate) const EXIT_WITH_CODE: Import = Import {
    component: r#"
      (import "wasi:cli/exit@0.2.12" (instance $exit (export "exit-with-code" (func (param "status-code" u8)))))"#,
    lower: r#"(core func $exit-with-code (canon lower (func $exit "exit-with-code")))"#,
    name: "exit-with-code",
    core: "(param i32)",
};

/// WASI's `get-arguments` and `get-environment`, with a place for the list.
pub(crate) const ARGUMENTS: Import = Import {
    component: r#"
      (import "wasi:cli/environment@0.2.0" (instance $environment
        (export "get-arguments" (func (result (list string))))
        (export "get-environment" (func (result (list (tuple string string)))))))"#,
    lower: r#"(core func $arguments (canon lower (func $environment "get-arguments")
        (memory (core memory $libc "memory")) (realloc (core func $libc "realloc"))))"#,
    name: "arguments",
    core: "(param i32)",
};

/// The environment; needs [`ARGUMENTS`].
pub(crate) const ENVIRONMENT: Import = Import {
    component: "",
    lower: r#"(core func $variables (canon lower (func $environment "get-environment")
        (memory (core memory $libc "memory")) (realloc (core func $libc "realloc"))))"#,
    name: "variables",
    core: "(param i32)",
};

/// WASI's sleep, in nanoseconds: a pollable that the guest blocks on.
pub(crate) const SUBSCRIBE: Import = Import {
    component: concat!(
        include_str!("test_support/text/poll.wat"),
        r#"
      (import "wasi:clocks/monotonic-clock@0.2.0" (instance $clock
        (alias outer 1 $pollable (type $p))
        (export "pollable" (type $pollable (eq $p)))
        (export "subscribe-duration" (func (param "when" u64) (result (own $pollable))))))"#
    ),
    lower: r#"(core func $subscribe (canon lower (func $clock "subscribe-duration")))"#,
    name: "subscribe",
    core: "(param i64) (result i32)",
};

/// `block` on what [`SUBSCRIBE`] made; needs it.
pub(crate) const BLOCK: Import = Import {
    component: "",
    lower: r#"(core func $block (canon lower (func $poll "[method]pollable.block")))"#,
    name: "block",
    core: "(param i32)",
};

/// `matmul` of arguments in memory, with a place for the result.
pub(crate) const MATMUL: Import = Import {
    component: concat!(
        r#"
      (import "dchost:worker/kernels@0.1.0" (instance $kernels"#,
        "\n",
        include_str!("test_support/text/error_types.wat"),
        include_str!("test_support/text/tensor_types.wat"),
        r#"
        (export "matmul" (func (param "a" $tensor) (param "b" $tensor) (param "transpose-a" bool)
          (param "transpose-b" bool) (param "alpha" float64) (param "beta" float64) (param "c" (option $tensor))
          (result (result $tensor (error $error)))))))"#
    ),
    lower: r#"(core func $matmul (canon lower (func $kernels "matmul")
        (memory (core memory $libc "memory")) (realloc (core func $libc "realloc"))))"#,
    name: "matmul",
    core: "(param i32 i32)",
};

/// `log.write` whose strings are in UTF-16; needs [`LOG`].
pub(crate) const LOG_UTF16: Import = Import {
    component: "",
    lower: r#"(core func $log16 (canon lower (func $log "write") string-encoding=utf16
        (memory (core memory $libc "memory"))))"#,
    name: "log16",
    core: LOG.core,
};

/// WASI's `get-stdout`, for [`WRITE`].
pub(crate) const STDOUT: Import = Import {
    component: concat!(
        include_str!("test_support/text/streams.wat"),
        r#"
      (import "wasi:cli/stdout@0.2.0" (instance $stdout
        (alias outer 1 $out (type $o))
        (export "output-stream" (type $out (eq $o)))
        (export "get-stdout" (func (result (own $out))))))"#
    ),
    lower: r#"(core func $stdout (canon lower (func $stdout "get-stdout")))"#,
    name: "stdout",
    core: "(result i32)",
};

/// `blocking-write-and-flush(stream, bytes)`, with a place for the result; needs [`STDOUT`].
pub(crate) const WRITE: Import = Import {
    component: "",
    lower: r#"(core func $write (canon lower (func $streams "[method]output-stream.blocking-write-and-flush")
        (memory (core memory $libc "memory"))))"#,
    name: "write",
    core: "(param i32 i32 i32 i32)",
};

/// A component that exports `run`, made of core code: `body` defines `(func (export "run") (result i32) ...)`, which answers
/// the address of a `result<_, string>`. Address 0 holds `ok`; text may be placed from 1024 to 4095.
pub(crate) fn guest(imports: &[Import], body: &str) -> Vec<u8> {
    guest_with_memory(1, imports, body)
}

/// As [`guest`], of a memory of so many pages.
pub(crate) fn guest_with_memory(pages: u32, imports: &[Import], body: &str) -> Vec<u8> {
    component("", &libc(pages, 4096), imports, body, include_str!("test_support/text/entry.wat"))
}

/// The module of memory and allocator.
fn libc(pages: u32, top: u32) -> String {
    format!(include_str!("test_support/text/libc.wat.in"), pages = pages, top = top)
}

/// A component of these imports, after `types`, and of a core module with this body, whose functions `exports` lifts.
fn component(types: &str, libc: &str, imports: &[Import], body: &str, exports: &str) -> Vec<u8> {
    let join = |part: &dyn Fn(&Import) -> String| imports.iter().map(part).collect::<Vec<_>>().join("\n");
    let text = format!(
        r#"(component
          {types}
          {components}
          {libc}
          {lowers}
          (core module $main
            (import "libc" "memory" (memory 1))
            {cores}
            {body})
          (core instance $host {host})
          (core instance $main (instantiate $main (with "libc" (instance $libc)) (with "host" (instance $host))))
          {exports})"#,
        components = join(&|import| import.component.to_owned()),
        lowers = join(&|import| import.lower.to_owned()),
        cores = join(&|import| format!(r#"(import "host" "{0}" (func ${0} {1}))"#, import.name, import.core)),
        host = join(&|import| format!(r#"(export "{0}" (func ${0}))"#, import.name)),
    );
    wat::parse_str(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// The body of a guest that waits at the barrier of this name, and returns its error's message as its own.
pub(crate) fn waits_at(barrier: &str) -> String {
    format!(
        r#"(data (i32.const 1024) "{barrier}")
        (func (export "run") (result i32)
          (call $barrier (i32.const 1024) (i32.const {length}) (i32.const 0) (i64.const 0) (i32.const 64))
          (if (i32.eqz (i32.load8_u (i32.const 64))) (then (return (i32.const 0))))
          (i32.store8 (i32.const 16) (i32.const 1))
          (i32.store (i32.const 20) (i32.load (i32.const 72)))
          (i32.store (i32.const 24) (i32.load (i32.const 76)))
          (i32.const 16))"#,
        length = barrier.len()
    )
}

/// Types that each interface with errors repeats.
const ERROR_TYPES: &str = include_str!("test_support/text/error_types.wat");

/// Types that each interface of tensors repeats.
const TENSOR_TYPES: &str = include_str!("test_support/text/tensor_types.wat");

/// Remembers the first failed result, and makes it that of `run`.
const FAILED: &str = include_str!("test_support/text/failed.wat");

/// A guest that may call `variables` and `pending`; `body` defines `(func $main (result i32) ...)`.
///
/// `$check` returns from a failed call with the error's message as `run`'s own. Memory: the name `w` at 1024, its shape `[4]`
/// at 1032, bytes `1 2 3 4` at 1040, one entry of `initialize` at 1056 and one change at 1104, results from 64.
pub(crate) fn variables_guest(dtype: u8, body: &str) -> Vec<u8> {
    let interfaces = format!(
        concat!(include_str!("test_support/text/poll.wat"), include_str!("test_support/text/variables.wat.in")),
        error_types = ERROR_TYPES,
        tensor_types = TENSOR_TYPES
    );
    let interfaces: &'static str = Box::leak(interfaces.into_boxed_str());
    let imports = [
        lowered!(
            "declare",
            "variables",
            "[static]variable.declare",
            "(param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32)",
            interfaces
        ),
        lowered!("initialize", "variables", "initialize", "(param i32 i32 i32 i32)", ""),
        lowered!("read", "variables", "read", "(param i32 i32 i32 i64 i32 i64 i32 i32)", ""),
        lowered!("update", "variables", "update", "(param i32 i32 i32 i32 i32)", ""),
        lowered!("start-update", "variables", "start-update", "(param i32 i32 i32 i32 i32)", ""),
        lowered!("gather", "variables", "gather", "(param i32 i32 i32 i32)", ""),
        lowered!("get", "pending", "[method]pending.get", "(param i32 i32)", ""),
        lowered!("subscribe", "pending", "[method]pending.subscribe", "(param i32) (result i32)", ""),
        lowered!("block", "poll", "[method]pollable.block", "(param i32)", ""),
    ];
    let body = format!(
        r#"
        (data (i32.const 1024) "w") (data (i32.const 1032) "\04") (data (i32.const 1040) "\01\02\03\04")
        {FAILED}
        ;; A tensor of the variable's type at this address: 4 elements of 1 byte.
        (func $tensor (param $at i32)
          (i32.store8 (local.get $at) (i32.const {dtype}))
          (i32.store offset=4 (local.get $at) (i32.const 1032)) (i32.store offset=8 (local.get $at) (i32.const 1))
          (i32.store offset=12 (local.get $at) (i32.const 1040)) (i32.store offset=16 (local.get $at) (i32.const 4)))
        ;; Declares `w` with a placement, and fills in the entry and the change (an add) that use it.
        (func $declared (param $placement i32) (result i32)
          (call $declare (i32.const 1024) (i32.const 1) (i32.const {dtype}) (i32.const 1032) (i32.const 1)
            (local.get $placement) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 64))
          (call $check (i32.const 64))
          (i32.store (i32.const 1056) (i32.load (i32.const 68))) (call $tensor (i32.const 1060))
          (i32.store (i32.const 1104) (i32.load (i32.const 68))) (i32.store8 (i32.const 1108) (i32.const 1))
          (call $tensor (i32.const 1112))
          (i32.load (i32.const 68)))
        (func (export "run") (result i32)
          (drop (call $main))
          (call $outcome))
        {body}"#
    );
    guest(&imports, &body)
}
