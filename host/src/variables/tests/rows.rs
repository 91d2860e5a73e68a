//! Aim: rows are read and changed as a list of rows would be, wherever they lie among the blocks. Method: random lists against a
//! naive model that has whole rows of numbers; the store is read as a whole for comparison.

use super::super::*;
use super::{f32s, initialize, open, read, variable};
use crate::error::ErrorCode;
use crate::tensor::{DType, TensorType};
use crate::variables::rows::Picked;
use proptest::prelude::*;

const KINDS: [UpdateKind; 5] = [UpdateKind::Assign, UpdateKind::Add, UpdateKind::Sub, UpdateKind::Min, UpdateKind::Max];
const DTYPES: [DType; 5] = [DType::F32, DType::F64, DType::S32, DType::S64, DType::U8];

/// Small whole numbers, which every type holds and adds exactly; `u8` wraps around.
fn encoded(dtype: DType, numbers: &[i64]) -> Vec<u8> {
    let numbers = numbers.iter();
    match dtype {
        DType::F32 => numbers.flat_map(|&number| (number as f32).to_le_bytes()).collect(),
        DType::F64 => numbers.flat_map(|&number| (number as f64).to_le_bytes()).collect(),
        DType::S32 => numbers.flat_map(|&number| (number as i32).to_le_bytes()).collect(),
        DType::S64 => numbers.flat_map(|&number| number.to_le_bytes()).collect(),
        DType::U8 => numbers.map(|&number| number as u8).collect(),
    }
}

fn combine(dtype: DType, kind: UpdateKind, old: i64, new: i64) -> i64 {
    let number = match kind {
        UpdateKind::Assign => new,
        UpdateKind::Add => old + new,
        UpdateKind::Sub => old - new,
        UpdateKind::Min => old.min(new),
        UpdateKind::Max => old.max(new),
    };
    if dtype == DType::U8 { number.rem_euclid(256) } else { number }
}

/// Rows, and elements of each: some of which a block doesn't hold a whole number, some larger than a block.
const SHAPES: [(u64, u64); 6] = [(5, 1), (9, 3), (3, 0), (25_000, 13), (3, 150_001), (3, BLOCK_BYTES as u64 / 8)];

fn places(rows: u64) -> impl Strategy<Value = Vec<u64>> {
    // The ends and the middle often, so that rows stand twice.
    let row = prop_oneof![Just(0), Just(rows - 1), Just(rows / 2), 0..rows];
    prop::collection::vec(row, 0..8)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn rows_are_read_and_changed_as_a_list_of_rows(
        dtype in prop::sample::select(DTYPES.to_vec()),
        (shape, calls) in prop::sample::select(SHAPES.to_vec()).prop_flat_map(|shape| {
            let kind = prop::sample::select(KINDS.to_vec());
            (Just(shape), prop::collection::vec((kind, places(shape.0), 0..100_i64, any::<[bool; 3]>()), 1..4))
        }),
    ) {
        let (extent, width) = (shape.0, shape.1 as usize);
        let table = VariableRef::whole("t", TensorType::new(dtype, [extent, width as u64]));
        let container = open(&Store::default());
        let mut model: Vec<i64> = (0..extent as i64 * width as i64).map(|i| i % 100).collect();
        let data = encoded(dtype, &model);
        container.initialize(vec![(table.clone(), Payload::Borrowed(&data))], InitializeMode::Overwrite).unwrap();
        let mut version = 1;
        for (kind, rows, by, [owned, at_once, read_meanwhile]) in calls {
            let change: Vec<i64> = (0..(rows.len() * width) as i64).map(|i| (by + i) % 100).collect();
            let reader = read_meanwhile.then(|| container.pull(std::slice::from_ref(&table)).unwrap().remove(0));
            let before = reader.as_ref().map(|_| encoded(dtype, &model));
            for (place, &row) in rows.iter().enumerate() {
                for element in 0..width {
                    let old = &mut model[row as usize * width + element];
                    *old = combine(dtype, kind, *old, change[place * width + element]);
                }
            }
            version += u64::from(!rows.is_empty());
            let data = encoded(dtype, &change);
            let value = if owned { Payload::Owned(Blocks::copy_of(&data)) } else { Payload::Borrowed(&data) };
            let written = match at_once {
                true => match container.try_scatter(&table, &rows, kind, value).unwrap() {
                    TryScatter::Applied(version) => version,
                    TryScatter::Later(value) => container.scatter(&table, &rows, kind, value).unwrap(),
                },
                false => container.scatter(&table, &rows, kind, value).unwrap(),
            };
            prop_assert_eq!(written, version);
            if let (Some(reader), Some(before)) = (reader, before) {
                prop_assert!(reader.blocks.contiguous() == before, "a reader keeps what it saw");
            }
            let now = container.pull(std::slice::from_ref(&table)).unwrap().remove(0);
            prop_assert!(now.version == version && now.blocks.contiguous() == encoded(dtype, &model));

            let wanted: Vec<i64> = rows.iter().flat_map(|&row| model[row as usize * width..][..width].to_vec()).collect();
            let wanted = encoded(dtype, &wanted);
            let spare = Spare::default();
            let gathered = container.gather(&table, rows.clone(), &spare).unwrap();
            prop_assert_eq!(gathered.ty(), &TensorType::new(dtype, [rows.len() as u64, width as u64]));
            prop_assert_eq!(gathered.version(), version);
            prop_assert!(gathered.clone().contiguous_in(&spare) == wanted);
            prop_assert!(gathered.into_pieces(4096).collect::<Vec<_>>().concat() == wanted);
            // As those of an answer that is too large to be copied at once.
            let picked = Picked { blocks: now.blocks, rows, row_bytes: width * dtype.size_bytes() };
            prop_assert!(picked.contiguous_in(&spare) == wanted);
            let pieces: Vec<_> = picked.into_pieces(4096).collect();
            prop_assert!(pieces.iter().all(|piece| !piece.is_empty() && piece.len() <= 4096));
            prop_assert!(pieces.concat() == wanted);
        }
    }
}

#[test]
fn what_doesnt_fit_is_refused_as_a_whole() {
    let container = open(&Store::default());
    let table = VariableRef::whole("t", TensorType::new(DType::F32, [3, 2]));
    let ones = f32s(&[1.0; 6]);
    container.initialize(vec![(table.clone(), Payload::Borrowed(&ones))], InitializeMode::Overwrite).unwrap();
    initialize(&container, "v", &[0.0; 4]).unwrap();
    container
        .initialize(
            vec![(VariableRef::whole("s", TensorType::new(DType::F32, [])), Payload::Borrowed(&ones[..4]))],
            InitializeMode::Overwrite,
        )
        .unwrap();
    let scalar = VariableRef::whole("s", TensorType::new(DType::F32, []));
    let other = VariableRef::whole("t", TensorType::new(DType::F32, [4, 2]));
    let many = vec![0; ROWS_MAX + 1];
    let gather = |variable: &VariableRef, rows: &[u64]| {
        let rows = rows.to_vec();
        let error = container.gather(variable, rows.clone(), &Spare::default()).unwrap_err();
        assert_eq!(container.try_gather(variable, rows, &Spare::default()).unwrap_err(), error);
        error
    };
    let scatter = |variable: &VariableRef, rows: &[u64], value: &[u8]| {
        let error = container.scatter(variable, rows, UpdateKind::Add, Payload::Borrowed(value)).unwrap_err();
        let tried = container.try_scatter(variable, rows, UpdateKind::Add, Payload::Borrowed(value)).unwrap_err();
        assert_eq!(tried, error);
        error
    };
    let check = |error: crate::error::Error, code, text: &str| {
        assert!(error.code == code && error.message.contains(text), "{error}");
    };
    let (invalid, range) = (ErrorCode::InvalidArgument, ErrorCode::OutOfRange);
    let text = "row `3` (number `1` of those asked for) of variable `t` is out of range: `f32[3, 2]` has `3` rows";
    check(gather(&table, &[0, 3, 9]), range, text);
    check(scatter(&table, &[0, 3, 9], &ones), range, text);
    for error in [gather(&scalar, &[]), scatter(&scalar, &[], &[])] {
        check(error, invalid, "is a scalar");
    }
    for error in [gather(&table, &many), scatter(&table, &many, &ones)] {
        check(error, invalid, "`1048577` rows of variable `t` in one call, at most `1048576`");
    }
    for error in [gather(&other, &[0]), scatter(&other, &[0], &ones[..8])] {
        check(error, invalid, "`f32[3, 2]` here");
    }
    for error in [gather(&variable("x", 2), &[0]), scatter(&variable("x", 2), &[0], &ones[..4])] {
        check(error, ErrorCode::Uninitialized, "`x`");
    }
    check(scatter(&table, &[0, 1], &ones[..8]), invalid, "`t`");
    let value = container.pull(&[table]).unwrap().remove(0);
    assert!(value.version == 1 && value.blocks.contiguous() == ones);
    assert_eq!(read(&container, "v", 4), (vec![0.0; 4], 1));
}

#[test]
fn what_would_take_long_is_handed_back_and_left_as_it_was() {
    let container = open(&Store::default());
    let table = VariableRef::whole("t", TensorType::new(DType::F32, [4, BLOCK_BYTES as u64 / 4]));
    let zeros = vec![0; 4 * BLOCK_BYTES];
    container.initialize(vec![(table.clone(), Payload::Borrowed(&zeros))], InitializeMode::Overwrite).unwrap();
    let later = |variable: &VariableRef, rows: &[u64], value: &[u8]| {
        let tried = container.try_scatter(variable, rows, UpdateKind::Assign, Payload::Borrowed(value)).unwrap();
        matches!(tried, TryScatter::Later(_))
    };
    let two = vec![1; 2 * BLOCK_BYTES];
    assert!(later(&table, &[0, 1], &two), "two blocks are much");
    assert!(!later(&table, &[0], &two[..BLOCK_BYTES]));
    assert!(container.try_gather(&table, vec![0, 1], &Spare::default()).unwrap().is_err());
    // Those beyond what is copied under the lock take their time when they are sent.
    let many = container.try_gather(&table, vec![0; 1000], &Spare::default()).unwrap().unwrap();
    assert_eq!(many.into_pieces(BLOCK_BYTES).next().unwrap(), two[..BLOCK_BYTES]);

    // Two small rows, in blocks that somebody reads.
    let narrow = VariableRef::whole("n", TensorType::new(DType::F32, [BLOCK_BYTES as u64, 1]));
    container.initialize(vec![(narrow.clone(), Payload::Borrowed(&zeros))], InitializeMode::Overwrite).unwrap();
    let last = BLOCK_BYTES as u64 - 1;
    let reader = container.pull(std::slice::from_ref(&narrow)).unwrap();
    assert!(later(&narrow, &[0, last], &two[..8]));
    assert_eq!(container.pull(std::slice::from_ref(&narrow)).unwrap()[0].version, 1);
    drop(reader);
    assert!(!later(&narrow, &[0, last], &two[..8]));
    assert_eq!(container.pull(&[narrow]).unwrap()[0].version, 2);
}

/// Aim: a change of rows is seen as a whole, and none is lost, however the others run. Method: all rows of a change get the same, so
/// that a reader who sees two of them differ has seen half of it; lists that are copied under the lock, and ones that are not.
#[test]
fn rows_change_at_one_moment_for_all_who_read_them() {
    const ROWS: u64 = 20_000;
    const ROUNDS: u64 = 40;
    let container = open(&Store::default());
    let table = VariableRef::whole("t", TensorType::new(DType::S64, [ROWS, 16]));
    let zeros = vec![0; ROWS as usize * 128];
    container.initialize(vec![(table.clone(), Payload::Borrowed(&zeros))], InitializeMode::Overwrite).unwrap();
    let all: Vec<u64> = (0..ROWS).rev().collect();
    let few: Vec<u64> = all.iter().copied().step_by(ROWS as usize / 50).collect();
    let one = encoded(DType::S64, &vec![1; ROWS as usize * 16]);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    container.scatter(&table, &all, UpdateKind::Add, Payload::Borrowed(&one)).unwrap();
                }
            });
            scope.spawn(|| {
                let mut version = 0;
                while version <= 2 * ROUNDS {
                    for rows in [&all, &few] {
                        let gathered = container.gather(&table, rows.clone(), &Spare::default()).unwrap();
                        version = gathered.version();
                        let data = gathered.contiguous_in(&Spare::default());
                        let seen = (version as i64 - 1).to_le_bytes();
                        assert!(data.as_chunks().0.iter().all(|number| *number == seen), "version {version} is whole");
                    }
                }
            });
        }
    });
    assert_eq!(container.pull(&[table]).unwrap()[0].version, 2 * ROUNDS + 1);
}
