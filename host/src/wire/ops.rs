//! Calls of ops, and the proof that a component is there.

use crate::cluster::Task;
use crate::error::{Error, ErrorCode, Result};
use crate::ids::Incarnation;
use crate::ops::{OPERANDS_MAX, RemoteValue};
use crate::tensor::TensorType;
use crate::wire::header::{missing, task_at};
use crate::wire::v1;
use sha2::{Digest as _, Sha256};

/// Size of a challenge, and of the digests.
pub const DIGEST_BYTES: usize = 32;

/// Bytes of results that are sent at once, asked for or not: less than what asking costs.
pub const EAGER_BYTES_MAX: u64 = 64 << 10;

/// One input of a call, as its header announces it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Announced {
    /// Its bytes follow.
    Tensor(TensorType),
    /// It is kept somewhere.
    Remote(RemoteValue),
}

/// The answer to a challenge of who has the component.
pub fn proof(challenge: &[u8], component: &[u8]) -> [u8; DIGEST_BYTES] {
    Sha256::new().chain_update(challenge).chain_update(component).finalize().into()
}

/// Reads a digest.
///
/// # Errors
/// `invalid-argument` naming the field where it isn't of its size.
pub fn digest(field: &str, bytes: &[u8]) -> Result<[u8; DIGEST_BYTES]> {
    bytes.try_into().map_err(|_| {
        let message = format!("`{field}` has {} bytes, not {DIGEST_BYTES}", bytes.len());
        Error::new(ErrorCode::InvalidArgument, message)
    })
}

impl From<&RemoteValue> for v1::RemoteValue {
    fn from(value: &RemoteValue) -> Self {
        v1::RemoteValue {
            task: Some(value.task.into()),
            incarnation: value.incarnation.0,
            call: value.call,
            result: value.result,
            tensor: Some((&value.ty).into()),
        }
    }
}

impl TryFrom<v1::RemoteValue> for RemoteValue {
    type Error = Error;

    /// Converts a reference to a kept result.
    ///
    /// # Errors
    /// `invalid-argument` naming the field.
    fn try_from(value: v1::RemoteValue) -> Result<Self> {
        let task: Task = task_at("value.task", value.task.ok_or_else(|| missing("value.task"))?)?;
        if value.incarnation == 0 {
            return Err(missing("value.incarnation"));
        }
        let ty = TensorType::try_from(value.tensor.ok_or_else(|| missing("value.tensor"))?)?;
        let (incarnation, call, result) = (Incarnation(value.incarnation), value.call, value.result);
        Ok(RemoteValue { task, incarnation, call, result, ty })
    }
}

/// Reads the inputs that a call announces.
///
/// # Errors
/// `invalid-argument`: too many, or a bad one.
pub fn announced(inputs: Vec<v1::Input>) -> Result<Vec<Announced>> {
    if inputs.len() > OPERANDS_MAX {
        let message = format!("call has {} inputs, at most {OPERANDS_MAX} are allowed", inputs.len());
        return Err(Error::new(ErrorCode::InvalidArgument, message));
    }
    let one = |input: v1::Input| match input.kind.ok_or_else(|| missing("input.kind"))? {
        v1::input::Kind::Tensor(tensor) => TensorType::try_from(tensor).map(Announced::Tensor),
        v1::input::Kind::Remote(value) => RemoteValue::try_from(value).map(Announced::Remote),
    };
    inputs.into_iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::TaskType;
    use crate::tensor::DType;

    fn value() -> RemoteValue {
        RemoteValue {
            task: Task::new(TaskType::Worker, 3),
            incarnation: Incarnation(7),
            call: 9,
            result: 1,
            ty: TensorType::new(DType::F64, [2, 5]),
        }
    }

    #[test]
    fn values_survive_the_wire_and_faults_name_their_field() {
        assert_eq!(RemoteValue::try_from(v1::RemoteValue::from(&value())), Ok(value()));
        let spoil = |spoil: fn(&mut v1::RemoteValue)| {
            let mut wire = v1::RemoteValue::from(&value());
            spoil(&mut wire);
            RemoteValue::try_from(wire).expect_err("refused").message
        };
        assert!(spoil(|value| value.task = None).contains("value.task"));
        assert!(spoil(|value| value.incarnation = 0).contains("value.incarnation"));
        assert!(spoil(|value| value.tensor = None).contains("value.tensor"));
        let many = vec![v1::Input::default(); OPERANDS_MAX + 1];
        assert!(announced(many).expect_err("refused").message.contains("at most 256"));
        assert!(announced(vec![v1::Input::default()]).expect_err("refused").message.contains("input.kind"));
    }

    #[test]
    fn a_proof_needs_the_component_and_the_challenge() {
        let right = proof(&[1; 32], b"component");
        assert_eq!(right, proof(&[1; 32], b"component"));
        assert_ne!(right, proof(&[2; 32], b"component"));
        assert_ne!(right, proof(&[1; 32], b"another"));
        assert!(digest("sha256", &[0; 31]).is_err() && digest("sha256", &[0; 32]).is_ok());
    }
}
