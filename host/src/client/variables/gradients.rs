//! Gradients, for the task of their variables to apply.

use super::{RemoteVariables, WRITE_BYTES_MAX, batches, header_bytes};
use crate::error::Result;
use crate::handles::{ApplyOptions, Gradient, Value, VariableRef};
use crate::tensor::check_data;
use crate::variables::SyncStep;
use crate::wire::v1;
use std::future::poll_fn;
use std::task::Poll;

impl RemoteVariables {
    /// Sends gradients. Each of them is applied as a whole, so that relaxed consistency is no less than asked for.
    pub(super) async fn push_gradients(
        &self,
        gradients: Vec<Gradient<'_, VariableRef>>,
        options: ApplyOptions,
    ) -> Result<Vec<Value>> {
        for Gradient { variable, value } in &gradients {
            check_data(&variable.name, &variable.ty, value.data.len())?;
        }
        let size = |gradient: &Gradient<'_, VariableRef>| (header_bytes(&gradient.variable), gradient.value.data.len());
        let push = async |batch: Vec<Gradient<'_, VariableRef>>| {
            let item = |gradient: &Gradient<'_, VariableRef>| v1::PushItem {
                variable: Some((&gradient.variable).into()),
                ..Default::default()
            };
            let header = v1::PushHeader {
                item: batch.iter().map(item).collect(),
                want_values: options.write.want_values,
                optimizer: Some((&options.optimizer).into()),
                // 0 stands for none, so that a scale that is 0 in double precision is sent as the next one.
                clip_scale: options.scale.max(f64::MIN_POSITIVE),
                sync: options.sync.map(|SyncStep { step, replicas }| v1::Sync { step, replicas }),
                ..Default::default()
            };
            let data: Vec<_> = batch.iter().map(|gradient| gradient.value.data).collect();
            let types: Vec<_> = batch.iter().map(|gradient| &gradient.variable.ty).collect();
            self.push_batch(&header, &types, &data).await
        };
        let batches = batches(gradients, WRITE_BYTES_MAX, size);
        if options.sync.is_some() {
            // Each is answered when others have sent theirs, who may have cut theirs otherwise: none waits for another here.
            return try_join(batches.into_iter().map(push)).await;
        }
        let mut all = Vec::new();
        for batch in batches {
            all.extend(push(batch).await?);
        }
        Ok(all)
    }
}

/// Runs all at the same time. Their answers in order, or the first error, which gives the others up.
async fn try_join<F: Future<Output = Result<Vec<Value>>>>(futures: impl Iterator<Item = F>) -> Result<Vec<Value>> {
    let mut running: Vec<_> = futures.map(|future| (Box::pin(future), None)).collect();
    poll_fn(|context| {
        for (future, answer) in running.iter_mut().filter(|(_, answer)| answer.is_none()) {
            if let Poll::Ready(ready) = future.as_mut().poll(context) {
                *answer = Some(ready?);
            }
        }
        if running.iter().all(|(_, answer)| answer.is_some()) { Poll::Ready(Ok(())) } else { Poll::Pending }
    })
    .await?;
    Ok(running.into_iter().filter_map(|(_, answer)| answer).flatten().collect())
}
