//! Many variables in one call, and answers that come later.

use crate::raw::RawValue;
use crate::{Element, Error, ErrorCode, Result, Value, Variable, imp};
use std::marker::PhantomData;

/// Variables that are read in one call: an array or slice of them, or a tuple of variables of different element types.
///
/// | given | read |
/// | --- | --- |
/// | `[&a, &b]`, `&[&a, &b]` | `[Value<T>; 2]` |
/// | `&[a, b][..]`, `&Vec<Variable<T>>`, `&Vec<&Variable<T>>` | `Vec<Value<T>>` |
/// | `(&a, &b)`, up to 8 | `(Value<A>, Value<B>)` |
pub trait VariableSet {
    /// The values, in the order of the variables.
    type Values;

    #[doc(hidden)]
    fn push_handles<'a>(&'a self, handles: &mut Handles<'a>);
    #[doc(hidden)]
    fn collect(values: RawValues) -> Result<Self::Values>;
}

/// The variables of a call, without their element types.
#[doc(hidden)]
#[derive(Default)]
pub struct Handles<'a>(pub(crate) Vec<&'a imp::Variable>);

/// The answer to a call, without its element types.
#[doc(hidden)]
pub struct RawValues(std::vec::IntoIter<RawValue>);

impl RawValues {
    fn next<T: Element>(&mut self) -> Result<Value<T>> {
        let raw =
            self.0.next().ok_or_else(|| Error::new(ErrorCode::Internal, "the host answered with too few values"))?;
        Value::from_raw(raw)
    }

    fn all<T: Element>(self) -> Result<Vec<Value<T>>> {
        self.0.map(Value::from_raw).collect()
    }
}

pub(crate) fn handles(set: &impl VariableSet) -> Vec<&imp::Variable> {
    let mut handles = Handles::default();
    set.push_handles(&mut handles);
    handles.0
}

pub(crate) fn collect<S: VariableSet>(values: Vec<RawValue>) -> Result<S::Values> {
    S::collect(RawValues(values.into_iter()))
}

impl<T: Element, const N: usize> VariableSet for [&Variable<T>; N] {
    type Values = [Value<T>; N];

    fn push_handles<'a>(&'a self, handles: &mut Handles<'a>) {
        handles.0.extend(self.iter().map(|variable| &variable.core.imp));
    }

    fn collect(values: RawValues) -> Result<Self::Values> {
        <[Value<T>; N]>::try_from(values.all()?).map_err(|values| {
            Error::new(ErrorCode::Internal, format!("the host answered {N} variables with {} values", values.len()))
        })
    }
}

impl<T: Element, const N: usize> VariableSet for &[&Variable<T>; N] {
    type Values = [Value<T>; N];

    fn push_handles<'a>(&'a self, handles: &mut Handles<'a>) {
        (**self).push_handles(handles);
    }

    fn collect(values: RawValues) -> Result<Self::Values> {
        <[&Variable<T>; N]>::collect(values)
    }
}

macro_rules! slice_set {
    ($($given:ty),*) => {$(
        impl<T: Element> VariableSet for $given {
            type Values = Vec<Value<T>>;

            fn push_handles<'a>(&'a self, handles: &mut Handles<'a>) {
                handles.0.extend(self.iter().map(|variable| &variable.core.imp));
            }

            fn collect(values: RawValues) -> Result<Self::Values> {
                values.all()
            }
        }
    )*};
}
slice_set!(&[Variable<T>], &[&Variable<T>], &Vec<Variable<T>>, &Vec<&Variable<T>>);

macro_rules! tuple_set {
    ($($element:ident $index:tt),*) => {
        impl<$($element: Element),*> VariableSet for ($(&Variable<$element>,)*) {
            type Values = ($(Value<$element>,)*);

            fn push_handles<'a>(&'a self, handles: &mut Handles<'a>) {
                $(handles.0.push(&self.$index.core.imp);)*
            }

            fn collect(mut values: RawValues) -> Result<Self::Values> {
                Ok(($(values.next::<$element>()?,)*))
            }
        }
    };
}
tuple_set!(A 0);
tuple_set!(A 0, B 1);
tuple_set!(A 0, B 1, C 2);
tuple_set!(A 0, B 1, C 2, D 3);
tuple_set!(A 0, B 1, C 2, D 3, E 4);
tuple_set!(A 0, B 1, C 2, D 3, E 4, F 5);
tuple_set!(A 0, B 1, C 2, D 3, E 4, F 5, G 6);
tuple_set!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7);

/// A read that is under way; dropping it gives the answer up.
#[must_use = "the values come from `get`"]
pub struct PendingRead<S: VariableSet> {
    imp: imp::Pending,
    set: PhantomData<fn() -> S>,
}

impl<S: VariableSet> PendingRead<S> {
    pub(crate) fn new(imp: imp::Pending) -> Self {
        PendingRead { imp, set: PhantomData }
    }

    pub(crate) fn imp(&self) -> &imp::Pending {
        &self.imp
    }

    /// Whether [`get`](PendingRead::get) returns at once.
    pub fn is_ready(&self) -> bool {
        self.imp.is_ready()
    }

    /// Waits for the values.
    ///
    /// # Errors
    /// Those of [a read](Variable#errors).
    pub fn get(self) -> Result<S::Values> {
        collect::<S>(self.imp.get()?)
    }
}

/// An update that is under way. Dropping it gives the answer up; each of its changes is then made whole or not at all, a relaxed one
/// maybe in part.
#[must_use = "whether it succeeded comes from `get`"]
pub struct PendingUpdate {
    imp: imp::Pending,
}

impl PendingUpdate {
    pub(crate) fn new(imp: imp::Pending) -> Self {
        PendingUpdate { imp }
    }

    pub(crate) fn imp(&self) -> &imp::Pending {
        &self.imp
    }

    /// Whether [`get`](PendingUpdate::get) returns at once.
    pub fn is_ready(&self) -> bool {
        self.imp.is_ready()
    }

    /// Waits until all changes are made, and returns the new versions in their order.
    ///
    /// # Errors
    /// Those of [an update](Variable#errors).
    pub fn get(self) -> Result<Vec<u64>> {
        Ok(self.imp.get()?.into_iter().map(|value| value.version).collect())
    }
}
