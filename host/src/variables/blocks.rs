//! A value as shared blocks: readers keep what they saw, writers copy only what is shared.

use super::{Spare, UpdateKind, kernel};
use crate::tensor::DType;
use bytes::Bytes;
use std::sync::Arc;

/// Size of every block but a value's last, in bytes: large enough that a block costs little to keep,
/// small enough that copying a shared one does; and a multiple of every element size, so that no element is split.
pub const BLOCK_BYTES: usize = 1 << 20;

/// One block; owns its bytes, shared by those who read it.
#[derive(Clone, Debug)]
struct Block(Arc<Vec<u8>>);

impl AsRef<[u8]> for Block {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// A value's bytes, in blocks of [`BLOCK_BYTES`]. Cloning shares them.
#[derive(Clone, Debug, Default)]
pub struct Blocks {
    blocks: Vec<Block>,
    bytes: usize,
}

/// Blocks that a list has room for before any has come: those of 1 GiB, in 8 KiB.
const LISTED_BLOCKS: usize = 1024;

impl Blocks {
    /// Makes an empty value, with room for the block list of `bytes` bytes.
    ///
    /// The size may be what a remote caller declared, so the list of at most 1 GiB is made ahead.
    pub fn with_capacity(bytes: usize) -> Self {
        Blocks { blocks: Vec::with_capacity(bytes.div_ceil(BLOCK_BYTES).min(LISTED_BLOCKS)), bytes: 0 }
    }

    /// Copies a value into blocks.
    pub fn copy_of(data: &[u8]) -> Self {
        let blocks = data.chunks(BLOCK_BYTES).map(|block| Block(Arc::new(block.to_vec()))).collect();
        Blocks { blocks, bytes: data.len() }
    }

    /// Makes a value of zeros.
    pub(crate) fn zeros(bytes: usize) -> Self {
        let block = |start| Block(Arc::new(vec![0; BLOCK_BYTES.min(bytes - start)]));
        Blocks { blocks: (0..bytes).step_by(BLOCK_BYTES).map(block).collect(), bytes }
    }

    /// The value's size, in bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether the value has no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Copies `data` behind what is there; `total` is the size that the value will have in the end, in bytes.
    ///
    /// Blocks are allocated when their first byte arrives, at the size they will have.
    pub fn append(&mut self, mut data: &[u8], total: usize) {
        while !data.is_empty() {
            let filled = self.bytes % BLOCK_BYTES;
            if filled == 0 {
                let size = total.saturating_sub(self.bytes).clamp(1, BLOCK_BYTES);
                self.blocks.push(Block(Arc::new(Vec::with_capacity(size))));
            }
            let (head, tail) = data.split_at(data.len().min(BLOCK_BYTES - filled));
            if let Some(block) = self.blocks.last_mut() {
                // Nobody shares a value that is still being filled, so this never copies.
                Arc::make_mut(&mut block.0).extend_from_slice(head);
            }
            self.bytes += head.len();
            data = tail;
        }
    }

    /// Applies `value` block by block; copies those blocks that a reader still holds.
    pub(crate) fn apply(&mut self, kind: UpdateKind, dtype: DType, value: &[u8]) {
        for (block, value) in self.blocks.iter_mut().zip(value.chunks(BLOCK_BYTES)) {
            block.apply(kind, dtype, value);
        }
    }

    /// Applies another value of the same size, whose blocks are given up one by one.
    pub(crate) fn apply_blocks(&mut self, kind: UpdateKind, dtype: DType, value: Blocks) {
        for (block, value) in self.blocks.iter_mut().zip(value.blocks) {
            block.apply(kind, dtype, value.as_ref());
        }
    }

    /// Applies a piece of a value, in whole elements, from byte `offset` on; copies those blocks that a reader still holds.
    pub(crate) fn apply_at(&mut self, kind: UpdateKind, dtype: DType, offset: usize, mut piece: &[u8]) {
        let mut at = offset;
        while let Some(block) = self.blocks.get_mut(at / BLOCK_BYTES).filter(|_| !piece.is_empty()) {
            let within = at % BLOCK_BYTES;
            let (head, tail) = piece.split_at(piece.len().min(block.0.len() - within));
            block.apply_at(kind, dtype, within, head);
            at += head.len();
            piece = tail;
        }
    }

    /// At most `bytes_max` bytes of one block from byte `offset` on, without copying, as they are now; none at the end.
    pub(crate) fn piece(&self, offset: usize, bytes_max: usize) -> Bytes {
        let Some(block) = self.blocks.get(offset / BLOCK_BYTES) else { return Bytes::new() };
        let start = (offset % BLOCK_BYTES).min(block.0.len());
        let end = start.saturating_add(bytes_max).min(block.0.len());
        Bytes::from_owner(block.clone()).slice(start..end)
    }

    /// Copies `bytes` bytes from byte `offset` on behind what `into` has; they may lie in several blocks.
    pub(crate) fn copy(&self, offset: usize, bytes: usize, into: &mut Vec<u8>) {
        let (mut at, end) = (offset, offset + bytes);
        while at < end {
            let block = self.blocks[at / BLOCK_BYTES].as_ref();
            let start = at % BLOCK_BYTES;
            let part = &block[start..block.len().min(start + end - at)];
            into.extend_from_slice(part);
            at += part.len();
        }
    }

    /// Whether changing the block of byte `offset` would copy it, because a reader still holds it.
    pub(crate) fn is_shared(&self, offset: usize) -> bool {
        self.blocks.get(offset / BLOCK_BYTES).is_some_and(|block| Arc::strong_count(&block.0) > 1)
    }

    /// The blocks in order, to be written to; copies those that a reader still holds, as they are taken.
    pub(crate) fn blocks_mut(&mut self) -> impl Iterator<Item = &mut [u8]> {
        self.blocks.iter_mut().map(|block| Arc::make_mut(&mut block.0).as_mut_slice())
    }

    /// The blocks in order, without copying; each keeps its bytes as they are now.
    pub fn slices(&self) -> impl Iterator<Item = Bytes> + '_ {
        self.blocks.iter().cloned().map(Bytes::from_owner)
    }

    /// As [`slices`](Self::slices) in pieces of at most `bytes_max` bytes, giving each block up as it is taken.
    /// `bytes_max` must be a multiple of every element size, and not 0.
    pub fn into_pieces(self, bytes_max: usize) -> impl Iterator<Item = Bytes> + Send {
        self.blocks.into_iter().map(Bytes::from_owner).flat_map(move |block| {
            (0..block.len()).step_by(bytes_max).map(move |start| block.slice(start..block.len().min(start + bytes_max)))
        })
    }

    /// The whole value in one piece; copies unless it is a single block.
    pub fn contiguous(&self) -> Bytes {
        self.contiguous_in(&Spare::default())
    }

    /// As [`contiguous`](Self::contiguous), with memory of `spare`.
    pub fn contiguous_in(&self, spare: &Spare) -> Bytes {
        match self.blocks.as_slice() {
            [] => Bytes::new(),
            [block] => Bytes::from_owner(block.clone()),
            blocks => {
                let mut all = spare.take(self.bytes);
                blocks.iter().for_each(|block| all.extend_from_slice(block.as_ref()));
                spare.lend(all)
            }
        }
    }
}

impl Block {
    fn apply(&mut self, kind: UpdateKind, dtype: DType, value: &[u8]) {
        match Arc::get_mut(&mut self.0) {
            Some(own) => kernel::apply(kind, dtype, own, value),
            None if kind == UpdateKind::Assign => self.0 = Arc::new(value.to_vec()),
            None => kernel::apply(kind, dtype, Arc::make_mut(&mut self.0).as_mut_slice(), value),
        }
    }

    fn apply_at(&mut self, kind: UpdateKind, dtype: DType, start: usize, value: &[u8]) {
        if value.len() == self.0.len() {
            return self.apply(kind, dtype, value);
        }
        let own = Arc::make_mut(&mut self.0);
        kernel::apply(kind, dtype, &mut own[start..start + value.len()], value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn readers_keep_what_they_saw_and_writers_copy_only_shared_blocks() {
        let mut value = Blocks::copy_of(&vec![1; 2 * BLOCK_BYTES]);
        let addresses = |value: &Blocks| value.blocks.iter().map(|block| block.0.as_ptr()).collect::<Vec<_>>();
        let before = addresses(&value);
        let ones = vec![1; 2 * BLOCK_BYTES];
        value.apply(UpdateKind::Add, DType::U8, &ones);
        assert_eq!(addresses(&value), before, "an unshared value is updated in place");

        let seen = value.slices().next().unwrap();
        value.apply(UpdateKind::Add, DType::U8, &ones);
        assert!(seen.iter().all(|&byte| byte == 2));
        assert!(value.contiguous().iter().all(|&byte| byte == 3));
        let after = addresses(&value);
        assert_ne!(after[0], before[0]);
        assert_eq!(after[1], before[1], "the block that nobody reads stays in place");

        drop(seen);
        value.apply(UpdateKind::Assign, DType::U8, &ones);
        assert_eq!(addresses(&value), after, "a reader that has gone costs nothing");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn appended_pieces_make_the_same_value(sizes in prop::collection::vec(0..700_000_usize, 0..6)) {
            let total: usize = sizes.iter().sum();
            let data: Vec<u8> = (0..total).map(|i| (i / 251) as u8).collect();
            let (mut value, mut rest) = (Blocks::with_capacity(total), data.as_slice());
            for size in sizes {
                let (head, tail) = rest.split_at(size);
                value.append(head, total);
                rest = tail;
            }
            prop_assert_eq!(value.len(), total);
            prop_assert!(value.contiguous() == data);
            prop_assert!(value.slices().all(|slice| slice.len() <= BLOCK_BYTES));
            prop_assert!(value.blocks.iter().all(|block| block.0.capacity() == block.0.len()));
            prop_assert!(Blocks::copy_of(&data).contiguous() == data);
            let pieces: Vec<_> = value.into_pieces(256 << 10).collect();
            prop_assert!(pieces.iter().all(|piece| (1..=256 << 10).contains(&piece.len())));
            prop_assert!(pieces.concat() == data);
        }
    }
}
