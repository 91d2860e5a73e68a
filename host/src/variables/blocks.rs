//! A value as shared blocks: readers keep what they saw, writers copy only what is shared.

use super::{Spare, UpdateKind, kernel, parallel};
use crate::tensor::DType;
use bytes::Bytes;
use std::sync::Arc;

/// Size of every block but a value's last, in bytes: large enough that a block costs little to keep,
/// small enough that copying a shared one does; and a multiple of every element size, so that no element is split.
pub const BLOCK_BYTES: usize = 1 << 20;

/// One block, shared by those who read it.
#[derive(Clone, Debug)]
pub(super) struct Block(Arc<Buffer>);

/// A block's bytes. Where they came out of memory that was kept, they go back there.
#[derive(Debug)]
struct Buffer {
    bytes: Vec<u8>,
    home: Option<Spare>,
}

impl Block {
    fn of(bytes: Vec<u8>) -> Self {
        Block(Arc::new(Buffer { bytes, home: None }))
    }

    /// The bytes, to be written to; copies them first where a reader holds them.
    pub(super) fn own(&mut self) -> &mut Vec<u8> {
        &mut Arc::make_mut(&mut self.0).bytes
    }

    fn len(&self) -> usize {
        self.0.bytes.len()
    }
}

impl AsRef<[u8]> for Block {
    fn as_ref(&self) -> &[u8] {
        &self.0.bytes
    }
}

impl Clone for Buffer {
    fn clone(&self) -> Self {
        let mut bytes = buffer(self.bytes.len(), self.home.as_ref());
        bytes.extend_from_slice(&self.bytes);
        Buffer { bytes, home: self.home.clone() }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(home) = self.home.as_ref().filter(|_| self.bytes.capacity() == BLOCK_BYTES) {
            home.put(std::mem::take(&mut self.bytes));
        }
    }
}

/// Memory for a block; whole ones out of what is kept.
fn buffer(bytes: usize, home: Option<&Spare>) -> Vec<u8> {
    match home {
        Some(home) if bytes == BLOCK_BYTES => home.take(bytes),
        _ => Vec::with_capacity(bytes),
    }
}

/// A value's bytes, in blocks of [`BLOCK_BYTES`]. Cloning shares them.
#[derive(Clone, Debug, Default)]
pub struct Blocks {
    blocks: Vec<Block>,
    bytes: usize,
    /// Where whole blocks come from, and go.
    home: Option<Spare>,
}

/// Where the next bytes of a value belong.
#[derive(Debug)]
pub struct BlockRoom<'b> {
    block: &'b mut Vec<u8>,
    before: usize,
    bytes: usize,
    value_bytes: &'b mut usize,
}

impl BlockRoom<'_> {
    /// How many there may be.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// What they are put behind; it has the memory for them.
    pub fn block(&mut self) -> &mut Vec<u8> {
        self.block
    }
}

impl Drop for BlockRoom<'_> {
    fn drop(&mut self) {
        *self.value_bytes += self.block.len() - self.before;
    }
}

/// Blocks that a list has room for before any has come: those of 1 GiB, in 8 KiB.
const LISTED_BLOCKS: usize = 1024;

impl Blocks {
    /// Makes an empty value, with room for the block list of `bytes` bytes.
    ///
    /// The size may be what a remote caller declared, so the list of at most 1 GiB is made ahead.
    pub fn with_capacity(bytes: usize) -> Self {
        let blocks = Vec::with_capacity(bytes.div_ceil(BLOCK_BYTES).min(LISTED_BLOCKS));
        Blocks { blocks, ..Blocks::default() }
    }

    /// Takes whole blocks out of `spare`, to which they go back, whoever drops them.
    pub(crate) fn with_spare(self, spare: Spare) -> Self {
        Blocks { home: Some(spare), ..self }
    }

    /// Copies a value into blocks.
    pub fn copy_of(data: &[u8]) -> Self {
        let blocks = data.chunks(BLOCK_BYTES).map(|block| Block::of(block.to_vec())).collect();
        Blocks { blocks, bytes: data.len(), home: None }
    }

    /// Makes a value of zeros.
    pub(crate) fn zeros(bytes: usize) -> Self {
        let block = |start| Block::of(vec![0; BLOCK_BYTES.min(bytes - start)]);
        Blocks { blocks: (0..bytes).step_by(BLOCK_BYTES).map(block).collect(), bytes, home: None }
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
            let mut room = self.room(data.len(), total);
            let (head, tail) = data.split_at(room.bytes());
            room.block().extend_from_slice(head);
            data = tail;
        }
    }

    /// Where at most `bytes_max` bytes behind those that are there belong, all in one block; `total` is as in
    /// [`append`](Self::append).
    pub(crate) fn room(&mut self, bytes_max: usize, total: usize) -> BlockRoom<'_> {
        let filled = self.bytes % BLOCK_BYTES;
        if filled == 0 {
            let size = total.saturating_sub(self.bytes).clamp(1, BLOCK_BYTES);
            let bytes = buffer(size, self.home.as_ref());
            self.blocks.push(Block(Arc::new(Buffer { bytes, home: self.home.clone() })));
        }
        // Nobody shares a value that is still being filled, so this never copies.
        let block = self.blocks.last_mut().expect("one was pushed where there was none").own();
        let bytes = bytes_max.min(BLOCK_BYTES - filled);
        BlockRoom { before: block.len(), block, bytes, value_bytes: &mut self.bytes }
    }

    /// Applies `value` block by block; copies those blocks that a reader still holds.
    pub(crate) fn apply(&mut self, kind: UpdateKind, dtype: DType, value: &[u8]) {
        let pairs = self.blocks.iter_mut().zip(value.chunks(BLOCK_BYTES));
        parallel::for_each(pairs, value.len(), |(block, value)| block.apply(kind, dtype, value));
    }

    /// Applies another value of the same size, whose blocks are given up one by one.
    pub(crate) fn apply_blocks(&mut self, kind: UpdateKind, dtype: DType, value: Blocks) {
        let pairs = self.blocks.iter_mut().zip(value.blocks);
        parallel::for_each(pairs, value.bytes, |(block, value)| block.apply(kind, dtype, value.as_ref()));
    }

    /// Applies a piece of a value, in whole elements, from byte `offset` on; copies those blocks that a reader still holds.
    pub(crate) fn apply_at(&mut self, kind: UpdateKind, dtype: DType, offset: usize, mut piece: &[u8]) {
        let mut at = offset;
        while let Some(block) = self.blocks.get_mut(at / BLOCK_BYTES).filter(|_| !piece.is_empty()) {
            let within = at % BLOCK_BYTES;
            let (head, tail) = piece.split_at(piece.len().min(block.len() - within));
            block.apply_at(kind, dtype, within, head);
            at += head.len();
            piece = tail;
        }
    }

    /// At most `bytes_max` bytes of one block from byte `offset` on, without copying, as they are now; none at the end.
    pub(crate) fn piece(&self, offset: usize, bytes_max: usize) -> Bytes {
        let Some(block) = self.blocks.get(offset / BLOCK_BYTES) else { return Bytes::new() };
        let start = (offset % BLOCK_BYTES).min(block.len());
        let end = start.saturating_add(bytes_max).min(block.len());
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

    /// The blocks in order, to be written to.
    pub(super) fn blocks_mut(&mut self) -> std::slice::IterMut<'_, Block> {
        self.blocks.iter_mut()
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
            Some(own) => kernel::apply(kind, dtype, &mut own.bytes, value),
            None if kind == UpdateKind::Assign => *self = Block::of(value.to_vec()),
            None => kernel::apply(kind, dtype, self.own(), value),
        }
    }

    fn apply_at(&mut self, kind: UpdateKind, dtype: DType, start: usize, value: &[u8]) {
        if value.len() == self.len() {
            return self.apply(kind, dtype, value);
        }
        kernel::apply(kind, dtype, &mut self.own()[start..start + value.len()], value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn readers_keep_what_they_saw_and_writers_copy_only_shared_blocks() {
        let mut value = Blocks::copy_of(&vec![1; 2 * BLOCK_BYTES]);
        let addresses = |value: &Blocks| value.blocks.iter().map(|block| block.0.bytes.as_ptr()).collect::<Vec<_>>();
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
            prop_assert!(value.blocks.iter().all(|block| block.0.bytes.capacity() == block.len()));
            prop_assert!(Blocks::copy_of(&data).contiguous() == data);
            let pieces: Vec<_> = value.into_pieces(256 << 10).collect();
            prop_assert!(pieces.iter().all(|piece| (1..=256 << 10).contains(&piece.len())));
            prop_assert!(pieces.concat() == data);
        }
    }
}
