//! Headers of safetensors files: eight bytes with the header's size, JSON that says which tensor lies where, and the tensors.
//!
//! # Source
//! *Format* in the README of github.com/huggingface/safetensors; the crate of that name has the types and checks what they say.

use crate::tensor::{DType, TensorType};
use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use std::collections::HashMap;
use std::io::Read;

/// The key of a header that names no tensor.
pub(super) const METADATA: &str = "__metadata__";

/// Most bytes of a header that is written or read: room for a hundred thousand tensors, and little memory whatever a file says.
pub(super) const HEADER_BYTES_MAX: u64 = 16 << 20;

/// What stands before a header.
const SIZE_BYTES: u64 = 8;

fn dtype(dtype: DType) -> Dtype {
    match dtype {
        DType::F32 => Dtype::F32,
        DType::F64 => Dtype::F64,
        DType::S32 => Dtype::I32,
        DType::S64 => Dtype::I64,
        DType::U8 => Dtype::U8,
    }
}

/// An upper bound of what a tensor takes in a header.
pub(super) fn header_bytes(name: &str, ty: &TensorType) -> u64 {
    // Of a name's characters, quotes and backslashes take two bytes. Numbers have at most 20 digits.
    2 * name.len() as u64 + 21 * (ty.shape.len() as u64 + 2) + 64
}

/// The beginning of a file of these tensors, which follow in this order without gaps.
///
/// # Errors
/// They overflow the address space.
pub(super) fn header(tensors: &[(&str, &TensorType)]) -> Result<Vec<u8>, String> {
    let mut end = 0_usize;
    let mut infos = Vec::with_capacity(tensors.len());
    for (name, ty) in tensors {
        let start = end;
        let bytes = ty.checked_size_bytes().map_err(|error| error.message)?;
        end = start.checked_add(bytes).ok_or("the tensors of one file overflow the address space")?;
        let shape = ty.shape.iter().map(|&extent| usize::try_from(extent).unwrap_or(usize::MAX)).collect();
        infos.push(((*name).to_owned(), TensorInfo { dtype: dtype(ty.dtype), shape, data_offsets: (start, end) }));
    }
    let about = HashMap::from([("dchost".to_owned(), env!("CARGO_PKG_VERSION").to_owned())]);
    let metadata = Metadata::new(Some(about), infos).map_err(|error| error.to_string())?;
    let mut json = serde_json::to_vec(&metadata).map_err(|error| error.to_string())?;
    // The tensors begin at a multiple of every element's size.
    json.resize(json.len().next_multiple_of(8), b' ');
    let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
    bytes.append(&mut json);
    Ok(bytes)
}

/// Where the tensors of a file lie.
#[derive(Debug)]
pub(super) struct Header {
    metadata: Metadata,
    /// Where the first one begins in the file.
    begin: u64,
}

impl Header {
    /// Reads the beginning of a file of `file_bytes` bytes, which has to be all header and tensors, without gaps or overlaps.
    ///
    /// # Errors
    /// In words.
    pub(super) fn read(mut file: impl Read, file_bytes: u64) -> Result<Header, String> {
        let mut size = [0; SIZE_BYTES as usize];
        file.read_exact(&mut size).map_err(|error| format!("it has no header: {error}"))?;
        let size = u64::from_le_bytes(size);
        if size > HEADER_BYTES_MAX {
            return Err(format!("its header is said to have {size} bytes, at most {HEADER_BYTES_MAX} are read"));
        }
        let begin = SIZE_BYTES + size;
        if begin > file_bytes {
            return Err(format!("its header is said to have {size} bytes, but the file has {file_bytes}"));
        }
        let mut json = vec![0; usize::try_from(size).map_err(|error| error.to_string())?];
        file.read_exact(&mut json).map_err(|error| format!("its header can't be read: {error}"))?;
        let metadata: Metadata =
            serde_json::from_slice(&json).map_err(|error| format!("its header makes no sense: {error}"))?;
        let data = metadata.data_len() as u64;
        if begin.checked_add(data) != Some(file_bytes) {
            return Err(format!("its header tells of {data} bytes of tensors, but {} follow it", file_bytes - begin));
        }
        Ok(Header { metadata, begin })
    }

    /// Where a tensor begins in the file.
    ///
    /// # Errors
    /// In words: it isn't there, or of another type.
    pub(super) fn offset(&self, name: &str, ty: &TensorType) -> Result<u64, String> {
        let shown = crate::text::shown_within(name, 256);
        let info = self.metadata.info(name).ok_or_else(|| format!("it has no tensor `{shown}`"))?;
        let same = info.dtype == dtype(ty.dtype)
            && info.shape.iter().map(|&extent| extent as u64).eq(ty.shape.iter().copied());
        if !same {
            return Err(format!("its tensor `{shown}` is {}{:?}, not `{ty}`", info.dtype, info.shape));
        }
        Ok(self.begin + info.data_offsets.0 as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use safetensors::SafeTensors;

    fn file(header: &str, data: usize) -> Vec<u8> {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header.as_bytes());
        bytes.resize(bytes.len() + data, 7);
        bytes
    }

    fn read(bytes: &[u8]) -> Result<Header, String> {
        Header::read(bytes, bytes.len() as u64)
    }

    #[test]
    fn hostile_headers_are_refused_in_words_and_take_no_memory() {
        let two = |a: &str, b: &str| {
            format!(
                r#"{{"a":{{"dtype":"U8","shape":[4],"data_offsets":{a}}},"b":{{"dtype":"U8","shape":[4],"data_offsets":{b}}}}}"#
            )
        };
        let one = |dtype: &str, shape: &str, end: u64| {
            file(&format!(r#"{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[0,{end}]}}}}"#), 4)
        };
        assert!(read(&file(&two("[0,4]", "[4,8]"), 8)).is_ok());
        assert!(read(&file(&two("[4,8]", "[0,4]"), 8)).is_ok());
        for (bytes, why) in [
            (Vec::new(), "no header"),
            (vec![0; 7], "no header"),
            ([&(1_u64 << 63).to_le_bytes()[..], &[b'{'; 100]].concat(), "is said to have 9223372036854775808 bytes"),
            ([&u64::MAX.to_le_bytes()[..], &[b'{'; 100]].concat(), "is said to have"),
            ([&100_u64.to_le_bytes()[..], b"{}"].concat(), "but the file has 10"),
            (file("", 0), "makes no sense"),
            (file("{\"a\":1}", 0), "makes no sense"),
            (file("\u{0}\u{1}", 0), "makes no sense"),
            (file(&two("[0,4]", "[0,4]"), 8), "makes no sense"),
            (file(&two("[0,4]", "[2,6]"), 8), "makes no sense"),
            (file(&two("[0,4]", "[5,9]"), 9), "makes no sense"),
            (file(&two("[0,4]", "[4,8]"), 7), "tells of 8 bytes of tensors, but 7 follow"),
            (file(&two("[0,4]", "[4,8]"), 9), "tells of 8 bytes of tensors, but 9 follow"),
            (one("U8", "[9223372036854775807,4]", 4), "makes no sense"),
            (one("U8", "[5]", 4), "makes no sense"),
            (one("F32", "[1]", u64::MAX), "makes no sense"),
            (one("COMPLEX256", "[1]", 4), "makes no sense"),
        ] {
            let error = read(&bytes).unwrap_err();
            assert!(error.contains(why), "{error} has no `{why}`");
        }
        let header = read(&one("F16", "[2]", 4)).expect("another tool's");
        let error = header.offset("a", &TensorType::new(DType::F32, [1])).unwrap_err();
        assert!(error.contains("`a` is F16[2], not `f32[1]`"), "{error}");
        assert!(
            header.offset("b", &TensorType::new(DType::F32, [1])).is_err_and(|error| error.contains("no tensor `b`"))
        );
    }

    fn tensors() -> impl Strategy<Value = Vec<(String, TensorType)>> {
        let ty = (0..DType::ALL.len(), prop::collection::vec(0..5_u64, 0..4));
        let ty = ty.prop_map(|(at, shape)| TensorType::new(DType::ALL[at], shape));
        prop::collection::btree_map("[a-zé\"\\\\/ 名]{1,12}", ty, 0..8).prop_map(|map| map.into_iter().collect())
    }

    proptest! {
        /// What is written is read by the reference implementation, and here, at the same places; headers are aligned, and no
        /// larger than was reckoned.
        #[test]
        fn headers_are_those_of_the_reference(tensors in tensors()) {
            let list: Vec<_> = tensors.iter().map(|(name, ty)| (name.as_str(), ty)).collect();
            let mut bytes = header(&list).unwrap();
            prop_assert!(bytes.len().is_multiple_of(8));
            let reckoned: u64 = list.iter().map(|(name, ty)| header_bytes(name, ty)).sum();
            prop_assert!(bytes.len() as u64 <= reckoned + 64, "{} of {reckoned}", bytes.len());
            let begin = bytes.len();
            let total: usize = list.iter().map(|(_, ty)| ty.size_bytes().unwrap()).sum();
            bytes.extend((0..total).map(|at| at as u8));
            let theirs = SafeTensors::deserialize(&bytes).unwrap();
            let ours = read(&bytes).unwrap();
            prop_assert_eq!(theirs.len(), list.len());
            let mut at = begin;
            for (name, ty) in list {
                let size = ty.size_bytes().unwrap();
                let tensor = theirs.tensor(name).unwrap();
                prop_assert_eq!(tensor.data(), &bytes[at..at + size]);
                prop_assert_eq!(tensor.shape().len(), ty.shape.len());
                prop_assert_eq!(ours.offset(name, ty), Ok(at as u64));
                at += size;
            }
        }
    }
}
