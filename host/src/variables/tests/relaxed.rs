//! Relaxed updates: each piece once, whatever breaks; what is given up is told. Relaxed reads: each piece as it is then.

use super::*;
use crate::error::ErrorCode;
use crate::ids::RunId;
use proptest::prelude::*;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

const RUN: RunId = RunId(7);

fn bytes(name: &str, bytes: usize) -> VariableRef {
    VariableRef::whole(name, TensorType::new(DType::U8, [bytes as u64]))
}

fn set(container: &Container, variable: &VariableRef, value: u8) {
    let value = vec![value; variable.ty.checked_size_bytes().unwrap()];
    container
        .initialize(vec![(variable.clone(), Payload::Borrowed(&value))], InitializeMode::Overwrite)
        .expect("there is room");
}

fn value(container: &Container, variable: &VariableRef) -> (Vec<u8>, u64) {
    let snapshot = container.pull(std::slice::from_ref(variable)).unwrap().remove(0);
    (snapshot.blocks.contiguous().to_vec(), snapshot.version)
}

fn partial_writes(store: &Store) -> Vec<u64> {
    store.statuses().iter().map(|status| status.partial_writes).collect()
}

/// One try of a write, as the server makes it.
struct Attempted {
    ticket: Ticket,
    write: Arc<RelaxedWrite>,
}

impl Attempted {
    async fn begin(
        store: &Store,
        sequence: u64,
        changes: &[(VariableRef, UpdateKind)],
        session: &CancellationToken,
    ) -> Result<Attempted> {
        let container = open(store);
        let ticket = match store.ledger().begin(RUN, sequence).await? {
            Begin::Fresh(ticket) => ticket,
            Begin::Replay(answer) => return Err(answer.expect_err("it was not applied")),
        };
        let write = match ticket.begun() {
            Some(write) => {
                write.hold(ticket.number(), &container, changes)?;
                write
            }
            None => {
                let write = Arc::new(container.relaxed_write(changes, true, "worker:0".into())?);
                ticket.keep(write.clone(), session.clone())?;
                write
            }
        };
        Ok(Attempted { ticket, write })
    }

    /// Sends values in pieces from the beginning, at most `pieces` of them.
    fn send(&self, values: &[Vec<u8>], piece_bytes: usize, pieces: usize) -> Result<()> {
        let all = values.iter().enumerate().flat_map(|(item, value)| {
            value.chunks(piece_bytes).enumerate().map(move |(index, piece)| (item, index * piece_bytes, piece))
        });
        for (item, offset, piece) in all.take(pieces) {
            assert!(self.write.try_apply(self.ticket.number(), item, offset, piece)?, "nobody holds it");
        }
        Ok(())
    }

    fn finish(self) -> Result<Vec<Snapshot>> {
        let applying = self.ticket.apply()?;
        let snapshots = self.write.finish()?;
        applying.finish(Ok(Remembered { versions: vec![], values: None }));
        Ok(snapshots)
    }
}

#[tokio::test]
async fn a_write_cut_at_any_piece_is_taken_up_and_applied_once() {
    const BYTES: usize = BLOCK_BYTES + 3 * RELAXED_BYTES + 5;
    let pieces = BYTES.div_ceil(RELAXED_BYTES);
    let values = [vec![1; BYTES]];
    for cut in 0..=pieces {
        let (store, session) = (Store::default(), CancellationToken::new());
        let container = open(&store);
        let w = bytes("w", BYTES);
        set(&container, &w, 10);
        let changes = [(w.clone(), UpdateKind::Add)];
        let first = Attempted::begin(&store, 1, &changes, &session).await.unwrap();
        first.send(&values, RELAXED_BYTES, cut).unwrap();
        let (half, version) = value(&container, &w);
        assert_eq!(version, if cut == pieces { 2 } else { 1 }, "the last piece raises it");
        assert_eq!(half.iter().filter(|&&byte| byte == 11).count(), (cut * RELAXED_BYTES).min(BYTES));
        drop(first);
        let second = Attempted::begin(&store, 1, &changes, &session).await.unwrap();
        second.send(&values, RELAXED_BYTES, usize::MAX).unwrap();
        let snapshot = second.finish().unwrap().remove(0);
        assert!(snapshot.version == 2 && snapshot.blocks.contiguous().iter().all(|&byte| byte == 11), "cut at {cut}");
        assert_eq!(value(&container, &w), (vec![11; BYTES], 2));
        store.ledger().forget(RUN);
        assert_eq!(partial_writes(&store), [0]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    /// Aim: however often a write of several variables breaks, in whatever pieces it is sent, it is as if it had been sent once.
    #[test]
    fn any_tries_come_to_one_atomic_update(
        sizes in prop::collection::vec(prop_oneof![Just(0_usize), 1..400_usize, 1_000_000..1_200_000_usize], 1..4),
        tries in prop::collection::vec((1..400_000_usize, 0..12_usize), 0..5),
        kinds in prop::collection::vec(0..5_usize, 4),
        takes_over in any::<bool>(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (relaxed, atomic, session) = (Store::default(), Store::default(), CancellationToken::new());
        let kinds = kinds.iter().map(|&kind| {
            [UpdateKind::Assign, UpdateKind::Add, UpdateKind::Sub, UpdateKind::Min, UpdateKind::Max][kind]
        });
        let changes: Vec<_> =
            sizes.iter().enumerate().map(|(index, &size)| bytes(&format!("v{index}"), size)).zip(kinds).collect();
        let values: Vec<Vec<u8>> =
            sizes.iter().map(|&size| (0..size).map(|index| (index / 7 % 251) as u8).collect()).collect();
        for store in [&relaxed, &atomic] {
            changes.iter().for_each(|(variable, _)| set(&open(store), variable, 100));
        }
        let updates = changes.iter().zip(&values).map(|((variable, kind), value)| {
            Update { variable: variable.clone(), kind: *kind, value: Payload::Borrowed(value), base: None }
        });
        open(&atomic).push(updates.collect(), false).unwrap();

        let mut earlier = None;
        for (piece_bytes, pieces) in tries {
            let attempt = runtime.block_on(Attempted::begin(&relaxed, 3, &changes, &session)).unwrap();
            attempt.send(&values, piece_bytes, pieces).unwrap();
            // The one before is dropped before, or only found to have lost.
            earlier = takes_over.then_some(attempt);
        }
        let last = runtime.block_on(Attempted::begin(&relaxed, 3, &changes, &session)).unwrap();
        if let Some(earlier) = earlier {
            prop_assert_eq!(earlier.send(&values, 1 << 20, 1).is_err(), values.iter().any(|value| !value.is_empty()));
        }
        last.send(&values, 100_000, usize::MAX).unwrap();
        let snapshots = last.finish().unwrap();
        for (((variable, _), value_sent), snapshot) in changes.iter().zip(&values).zip(&snapshots) {
            let expected = value(&open(&atomic), variable);
            prop_assert!(value(&open(&relaxed), variable) == expected, "{variable:?} of {} bytes", value_sent.len());
            prop_assert!(snapshot.version == 2 && snapshot.blocks.contiguous() == expected.0);
        }
        relaxed.ledger().forget(RUN);
        prop_assert!(partial_writes(&relaxed).iter().all(|&writes| writes == 0));
    }
}

#[tokio::test]
async fn a_write_that_nobody_takes_up_is_counted_and_raises_the_version() {
    let (store, session) = (Store::default(), CancellationToken::new());
    let container = open(&store);
    let (a, b) = (bytes("a", 3 * RELAXED_BYTES), bytes("b", 10));
    set(&container, &a, 0);
    set(&container, &b, 0);
    let changes = [(b.clone(), UpdateKind::Add), (a.clone(), UpdateKind::Add)];
    let values = [vec![1; 10], vec![1; 3 * RELAXED_BYTES]];
    let attempt = Attempted::begin(&store, 1, &changes, &session).await.unwrap();
    attempt.send(&values, RELAXED_BYTES, 2).unwrap();
    drop(attempt);
    assert_eq!((value(&container, &a).1, value(&container, &b).1), (1, 2), "`b` is complete, `a` waits for the retry");
    store.ledger().forget(RUN);
    let (half, version) = value(&container, &a);
    assert!(version == 2 && half[..RELAXED_BYTES].iter().all(|&byte| byte == 1) && half[RELAXED_BYTES] == 0);
    assert_eq!(partial_writes(&store), [1, 0]);
    let stale = Update { variable: a.clone(), kind: UpdateKind::Add, value: Payload::Borrowed(&half), base: Some(1) };
    assert_eq!(container.push(vec![stale], false).unwrap_err().code, ErrorCode::Aborted);

    // One of which nothing was applied leaves no trace.
    drop(Attempted::begin(&store, 2, &changes, &session).await.unwrap());
    store.ledger().forget(RUN);
    // Nor does one whose session ends before its handler: at once.
    let attempt = Attempted::begin(&store, 3, &changes[1..], &session).await.unwrap();
    attempt.send(&values[1..], RELAXED_BYTES, 1).unwrap();
    session.cancel();
    store.ledger().forget(RUN);
    drop(attempt);
    assert_eq!((partial_writes(&store), value(&container, &a).1), (vec![2, 0], 3));
}

#[tokio::test]
async fn a_retry_must_be_the_same_write_of_the_same_variables() {
    let (store, session) = (Store::default(), CancellationToken::new());
    let container = open(&store);
    let w = bytes("w", 2 * RELAXED_BYTES);
    set(&container, &w, 0);
    let changes = [(w.clone(), UpdateKind::Add)];
    let values = [vec![1; 2 * RELAXED_BYTES]];
    let begin = async |changes: &[(VariableRef, UpdateKind)]| Attempted::begin(&store, 1, changes, &session).await;
    begin(&changes).await.unwrap().send(&values, RELAXED_BYTES, 1).unwrap();
    let error = begin(&[(w.clone(), UpdateKind::Sub)]).await.map(|_| ()).unwrap_err();
    assert_eq!(error.code, ErrorCode::InvalidArgument, "{error}");
    assert_eq!(begin(&[]).await.map(|_| ()).unwrap_err().code, ErrorCode::InvalidArgument);

    container.delete(&["w".into()]).unwrap();
    set(&container, &w, 5);
    let error = begin(&changes).await.map(|_| ()).unwrap_err();
    assert!(error.code == ErrorCode::Aborted && error.message.contains("was deleted"), "{error}");
    store.ledger().forget(RUN);
    assert_eq!((partial_writes(&store), value(&container, &w).1), (vec![0], 1), "the new variable has no part of it");
    let error = container.relaxed_write(&[(bytes("none", 1), UpdateKind::Add)], false, "who".into()).unwrap_err();
    assert_eq!(error.code, ErrorCode::Uninitialized);
    let error = container.relaxed_write(&[(bytes("w", 1), UpdateKind::Add)], false, "who".into()).unwrap_err();
    assert_eq!(error.code, ErrorCode::InvalidArgument);
}

/// Aim: a run can't fill the server with writes that it never ends. Method: more of them than are kept; the oldest is given up.
#[tokio::test]
async fn writes_that_wait_for_their_retries_are_bounded() {
    let (store, session) = (Store::default(), CancellationToken::new());
    let container = open(&store);
    let w = bytes("w", 10);
    set(&container, &w, 0);
    let changes = [(w.clone(), UpdateKind::Add)];
    for sequence in 1..=300 {
        let attempt = Attempted::begin(&store, sequence, &changes, &session).await.unwrap();
        attempt.send(&[vec![1; 10]], 5, 1).unwrap();
    }
    assert_eq!(partial_writes(&store), [300 - 256]);
    let error = Attempted::begin(&store, 1, &changes, &session).await.map(|_| ()).unwrap_err();
    assert!(error.code == ErrorCode::Aborted && error.message.contains("given up"), "{error}");
    let attempt = Attempted::begin(&store, 300, &changes, &session).await.unwrap();
    attempt.send(&[vec![1; 10]], 10, 1).unwrap();
    attempt.finish().unwrap();
    store.ledger().forget(RUN);
    assert_eq!(partial_writes(&store), [299]);
}

#[test]
fn relaxed_updates_take_no_base_version_and_are_the_same_otherwise() {
    let store = Store::default();
    let container = open(&store);
    initialize(&container, "w", &[1.0, 2.0]).unwrap();
    let two = f32s(&[2.0, 2.0]);
    let based = vec![update("w", UpdateKind::Add, &two, None), update("w", UpdateKind::Add, &two, Some(1))];
    let error = container.push_relaxed(based, false).unwrap_err();
    assert!(error.code == ErrorCode::InvalidArgument && error.message.contains("version `1`"), "{error}");
    assert_eq!(read(&container, "w", 2), (vec![1.0, 2.0], 1));
    let twice = vec![update("w", UpdateKind::Add, &two, None), update("w", UpdateKind::Max, &two, None)];
    let snapshots = container.push_relaxed(twice, true).unwrap();
    assert_eq!(snapshots.iter().map(|snapshot| snapshot.version).collect::<Vec<_>>(), [2, 3]);
    assert_eq!(snapshots[0].blocks.contiguous(), f32s(&[3.0, 4.0])[..]);
    let owned = Update { value: Payload::Owned(Blocks::copy_of(&two)), ..update("w", UpdateKind::Sub, &two, None) };
    container.push_relaxed(vec![owned], false).unwrap();
    assert_eq!(read(&container, "w", 2), (vec![1.0, 2.0], 4));
}

#[test]
fn a_relaxed_read_sees_each_piece_as_it_is_then() {
    let store = Store::default();
    let container = open(&store);
    let w = bytes("w", 3 * BLOCK_BYTES + 1);
    set(&container, &w, 1);
    let value = container.relaxed_read(std::slice::from_ref(&w)).unwrap().remove(0);
    let first = value.piece(0);
    set(&container, &w, 2);
    let later = value.try_piece(2 * BLOCK_BYTES + RELAXED_BYTES).expect("nobody holds it");
    assert!((first.len(), later.len()) == (RELAXED_BYTES, RELAXED_BYTES) && first[0] == 1 && later[0] == 2);
    assert!(first.iter().all(|&byte| byte == 1), "a piece keeps what it was");
    assert_eq!((value.version(), value.piece(3 * BLOCK_BYTES).len()), (1, 1));
    let whole = value.contiguous_in(&Spare::default());
    assert!(whole.len() == value.len() && whole.iter().all(|&byte| byte == 2));
    let cell = container.cell_for_test("w");
    let busy = cell.hold_for_test();
    assert!(value.try_piece(0).is_none(), "it would wait");
    drop(busy);
    let empty = bytes("empty", 0);
    set(&container, &empty, 0);
    assert!(container.relaxed_read(&[empty]).unwrap()[0].contiguous_in(&Spare::default()).is_empty());
}
