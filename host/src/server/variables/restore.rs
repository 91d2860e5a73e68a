//! Sets variables, and what optimizers keep beside them, from a checkpoint.

use super::values::Values;
use super::{Begin, VariablesService, Write, apply, invalid, references};
use crate::error::Result;
use crate::server::guard::Rpc;
use crate::variables::{Blocks, Consistency, Remembered, Restored, SlotState, VariableRef, tensor_count};
use crate::wire::saved::slots_from_wire;
use crate::wire::v1;
use crate::wire::variables::{consistency, variables};
use tonic::Status;

impl VariablesService {
    pub(super) async fn restore_from(
        &self,
        header: Option<v1::PushHeader>,
        incoming: &mut Values<'_>,
    ) -> Result<v1::PushResponse, Status> {
        let (admitted, header) = self.admit_write(Rpc::Restore, header)?;
        if consistency(header.consistency)? != Consistency::Atomic {
            return Err(invalid("variables are restored as a whole: `consistency` belongs to Push").into());
        }
        let of_updates = header.optimizer.is_some() || header.clip_scale != 0.0 || header.sync.is_some();
        if of_updates || header.if_absent || header.want_values {
            return Err(invalid("Restore takes items with their slots, and nothing else").into());
        }
        let items = items(header.item)?;
        let container = self.open(&admitted.caller)?;

        let mut ticket = match self.begin(&admitted).await? {
            Begin::Replay(answer) => return Ok(self.written(answer?.versions)),
            Begin::Fresh(ticket) => ticket,
        };
        container.check_restore(&items)?;
        let tensors: Vec<_> =
            items.iter().flat_map(|(variable, slots)| vec![variable.clone(); tensor_count(*slots)]).collect();
        let staging = self.receive(&admitted, &mut ticket, incoming, &tensors).await?;
        let write = move |tensors: Vec<Blocks>, _| {
            let mut tensors = tensors.into_iter();
            let restored = |(variable, slots)| {
                let tensors = tensors.by_ref().take(tensor_count(slots)).collect();
                Restored { variable, slots, tensors }
            };
            let values = items.into_iter().map(restored).collect();
            Write::Later(Box::new(move || container.restore(values)))
        };
        let remember = |versions: &Vec<u64>| Remembered { versions: versions.clone(), values: None };
        Ok(self.written(apply(ticket, staging, write, remember).await?))
    }
}

fn items(items: Vec<v1::PushItem>) -> Result<Vec<(VariableRef, Option<SlotState>)>> {
    if items.iter().any(|item| item.base_version.is_some()) {
        return Err(invalid("Restore takes no base versions: it sets what is in the checkpoint"));
    }
    let slots = items.iter().map(|item| item.slots.clone().map(slots_from_wire).transpose());
    let slots = slots.collect::<Result<Vec<_>>>()?;
    Ok(variables(references(items)?)?.into_iter().zip(slots).collect())
}
