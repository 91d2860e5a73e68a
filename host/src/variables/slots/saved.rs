//! Slots as they are saved and restored.

use super::Slots;
use crate::error::{Error, ErrorCode, Result};
use crate::text::shown_within;
use crate::variables::Blocks;

/// Most steps that slots may have counted when they are restored: above it, half of the numbers have no `f64`, in which the methods
/// compute, and no training comes near.
pub const STEP_MAX: u64 = 1 << 53;

/// Which slots a method keeps. Files and messages have their names.
#[derive(Debug, PartialEq, Eq)]
pub struct SlotLayout {
    /// The name of the method; AdamW's slots are Adam's.
    pub method: &'static str,
    /// The slots, in order, as the table in docs/variables.md calls them.
    pub names: &'static [&'static str],
}

const LAYOUTS: [SlotLayout; 4] = [
    SlotLayout { method: "adagrad", names: &["s"] },
    SlotLayout { method: "adam", names: &["m", "v"] },
    SlotLayout { method: "momentum", names: &["v"] },
    SlotLayout { method: "rmsprop", names: &["s"] },
];

impl SlotLayout {
    /// The slots of the method of this name.
    ///
    /// # Errors
    /// `invalid-argument` with what there is.
    pub fn of(method: &str) -> Result<&'static SlotLayout> {
        LAYOUTS.iter().find(|layout| layout.method == method).ok_or_else(|| {
            let known = LAYOUTS.map(|layout| layout.method).join(", ");
            let message = format!("`{}` keeps no slots; those that do are {known}", shown_within(method, 64));
            Error::new(ErrorCode::InvalidArgument, message)
        })
    }
}

/// What an optimizer keeps beside a variable, but for the values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotState {
    /// Whose they are.
    pub layout: &'static SlotLayout,
    /// How many steps have made them.
    pub step: u64,
}

impl SlotState {
    /// Checks a number of steps that comes from outside.
    ///
    /// # Errors
    /// `invalid-argument`: an unknown method, more than [`STEP_MAX`] steps.
    pub fn checked(method: &str, step: u64) -> Result<Self> {
        if step > STEP_MAX {
            let message = format!("slots of `{step}` steps are not restored, at most `{STEP_MAX}` are");
            return Err(Error::new(ErrorCode::InvalidArgument, message));
        }
        Ok(SlotState { layout: SlotLayout::of(method)?, step })
    }
}

impl Slots {
    /// What is saved of them. The values are shared.
    pub(in crate::variables) fn saved(&self) -> (SlotState, &[Blocks]) {
        let layout = SlotLayout::of(self.of).expect("every method that keeps slots is in the list, as a test sees to");
        (SlotState { layout, step: self.step }, &self.values)
    }

    /// Makes them of what was saved; as many values as the layout has.
    pub(in crate::variables) fn restored(state: SlotState, values: Vec<Blocks>) -> Self {
        Slots { of: state.layout.method, values, step: state.step }
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout;
    use super::*;
    use crate::variables::{Adam, Optimizer};

    #[test]
    fn every_method_that_keeps_slots_is_listed_with_all_of_them() {
        let adam = Adam { learning_rate: 0.1, beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.0 };
        for optimizer in [
            Optimizer::Sgd { learning_rate: 0.1 },
            Optimizer::Momentum { learning_rate: 0.1, momentum: 0.9, nesterov: false },
            Optimizer::Adagrad { learning_rate: 0.1, decay: 0.0, epsilon: 1e-10 },
            Optimizer::RmsProp { learning_rate: 0.1, decay: 0.9, epsilon: 1e-8 },
            Optimizer::Adam(adam),
            Optimizer::AdamW(adam),
        ] {
            let (method, count) = layout(&optimizer);
            match SlotLayout::of(method) {
                Ok(listed) => assert_eq!(listed.names.len(), count, "{method}"),
                Err(error) => assert!(count == 0 && error.message.contains("adagrad, adam, momentum"), "{error}"),
            }
        }
    }

    #[test]
    fn a_number_of_steps_is_bounded() {
        assert!(SlotState::checked("adam", STEP_MAX).is_ok());
        for (method, step) in [("adam", STEP_MAX + 1), ("adam", u64::MAX), ("sgd", 1), ("", 1)] {
            assert!(SlotState::checked(method, step).is_err_and(|error| error.code == ErrorCode::InvalidArgument));
        }
    }
}
