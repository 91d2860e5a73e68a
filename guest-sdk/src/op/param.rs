//! What an op takes: from tensors to its parameters, and what a caller may give for each.

use crate::op::{Input, RemoteValue};
use crate::raw::RawValue;
use crate::{Element, Tensor, Value};

/// A type that an op's parameter may have, by itself or behind `&`.
///
/// | parameter | input |
/// | --- | --- |
/// | `Tensor`, `&Tensor` | any tensor |
/// | `&[f32]`, `Vec<f32>` | a tensor of `f32`, of any shape, row-major |
/// | `[f32; 3]` | a tensor of three `f32` |
/// | `f32` | a tensor of one `f32` |
/// | `&[Tensor]`, `Vec<Tensor>`, only as the last | all inputs that are left |
///
/// `f32` stands for every [`Element`]. An input of another type or size makes the call fail with an error that says so.
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't be a parameter of an op",
    label = "not a parameter of an op",
    note = "an op takes `Tensor`, `&[f32]`, `Vec<f32>`, `[f32; 3]`, `f32` (or `f64`, `i32`, `i64`, `u8`), and as the last `&[Tensor]`"
)]
pub trait OpParam {
    #[doc(hidden)]
    type Held;
    /// Whether it takes all inputs that are left.
    #[doc(hidden)]
    const REST: bool = false;

    #[doc(hidden)]
    fn take(inputs: &mut OpInputs) -> Result<Self::Held, String>;
}

/// The inputs of a call on their way to the parameters of an op.
#[doc(hidden)]
pub struct OpInputs {
    inputs: std::vec::IntoIter<Tensor>,
    names: &'static [&'static str],
    taken: usize,
}

impl OpInputs {
    /// Checks that there is an input for every parameter; the last takes all others where `rest` is set.
    #[doc(hidden)]
    pub fn new(inputs: Vec<Tensor>, names: &'static [&'static str], rest: bool) -> Result<Self, String> {
        let needed = names.len() - usize::from(rest);
        if inputs.len() < needed || (!rest && inputs.len() > needed) {
            let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
            let takes = match (names.is_empty(), rest) {
                (true, _) => "no inputs".to_owned(),
                (false, true) => format!("{needed} inputs or more ({})", names.join(", ")),
                (false, false) => {
                    format!("{needed} input{} ({})", if needed == 1 { "" } else { "s" }, names.join(", "))
                }
            };
            return Err(format!("it takes {takes}, {} given", inputs.len()));
        }
        Ok(OpInputs { inputs: inputs.into_iter(), names, taken: 0 })
    }

    /// The next input, if `fits` says that it is `what`.
    fn next(&mut self, what: impl FnOnce() -> String, fits: impl FnOnce(&Tensor) -> bool) -> Result<Tensor, String> {
        let tensor = self.inputs.next().expect("the number of inputs was checked");
        let name = self.names[self.taken];
        self.taken += 1;
        if fits(&tensor) { Ok(tensor) } else { Err(format!("its input `{name}` is {}, {tensor} given", what())) }
    }

    fn values<T: Element>(&mut self) -> Result<Tensor, String> {
        self.next(|| format!("a tensor of {}", T::DTYPE), |tensor| tensor.dtype() == T::DTYPE)
    }
}

fn checked<T>(result: crate::Result<T>) -> T {
    result.expect("type and number of elements were checked")
}

impl OpParam for Tensor {
    type Held = Tensor;

    fn take(inputs: &mut OpInputs) -> Result<Tensor, String> {
        inputs.next(|| "a tensor".to_owned(), |_| true)
    }
}

impl<T: Element> OpParam for [T] {
    type Held = Value<T>;

    fn take(inputs: &mut OpInputs) -> Result<Value<T>, String> {
        Ok(checked(Value::from_raw(RawValue { tensor: inputs.values::<T>()?, version: 0 })))
    }
}

impl<T: Element> OpParam for Vec<T> {
    type Held = Vec<T>;

    fn take(inputs: &mut OpInputs) -> Result<Vec<T>, String> {
        Ok(checked(inputs.values::<T>()?.to_vec()))
    }
}

impl<T: Element, const N: usize> OpParam for [T; N] {
    type Held = [T; N];

    fn take(inputs: &mut OpInputs) -> Result<[T; N], String> {
        let tensor = inputs.next(
            || format!("a tensor of {N} {}", T::DTYPE),
            |tensor| tensor.dtype() == T::DTYPE && tensor.len() == N,
        )?;
        let mut values = [T::default(); N];
        values.copy_from_slice(&checked(tensor.values::<T>()));
        Ok(values)
    }
}

impl OpParam for [Tensor] {
    type Held = Vec<Tensor>;
    const REST: bool = true;

    fn take(inputs: &mut OpInputs) -> Result<Vec<Tensor>, String> {
        Ok(inputs.inputs.by_ref().collect())
    }
}

impl OpParam for Vec<Tensor> {
    type Held = Vec<Tensor>;
    const REST: bool = true;

    fn take(inputs: &mut OpInputs) -> Result<Vec<Tensor>, String> {
        <[Tensor]>::take(inputs)
    }
}

/// What a caller may give for a parameter of type `P` of an op.
///
/// | parameter | given |
/// | --- | --- |
/// | `Tensor`, `&Tensor` | whatever becomes an [`Input`] |
/// | `&[f32]`, `Vec<f32>`, `[f32; 3]` | `&[f32]`, `&Vec<f32>`, `&[f32; 3]`, `&Value<f32>`, `&Tensor`, `&RemoteValue` |
/// | `f32` | `f32`, `&Tensor`, `&RemoteValue` |
/// | `&[Tensor]`, `Vec<Tensor>` | `&[Tensor]`, `&Vec<Tensor>`, `&[RemoteValue]`, `&Vec<RemoteValue>`, `Vec<Input>` |
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't be given for an op's parameter `{P}`",
    label = "doesn't fit the op's parameter `{P}`"
)]
pub trait OpArg<'a, P: ?Sized> {
    #[doc(hidden)]
    fn give(self, inputs: &mut Vec<Input<'a>>);
}

impl<'a, X: Into<Input<'a>>> OpArg<'a, Tensor> for X {
    fn give(self, inputs: &mut Vec<Input<'a>>) {
        inputs.push(self.into());
    }
}

macro_rules! arg {
    (@ [$($generics:tt)*] $param:ty: $given:ty) => {
        impl<'a, $($generics)*> OpArg<'a, $param> for $given {
            fn give(self, inputs: &mut Vec<Input<'a>>) {
                inputs.push(self.into());
            }
        }
    };
    ($($generics:tt $param:ty: $($given:ty),*;)*) => {$($(arg!(@ $generics $param: $given);)*)*};
}

arg! {
    [T: Element] [T]: &'a [T], &'a Vec<T>, &'a Value<T>, &'a Tensor, &'a RemoteValue;
    [T: Element] Vec<T>: &'a [T], &'a Vec<T>, &'a Value<T>, &'a Tensor, &'a RemoteValue;
    [T: Element, const N: usize] [T; N]: &'a [T; N], &'a [T], &'a Vec<T>, &'a Value<T>, &'a Tensor, &'a RemoteValue;
    [T: Element, const N: usize] [T]: &'a [T; N];
    [T: Element, const N: usize] Vec<T>: &'a [T; N];
    [] f32: f32, &'a Tensor, &'a RemoteValue;
    [] f64: f64, &'a Tensor, &'a RemoteValue;
    [] i32: i32, &'a Tensor, &'a RemoteValue;
    [] i64: i64, &'a Tensor, &'a RemoteValue;
    [] u8: u8, &'a Tensor, &'a RemoteValue;
}

macro_rules! scalar_param {
    ($($type:ty),*) => {$(
        impl OpParam for $type {
            type Held = $type;

            fn take(inputs: &mut OpInputs) -> Result<$type, String> {
                let tensor = inputs.next(
                    || format!("one {}", <$type>::DTYPE),
                    |tensor| tensor.dtype() == <$type>::DTYPE && tensor.len() == 1,
                )?;
                Ok(checked(tensor.item()))
            }
        }
    )*};
}
scalar_param!(f32, f64, i32, i64, u8);

macro_rules! rest_arg {
    ($($param:ty),*) => {$(
        rest_arg!(@ $param: &'a [Tensor], &'a Vec<Tensor>, &'a [RemoteValue], &'a Vec<RemoteValue>, Vec<Input<'a>>);

        impl<'a, const N: usize> OpArg<'a, $param> for &'a [Tensor; N] {
            fn give(self, inputs: &mut Vec<Input<'a>>) {
                inputs.extend(self.iter().map(Input::from));
            }
        }

        impl<'a, const N: usize> OpArg<'a, $param> for &'a [RemoteValue; N] {
            fn give(self, inputs: &mut Vec<Input<'a>>) {
                inputs.extend(self.iter().map(Input::from));
            }
        }
    )*};
    (@ $param:ty: $($given:ty),*) => {$(
        impl<'a> OpArg<'a, $param> for $given {
            fn give(self, inputs: &mut Vec<Input<'a>>) {
                inputs.extend(self.into_iter().map(Input::from));
            }
        }
    )*};
}
rest_arg!([Tensor], Vec<Tensor>);
