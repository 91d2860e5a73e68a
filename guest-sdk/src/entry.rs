//! From a user's function to the component's export.

use std::convert::Infallible;
use std::fmt::Display;

/// What a worker_fn may return: nothing, or a `Result` whose error can be shown.
pub trait Outcome {
    /// The value of a run that went well; only tests look at it.
    type Value;
    /// The error, shown to the user as the reason why the run failed.
    type Error: Display;

    #[doc(hidden)]
    fn into_result(self) -> Result<Self::Value, Self::Error>;
}

impl Outcome for () {
    type Value = ();
    type Error = Infallible;

    fn into_result(self) -> Result<(), Infallible> {
        Ok(())
    }
}

impl<T, E: Display> Outcome for Result<T, E> {
    type Value = T;
    type Error = E;

    fn into_result(self) -> Result<T, E> {
        self
    }
}

/// Makes `$function` the component's worker_fn; [`#[worker_fn]`](crate::worker_fn) calls it.
#[cfg(target_arch = "wasm32")]
#[doc(hidden)]
#[macro_export]
macro_rules! __export_worker_fn {
    ($function:path) => {
        const _: () = {
            struct DchostWorker;

            impl $crate::__bindings::exports::dchost::worker::entry::Guest for DchostWorker {
                fn run() -> ::core::result::Result<(), ::std::string::String> {
                    match $crate::Outcome::into_result($function(&$crate::WorkerContext::__new(
                        ::core::default::Default::default(),
                    ))) {
                        ::core::result::Result::Ok(_) => ::core::result::Result::Ok(()),
                        ::core::result::Result::Err(error) => {
                            ::core::result::Result::Err(::std::string::ToString::to_string(&error))
                        }
                    }
                }
            }

    $crate::__export_worker!(DchostWorker with_types_in $crate::__bindings);
        };
    };
}

/// Checks the function's type, so that a native build refuses what a component would; exports nothing.
#[cfg(not(target_arch = "wasm32"))]
#[doc(hidden)]
#[macro_export]
macro_rules! __export_worker_fn {
    ($function:path) => {
        const _: () = {
            #[allow(dead_code, reason = "only its type matters")]
            fn check(ctx: &$crate::WorkerContext) {
                let _ = $crate::Outcome::into_result($function(ctx));
            }
        };
    };
}
