//! What is saved of a variable.

use crate::error::Result;
use crate::variables::{Saved, SlotState};
use crate::wire::header::missing;
use crate::wire::v1;

/// Converts what is saved of a variable.
pub fn saved_to_wire(saved: &Saved) -> v1::SavedVariable {
    v1::SavedVariable {
        variable: Some((&saved.variable).into()),
        version: saved.version,
        slots: saved.slots.map(slots_to_wire),
    }
}

/// Converts what is saved of a variable.
///
/// # Errors
/// `invalid-argument`: no variable; those of a reference, and of [`slots_from_wire`].
pub fn saved_from_wire(saved: v1::SavedVariable) -> Result<Saved> {
    Ok(Saved {
        variable: saved.variable.ok_or_else(|| missing("variable"))?.try_into()?,
        version: saved.version,
        slots: saved.slots.map(slots_from_wire).transpose()?,
    })
}

/// Converts what an optimizer keeps.
pub fn slots_to_wire(slots: SlotState) -> v1::Slots {
    v1::Slots { method: slots.layout.method.to_owned(), step: slots.step }
}

/// Converts what an optimizer keeps.
///
/// # Errors
/// `invalid-argument`: an unknown method, too many steps.
pub fn slots_from_wire(slots: v1::Slots) -> Result<SlotState> {
    SlotState::checked(&slots.method, slots.step)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorCode;
    use crate::tensor::{DType, TensorType};
    use crate::variables::{VariableRef, shard_map};

    #[test]
    fn what_is_saved_survives_the_wire_and_what_makes_no_sense_is_refused() {
        let (shard, ty) = shard_map(&TensorType::new(DType::F32, [20, 3]), &[5, 0].into()).remove(1);
        let slots = SlotState::checked("adam", 7).expect("it is a method");
        for saved in [
            Saved { variable: VariableRef::whole("w", ty.clone()), version: 3, slots: None },
            Saved {
                variable: VariableRef { name: "w".into(), ty, shard: Some(shard) },
                version: 3,
                slots: Some(slots),
            },
        ] {
            assert_eq!(saved_from_wire(saved_to_wire(&saved)).as_ref(), Ok(&saved));
            for slots in
                [v1::Slots { method: "sgd".into(), step: 1 }, v1::Slots { method: "adam".into(), step: u64::MAX }]
            {
                let odd = v1::SavedVariable { slots: Some(slots), ..saved_to_wire(&saved) };
                assert_eq!(saved_from_wire(odd).unwrap_err().code, ErrorCode::InvalidArgument);
            }
        }
        assert!(saved_from_wire(v1::SavedVariable::default()).is_err());
    }
}
