//! Waits for versions: woken by every write, ended by what ends the variable, and never asleep past a write.

use super::*;
use crate::error::ErrorCode;
use crate::ids::{Attempt, Incarnation};
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3600);

#[tokio::test(start_paused = true)]
async fn a_wait_ends_with_the_write_that_makes_the_version() {
    let store = Store::default();
    let container = open(&store);
    initialize(&container, "w", &[1.0]).unwrap();
    initialize(&container, "v", &[1.0]).unwrap();
    let both = [variable("w", 1), variable("v", 1)];
    assert_eq!(container.wait_versions(&both, 1).await, Ok(()));
    let waiting: Vec<_> = (0..10)
        .map(|_| {
            let (container, both) = (container.clone(), both.clone());
            tokio::spawn(async move { container.wait_versions(&both, 4).await })
        })
        .collect();
    let one = f32s(&[1.0]);
    let add = |name| vec![update(name, UpdateKind::Add, &one, None)];
    container.push(add("w"), false).unwrap();
    container.push_relaxed(add("w"), false).unwrap();
    container.push([add("v"), add("v")].concat(), false).unwrap();
    initialize(&container, "w", &[7.0]).unwrap();
    tokio::time::sleep(HOUR).await;
    assert!(waiting.iter().all(|waiting| !waiting.is_finished()), "`v` has version 3");
    container.push(vec![update("v", UpdateKind::Assign, &one, Some(3))], false).unwrap();
    for waiting in waiting {
        assert_eq!(waiting.await.unwrap(), Ok(()));
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_fails_where_there_is_no_value_any_more() {
    let store = Store::default();
    let container = open(&store);
    let w = [variable("w", 1)];
    let missing = container.wait_versions(&w, 1).await.unwrap_err();
    assert_eq!((missing.code, missing.names.as_slice()), (ErrorCode::Uninitialized, &["w".to_owned()][..]));
    initialize(&container, "w", &[1.0]).unwrap();
    let wrong = container.wait_versions(&[variable("w", 2)], 1).await.unwrap_err();
    assert_eq!(wrong.code, ErrorCode::InvalidArgument);
    let wait = || {
        let (container, w) = (container.clone(), w.clone());
        tokio::spawn(async move { container.wait_versions(&w, 9).await })
    };
    let waiting = wait();
    tokio::time::sleep(HOUR).await;
    container.delete(&["w".into()]).unwrap();
    assert_eq!(waiting.await.unwrap().unwrap_err().code, ErrorCode::Uninitialized);
    initialize(&container, "w", &[1.0]).unwrap();
    let waiting = wait();
    tokio::time::sleep(HOUR).await;
    store.delete_container("default");
    assert_eq!(waiting.await.unwrap().unwrap_err().code, ErrorCode::Aborted);

    let attempt = |number| Some(Attempt { leader: Incarnation(1), number });
    let first = store.open("default", attempt(0)).unwrap();
    initialize(&first, "w", &[1.0]).unwrap();
    let waiting = tokio::spawn(async move { first.wait_versions(&w, 2).await });
    tokio::time::sleep(HOUR).await;
    store.open("default", attempt(1)).unwrap();
    assert_eq!(waiting.await.unwrap().unwrap_err().code, ErrorCode::Aborted);
}

/// Aim: no write slips through between a look and the wait. Method: one thread writes as fast as it can while another waits for
/// every version in turn; a wait that misses its write would never end.
#[test]
fn no_wait_sleeps_past_its_write() {
    const WRITES: u64 = 20_000;
    let store = Store::default();
    let container = open(&store);
    initialize(&container, "w", &[0.0]).unwrap();
    let one = f32s(&[1.0]);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
            runtime.block_on(async {
                for version in 1..=WRITES + 1 {
                    let w = [variable("w", 1)];
                    let wait = container.wait_versions(&w, version);
                    tokio::time::timeout(Duration::from_secs(60), wait).await.expect("it was made").unwrap();
                }
            });
        });
        for _ in 0..WRITES {
            container.push(vec![update("w", UpdateKind::Add, &one, None)], false).unwrap();
        }
        waits.join().unwrap();
    });
}
