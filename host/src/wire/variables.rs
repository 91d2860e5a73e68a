//! Variable references and kinds of update.

use crate::error::{Error, ErrorCode, Result};
use crate::tensor::TensorType;
use crate::text::shown_within;
use crate::variables::{Consistency, Shard, UpdateKind, VariableRef, check_variable};
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
            shape: variable.whole_type().shape,
            shard: variable.shard.as_ref().map(|shard| shard_to_wire(shard, &variable.ty)),
        }
    }
}

/// Converts a part whose value is of type `ty`.
pub(crate) fn shard_to_wire(shard: &Shard, ty: &TensorType) -> v1::Shard {
    v1::Shard {
        index: shard.index,
        count: u32::try_from(shard.count()).unwrap_or(u32::MAX),
        first_row: shard.first_row,
        rows: ty.shape.first().copied().unwrap_or_default(),
        ps: shard.ps.to_vec(),
    }
}

/// Converts a type and, where there is one, the part of it that is meant; with the part's type.
///
/// # Errors
/// `invalid-argument`: there is no such part, or the type can't be served.
pub(crate) fn part_from_wire(
    name: &str,
    whole: TensorType,
    shard: Option<v1::Shard>,
) -> Result<(TensorType, Option<Shard>)> {
    let Some(v1::Shard { index, count, first_row, rows, ps }) = shard else { return Ok((whole, None)) };
    if ps.len() != count as usize {
        let message = format!("variable `{name}` has `{count}` parts, but on `{}` tasks", ps.len());
        return Err(Error::new(ErrorCode::InvalidArgument, message).with_names([name]));
    }
    let shard = Shard { index, first_row, whole_rows: whole.shape.first().copied().unwrap_or_default(), ps: ps.into() };
    shard.check(name, rows)?;
    Ok((whole.with_rows(rows), Some(shard)))
}

impl TryFrom<v1::VariableRef> for VariableRef {
    type Error = Error;

    /// Converts a reference.
    ///
    /// # Errors
    /// `invalid-argument`: a bad name, dtype or size; a part that there can't be.
    fn try_from(variable: v1::VariableRef) -> Result<Self> {
        let v1::VariableRef { name, dtype, shape, shard } = variable;
        let ty = tensor_type(dtype, shape).map_err(|error| {
            let shown = shown_within(&name, 64);
            Error::new(error.code, format!("variable `{shown}`: {}", error.message))
        })?;
        check_variable(&name, &ty)?;
        let (ty, shard) = part_from_wire(&name, ty, shard)?;
        Ok(VariableRef { name, ty, shard })
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
    use crate::tensor::DType;
    use crate::variables::shard_map;

    #[test]
    fn references_and_kinds_survive_the_wire() {
        let variable = VariableRef::whole("layer/w", TensorType::new(DType::F64, [2, 3]));
        assert_eq!(VariableRef::try_from(v1::VariableRef::from(&variable)), Ok(variable));
        for (shard, ty) in shard_map(&TensorType::new(DType::F64, [20, 3]), &[5, 0, 1].into()) {
            let variable = VariableRef { name: "layer/w".into(), ty, shard: Some(shard) };
            let wire = v1::VariableRef::from(&variable);
            assert_eq!(wire.shape, [20, 3]);
            assert_eq!(VariableRef::try_from(wire), Ok(variable));
        }
        for kind in [UpdateKind::Assign, UpdateKind::Add, UpdateKind::Sub, UpdateKind::Min, UpdateKind::Max] {
            assert_eq!(update_kind(v1::UpdateKind::from(kind).into()), Ok(kind));
        }
        assert_eq!(update_kind(17).unwrap_err().code, ErrorCode::InvalidArgument);
        for known in [Consistency::Atomic, Consistency::Relaxed] {
            assert_eq!(consistency(v1::Consistency::from(known).into()), Ok(known));
        }
        assert_eq!(consistency(17).unwrap_err().code, ErrorCode::InvalidArgument);
    }

    fn half(index: u32, count: u32) -> v1::Shard {
        v1::Shard { index, count, first_row: 1, rows: 1, ps: vec![0; count as usize] }
    }

    #[test]
    fn bad_references_are_refused_with_their_name() {
        let good = v1::VariableRef { name: "w".into(), dtype: v1::DType::F32.into(), shape: vec![2], shard: None };
        type Spoil = fn(&mut v1::VariableRef);
        let cases: [(Spoil, ErrorCode, &str); 9] = [
            (|v| v.name.clear(), ErrorCode::InvalidArgument, "empty"),
            (|v| v.name = "n".repeat(257), ErrorCode::InvalidArgument, "257 bytes"),
            (|v| v.name = "a\nb".into(), ErrorCode::InvalidArgument, "control"),
            (|v| v.dtype = 0, ErrorCode::InvalidArgument, "variable `w`: dtype number `0`"),
            (|v| v.shape = vec![1 << 62, 8], ErrorCode::InvalidArgument, "overflows"),
            (|v| v.shard = Some(v1::Shard::default()), ErrorCode::InvalidArgument, "shard `0` of `0` of variable `w`"),
            (
                |v| v.shard = Some(v1::Shard { rows: 2, ..half(1, 2) }),
                ErrorCode::InvalidArgument,
                "`2` rows from `1` on, of `2`",
            ),
            (|v| v.shard = Some(v1::Shard { ps: vec![0], ..half(0, 2) }), ErrorCode::InvalidArgument, "on `1` tasks"),
            (|v| (v.shape, v.shard) = (vec![], Some(half(0, 2))), ErrorCode::InvalidArgument, "of `0`"),
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
