//! Bytes as they came, in pieces.

use bytes::{Buf, Bytes, BytesMut};
use std::collections::VecDeque;

/// Bytes that are read from their beginning. What lies within one piece is handed out as a part of it.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    pieces: VecDeque<Bytes>,
    bytes: usize,
}

impl Pieces {
    /// Puts bytes behind what is there.
    pub(super) fn push(&mut self, data: Bytes) {
        if !data.is_empty() {
            self.bytes += data.len();
            self.pieces.push_back(data);
        }
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.bytes
    }

    /// The first ones, if so many are there.
    pub(super) fn peek<const N: usize>(&self) -> Option<[u8; N]> {
        if self.bytes < N {
            return None;
        }
        let mut first = [0; N];
        for (to, from) in first.iter_mut().zip(self.pieces.iter().flatten()) {
            *to = *from;
        }
        Some(first)
    }

    /// Passes over `skipped` bytes; then the `bytes` behind them are a message, which takes them out as it is read.
    pub(super) fn message(&mut self, skipped: usize, bytes: usize) -> impl Buf + '_ {
        self.advance(skipped);
        let left = self.bytes - bytes;
        Message { pieces: self, left }
    }
}

impl Buf for Pieces {
    fn remaining(&self) -> usize {
        self.bytes
    }

    fn chunk(&self) -> &[u8] {
        self.pieces.front().map_or(&[], Bytes::as_ref)
    }

    fn advance(&mut self, mut count: usize) {
        assert!(count <= self.bytes, "fewer bytes are there");
        self.bytes -= count;
        while let Some(first) = self.pieces.front_mut().filter(|_| count > 0) {
            let taken = count.min(first.len());
            first.advance(taken);
            count -= taken;
            if first.is_empty() {
                self.pieces.pop_front();
            }
        }
    }

    fn copy_to_bytes(&mut self, count: usize) -> Bytes {
        assert!(count <= self.bytes, "fewer bytes are there");
        if let Some(first) = self.pieces.front_mut().filter(|first| first.len() >= count) {
            let taken = first.split_to(count);
            if first.is_empty() {
                self.pieces.pop_front();
            }
            self.bytes -= count;
            return taken;
        }
        let mut taken = BytesMut::with_capacity(count);
        while taken.len() < count {
            let part = self.chunk();
            let part_bytes = part.len().min(count - taken.len());
            taken.extend_from_slice(&part[..part_bytes]);
            self.advance(part_bytes);
        }
        taken.freeze()
    }
}

/// One message; however it is read, what follows it stays, and nothing of it does.
struct Message<'p> {
    pieces: &'p mut Pieces,
    /// Bytes behind it.
    left: usize,
}

impl Buf for Message<'_> {
    fn remaining(&self) -> usize {
        self.pieces.len() - self.left
    }

    fn chunk(&self) -> &[u8] {
        let chunk = self.pieces.chunk();
        &chunk[..chunk.len().min(self.remaining())]
    }

    fn advance(&mut self, count: usize) {
        assert!(count <= self.remaining(), "the message has fewer bytes");
        self.pieces.advance(count);
    }

    fn copy_to_bytes(&mut self, count: usize) -> Bytes {
        assert!(count <= self.remaining(), "the message has fewer bytes");
        self.pieces.copy_to_bytes(count)
    }
}

impl Drop for Message<'_> {
    fn drop(&mut self) {
        let rest = self.remaining();
        self.pieces.advance(rest);
    }
}
