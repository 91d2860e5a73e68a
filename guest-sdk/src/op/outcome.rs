//! What an op returns: from its value to tensors, and back at the caller.

use crate::op::RemoteValue;
use crate::raw::RawValue;
use crate::{Element, Error, Result, Tensor, Value};
use std::fmt::Display;

/// What an op may return: an [`OpValue`], or a `Result` of one with an error that can be shown.
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't be the result of an op",
    label = "not a result of an op",
    note = "an op returns nothing, `Tensor`, `f32` (or `f64`, `i32`, `i64`, `u8`), `Vec<f32>`, `[f32; 3]`, a tuple of those, `Vec<Tensor>`, or a `Result` of one of them"
)]
pub trait OpOutcome {
    /// What the caller gets.
    type Value: OpValue;

    #[doc(hidden)]
    fn into_tensors(self) -> Result<Vec<Tensor>, String>;
}

/// A value that an op makes and its caller gets.
///
/// | value | results of the call | kept |
/// | --- | --- | --- |
/// | `()` | none | `()` |
/// | `Tensor`, [`Value<f32>`](Value) | one | `RemoteValue` |
/// | `f32` | one, a scalar | `RemoteValue` |
/// | `Vec<f32>`, `[f32; 3]` | one, of rank 1 | `RemoteValue` |
/// | `(A, B)`, up to 8 of those | as many | `(RemoteValue, RemoteValue)` |
/// | `Vec<Tensor>` | as many as it has, at most 256 | `Vec<RemoteValue>` |
///
/// `f32` stands for every [`Element`].
#[diagnostic::on_unimplemented(message = "`{Self}` can't be the value of an op", label = "not a value of an op")]
pub trait OpValue: Sized {
    /// What stands for it where the results are left on the task that made them.
    type Kept;

    #[doc(hidden)]
    fn to_results(self) -> Vec<Tensor>;
    #[doc(hidden)]
    fn from_results(results: Vec<Tensor>) -> Result<Self>;
    #[doc(hidden)]
    fn kept(values: Vec<RemoteValue>) -> Result<Self::Kept>;
}

/// The error of results that are another number than the caller's type has.
fn count_error(expected: usize, count: usize) -> Error {
    let (s, are) = if expected == 1 { ("", "is") } else { ("s", "are") };
    Error::invalid(format!("{expected} result{s} {are} expected here, not {count}"))
}

/// The error of a result of another type.
fn type_error(expected: impl Display, tensor: &Tensor) -> Error {
    Error::invalid(format!("{expected} is expected here, the result is {tensor}"))
}

/// Takes apart what has a known number of parts.
fn exactly<T, const N: usize>(parts: Vec<T>) -> Result<[T; N]> {
    <[T; N]>::try_from(parts).map_err(|parts| count_error(N, parts.len()))
}

impl<T: OpValue, E: Display> OpOutcome for Result<T, E> {
    type Value = T;

    fn into_tensors(self) -> Result<Vec<Tensor>, String> {
        self.map(T::to_results).map_err(|error| error.to_string())
    }
}

/// A value that is one tensor.
#[doc(hidden)]
pub trait OneResult: Sized {
    fn to_result(self) -> Tensor;
    fn from_result(tensor: Tensor) -> Result<Self>;
}

impl OneResult for Tensor {
    fn to_result(self) -> Tensor {
        self
    }

    fn from_result(tensor: Tensor) -> Result<Self> {
        Ok(tensor)
    }
}

impl<T: Element> OneResult for Value<T> {
    fn to_result(self) -> Tensor {
        self.into_tensor()
    }

    fn from_result(tensor: Tensor) -> Result<Self> {
        if tensor.dtype() != T::DTYPE {
            return Err(type_error(format_args!("a tensor of {}", T::DTYPE), &tensor));
        }
        Value::from_raw(RawValue { tensor, version: 0 })
    }
}

impl<T: Element> OneResult for Vec<T> {
    fn to_result(self) -> Tensor {
        Tensor::vector(&self)
    }

    fn from_result(tensor: Tensor) -> Result<Self> {
        tensor.to_vec().map_err(|_| type_error(format_args!("a tensor of {}", T::DTYPE), &tensor))
    }
}

impl<T: Element, const N: usize> OneResult for [T; N] {
    fn to_result(self) -> Tensor {
        Tensor::vector(&self)
    }

    fn from_result(tensor: Tensor) -> Result<Self> {
        let values = tensor.values::<T>().ok().and_then(|values| <[T; N]>::try_from(&*values).ok());
        values.ok_or_else(|| type_error(format_args!("a tensor of {N} {}", T::DTYPE), &tensor))
    }
}

/// `OpValue` and `OpOutcome` of what is one tensor.
macro_rules! one {
    ($([$($generics:tt)*] $type:ty;)*) => {$(
        impl<$($generics)*> OpValue for $type {
            type Kept = RemoteValue;

            fn to_results(self) -> Vec<Tensor> {
                vec![self.to_result()]
            }

            fn from_results(results: Vec<Tensor>) -> Result<Self> {
                let [result] = exactly(results)?;
                Self::from_result(result)
            }

            fn kept(values: Vec<RemoteValue>) -> Result<RemoteValue> {
                let [value] = exactly(values)?;
                Ok(value)
            }
        }

        outcome!([$($generics)*] $type);
    )*};
}

/// `OpOutcome` of a value that can't fail.
macro_rules! outcome {
    ([$($generics:tt)*] $type:ty) => {
        impl<$($generics)*> OpOutcome for $type {
            type Value = $type;

            fn into_tensors(self) -> Result<Vec<Tensor>, String> {
                Ok(self.to_results())
            }
        }
    };
}

macro_rules! scalar {
    ($($type:ty),*) => {$(
        impl OneResult for $type {
            fn to_result(self) -> Tensor {
                Tensor::scalar(self)
            }

            fn from_result(tensor: Tensor) -> Result<Self> {
                tensor.item().map_err(|_| type_error(format_args!("one {}", <$type>::DTYPE), &tensor))
            }
        }

        one! { [] $type; }
    )*};
}

macro_rules! tuple {
    ($count:literal: $($part:ident $index:tt),*) => {
        impl<$($part: OneResult),*> OpValue for ($($part,)*) {
            type Kept = ($(tuple!(@ $part RemoteValue),)*);

            fn to_results(self) -> Vec<Tensor> {
                vec![$(self.$index.to_result()),*]
            }

            fn from_results(results: Vec<Tensor>) -> Result<Self> {
                let mut results = exactly::<_, $count>(results)?.into_iter();
                let mut next = || results.next().expect("their number was checked");
                Ok(($($part::from_result(next())?,)*))
            }

            fn kept(values: Vec<RemoteValue>) -> Result<Self::Kept> {
                Ok(exactly::<_, $count>(values)?.into())
            }
        }

        outcome!([$($part: OneResult),*] ($($part,)*));
    };
    (@ $part:ident $type:ty) => { $type };
}

scalar!(f32, f64, i32, i64, u8);
one! {
    [] Tensor;
    [T: Element] Value<T>;
    [T: Element] Vec<T>;
    [T: Element, const N: usize] [T; N];
}
tuple!(1: A 0);
tuple!(2: A 0, B 1);
tuple!(3: A 0, B 1, C 2);
tuple!(4: A 0, B 1, C 2, D 3);
tuple!(5: A 0, B 1, C 2, D 3, E 4);
tuple!(6: A 0, B 1, C 2, D 3, E 4, F 5);
tuple!(7: A 0, B 1, C 2, D 3, E 4, F 5, G 6);
tuple!(8: A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7);

impl OpValue for () {
    type Kept = ();

    fn to_results(self) -> Vec<Tensor> {
        Vec::new()
    }

    fn from_results(results: Vec<Tensor>) -> Result<Self> {
        exactly::<_, 0>(results).map(drop)
    }

    fn kept(values: Vec<RemoteValue>) -> Result<()> {
        exactly::<_, 0>(values).map(drop)
    }
}

outcome!([]());

impl OpValue for Vec<Tensor> {
    type Kept = Vec<RemoteValue>;

    fn to_results(self) -> Vec<Tensor> {
        self
    }

    fn from_results(results: Vec<Tensor>) -> Result<Self> {
        Ok(results)
    }

    fn kept(values: Vec<RemoteValue>) -> Result<Vec<RemoteValue>> {
        Ok(values)
    }
}

impl OpOutcome for Vec<Tensor> {
    type Value = Vec<Tensor>;

    fn into_tensors(self) -> Result<Vec<Tensor>, String> {
        Ok(self)
    }
}
