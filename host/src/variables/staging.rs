//! Incoming values on their way: staged as blocks, applied when they are complete.

use super::store::Gauge;
use super::{Blocks, Store};
use crate::error::Result;
use crate::tensor::TensorType;
use std::sync::Arc;
use tokio::sync::OwnedSemaphorePermit;

/// The values of one unfinished write.
///
/// An atomic write needs all its bytes before the first is applied, so a server holds one copy of what is on its way, and no
/// more: an assigned value's blocks become the variable's, added ones are freed block by block. Dropping it (the stream broke, the
/// session ended) frees the bytes and leaves every variable as it was.
#[derive(Debug)]
pub struct Staging {
    items: Vec<Item>,
    staged: u64,
    gauge: Arc<Gauge>,
    _permit: OwnedSemaphorePermit,
}

#[derive(Debug)]
struct Item {
    blocks: Blocks,
    bytes: usize,
}

impl Staging {
    /// Waits for room in the server's staging budget, for values of these types. Memory is taken only as bytes arrive.
    ///
    /// # Errors
    /// `invalid-argument`: a type that can't be served.
    ///
    /// # Cancel safety
    /// Dropping it loses the place in the queue and has no other effect.
    pub async fn reserve<'t>(store: &Store, types: impl IntoIterator<Item = &'t TensorType>) -> Result<Staging> {
        let sizes = types.into_iter().map(TensorType::checked_size_bytes).collect::<Result<Vec<_>>>()?;
        let sum = sizes.iter().fold(0_u64, |sum, &bytes| sum.saturating_add(bytes as u64));
        let items = sizes.into_iter().map(|bytes| Item { blocks: Blocks::default(), bytes }).collect();
        let (permit, gauge) = store.reserve_staging(sum).await;
        Ok(Staging { items, staged: 0, gauge, _permit: permit })
    }

    /// Copies the next bytes of a value. The caller has checked that they are in order and don't overrun.
    pub fn append(&mut self, item: usize, data: &[u8]) {
        let Some(Item { blocks, bytes }) = self.items.get_mut(item) else { return };
        if blocks.is_empty() {
            *blocks = Blocks::with_capacity(*bytes);
        }
        blocks.append(data, *bytes);
        self.staged += data.len() as u64;
        self.gauge.add(data.len() as u64);
    }

    /// Bytes that were staged.
    pub fn bytes(&self) -> u64 {
        self.staged
    }

    /// Hands the values over, in order; they count as staged until `self` is dropped, after they were applied.
    pub fn take(&mut self) -> Vec<Blocks> {
        self.items.iter_mut().map(|item| std::mem::take(&mut item.blocks)).collect()
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        self.gauge.sub(self.staged);
    }
}
