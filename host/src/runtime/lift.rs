//! Arguments in guest memory: measured before anything of them is copied.
//!
//! Code generated from the WIT copies a call's strings and lists before a host function sees them: as much as the hostcall
//! fuel lets through, which is a tensor's size and more. Functions that take any are therefore defined by hand on
//! [`WasmStr`] and [`WasmList`], which only point to guest memory, and read them through the functions here. The guest can't
//! run meanwhile, so its memory stays as it is.
//!
//! Strings in UTF-8, as nearly all languages have them, are borrowed. Those of a component that was built for UTF-16 or
//! latin-1 are transcoded as a whole before their length can be seen, which takes up to twice their bytes (and so twice the
//! hostcall fuel: `--max-tensor` and 8 MiB) for the time of the call.

use super::bindings::types;
use super::calls::HostError;
use super::limits::TensorExceeded;
use super::state::State;
use crate::error::{Error, ErrorCode, Result};
use crate::tensor::{TensorType, TensorView};
use std::borrow::Cow;
use wasmtime::StoreContextMut;
use wasmtime::component::{ComponentType, Lift, WasmList, WasmStr};

/// What a host function answers, or how it ends.
pub(super) type Answer<T> = std::result::Result<T, HostError>;

/// A task in guest memory; twin of the WIT's `task`.
#[derive(ComponentType, Lift)]
#[component(record)]
pub(super) struct TaskIn {
    pub(super) job: WasmStr,
    pub(super) index: u32,
}

/// A tensor in guest memory; twin of the WIT's `tensor`.
#[derive(ComponentType, Lift)]
#[component(record)]
pub(super) struct TensorIn {
    pub(super) dtype: types::Dtype,
    pub(super) shape: WasmList<u64>,
    pub(super) data: WasmList<u8>,
}

/// The string itself, borrowed where it is UTF-8. One that is no text traps, as in generated code.
pub(super) fn text<'a>(cx: &'a StoreContextMut<'_, State>, text: &WasmStr) -> Answer<Cow<'a, str>> {
    Ok(text.to_str(cx)?)
}

/// The entries of a list of at most `count_max`; `what` names them. Strings and lists within them stay where they are.
pub(super) fn list<T: Lift>(
    cx: &mut StoreContextMut<'_, State>,
    list: &WasmList<T>,
    what: &str,
    count_max: usize,
) -> Answer<Vec<T>> {
    if list.len() > count_max {
        return Err(Error::new(
            ErrorCode::InvalidArgument,
            format!("{} {what} in one call, at most {count_max} are allowed: split the call", list.len()),
        )
        .into());
    }
    Ok(list.iter(cx)?.collect::<wasmtime::Result<Vec<T>>>()?)
}

/// The extents of a tensor or variable; `what` names it.
///
/// # Errors
/// `invalid-argument` for more than [`TensorType::RANK_MAX`].
pub(super) fn extents(cx: &StoreContextMut<'_, State>, shape: &WasmList<u64>, what: &str) -> Result<Vec<u64>> {
    if shape.len() > TensorType::RANK_MAX {
        return Err(Error::new(
            ErrorCode::InvalidArgument,
            format!("{what} has {} dimensions, at most {} are allowed", shape.len(), TensorType::RANK_MAX),
        ));
    }
    Ok(shape.as_le_slice(cx).iter().map(|&extent| u64::from_le(extent)).collect())
}

/// A tensor's bytes where they are, with its type; checked against each other.
///
/// # Errors
/// `invalid-argument`: a shape that doesn't fit its bytes, or a dtype that isn't served.
pub(super) fn tensor<'a>(cx: &'a StoreContextMut<'_, State>, tensor: &TensorIn) -> Result<TensorView<'a>> {
    let data = tensor.data.as_le_slice(cx);
    let shape = extents(cx, &tensor.shape, "a tensor")?;
    Ok(TensorView { ty: types::checked_type(tensor.dtype, shape, data.len())?, data })
}

/// Bounds the tensors of one call together by `--max-tensor`: more of them traps, which the run's end tells as that limit.
pub(super) fn check_tensors<'a>(state: &State, tensors: impl Iterator<Item = &'a TensorIn>) -> Answer<u64> {
    let bytes = tensors.fold(0_u64, |sum, tensor| sum.saturating_add(tensor.data.len() as u64));
    if bytes > state.limits.tensor_bytes_max {
        return Err(HostError::Trap(TensorExceeded { bytes }.into()));
    }
    Ok(bytes)
}

/// Splits an answer as generated code does: an error of the WIT is an answer, anything else traps.
pub(super) fn answer<T>(answer: Answer<T>) -> wasmtime::Result<(std::result::Result<T, types::Error>,)> {
    match answer {
        Ok(value) => Ok((Ok(value),)),
        Err(HostError::Wit(error)) => Ok((Err(error.into()),)),
        Err(HostError::Trap(error)) => Err(error),
    }
}

/// What the generated twin of a function does that is defined by hand: it is never linked.
pub(super) fn shadowed() -> wasmtime::Error {
    wasmtime::Error::msg("a function was linked that copies its arguments; a bug in dchost, please report it")
}

#[cfg(test)]
mod tests {
    /// Types of the WIT that hold a string or a list.
    const LARGE: [&str; 7] = ["string", "list<", "tensor", "task", "change", "placement", "input"];

    /// Aim: a function that is added later doesn't copy its arguments by oversight. Method: each function of the WIT that takes
    /// a string or a list, and is the host's, is named in a file that defines functions by hand.
    #[test]
    fn every_function_that_takes_strings_or_lists_is_defined_on_guest_memory() {
        let by_hand = [
            include_str!("variables/in_place.rs"),
            include_str!("variables/in_place/gradients.rs"),
            include_str!("variables/in_place/rows.rs"),
            include_str!("worker_context.rs"),
            include_str!("ops.rs"),
            include_str!("kernels.rs"),
            include_str!("summary.rs"),
            include_str!("log.rs"),
        ]
        .concat();
        let mut found = Vec::new();
        for file in ["worker-context", "variables", "pending", "ops", "kernels", "summary", "log"] {
            let path = format!("{}/../wit/{file}.wit", env!("CARGO_MANIFEST_DIR"));
            let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
            for line in text.lines().map(str::trim).filter(|line| !line.starts_with("//")) {
                let Some((name, rest)) = line.split_once(':') else { continue };
                let Some((_, rest)) = rest.split_once("func(") else { continue };
                let parameters = rest.split("->").next().unwrap_or_default();
                if LARGE.iter().any(|large| parameters.contains(large)) {
                    let defined = [format!("\"{name}\","), format!("[static]variable.{name}\",")];
                    assert!(
                        defined.iter().any(|text| by_hand.contains(text)),
                        "`{name}` of {path} copies its arguments"
                    );
                    found.push(name.to_owned());
                }
            }
        }
        assert!(found.len() >= 18, "only {found:?} were found");
    }
}
