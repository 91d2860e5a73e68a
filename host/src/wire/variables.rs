//! Variable references and kinds of update.

use crate::error::{Error, ErrorCode, Result};
use crate::text::shown_within;
use crate::variables::{Consistency, UpdateKind, VariableRef, check_variable};
use crate::wire::tensor::tensor_type;
use crate::wire::v1;

/// Most variables in one message: their names and types then stay within the 4 MiB that tonic takes for one message, and a
/// call of more is split by its caller.
pub const ITEMS_MAX: usize = 8192;

impl From<&VariableRef> for v1::VariableRef {
    fn from(variable: &VariableRef) -> Self {
        v1::VariableRef {
            name: variable.name.clone(),
            dtype: v1::DType::from(variable.ty.dtype).into(),
            shape: variable.ty.shape.clone(),
            shard: None,
        }
    }
}

impl TryFrom<v1::VariableRef> for VariableRef {
    type Error = Error;

    /// Converts a reference to a whole variable.
    ///
    /// # Errors
    /// `invalid-argument`: a bad name, dtype or size; `unimplemented`: a shard.
    fn try_from(variable: v1::VariableRef) -> Result<Self> {
        let v1::VariableRef { name, dtype, shape, shard } = variable;
        let ty = tensor_type(dtype, shape).map_err(|error| {
            let shown = shown_within(&name, 64);
            Error::new(error.code, format!("variable `{shown}`: {}", error.message))
        })?;
        check_variable(&name, &ty)?;
        if shard.is_some() {
            let message =
                format!("variable `{name}` is a shard, sharded variables are not served yet; place it on one task");
            return Err(Error::new(ErrorCode::Unimplemented, message));
        }
        Ok(VariableRef { name, ty })
    }
}

/// Converts the variables of one message.
///
/// # Errors
/// `invalid-argument`: more than [`ITEMS_MAX`]; and those of each.
pub fn variables(wire: Vec<v1::VariableRef>) -> Result<Vec<VariableRef>> {
    check_items(wire.len())?;
    wire.into_iter().map(VariableRef::try_from).collect()
}

/// Checks the number of variables in one message.
///
/// # Errors
/// `invalid-argument`: more than [`ITEMS_MAX`].
pub fn check_items(items: usize) -> Result<()> {
    if items <= ITEMS_MAX {
        return Ok(());
    }
    let message = format!("call has `{items}` variables, at most `{ITEMS_MAX}` fit in one; split it");
    Err(Error::new(ErrorCode::InvalidArgument, message))
}

impl From<UpdateKind> for v1::UpdateKind {
    fn from(kind: UpdateKind) -> Self {
        match kind {
            UpdateKind::Assign => v1::UpdateKind::Assign,
            UpdateKind::Add => v1::UpdateKind::Add,
            UpdateKind::Sub => v1::UpdateKind::Sub,
            UpdateKind::Min => v1::UpdateKind::Min,
            UpdateKind::Max => v1::UpdateKind::Max,
        }
    }
}

/// Converts a kind of update.
///
/// # Errors
/// `invalid-argument`: an unknown number.
pub fn update_kind(kind: i32) -> Result<UpdateKind> {
    match v1::UpdateKind::try_from(kind) {
        Ok(v1::UpdateKind::Assign) => Ok(UpdateKind::Assign),
        Ok(v1::UpdateKind::Add) => Ok(UpdateKind::Add),
        Ok(v1::UpdateKind::Sub) => Ok(UpdateKind::Sub),
        Ok(v1::UpdateKind::Min) => Ok(UpdateKind::Min),
        Ok(v1::UpdateKind::Max) => Ok(UpdateKind::Max),
        Err(_) => {
            let message = format!("update kind number `{kind}` is unknown, known are assign, add, sub, min and max");
            Err(Error::new(ErrorCode::InvalidArgument, message))
        }
    }
}

impl From<Consistency> for v1::Consistency {
    fn from(consistency: Consistency) -> Self {
        match consistency {
            Consistency::Atomic => v1::Consistency::Atomic,
            Consistency::Relaxed => v1::Consistency::Relaxed,
        }
    }
}

/// Converts a consistency.
///
/// # Errors
/// `invalid-argument`: an unknown number.
pub fn consistency(consistency: i32) -> Result<Consistency> {
    match v1::Consistency::try_from(consistency) {
        Ok(v1::Consistency::Atomic) => Ok(Consistency::Atomic),
        Ok(v1::Consistency::Relaxed) => Ok(Consistency::Relaxed),
        Err(_) => {
            let message = format!("consistency number `{consistency}` is unknown, known are atomic and relaxed");
            Err(Error::new(ErrorCode::InvalidArgument, message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::{DType, TensorType};

    #[test]
    fn references_and_kinds_survive_the_wire() {
        let variable = VariableRef { name: "layer/w".into(), ty: TensorType::new(DType::F64, [2, 3]) };
        assert_eq!(VariableRef::try_from(v1::VariableRef::from(&variable)), Ok(variable));
        for kind in [UpdateKind::Assign, UpdateKind::Add, UpdateKind::Sub, UpdateKind::Min, UpdateKind::Max] {
            assert_eq!(update_kind(v1::UpdateKind::from(kind).into()), Ok(kind));
        }
        assert_eq!(update_kind(17).unwrap_err().code, ErrorCode::InvalidArgument);
        for known in [Consistency::Atomic, Consistency::Relaxed] {
            assert_eq!(consistency(v1::Consistency::from(known).into()), Ok(known));
        }
        assert_eq!(consistency(17).unwrap_err().code, ErrorCode::InvalidArgument);
    }

    #[test]
    fn bad_references_are_refused_with_their_name() {
        let good = v1::VariableRef { name: "w".into(), dtype: v1::DType::F32.into(), shape: vec![2], shard: None };
        type Spoil = fn(&mut v1::VariableRef);
        let cases: [(Spoil, ErrorCode, &str); 6] = [
            (|v| v.name.clear(), ErrorCode::InvalidArgument, "empty"),
            (|v| v.name = "n".repeat(257), ErrorCode::InvalidArgument, "257 bytes"),
            (|v| v.name = "a\nb".into(), ErrorCode::InvalidArgument, "control"),
            (|v| v.dtype = 0, ErrorCode::InvalidArgument, "variable `w`: dtype number `0`"),
            (|v| v.shape = vec![1 << 62, 8], ErrorCode::InvalidArgument, "overflows"),
            (|v| v.shard = Some(v1::Shard::default()), ErrorCode::Unimplemented, "shard"),
        ];
        for (spoil, code, text) in cases {
            let mut variable = good.clone();
            spoil(&mut variable);
            let error = VariableRef::try_from(variable).unwrap_err();
            assert_eq!(error.code, code, "{error}");
            assert!(error.message.contains(text), "{error}");
        }
        assert_eq!(variables(vec![good.clone(); ITEMS_MAX]).map(|all| all.len()), Ok(ITEMS_MAX));
        assert!(variables(vec![good; ITEMS_MAX + 1]).is_err());
    }
}
