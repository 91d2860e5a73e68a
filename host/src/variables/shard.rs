//! Parts of a variable along axis 0, one on each of several tasks.

use crate::error::{Error, ErrorCode, Result};
use crate::tensor::TensorType;
use std::fmt;
use std::sync::Arc;

/// Least size of a part, in bytes: below it a call costs more than the bytes that it moves.
///
/// # Source
/// `min_shard_bytes` of `MinSizePartitioner` in TensorFlow's `sharded_variable.py`, 256 KiB.
pub const SHARD_BYTES_MIN: usize = 256 << 10;

/// Variables from this size on are spread over the ps tasks without being asked to: four parts of the least size, so that what
/// lies on one task for the sake of its version is at most a small matrix.
pub const AUTO_SHARD_BYTES_MIN: usize = 1 << 20;

/// Most parts of a variable: each names the tasks of all, which so take 1 KiB at most.
pub const SHARDS_MAX: usize = 256;

/// Which part of a variable a task holds. The task keeps it with the value, and refuses calls that take it for another.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shard {
    /// Which part, below the number of parts.
    pub index: u32,
    /// Its first row in the whole variable.
    pub first_row: u64,
    /// Rows of the whole variable.
    pub whole_rows: u64,
    /// The index of the ps task of each part, in order; as many as there are parts.
    pub ps: Arc<[u32]>,
}

/// A task's answer that it holds a variable otherwise than a call took it for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredShard {
    /// The variable.
    pub name: String,
    /// What the task holds of it; none: all.
    pub shard: Option<Shard>,
}

/// In how many parts a variable is spread over `places` tasks, if each part has at least `bytes_min` bytes and one row.
///
/// At least 1, at most [`SHARDS_MAX`]; a scalar is one part.
pub fn shard_count(ty: &TensorType, places: usize, bytes_min: usize) -> usize {
    let (Some(&rows), Some(bytes)) = (ty.shape.first(), ty.size_bytes()) else { return 1 };
    let rows = usize::try_from(rows).unwrap_or(usize::MAX);
    places.min(rows).min(bytes / bytes_min.max(1)).clamp(1, SHARDS_MAX)
}

/// First row and number of rows of each of `count` parts of `rows` rows, in order. The first parts have one row more where it
/// doesn't come out even.
pub fn shard_rows(rows: u64, count: usize) -> impl Iterator<Item = (u64, u64)> {
    let count = count as u64;
    let (least, more) = (rows / count.max(1), rows % count.max(1));
    (0..count).map(move |index| (index * least + index.min(more), least + u64::from(index < more)))
}

/// The parts of a variable on these ps tasks, one each, in order.
pub fn shard_map(ty: &TensorType, ps: &Arc<[u32]>) -> Vec<(Shard, TensorType)> {
    let whole_rows = ty.shape.first().copied().unwrap_or_default();
    let part =
        |(index, (first_row, rows))| (Shard { index, first_row, whole_rows, ps: ps.clone() }, ty.with_rows(rows));
    (0..).zip(shard_rows(whole_rows, ps.len())).map(part).collect()
}

impl Shard {
    /// In how many parts the variable is.
    pub fn count(&self) -> usize {
        self.ps.len()
    }

    /// Checks what a caller says about a part of so many rows.
    ///
    /// # Errors
    /// `invalid-argument`: less than 2 or more than [`SHARDS_MAX`] parts, an index that isn't below their number, no rows, or
    /// more than the variable has.
    pub fn check(&self, name: &str, rows: u64) -> Result<()> {
        let (count, Shard { index, first_row, whole_rows, .. }) = (self.count(), self);
        let end = first_row.checked_add(rows);
        if (2..=SHARDS_MAX).contains(&count)
            && (*index as usize) < count
            && rows > 0
            && end.is_some_and(|end| end <= *whole_rows)
        {
            return Ok(());
        }
        let message = format!(
            "shard `{index}` of `{count}` of variable `{name}` is `{rows}` rows from `{first_row}` on, of `{whole_rows}`: there is \
             no such part; a variable has 2 to {SHARDS_MAX}"
        );
        Err(Error::new(ErrorCode::InvalidArgument, message).with_names([name]))
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "shard {} of {}", self.index, self.count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::DType;
    use proptest::prelude::*;

    const KIB: u64 = 1 << 10;

    #[test]
    fn parts_have_a_least_size_and_a_row() {
        let cases: [(&[u64], usize, usize); 11] = [
            (&[], 4, 1),
            (&[0, 5], 4, 1),
            // 512 KiB less one row, and 512 KiB.
            (&[511, 256], 4, 1),
            (&[512, 256], 4, 2),
            (&[1024, 256], 1, 1),
            (&[1024, 256], 4, 4),
            (&[1024, 256], 9, 4),
            // One row, however long.
            (&[1, 1 << 20], 4, 1),
            (&[3, 1 << 20], 4, 3),
            (&[1 << 30, 1 << 4], 1000, SHARDS_MAX),
            // The size overflows; whoever declares it is told.
            (&[u64::MAX, 8], 4, 1),
        ];
        for (shape, places, count) in cases {
            let ty = TensorType::new(DType::F32, shape);
            assert_eq!(shard_count(&ty, places, SHARD_BYTES_MIN), count, "{ty} over {places}");
        }
        let ty = TensorType::new(DType::U8, [16 * KIB, 64]);
        assert_eq!(ty.size_bytes(), Some(AUTO_SHARD_BYTES_MIN));
        assert_eq!(shard_count(&ty, 100, SHARD_BYTES_MIN), 4);
    }

    #[test]
    fn rows_that_do_not_come_out_even_go_to_the_first_parts() {
        let rows = |rows, count| shard_rows(rows, count).collect::<Vec<_>>();
        assert_eq!(rows(7, 3), [(0, 3), (3, 2), (5, 2)]);
        assert_eq!(rows(6, 3), [(0, 2), (2, 2), (4, 2)]);
        assert_eq!(rows(5, 1), [(0, 5)]);
        let map = shard_map(&TensorType::new(DType::F32, [5, 3]), &Arc::from([2, 0]));
        let shown: Vec<_> =
            map.iter().map(|(shard, ty)| format!("{shard} from {} on: {ty}", shard.first_row)).collect();
        assert_eq!(shown, ["shard 0 of 2 from 0 on: f32[3, 3]", "shard 1 of 2 from 3 on: f32[2, 3]"]);
    }

    #[test]
    fn impossible_parts_are_refused() {
        let shard = |index, first_row, count| Shard { index, first_row, whole_rows: 10, ps: vec![0; count].into() };
        assert_eq!(shard(1, 5, 2).check("w", 5), Ok(()));
        assert_eq!(shard(0, 0, SHARDS_MAX).check("w", 1), Ok(()));
        for (shard, rows) in [
            (shard(2, 5, 2), 5),
            (shard(0, 0, 1), 10),
            (shard(0, 0, 0), 10),
            (shard(0, 0, SHARDS_MAX + 1), 1),
            (shard(1, 5, 2), 6),
            (shard(1, 5, 2), 0),
            (shard(1, u64::MAX, 2), 2),
        ] {
            let error = shard.check("w", rows).expect_err("refused");
            assert!(error.code == ErrorCode::InvalidArgument && error.message.contains("`w`"), "{error}");
        }
    }

    proptest! {
        /// The parts are the whole: in order, without gaps, of nearly the same size, each large enough.
        #[test]
        fn parts_cover_all_rows(rows in 0..5_000_000_u64, row in 0..5000_u64, places in 1..2000_usize) {
            let ty = TensorType::new(DType::F32, [rows, row]);
            let count = shard_count(&ty, places, SHARD_BYTES_MIN);
            prop_assert!(count >= 1 && count <= places);
            let ps: Arc<[u32]> = (0..count as u32).collect();
            let map = shard_map(&ty, &ps);
            prop_assert_eq!(&map, &shard_map(&ty, &ps));
            let mut next = 0;
            for (at, (shard, part)) in map.iter().enumerate() {
                prop_assert_eq!((shard.index as usize, shard.first_row, shard.whole_rows), (at, next, rows));
                next += part.shape[0];
                if count > 1 {
                    prop_assert_eq!(shard.check("w", part.shape[0]), Ok(()));
                    // A row at most is missing to the least size.
                    prop_assert!(part.size_bytes().unwrap() as u64 + row * 4 >= SHARD_BYTES_MIN as u64);
                }
            }
            prop_assert_eq!(next, rows);
            let sizes = || map.iter().map(|(_, part)| part.shape[0]);
            prop_assert!(sizes().max().unwrap() - sizes().min().unwrap() <= 1);
        }
    }
}
