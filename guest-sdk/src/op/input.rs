//! What a caller gives an op.

use crate::op::RemoteValue;
use crate::raw::RawInput;
use crate::{DType, Element, Tensor, Value};
use std::borrow::Cow;

/// One input of an op: a tensor that is sent with the call, or a value that another task keeps.
///
/// It is made by `into` of a [`Tensor`] or a reference to one, a slice, array, vector or [`Value`] (a tensor of rank 1, a
/// `Value` in its own shape), a number (a scalar), or a [`&RemoteValue`](RemoteValue), which goes from task to task without
/// coming here. References are used in place.
pub struct Input<'a>(Kind<'a>);

enum Kind<'a> {
    Local { dtype: DType, shape: Cow<'a, [usize]>, data: Cow<'a, [u8]> },
    Remote(&'a RemoteValue),
}

impl Input<'_> {
    pub(crate) fn raw(&self) -> RawInput<'_> {
        match &self.0 {
            Kind::Local { dtype, shape, data } => RawInput::Tensor { dtype: *dtype, shape, data },
            Kind::Remote(value) => RawInput::Remote(&value.imp),
        }
    }
}

impl<'a> From<&'a RemoteValue> for Input<'a> {
    fn from(value: &'a RemoteValue) -> Self {
        Input(Kind::Remote(value))
    }
}

impl<'a> From<&'a Tensor> for Input<'a> {
    fn from(tensor: &'a Tensor) -> Self {
        let (shape, data) = (Cow::Borrowed(tensor.shape()), Cow::Borrowed(tensor.bytes()));
        Input(Kind::Local { dtype: tensor.dtype(), shape, data })
    }
}

impl From<Tensor> for Input<'_> {
    fn from(tensor: Tensor) -> Self {
        let (dtype, shape) = (tensor.dtype(), Cow::Owned(tensor.shape().to_vec()));
        Input(Kind::Local { dtype, shape, data: Cow::Owned(tensor.into_bytes()) })
    }
}

impl<'a, T: Element> From<&'a [T]> for Input<'a> {
    fn from(values: &'a [T]) -> Self {
        let data = Cow::Borrowed(bytemuck::cast_slice(values));
        Input(Kind::Local { dtype: T::DTYPE, shape: Cow::Owned(vec![values.len()]), data })
    }
}

impl<'a, T: Element> From<&'a Vec<T>> for Input<'a> {
    fn from(values: &'a Vec<T>) -> Self {
        values.as_slice().into()
    }
}

impl<'a, T: Element, const N: usize> From<&'a [T; N]> for Input<'a> {
    fn from(values: &'a [T; N]) -> Self {
        values.as_slice().into()
    }
}

impl<'a, T: Element> From<&'a Value<T>> for Input<'a> {
    fn from(value: &'a Value<T>) -> Self {
        let data = Cow::Borrowed(bytemuck::cast_slice(value));
        Input(Kind::Local { dtype: T::DTYPE, shape: Cow::Borrowed(value.shape()), data })
    }
}

macro_rules! scalar_input {
    ($($type:ty),*) => {$(
        impl From<$type> for Input<'_> {
            fn from(value: $type) -> Self {
                Tensor::scalar(value).into()
            }
        }
    )*};
}
scalar_input!(f32, f64, i32, i64, u8);
