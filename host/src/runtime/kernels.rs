//! `dchost:worker/kernels`: native kernels on guest tensors; not served yet.

use super::bindings::{types, wit::kernels};
use super::calls::HostError;
use super::lift::{Answer, TensorIn, answer, shadowed};
use super::state::State;
use crate::error::{Error, ErrorCode};
use wasmtime::StoreContextMut;
use wasmtime::component::Linker;

impl kernels::Host for State {
    async fn matmul(
        &mut self,
        _a: types::Tensor,
        _b: types::Tensor,
        _transpose_a: bool,
        _transpose_b: bool,
        _alpha: f64,
        _beta: f64,
        _c: Option<types::Tensor>,
    ) -> Result<types::Tensor, HostError> {
        Err(shadowed().into())
    }
}

/// Defines `matmul` on guest memory: what isn't served is neither copied nor looked at.
pub(super) fn add_in_place(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    type Arguments = (TensorIn, TensorIn, bool, bool, f64, f64, Option<TensorIn>);
    linker.instance("dchost:worker/kernels@0.1.0")?.func_wrap(
        "matmul",
        |cx: StoreContextMut<'_, State>, _arguments: Arguments| {
            let refuse = || -> Answer<types::Tensor> {
                cx.data().calls.check()?;
                Err(Error::new(
                    ErrorCode::Unimplemented,
                    "`dchost:worker/kernels` is not served by this dchost: multiply in the component, built with `+simd128`",
                )
                .with_names(["matmul"])
                .into())
            };
            answer(refuse())
        },
    )
}
