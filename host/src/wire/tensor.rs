//! Tensor headers, and the order of chunks.

use crate::error::{Error, ErrorCode, Result};
use crate::tensor::{DType, Tensor, TensorType};
use crate::wire::v1;
use bytes::Bytes;

/// Size of the chunks that both ends send, in bytes, a value's last excepted: with frames of 1 MiB the fastest on loopback, small
/// enough to stay in the cache between copying and encoding. Receivers take any size up to a message's.
pub const CHUNK_BYTES: usize = 256 << 10;

impl From<DType> for v1::DType {
    fn from(dtype: DType) -> Self {
        match dtype {
            DType::F32 => v1::DType::F32,
            DType::F64 => v1::DType::F64,
            DType::S32 => v1::DType::S32,
            DType::S64 => v1::DType::S64,
            DType::U8 => v1::DType::U8,
        }
    }
}

impl From<&TensorType> for v1::TensorHeader {
    fn from(ty: &TensorType) -> Self {
        v1::TensorHeader { dtype: v1::DType::from(ty.dtype).into(), shape: ty.shape.clone() }
    }
}

impl TryFrom<v1::TensorHeader> for TensorType {
    type Error = Error;

    /// Converts a tensor's header.
    ///
    /// # Errors
    /// `invalid-argument`: an unknown dtype, or a type that can't be served.
    fn try_from(header: v1::TensorHeader) -> Result<Self> {
        tensor_type(header.dtype, header.shape)
    }
}

/// Converts and checks dtype and shape.
///
/// # Errors
/// `invalid-argument`: an unknown dtype, a rank or a size that can't be served.
pub(crate) fn tensor_type(dtype: i32, shape: Vec<u64>) -> Result<TensorType> {
    let dtype = match v1::DType::try_from(dtype) {
        Ok(v1::DType::F32) => DType::F32,
        Ok(v1::DType::F64) => DType::F64,
        Ok(v1::DType::S32) => DType::S32,
        Ok(v1::DType::S64) => DType::S64,
        Ok(v1::DType::U8) => DType::U8,
        Ok(v1::DType::DtypeUnspecified) | Err(_) => {
            let message = format!("dtype number `{dtype}` is unknown, known are f32, f64, s32, s64 and u8");
            return Err(Error::new(ErrorCode::InvalidArgument, message));
        }
    };
    let ty = TensorType { dtype, shape };
    ty.checked_size_bytes()?;
    Ok(ty)
}

/// Checks that the chunks of a stream are the bytes that its header promised: items in order, each from offset 0, without
/// gaps, in whole elements. An item without bytes has no chunk.
#[derive(Debug)]
pub struct ChunkOrder {
    /// Size of each item, and of its element.
    items: Vec<(usize, usize)>,
    item: usize,
    offset: usize,
}

impl ChunkOrder {
    /// Expects the bytes of tensors of these types.
    ///
    /// # Errors
    /// `invalid-argument`: a type that can't be served.
    pub fn new<'t>(types: impl IntoIterator<Item = &'t TensorType>) -> Result<Self> {
        let size = |ty: &TensorType| Ok((ty.checked_size_bytes()?, ty.dtype.size_bytes()));
        let mut order = ChunkOrder { items: types.into_iter().map(size).collect::<Result<_>>()?, item: 0, offset: 0 };
        order.skip_complete();
        Ok(order)
    }

    /// Takes the next chunk; answers with its item's index.
    ///
    /// # Errors
    /// `invalid-argument` naming item and offset: another item or offset than comes next, no bytes, broken elements, or more
    /// bytes than the item has.
    pub fn accept(&mut self, chunk: &v1::Chunk) -> Result<usize> {
        let (item, offset, bytes) = (chunk.item, chunk.offset, chunk.data.len());
        let Some(&(size, element)) = self.items.get(self.item) else {
            return Err(invalid(format!(
                "chunk of item `{item}` at offset `{offset}` comes after all items were complete"
            )));
        };
        if item as usize != self.item || offset != self.offset as u64 {
            let (next, at) = (self.item, self.offset);
            return Err(invalid(format!(
                "chunk of item `{item}` at offset `{offset}` came where item `{next}` at offset `{at}` comes next"
            )));
        }
        if bytes == 0 || !bytes.is_multiple_of(element) {
            return Err(invalid(format!(
                "chunk of item `{item}` at offset `{offset}` has `{bytes}` bytes, it takes whole elements of `{element}`"
            )));
        }
        if bytes > size - self.offset {
            return Err(invalid(format!(
                "chunk of item `{item}` at offset `{offset}` has `{bytes}` bytes and overruns the item's `{size}`"
            )));
        }
        let item = self.item;
        self.pass(bytes);
        Ok(item)
    }

    /// What comes next: the item, its offset, and how many bytes of it are left; none once all have come.
    pub fn next(&self) -> Option<(usize, usize, usize)> {
        let (size, _) = self.items.get(self.item)?;
        Some((self.item, self.offset, size - self.offset))
    }

    /// Notes that so many bytes of the item that comes next have come, at most what is left of it.
    pub fn pass(&mut self, bytes: usize) {
        self.offset += bytes;
        self.skip_complete();
    }

    /// Whether all bytes have come.
    pub fn is_complete(&self) -> bool {
        self.item == self.items.len()
    }

    /// Checks at the stream's end that all bytes have come.
    ///
    /// # Errors
    /// `invalid-argument` naming the first item that is incomplete, and the offset.
    pub fn finish(&self) -> Result<()> {
        let Some((size, _)) = self.items.get(self.item) else { return Ok(()) };
        let (item, offset) = (self.item, self.offset);
        Err(invalid(format!("stream ended in item `{item}` at offset `{offset}` of `{size}` bytes")))
    }

    fn skip_complete(&mut self) {
        while self.items.get(self.item).is_some_and(|&(size, _)| size == self.offset) {
            self.item += 1;
            self.offset = 0;
        }
    }
}

/// Puts tensors together from the chunks of a stream. One that came in a single chunk is that chunk, not a copy.
#[derive(Debug)]
pub struct Gather {
    types: Vec<TensorType>,
    order: ChunkOrder,
    parts: Vec<Vec<u8>>,
    whole: Vec<Bytes>,
}

impl Gather {
    /// Expects tensors of these types, for whose bytes the caller has room. Memory is taken when the first of them come.
    ///
    /// # Errors
    /// `invalid-argument`: a type that can't be served.
    pub fn new(types: Vec<TensorType>) -> Result<Self> {
        let order = ChunkOrder::new(&types)?;
        let count = types.len();
        Ok(Gather { types, order, parts: vec![Vec::new(); count], whole: vec![Bytes::new(); count] })
    }

    /// Takes the next chunk.
    ///
    /// # Errors
    /// Those of [`ChunkOrder::accept`].
    pub fn accept(&mut self, chunk: v1::Chunk) -> Result<()> {
        let item = self.order.accept(&chunk)?;
        let bytes = self.types[item].checked_size_bytes()?;
        if chunk.data.len() == bytes {
            self.whole[item] = chunk.data;
            return Ok(());
        }
        let part = &mut self.parts[item];
        if part.is_empty() {
            // Whoever expects them has taken account of all bytes; memory that isn't written takes none.
            part.reserve_exact(bytes);
        }
        part.extend_from_slice(&chunk.data);
        if part.len() == bytes {
            self.whole[item] = std::mem::take(part).into();
        }
        Ok(())
    }

    /// Whether all bytes have come.
    pub fn is_complete(&self) -> bool {
        self.order.is_complete()
    }

    /// The tensors, in order.
    ///
    /// # Errors
    /// Those of [`ChunkOrder::finish`].
    pub fn finish(self) -> Result<Vec<Tensor>> {
        self.order.finish()?;
        Ok(self.types.into_iter().zip(self.whole).map(|(ty, data)| Tensor { ty, data }).collect())
    }
}

/// Largest chunk of an op's tensor, in bytes, so that one of up to 1 MiB is a single message, which its receiver takes as it came.
const WHOLE_CHUNK_BYTES: usize = 1 << 20;

/// Cuts tensors into chunks, which share their bytes.
pub fn chunks(tensors: Vec<Tensor>) -> impl Iterator<Item = v1::Chunk> + Send {
    (0..).zip(tensors).flat_map(|(item, tensor)| {
        let mut rest = tensor.data;
        let mut offset = 0;
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let data = rest.split_to(rest.len().min(WHOLE_CHUNK_BYTES));
            let chunk = v1::Chunk { item, offset, data };
            offset += chunk.data.len() as u64;
            Some(chunk)
        })
    })
}

fn invalid(message: String) -> Error {
    Error::new(ErrorCode::InvalidArgument, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};

    fn chunk(item: u32, offset: u64, bytes: usize) -> v1::Chunk {
        v1::Chunk { item, offset, data: vec![0; bytes].into() }
    }

    #[test]
    fn types_survive_the_wire() {
        for dtype in DType::ALL {
            let ty = TensorType::new(dtype, [2, 0, 5]);
            assert_eq!(TensorType::try_from(v1::TensorHeader::from(&ty)), Ok(ty));
        }
        let unknown = v1::TensorHeader { dtype: 99, shape: vec![] };
        assert!(TensorType::try_from(unknown).unwrap_err().message.contains("`99`"));
        assert!(TensorType::try_from(v1::TensorHeader::default()).is_err());
        assert!(tensor_type(v1::DType::F64.into(), vec![u64::MAX, 2]).is_err());
    }

    #[test]
    fn tensors_survive_their_chunks() {
        let tensor = |dtype, elements: usize, seed: u8| Tensor {
            ty: TensorType::new(dtype, [elements as u64]),
            data: (0..elements * DType::size_bytes(dtype)).map(|byte| byte as u8 ^ seed).collect(),
        };
        let elements = WHOLE_CHUNK_BYTES / 4;
        let tensors = vec![
            tensor(DType::F32, 0, 1),
            tensor(DType::F32, elements, 2),
            tensor(DType::U8, 2 * WHOLE_CHUNK_BYTES + 3, 3),
            tensor(DType::S64, 1, 4),
        ];
        let mut gather = Gather::new(tensors.iter().map(|tensor| tensor.ty.clone()).collect()).unwrap();
        let chunks: Vec<_> = super::chunks(tensors.clone()).collect();
        assert_eq!(chunks.len(), 5);
        for chunk in chunks {
            assert!(!gather.is_complete());
            gather.accept(chunk).unwrap();
        }
        assert!(gather.is_complete());
        assert_eq!(gather.finish().unwrap(), tensors);
    }

    /// Items: f32[4] (16 bytes), f32[0], u8[3].
    fn check(chunks: &[v1::Chunk], expected: Expect) {
        let types = [(DType::F32, 4), (DType::F32, 0), (DType::U8, 3)].map(|(dtype, n)| TensorType::new(dtype, [n]));
        let mut order = ChunkOrder::new(&types).unwrap();
        let result = chunks.iter().try_for_each(|chunk| order.accept(chunk).map(drop)).and_then(|()| order.finish());
        expected.assert_eq(&result.map_or_else(|error| error.message, |()| "complete".into()));
    }

    #[test]
    fn chunks_come_in_order_whole_and_complete() {
        check(&[chunk(0, 0, 16), chunk(2, 0, 3)], expect!["complete"]);
        check(&[chunk(0, 0, 4), chunk(0, 4, 12), chunk(2, 0, 1), chunk(2, 1, 2)], expect!["complete"]);
        check(&[], expect!["stream ended in item `0` at offset `0` of `16` bytes"]);
        check(&[chunk(0, 0, 8)], expect!["stream ended in item `0` at offset `8` of `16` bytes"]);
        check(&[chunk(0, 0, 16)], expect!["stream ended in item `2` at offset `0` of `3` bytes"]);
        check(
            &[chunk(0, 4, 12)],
            expect!["chunk of item `0` at offset `4` came where item `0` at offset `0` comes next"],
        );
        check(
            &[chunk(0, 0, 8), chunk(0, 4, 8)],
            expect!["chunk of item `0` at offset `4` came where item `0` at offset `8` comes next"],
        );
        check(
            &[chunk(2, 0, 3)],
            expect!["chunk of item `2` at offset `0` came where item `0` at offset `0` comes next"],
        );
        check(
            &[chunk(0, 0, 16), chunk(1, 0, 4)],
            expect!["chunk of item `1` at offset `0` came where item `2` at offset `0` comes next"],
        );
        check(
            &[chunk(0, 0, 6)],
            expect!["chunk of item `0` at offset `0` has `6` bytes, it takes whole elements of `4`"],
        );
        check(
            &[chunk(0, 0, 0)],
            expect!["chunk of item `0` at offset `0` has `0` bytes, it takes whole elements of `4`"],
        );
        check(
            &[chunk(0, 0, 8), chunk(0, 8, 12)],
            expect!["chunk of item `0` at offset `8` has `12` bytes and overruns the item's `16`"],
        );
        check(
            &[chunk(0, 0, 16), chunk(2, 0, 3), chunk(3, 0, 1)],
            expect!["chunk of item `3` at offset `0` comes after all items were complete"],
        );
        check(
            &[chunk(u32::MAX, u64::MAX, 4)],
            expect![
                "chunk of item `4294967295` at offset `18446744073709551615` came where item `0` at offset `0` comes next"
            ],
        );
    }
}
