//! From a user's functions to the component's ops.

use crate::op::OpValue;
use crate::{Tensor, WorkerContext};

/// An op of this crate: [`#[op]`](macro@crate::op) makes a type of the function's name that is one.
///
/// The type has two functions besides: `start(ctx, task, inputs...)` starts the op on a task, and
/// `prepare(ctx, inputs...)` gives an [`OpBuilder`](crate::OpBuilder) for those who want to say more.
pub trait Op {
    /// The op's name: that of the function.
    const NAME: &'static str;
    /// What its caller gets.
    type Value: OpValue;

    #[doc(hidden)]
    const ENTRY: OpEntry;
}

/// One op, as the host calls it.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct OpEntry {
    pub name: &'static str,
    pub call: fn(&WorkerContext, Vec<Tensor>) -> Result<Vec<Tensor>, String>,
}

/// All ops of a crate: [`ops!`](crate::ops) makes it, under the name `OPS`.
#[derive(Clone, Copy, Debug)]
pub struct OpSet(&'static [OpEntry]);

/// An op that stands in `ops!`.
#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "the op `{Self}` isn't in the list of the component's ops",
    label = "not in `dchost_guest::ops![..]`",
    note = "add it to the crate's `dchost_guest::ops![..]`, where the component's ops are listed"
)]
pub trait ListedOp {}

impl OpSet {
    /// Panics, in the build, where two ops have one name.
    #[doc(hidden)]
    pub const fn __new(entries: &'static [OpEntry]) -> Self {
        let mut one = 0;
        while one < entries.len() {
            let mut other = 0;
            while other < one {
                assert!(!equal(entries[one].name, entries[other].name), "two ops of `ops![..]` have the same name");
                other += 1;
            }
            one += 1;
        }
        OpSet(entries)
    }

    /// The ops' names, in the order of the list.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.0.iter().map(|entry| entry.name)
    }

    pub(crate) fn find(&self, name: &str) -> Option<&'static OpEntry> {
        self.0.iter().find(|entry| entry.name == name)
    }
}

const fn equal(a: &str, b: &str) -> bool {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let mut index = 0;
    while index < a.len() && index < b.len() && a[index] == b[index] {
        index += 1;
    }
    index == a.len() && index == b.len()
}

/// Whether the last parameter takes all inputs that are left; panics, in the build, where another one does.
#[doc(hidden)]
pub const fn check_rest(rests: &[bool]) -> bool {
    let mut index = 0;
    while index + 1 < rests.len() {
        assert!(!rests[index], "a parameter of many tensors takes all inputs that are left: it must be the op's last");
        index += 1;
    }
    !rests.is_empty() && rests[index]
}

/// Makes `$name` an op, beside the function; [`#[op]`](macro@crate::op) calls it.
#[doc(hidden)]
#[macro_export]
macro_rules! __op {
    ($vis:vis $name:ident $context:ident [$(($arg:ident $by:ident $param:ty))*] [$outcome:ty]) => {
        #[doc = concat!("The op [`", stringify!($name), "`](fn@", stringify!($name), "), to start it on a task.")]
        #[allow(non_camel_case_types, clippy::allow_attributes)]
        $vis enum $name {}

        impl $crate::Op for $name {
            const NAME: &'static str = ::core::stringify!($name);
            type Value = <$outcome as $crate::OpOutcome>::Value;
            const ENTRY: $crate::__OpEntry = $crate::__OpEntry {
                name: ::core::stringify!($name),
                call: <$name>::__call,
            };
        }

        #[allow(dead_code, clippy::allow_attributes, reason = "an op may be started by name, or by other components")]
        #[allow(clippy::extra_unused_lifetimes, clippy::too_many_arguments, reason = "it takes what the op takes")]
        impl $name {
            // A function and no closure: where the op is inlined, its frame in the report of a trap bears the op's name.
            fn __call(
                _ctx: &$crate::WorkerContext,
                inputs: ::std::vec::Vec<$crate::Tensor>,
            ) -> ::core::result::Result<::std::vec::Vec<$crate::Tensor>, ::std::string::String> {
                const REST: bool = $crate::__check_rest(&[$(<$param as $crate::OpParam>::REST),*]);
                let function = $name;
                let mut _inputs = $crate::__OpInputs::new(inputs, &[$(::core::stringify!($arg)),*], REST)?;
                $(let $arg = <$param as $crate::OpParam>::take(&mut _inputs)?;)*
                $crate::OpOutcome::into_tensors($crate::__op!(@call $context function _ctx [$(($by $arg))*]))
            }

            /// Starts the op on `task`, and returns at once. Errors are those of
            #[doc = concat!("[`OpBuilder::start`](", stringify!($crate), "::OpBuilder::start).")]
            $vis fn start<'a>(
                ctx: &$crate::WorkerContext,
                task: impl ::core::convert::Into<$crate::Task>,
                $($arg: impl $crate::OpArg<'a, $param>,)*
            ) -> $crate::Result<$crate::Call<<$name as $crate::Op>::Value>> {
                $name::prepare(ctx $(, $arg)*).start(task)
            }

            /// Puts a call of the op together, to be started on a task.
            $vis fn prepare<'a>(
                ctx: &$crate::WorkerContext,
                $($arg: impl $crate::OpArg<'a, $param>,)*
            ) -> $crate::OpBuilder<'a, <$name as $crate::Op>::Value> {
                const _: fn() = || {
                    fn listed<T: $crate::__ListedOp>() {}
                    listed::<$name>();
                };
                ctx.op(<$name as $crate::Op>::NAME)
                    .returning::<<$name as $crate::Op>::Value>()
                    $(.__arg::<$param>($arg))*
            }
        }
    };
    (@call with_context $function:ident $ctx:ident [$(($by:ident $arg:ident))*]) => {
        $function($ctx $(, $crate::__op!(@pass $by $arg))*)
    };
    (@call without_context $function:ident $ctx:ident [$(($by:ident $arg:ident))*]) => {
        $function($($crate::__op!(@pass $by $arg)),*)
    };
    (@pass by_reference $arg:ident) => { &$arg };
    (@pass by_value $arg:ident) => { $arg };
}

/// Lists the ops of a component, once in a crate, beside its [`worker_fn`](macro@crate::worker_fn) or without one:
/// `ops![gradient, linear::loss];`.
///
/// Every function with [`#[op]`](macro@crate::op) must be in the list: one that is forgotten is an error of the build. The macro also makes
/// `OPS`, the list that a test gives to [`MockBuilder::ops`](crate::MockBuilder::ops).
#[macro_export]
macro_rules! ops {
    ($($op:path),+ $(,)?) => {
        /// The ops of this component, for a test's mock cluster.
        #[allow(dead_code, unreachable_pub, clippy::allow_attributes, reason = "for tests, wherever they are")]
        pub const OPS: $crate::OpSet = $crate::OpSet::__new(&[$(<$op as $crate::Op>::ENTRY),+]);

        $(impl $crate::__ListedOp for $op {})+

        $crate::__export_ops!(OPS);
    };
}

/// Makes a set of ops the component's export.
#[cfg(target_arch = "wasm32")]
#[doc(hidden)]
#[macro_export]
macro_rules! __export_ops {
    ($ops:path) => {
        const _: () = {
            use $crate::__bindings::dchost::worker::types::TensorResult;
            use $crate::__op_bindings::exports::dchost::worker::op_entry;

            struct DchostOps;

            impl op_entry::Guest for DchostOps {
                fn list() -> ::std::vec::Vec<::std::string::String> {
                    $ops.names().map(::std::string::String::from).collect()
                }

                fn call(
                    name: ::std::string::String,
                    inputs: ::std::vec::Vec<TensorResult>,
                ) -> ::core::result::Result<::std::vec::Vec<TensorResult>, ::std::string::String> {
                    $crate::__call_op(&$ops, &name, inputs)
                }
            }

    $crate::__export_op_exports!(DchostOps with_types_in $crate::__op_bindings);
        };
    };
}

/// Exports nothing.
#[cfg(not(target_arch = "wasm32"))]
#[doc(hidden)]
#[macro_export]
macro_rules! __export_ops {
    ($ops:path) => {};
}
