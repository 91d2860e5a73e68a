//! Many threads at once: no lost update, no torn read.

use super::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

#[test]
fn no_update_is_lost() {
    const THREADS: usize = 8;
    const ROUNDS: usize = 500;
    let store = Store::default();
    let container = open(&store);
    initialize(&container, "sum", &[0.0; 17]).unwrap();
    initialize(&container, "other", &[0.0]).unwrap();
    let one = f32s(&[1.0; 17]);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for round in 0..ROUNDS {
                    // Now and then under two locks, taken in both orders.
                    let mut updates = vec![update("sum", UpdateKind::Add, &one, None)];
                    if round % 2 == 0 {
                        updates.push(update("other", UpdateKind::Max, &one[..4], None));
                    }
                    if round % 4 == 0 {
                        updates.reverse();
                    }
                    container.push(updates, round % 3 == 0).unwrap();
                }
            });
        }
    });
    let total = THREADS * ROUNDS;
    assert_eq!(read(&container, "sum", 17), (vec![total as f32; 17], total as u64 + 1));
}

#[test]
fn compare_and_set_counts_exactly() {
    const THREADS: usize = 6;
    const ROUNDS: usize = 100;
    let store = Store::default();
    let container = open(&store);
    for name in ["a", "b"] {
        initialize(&container, name, &[0.0]).unwrap();
    }
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let container = &container;
            scope.spawn(move || {
                let mut done = 0;
                while done < ROUNDS {
                    let (a, a_version) = read(container, "a", 1);
                    let (b, b_version) = read(container, "b", 1);
                    let (a, b) = (f32s(&[a[0] + 1.0]), f32s(&[b[0] + 1.0]));
                    let mut updates = vec![
                        update("a", UpdateKind::Assign, &a, Some(a_version)),
                        update("b", UpdateKind::Assign, &b, Some(b_version)),
                    ];
                    if thread % 2 == 0 {
                        updates.reverse();
                    }
                    done += usize::from(container.push(updates, false).is_ok());
                }
            });
        }
    });
    let total = (THREADS * ROUNDS) as f32;
    assert_eq!(read(&container, "a", 1).0, [total]);
    assert_eq!(read(&container, "b", 1).0, [total]);
}

/// Writers set and add constant vectors of several blocks; whatever a reader sees must be constant.
#[test]
fn reads_are_never_torn() {
    let elements = BLOCK_BYTES / 4 * 2 + 100;
    let store = Store::default();
    let container = open(&store);
    initialize(&container, "v", &vec![0.0; elements]).unwrap();
    let running = AtomicBool::new(true);
    thread::scope(|scope| {
        for writer in 0..3_u32 {
            let (container, running) = (&container, &running);
            scope.spawn(move || {
                let value = f32s(&vec![writer as f32; elements]);
                for _ in 0..10 {
                    container.push(vec![update("v", UpdateKind::Add, &value, None)], false).unwrap();
                    let owned = Payload::Owned(Blocks::copy_of(&value));
                    let assign = Update { value: owned, ..update("v", UpdateKind::Assign, &value, None) };
                    container.push(vec![assign], false).unwrap();
                }
                running.store(false, Ordering::Relaxed);
            });
        }
        for _ in 0..2 {
            scope.spawn(|| {
                let mut last = 0;
                while running.load(Ordering::Relaxed) {
                    let snapshot = container.pull(&[variable("v", elements as u64)]).unwrap().remove(0);
                    assert!(snapshot.version >= last, "versions never go back");
                    last = snapshot.version;
                    let first = snapshot.blocks.slices().next().unwrap()[..4].to_vec();
                    assert!(snapshot.blocks.slices().all(|slice| slice.chunks(4).all(|element| element == first)));
                }
            });
        }
    });
    assert_eq!(read(&container, "v", elements as u64).1, 61);
}

/// Aim: what is saved is of one moment. Method: one thread raises two variables, one after the other, while another saves both.
#[test]
fn a_save_has_nothing_without_what_was_written_before_it() {
    const ROUNDS: u64 = 2000;
    let store = Store::default();
    let container = open(&store);
    for name in ["a", "b"] {
        initialize(&container, name, &[0.0]).unwrap();
    }
    let one = f32s(&[1.0]);
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..ROUNDS {
                for name in ["a", "b"] {
                    container.push(vec![update(name, UpdateKind::Add, &one, None)], false).unwrap();
                }
            }
        });
        loop {
            let saved = container.save().unwrap();
            let (a, b) = (saved[0].0.version, saved[1].0.version);
            assert!(a == b || a == b + 1, "a has version {a}, b {b}");
            if b > ROUNDS {
                break;
            }
        }
    });
}
