//! `dchost:worker/kernels`: native kernels on guest tensors; not served yet.

use super::bindings::{types, wit::kernels};
use super::calls::HostError;
use super::state::State;
use crate::error::{Error, ErrorCode};

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
        self.calls.check()?;
        Err(Error::new(
            ErrorCode::Unimplemented,
            "`dchost:worker/kernels` is not served by this dchost: multiply in the component, built with `+simd128`",
        )
        .with_names(["matmul"])
        .into())
    }
}
