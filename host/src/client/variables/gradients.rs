//! Gradients, for the task of their variables to apply.

use super::{RemoteVariables, WRITE_BYTES_MAX, batches, header_bytes};
use crate::error::Result;
use crate::handles::{ApplyOptions, Gradient, Value, VariableRef};
use crate::tensor::check_data;
use crate::variables::unserved;
use crate::wire::v1;

impl RemoteVariables {
    /// Sends gradients. Each of them is applied as a whole, so that relaxed consistency is no less than asked for.
    pub(super) async fn push_gradients(
        &self,
        gradients: Vec<Gradient<'_, VariableRef>>,
        options: ApplyOptions,
    ) -> Result<Vec<Value>> {
        if options.sync.is_some() {
            return Err(unserved("apply-gradients with sync", "leave sync out, and meet at a barrier"));
        }
        for Gradient { variable, value } in &gradients {
            check_data(&variable.name, &variable.ty, value.data.len())?;
        }
        let mut all = Vec::with_capacity(gradients.len());
        let size = |gradient: &Gradient<'_, VariableRef>| (header_bytes(&gradient.variable), gradient.value.data.len());
        for batch in batches(gradients, WRITE_BYTES_MAX, size) {
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
                ..Default::default()
            };
            let data: Vec<_> = batch.iter().map(|gradient| gradient.value.data).collect();
            let types: Vec<_> = batch.iter().map(|gradient| &gradient.variable.ty).collect();
            all.extend(self.push_batch(&header, &types, &data).await?);
        }
        Ok(all)
    }
}
