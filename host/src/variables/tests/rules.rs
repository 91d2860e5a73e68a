//! Names, types, limits, containers, attempts, waiting and staging.

use super::*;
use crate::error::ErrorCode;
use crate::ids::{Attempt, Incarnation, NAME_BYTES_MAX};
use expect_test::expect;
use std::time::Duration;

fn attempt(leader: u64, number: u32) -> Option<Attempt> {
    Some(Attempt { leader: Incarnation(leader), number })
}

#[test]
fn another_type_is_refused_showing_both() {
    let store = Store::default();
    let container = open(&store);
    initialize(&container, "w", &[1.0, 2.0]).unwrap();
    let error = initialize(&container, "w", &[1.0]).unwrap_err();
    expect!["invalid-argument: variable `w` is `f32[2]` here, but this call takes it for `f32[1]`"]
        .assert_eq(&error.to_string());
    let s32 = VariableRef { ty: TensorType::new(DType::S32, [2]), ..variable("w", 2) };
    for error in [
        container.pull(std::slice::from_ref(&s32)).unwrap_err(),
        container.uninitialized(&[s32]).unwrap_err(),
        container.push(vec![update("w", UpdateKind::Add, &[0; 12], None)], false).unwrap_err(),
    ] {
        assert_eq!(error.code, ErrorCode::InvalidArgument);
        assert!(error.message.contains("`f32[2]`"), "{error}");
    }
    assert_eq!(read(&container, "w", 2), (vec![1.0, 2.0], 1));
}

#[test]
fn uninitialized_names_all_that_are() {
    let store = Store::default();
    let container = open(&store);
    initialize(&container, "b", &[1.0]).unwrap();
    let error = container.pull(&["a", "b", "c"].map(|name| variable(name, 1))).unwrap_err();
    assert_eq!((error.code, error.names.as_slice()), (ErrorCode::Uninitialized, &["a".to_owned(), "c".into()][..]));
    let error = container.push(vec![update("c", UpdateKind::Assign, &[0; 4], None)], false).unwrap_err();
    assert_eq!((error.code, error.names.as_slice()), (ErrorCode::Uninitialized, &["c".to_owned()][..]));
    let many: Vec<_> = (0..1000).map(|index| variable(&format!("layer{index:0>100}"), 1)).collect();
    let error = container.pull(&many).unwrap_err();
    assert!(error.message.len() < 8192 && error.message.contains("and 961 more"), "{}", error.message);
}

#[test]
fn stale_base_is_aborted_showing_both_versions_and_applies_nothing() {
    let store = Store::default();
    let container = open(&store);
    for name in ["a", "b"] {
        initialize(&container, name, &[1.0]).unwrap();
    }
    let one = f32s(&[1.0]);
    container.push(vec![update("b", UpdateKind::Add, &one, Some(1))], false).unwrap();
    let updates = vec![update("a", UpdateKind::Add, &one, None), update("b", UpdateKind::Add, &one, Some(1))];
    let error = container.push(updates, false).unwrap_err();
    expect!["aborted: variable `b` has version `2`, but the update is based on version `1`; read it again"]
        .assert_eq(&error.to_string());
    assert_eq!(read(&container, "a", 1), (vec![1.0], 1));
    assert_eq!(read(&container, "b", 1), (vec![2.0], 2));
}

#[test]
fn second_initialize_raises_the_version_unless_if_absent() {
    let store = Store::default();
    let container = open(&store);
    assert_eq!(initialize(&container, "w", &[1.0]), Ok(vec![1]));
    assert_eq!(initialize(&container, "w", &[2.0]), Ok(vec![2]));
    let value = f32s(&[3.0]);
    let if_absent = |name| vec![(variable(name, 1), Payload::Borrowed(&value))];
    assert_eq!(container.initialize(if_absent("w"), InitializeMode::IfAbsent), Ok(vec![2]));
    assert_eq!(container.initialize(if_absent("x"), InitializeMode::IfAbsent), Ok(vec![1]));
    assert_eq!(read(&container, "w", 1).0, [2.0]);
    assert_eq!(read(&container, "x", 1).0, [3.0]);
    let twice = [if_absent("y"), if_absent("y")].concat();
    assert_eq!(container.initialize(twice, InitializeMode::Overwrite).unwrap_err().code, ErrorCode::InvalidArgument);
    assert_eq!(container.len(), 2);
}

#[test]
fn bytes_are_limited_and_come_back() {
    let store = Store::new(StoreOptions { variable_bytes_max: Some(100), ..Default::default() });
    let container = open(&store);
    initialize(&container, "a", &[0.0; 20]).unwrap();
    let error = initialize(&container, "b", &[0.0; 6]).unwrap_err();
    assert_eq!(error.code, ErrorCode::ResourceExhausted);
    assert!(error.message.contains("--max-variable-bytes") && error.message.contains("`80`"), "{error}");
    assert_eq!(container.check_initialize(&[variable("b", 6)]).unwrap_err().code, ErrorCode::ResourceExhausted);
    assert_eq!(container.uninitialized(&[variable("b", 6)]), Ok(vec!["b".to_owned()]));
    initialize(&container, "a", &[1.0; 20]).unwrap();
    initialize(&container, "b", &[0.0; 5]).unwrap();
    assert_eq!(store.variable_bytes(), 100);
    assert_eq!(container.delete(&["a".into(), "none".into()]), Ok(1));
    assert_eq!(store.variable_bytes(), 20);
    assert_eq!(store.delete_container("default"), 1);
    assert_eq!(store.variable_bytes(), 0);
}

#[test]
fn names_are_checked() {
    let ty = TensorType::new(DType::F32, [1]);
    for good in ["w", "layer/1/weights:0", &"n".repeat(NAME_BYTES_MAX), "größe"] {
        assert_eq!(check_variable(good, &ty), Ok(()));
    }
    for bad in ["", "a\u{0}", "tab\t", &"n".repeat(NAME_BYTES_MAX + 1)] {
        assert_eq!(check_variable(bad, &ty).unwrap_err().code, ErrorCode::InvalidArgument, "{bad:?}");
    }
    let error = check_variable("w", &TensorType::new(DType::F64, [u64::MAX])).unwrap_err();
    assert!(error.message.contains("`w`") && error.message.contains("overflows"), "{error}");
}

#[test]
fn containers_do_not_meet() {
    let store = Store::default();
    let (a, b) = (store.open("a", None).unwrap(), store.open("b", None).unwrap());
    initialize(&a, "w", &[1.0]).unwrap();
    assert_eq!(b.pull(&[variable("w", 1)]).unwrap_err().code, ErrorCode::Uninitialized);
    initialize(&b, "w", &[2.0, 3.0]).unwrap();
    assert_eq!(store.delete_container("a"), 1);
    assert_eq!(read(&b, "w", 2).0, [2.0, 3.0]);
    let error = initialize(&a, "w", &[1.0]).unwrap_err();
    assert_eq!(error.code, ErrorCode::Aborted, "a write on its way must not reach the container's successor");
    assert!(store.open("a", None).unwrap().is_empty());
}

#[test]
fn a_push_that_would_wait_is_handed_back_unapplied() {
    let store = Store::default();
    let container = open(&store);
    initialize(&container, "a", &[1.0]).unwrap();
    initialize(&container, "b", &[1.0]).unwrap();
    let one = f32s(&[1.0]);
    let add = |name| update(name, UpdateKind::Add, &one, None);

    let cell = container.cell_for_test("b");
    let busy = cell.hold_for_test();
    let Ok(TryPush::Busy(updates)) = container.try_push(vec![add("a"), add("b")], false) else {
        panic!("`b` is being changed")
    };
    assert_eq!(read(&container, "a", 1), (vec![1.0], 1), "nothing is applied");
    assert!(matches!(container.try_push(vec![add("a")], false), Ok(TryPush::Applied(_))), "`a` is free");
    drop(busy);
    assert!(matches!(container.try_push(updates, false), Ok(TryPush::Applied(_))));
    assert_eq!((read(&container, "a", 1).0, read(&container, "b", 1).0), (vec![3.0], vec![2.0]));

    let twice = container.try_push(vec![add("a"), add("a")], false);
    assert!(matches!(twice, Ok(TryPush::Busy(_))), "the second change waits for the first");
    let stale = Update { base: Some(1), ..add("a") };
    assert_eq!(container.try_push(vec![add("b"), stale], false).unwrap_err().code, ErrorCode::Aborted);
    assert_eq!(read(&container, "b", 1).0, [2.0], "with a base version all or none");
    assert_eq!(container.try_push(vec![add("c")], false).unwrap_err().code, ErrorCode::Uninitialized);
}

#[test]
fn deleted_variables_count_no_longer_although_they_are_read() {
    let store = Store::new(StoreOptions { variable_bytes_max: Some(100), ..Default::default() });
    let container = open(&store);
    initialize(&container, "a", &[0.0; 20]).unwrap();
    let cell = container.cell_for_test("a");
    let reading = cell.hold_for_test();
    assert_eq!(container.delete(&["a".into()]), Ok(1));
    assert_eq!(store.variable_bytes(), 0);
    initialize(&container, "a", &[0.0; 25]).unwrap();
    drop(reading);
    drop(cell);
    assert_eq!(store.variable_bytes(), 100, "and are given back once");
}

/// Aim: who deletes GiBs isn't kept waiting while the system takes them back.
/// Method: a value whose drop waits until the one who dropped it has gone on.
#[test]
fn large_values_are_dropped_elsewhere() {
    struct Slow(std::sync::mpsc::Receiver<()>, std::sync::mpsc::Sender<()>);
    impl Drop for Slow {
        fn drop(&mut self) {
            let _ = self.0.recv_timeout(Duration::from_secs(60));
            let _ = self.1.send(());
        }
    }
    let (go_on, waits) = std::sync::mpsc::channel();
    let (dropped, is_dropped) = std::sync::mpsc::channel();
    drop_large(DROP_BYTES_MIN, Slow(waits, dropped));
    assert!(is_dropped.try_recv().is_err(), "it waits for this thread");
    go_on.send(()).unwrap();
    assert_eq!(is_dropped.recv_timeout(Duration::from_secs(60)), Ok(()));
}

/// Aim: whoever only names containers takes no place from others, and nobody loses what is there.
/// Method: more names than there may be containers, beside one with a variable and one that a call holds.
#[test]
fn containers_that_are_empty_and_unused_make_room() {
    let store = Store::default();
    let kept = store.open("kept", attempt(1, 3)).unwrap();
    initialize(&kept, "w", &[1.0]).unwrap();
    drop(kept);
    let held = store.open("held", None).unwrap();
    for index in 0..2 * CONTAINERS_MAX {
        store.open(&format!("named-{index}"), attempt(1, 0)).unwrap();
    }
    assert_eq!(store.statuses().len(), 1);
    assert_eq!(store.open("kept", attempt(1, 2)).unwrap_err().code, ErrorCode::Aborted, "its attempts are remembered");
    initialize(&held, "w", &[2.0]).unwrap();
    assert_eq!(read(&store.open("held", None).unwrap(), "w", 1), (vec![2.0], 1));

    for index in 2..CONTAINERS_MAX {
        let container = store.open(&format!("full-{index}"), None).unwrap();
        initialize(&container, "w", &[0.0]).unwrap();
    }
    let error = store.open("one-more", None).unwrap_err();
    assert_eq!(error.code, ErrorCode::ResourceExhausted, "{error}");
    assert_eq!(store.delete_container("full-2"), 1);
    assert!(store.open("one-more", None).is_ok());
}

#[test]
fn new_attempt_begins_empty_and_older_ones_are_refused() {
    let store = Store::default();
    let first = store.open("default", attempt(1, 0)).unwrap();
    initialize(&first, "w", &[1.0]).unwrap();
    assert_eq!(store.open("default", attempt(1, 0)).unwrap().len(), 1);
    assert_eq!(store.open("default", None).unwrap().len(), 1);

    let second = store.open("default", attempt(1, 1)).unwrap();
    assert!(second.is_empty());
    assert_eq!(store.variable_bytes(), 0);
    assert_eq!(store.open("default", attempt(1, 0)).unwrap_err().code, ErrorCode::Aborted);
    assert_eq!(initialize(&first, "w", &[1.0]).unwrap_err().code, ErrorCode::Aborted);
    initialize(&second, "w", &[2.0]).unwrap();

    let other_leader = store.open("default", attempt(2, 0)).unwrap();
    assert!(other_leader.is_empty(), "numbers are compared only within one leader");
    let error = store.open("default", attempt(1, 7)).unwrap_err();
    assert_eq!(error.code, ErrorCode::Aborted, "a leader that was replaced does not come back");
    assert!(store.open("other", attempt(1, 7)).is_ok());
}

#[test]
fn who_begins_ends_what_nobodys_attempt_had_left_and_nothing_of_its_own() {
    let store = Store::default();
    let shared = store.open("default", None).unwrap();
    initialize(&shared, "w", &[1.0]).unwrap();
    let [first, second] = [attempt(1, 0), attempt(2, 0)].map(|attempt| attempt.expect("it is one"));
    store.begin("default", first).unwrap();
    assert_eq!(initialize(&shared, "w", &[1.0]).unwrap_err().code, ErrorCode::Aborted);
    let own = store.open("default", Some(first)).unwrap();
    initialize(&own, "w", &[2.0]).unwrap();
    store.begin("default", first).unwrap();
    assert_eq!(store.open("default", Some(first)).unwrap().len(), 1);
    store.begin("default", second).unwrap();
    assert_eq!(store.begin("default", first).unwrap_err().code, ErrorCode::Aborted);
    assert!(store.open("default", Some(second)).unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn waiting_ends_with_the_last_initialize() {
    let store = Store::default();
    let container = open(&store);
    let names = ["a", "b"].map(|name| variable(name, 1));
    let waiting = tokio::spawn({
        let (container, names) = (container.clone(), names.clone());
        async move { container.wait_initialized(&names).await }
    });
    let hour = Duration::from_secs(3600);
    let after = |wait| container.uninitialized_after(&names, tokio::time::sleep(wait));
    assert_eq!(after(Duration::ZERO).await, Ok(vec!["a".to_owned(), "b".into()]));
    initialize(&container, "a", &[1.0]).unwrap();
    assert_eq!(after(hour).await, Ok(vec!["b".to_owned()]));
    assert!(!waiting.is_finished());
    initialize(&container, "b", &[1.0]).unwrap();
    assert_eq!(waiting.await.unwrap(), Ok(()));
    assert_eq!(after(hour).await, Ok(vec![]));
}

#[tokio::test(start_paused = true)]
async fn waiting_ends_with_the_container_and_with_a_wrong_type() {
    let store = Store::default();
    let wait = |names: [VariableRef; 1]| {
        let container = open(&store);
        tokio::spawn(async move { container.wait_initialized(&names).await })
    };
    let (never, wrong) = (wait([variable("never", 1)]), wait([variable("w", 2)]));
    tokio::task::yield_now().await;
    initialize(&open(&store), "w", &[1.0]).unwrap();
    assert_eq!(wrong.await.unwrap().unwrap_err().code, ErrorCode::InvalidArgument);
    store.open("default", attempt(1, 0)).unwrap();
    assert!(!never.is_finished(), "the first attempt of a container keeps what is there");
    store.open("default", attempt(1, 1)).unwrap();
    assert_eq!(never.await.unwrap().unwrap_err().code, ErrorCode::Aborted);
}

/// Aim: a size that was only declared costs nothing; the list of blocks for `u8[2^62]` alone would be 32 TiB.
#[test]
fn declared_sizes_make_no_room_before_bytes_come() {
    for bytes in [0, 1, BLOCK_BYTES * 5000, 1 << 62] {
        assert!(Blocks::with_capacity(bytes).contiguous().is_empty());
    }
}

#[test]
fn two_hundred_thousand_small_variables_initialize_and_pull() {
    const COUNT: usize = 200_000;
    let store = Store::default();
    let container = open(&store);
    let variables: Vec<_> = (0..COUNT).map(|index| variable(&format!("v{index}"), 1)).collect();
    let data: Vec<_> = (0..COUNT).map(|index| (index as f32).to_le_bytes()).collect();
    for (variables, data) in variables.chunks(8192).zip(data.chunks(8192)) {
        let values = variables.iter().cloned().zip(data.iter().map(|data| Payload::Borrowed(&data[..]))).collect();
        container.initialize(values, InitializeMode::Overwrite).unwrap();
    }
    assert_eq!(container.uninitialized(&variables), Ok(vec![]));
    let snapshots = container.pull(&variables).unwrap();
    assert!(snapshots.iter().zip(&data).all(|(snapshot, data)| snapshot.blocks.contiguous() == data[..]));
    assert_eq!(store.variable_bytes(), 4 * COUNT as u64);
}

/// Aim: unfinished writes are bounded, yet one of them always gets on.
#[test]
fn staging_beyond_the_budget_is_the_oldest_writes_alone() {
    let store = Store::new(StoreOptions { staged_bytes_max: 3 << 20, ..Default::default() });
    let large = TensorType::new(DType::U8, [100 << 20]);
    let mib = vec![7; 1 << 20];
    let staging = || Staging::new(&store, [&large]).unwrap();
    // Announced only: it takes nothing, and no place.
    let mut announced = staging();
    let (mut first, mut second) = (staging(), staging());
    first.append(0, &mib).unwrap();
    second.append(0, &mib).unwrap();
    first.append(0, &mib).unwrap();
    let error = second.append(0, &mib).unwrap_err();
    assert_eq!((error.code, error.names.as_slice()), (ErrorCode::ResourceExhausted, &[STAGING.to_owned()][..]));
    assert!(announced.append(0, &mib).is_err());
    for _ in 0..5 {
        first.append(0, &mib).unwrap();
    }
    announced.append(0, &[1, 2]).unwrap();
    announced.append(0, &[3]).unwrap();
    assert_eq!(store.staged_bytes(), (8 << 20) + 3);
    drop(first);
    second.append(0, &mib).unwrap();
    assert_eq!(second.bytes(), 2 << 20);
    drop(second);
    assert_eq!(announced.take()[0].contiguous(), [1, 2, 3][..]);
    drop(announced);
    assert_eq!((store.staged_bytes(), store.staged_bytes_peak()), (0, (8 << 20) + 3));
}

/// Aim: a caller that knows variables otherwise than they are held learns all of it from one error, whatever it called.
#[test]
fn what_is_held_in_other_parts_is_told_at_once() {
    let container = open(&Store::default());
    let part = |name: &str, index: usize, ps: &[u32]| {
        let (shard, ty) = shard_map(&TensorType::new(DType::F32, [4]), &ps.into()).remove(index);
        VariableRef { name: name.into(), ty, shard: Some(shard) }
    };
    let held = [part("a", 0, &[0, 1]), part("b", 1, &[2, 0]), variable("c", 4)];
    let values = held.iter().map(|held| (held.clone(), vec![0; held.ty.size_bytes().unwrap()])).collect::<Vec<_>>();
    let payloads = values.iter().map(|(held, value)| (held.clone(), Payload::Borrowed(&value[..]))).collect();
    container.initialize(payloads, InitializeMode::Overwrite).unwrap();
    assert_eq!(container.check_push(&held), Ok(()));
    assert_eq!(container.pull(&held).unwrap()[1].ty.shape, [2]);

    // Of the same rows, but on other tasks; whole; in part.
    let taken = [part("a", 0, &[0, 2]), variable("b", 4), part("c", 1, &[0, 1])];
    let errors = [
        container.pull(&taken).unwrap_err(),
        container.check_push(&taken).unwrap_err(),
        container.check_initialize(&taken).unwrap_err(),
        container.uninitialized(&taken).unwrap_err(),
    ];
    for error in errors {
        assert_eq!((error.code, &*error.names), (ErrorCode::InvalidArgument, &["a", "b", "c"].map(String::from)[..]));
        let stored = |held: &VariableRef| StoredShard { name: held.name.clone(), shard: held.shard.clone() };
        assert_eq!(error.stored, held.each_ref().map(stored));
    }
    let typed = [part("a", 0, &[0, 2]), variable("b", 5)];
    let error = container.pull(&typed).unwrap_err();
    assert_eq!(
        (error.stored.len(), &*error.message),
        (0, "variable `b` is `f32[4]` here, but this call takes it for `f32[5]`")
    );
}
