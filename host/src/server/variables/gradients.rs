//! Pushes with an optimizer: gradients, which this server makes changes of.

use super::{Begin, Values, VariablesService, Write, apply, invalid, references, replay};
use crate::error::Result;
use crate::server::guard::Admitted;
use crate::variables::{ApplyOptions, Blocks, Optimizer, Payload, Remembered, Snapshot, TryApply, WriteOptions};
use crate::wire::v1;
use crate::wire::variables::variables;
use tonic::Status;

impl VariablesService {
    /// Receives gradients and applies them; the header has an optimizer.
    pub(super) async fn push_gradients(
        &self,
        admitted: &Admitted,
        mut header: v1::PushHeader,
        incoming: &mut Values<'_>,
    ) -> Result<Vec<Snapshot>, Status> {
        let options = apply_options(&mut header)?;
        let want_values = options.write.want_values;
        let variables = variables(references(header.item)?)?;
        let container = self.open(&admitted.caller)?;

        let mut ticket = match self.begin(admitted).await? {
            Begin::Replay(answer) => return Ok(replay(&container, &variables, want_values, answer?).await?),
            Begin::Fresh(ticket) => ticket,
        };
        container.check_apply(&variables, &options.optimizer)?;
        let staging = self.receive(admitted, &mut ticket, incoming, &variables).await?;
        let write = move |values: Vec<Blocks>, inline| {
            let mut gradients = variables.into_iter().zip(values.into_iter().map(Payload::Owned)).collect();
            if inline {
                match container.try_apply(gradients, &options) {
                    Ok(TryApply::Applied(snapshots)) => return Write::Done(Ok(snapshots)),
                    Ok(TryApply::Busy(returned)) => gradients = returned,
                    Err(error) => return Write::Done(Err(error)),
                }
            }
            Write::Later(Box::new(move || container.apply(gradients, &options)))
        };
        let remember = move |snapshots: &Vec<Snapshot>| Remembered::of(snapshots, want_values);
        Ok(apply(ticket, staging, write, remember).await?)
    }
}

pub(super) fn apply_options(header: &mut v1::PushHeader) -> Result<ApplyOptions> {
    let optimizer = header.optimizer.take().ok_or_else(|| crate::wire::header::missing("optimizer"))?;
    let scale = match header.clip_scale {
        0.0 => 1.0,
        scale if scale > 0.0 && scale <= 1.0 => scale,
        _ => return Err(invalid("`clip_scale` is 0 for none, or a number above 0 and at most 1")),
    };
    if header.item.iter().any(|item| item.base_version.is_some()) {
        return Err(invalid("a push with an optimizer takes no base versions: gradients are applied to what is there"));
    }
    let write = WriteOptions { want_values: header.want_values, ..WriteOptions::default() };
    Ok(ApplyOptions { optimizer: Optimizer::try_from(optimizer)?, scale, sync: None, write })
}
