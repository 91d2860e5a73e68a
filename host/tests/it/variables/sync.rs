//! Gradients of synchronous replicas, from several runs.

use super::broken::Relay;
use super::optimizers::{apply, bytes, f32s, header, options};
use super::rules::chunk;
use super::shards::placed;
use super::*;
use dchost::client::channel::Try;
use dchost::coordinator::local::LocalVariables;
use dchost::coordinator::placement::PlacedVariables;
use dchost::error::ErrorCode;
use dchost::handles::{ApplyOptions, Gradient, GradientOptions, Placement, Variable, Variables};
use dchost::variables::{Optimizer, SyncStep, VariableStatus};
use dchost::wire::v1::{self, push_request, variables_client::VariablesClient};
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::runtime::Handle;
use tonic::Status;

pub(super) const COUNT: Optimizer = Optimizer::Sgd { learning_rate: 1.0 };

pub(super) fn sync(step: u64, replicas: u32) -> ApplyOptions {
    ApplyOptions { sync: Some(SyncStep { step, replicas }), ..options(COUNT) }
}

fn status(ps: &Ps, name: &str) -> VariableStatus {
    ps.store.statuses().into_iter().find(|status| status.name == name).expect("it is there")
}

/// Whether gradients of a variable of so many bytes wait.
pub(super) async fn until_collected(ps: &Ps, bytes: u64) {
    until("a gradient that waits", || ps.store.variable_bytes() == bytes && ps.store.staged_bytes() == 0).await;
}

/// Aim: all replicas get the same answer, together, wherever they are. Method: two runs on other processes and one in the server's own,
/// values that the server adds at once and those of several blocks, and other orders in each call.
#[tokio::test(flavor = "multi_thread")]
async fn replicas_are_answered_together_here_and_there() {
    let ps = Ps::default();
    let (a, b) = (connect(ps.addr, 1), connect(ps.addr, 2));
    let local = LocalVariables::new(ps.store.clone(), "default", None, Handle::current());
    let (small, large) = (f32s("small", 3), f32s("large", 700_001));
    for variable in [&small, &large] {
        initialize(&a, variable, &bytes(vec![1.0; variable.ty.shape[0] as usize])).await.unwrap();
    }
    for step in 1..=5 {
        let data = [3.0, 6.0, 9.0].map(|value| (bytes(vec![value; 3]), bytes(vec![-value; 700_001])));
        let call = async |run: &dyn TaskVariables, (s, l): &(Vec<u8>, Vec<u8>), turned: bool| {
            let mut gradients = vec![(&small, &s[..]), (&large, &l[..])];
            if turned {
                gradients.reverse();
            }
            let mut values = apply(run, gradients, sync(step, 3)).await.unwrap();
            if turned {
                values.reverse();
            }
            values
        };
        let answers =
            tokio::join!(call(&a, &data[0], false), call(&b, &data[1], true), call(&local, &data[2], step % 2 == 0));
        assert!(answers.0 == answers.1 && answers.1 == answers.2);
        let (value, by) = (answers.0, 6.0 * step as f32);
        assert_eq!((value[0].version, value[1].version), (step + 1, step + 1), "one step for three gradients");
        assert!(value[0].tensor.data == bytes(vec![1.0 - by; 3]));
        assert!(value[1].tensor.data == bytes(vec![1.0 + by; 700_001]));
    }
    assert_eq!((ps.store.staged_bytes(), ps.store.variable_bytes()), (0, 4 * (3 + 700_001)));
    ps.stop().await;
}

/// Aim: a push whose connection breaks while it waits counts once, and gets the answer. Method: its connections are cut, again and
/// again, before the other replica comes.
#[tokio::test(flavor = "multi_thread")]
async fn a_push_that_is_cut_off_while_it_waits_counts_once() {
    const ELEMENTS: usize = 300_000;
    let ps = Ps::default();
    let relay = Relay::start(ps.addr).await;
    let w = f32s("w", ELEMENTS);
    let (cut, other) = (connect(relay.addr, 1), connect(ps.addr, 2));
    initialize(&other, &w, &bytes(vec![0.0; ELEMENTS])).await.unwrap();
    let gradient = bytes(vec![-1.0; ELEMENTS]);
    for step in 1..=4 {
        let first = apply(&cut, vec![(&w, &gradient)], sync(step, 2));
        let second = async {
            until_collected(&ps, 2 * 4 * ELEMENTS as u64).await;
            for _ in 0..step {
                until("its connections", || relay.open.load(Ordering::SeqCst) >= 1).await;
                relay.cut_all();
            }
            apply(&other, vec![(&w, &gradient)], sync(step, 2)).await
        };
        let (first, second) = tokio::join!(first, second);
        let value = first.unwrap().remove(0);
        assert!(value == second.unwrap().remove(0));
        assert!(value.version == step + 1 && value.tensor.data == bytes(vec![step as f32; ELEMENTS]), "step {step}");
    }
    let VariableStatus { stale_gradients, dropped_gradients, .. } = status(&ps, "w");
    assert_eq!((stale_gradients, dropped_gradients), (0, 0));
    ps.stop().await;
}

/// Aim: retries that wait hold up nothing else on their connection. Method: tries of one write that have more bytes than a connection may
/// have unread; each tells when its last byte was taken.
#[tokio::test(flavor = "multi_thread")]
async fn retries_that_wait_are_passed_over_and_get_the_same_answer() {
    const ELEMENTS: usize = (17 << 20) / 4;
    const TRIES: usize = 3;
    let ps = Ps::default();
    let peers = peers(ps.addr, caller("default", WORKER, 1));
    let other = connect(ps.addr, 2);
    let w = &f32s("w", ELEMENTS);
    initialize(&other, w, &bytes(vec![0.0; ELEMENTS])).await.unwrap();
    let (gradient, sent, server) = (&bytes(vec![-1.0; ELEMENTS]), &Arc::new(AtomicUsize::new(0)), &ps);
    let tries = peers.call(PS, Lane::Bulk, true, |Try { channel, header: request, .. }| async move {
        let push = || async {
            let header = v1::PushHeader {
                want_values: false,
                sync: Some(v1::Sync { step: 1, replicas: 2 }),
                ..header(request.clone(), w, &COUNT)
            };
            let chunks = gradient.chunks(1 << 20).enumerate().map(|(index, data)| chunk(0, (index as u64) << 20, data));
            let kinds =
                std::iter::once(push_request::Kind::Header(header)).chain(chunks.map(push_request::Kind::Chunk));
            let mut messages: Vec<_> = kinds.map(|kind| v1::PushRequest { kind: Some(kind) }).collect();
            messages.reverse();
            let sent = sent.clone();
            let messages = std::iter::from_fn(move || {
                let message = messages.pop();
                if message.is_none() {
                    sent.fetch_add(1, Ordering::SeqCst);
                }
                message
            });
            let mut answer =
                VariablesClient::new(channel.clone()).push(tokio_stream::iter(messages)).await?.into_inner();
            let mut messages = Vec::new();
            while let Some(message) = answer.message().await? {
                messages.push(message);
            }
            Ok::<_, Status>(messages)
        };
        let again = async {
            // A try that comes before would take the write over instead.
            until_collected(server, 2 * 4 * ELEMENTS as u64).await;
            tokio::try_join!(push(), push())
        };
        let (first, (second, third)) = tokio::try_join!(push(), again)?;
        Ok([first, second, third])
    });
    let second = async {
        until("the tries to be read", || sent.load(Ordering::SeqCst) == TRIES).await;
        apply(&other, vec![(w, gradient)], sync(1, 2)).await
    };
    let (tries, second) = tokio::join!(tries, second);
    let value = second.unwrap().remove(0);
    assert!(value.version == 2 && value.tensor.data == bytes(vec![1.0; ELEMENTS]), "taken once");
    let answers = tries.unwrap();
    assert!(answers[0].len() == 1 && answers[0] == answers[1] && answers[1] == answers[2]);
    ps.stop().await;
}

/// A caller that has gone leaves its gradient, and nobody waits for its sake.
#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_dies_leaves_its_gradient() {
    let ps = Ps::default();
    let w = f32s("w", 2);
    let other = connect(ps.addr, 2);
    initialize(&other, &w, &bytes([0.0, 0.0])).await.unwrap();
    let gone = peers(ps.addr, caller("default", WORKER, 1));
    let dying = RemoteVariables::new(gone.clone(), PS);
    let gradient = bytes([2.0, 4.0]);
    let push = apply(&dying, vec![(&w, &gradient)], sync(1, 2));
    let ending = async {
        until_collected(&ps, 16).await;
        gone.close().await;
    };
    let (ended, ()) = tokio::join!(push, ending);
    assert_eq!(ended.unwrap_err().code, ErrorCode::Cancelled);
    let value = apply(&other, vec![(&w, &gradient)], sync(1, 2)).await.unwrap().remove(0);
    assert!(value.version == 2 && value.tensor.data == bytes([-2.0, -4.0]));

    // What is set anew, or over, ends waits over the wire too.
    let push = apply(&other, vec![(&w, &gradient)], sync(2, 2));
    let third = connect(ps.addr, 3);
    let anew = async {
        until_collected(&ps, 16).await;
        initialize(&third, &w, &bytes([0.0, 0.0])).await
    };
    let (ended, anew) = tokio::join!(push, anew);
    let error = ended.unwrap_err();
    assert!(anew.is_ok() && error.code == ErrorCode::Aborted && error.message.contains("initialized anew"), "{error}");
    assert_eq!(ps.store.variable_bytes(), 8);
    let push = apply(&other, vec![(&w, &gradient)], sync(1, 2));
    let delete = async {
        until_collected(&ps, 16).await;
        ps.store.delete_container("default")
    };
    let (ended, _) = tokio::join!(push, delete);
    assert_eq!(ended.unwrap_err().code, ErrorCode::Aborted);
    assert_eq!(ps.store.variable_bytes(), 0);
    ps.stop().await;
}

/// Aim: calls that are cut into several messages don't wait for each other crosswise. Method: so many names that their messages are
/// several, in opposite orders.
#[tokio::test(flavor = "multi_thread")]
async fn calls_of_several_messages_send_all_of_them_before_they_wait() {
    let ps = Ps::default();
    let (a, b) = (connect(ps.addr, 1), connect(ps.addr, 2));
    let variables: Vec<_> = (0..5000).map(|index| f32s(&format!("{index:0>250}"), 1)).collect();
    let (zero, one) = (bytes([0.0]), bytes([1.0]));
    let values = variables.iter().map(|variable| (variable.clone(), view(variable, &zero))).collect();
    a.initialize(values, InitializeMode::Overwrite).await.unwrap();
    let forward = variables.iter().map(|variable| (variable, &one[..])).collect();
    let back = variables.iter().rev().map(|variable| (variable, &one[..])).collect();
    let (first, second) = tokio::join!(apply(&a, forward, sync(1, 2)), apply(&b, back, sync(1, 2)));
    for values in [first.unwrap(), second.unwrap()] {
        assert!(values.len() == 5000 && values.iter().all(|value| value.tensor.data == bytes([-1.0])));
    }
    ps.stop().await;
}

/// Each ps collects its own parts: with a backup worker they may take different replicas, but each takes two and drops one.
#[tokio::test(flavor = "multi_thread")]
async fn parts_collect_for_themselves() {
    let servers: Vec<_> =
        (0..2).map(|index| Ps::start_as(Task::new(TaskType::Ps, index), StoreOptions::default())).collect();
    let addresses: Vec<_> = (0..).zip(servers.iter().map(|ps| ps.addr)).collect();
    let ty = TensorType::new(DType::F32, [400, 500]);
    let table = &Variable { name: "table".into(), ty: ty.clone(), placement: Placement::Sharded };
    let runs: Vec<_> = (1..=3).map(|run| placed(&addresses, run)).collect();
    let zeros = vec![0; 4 * 400 * 500];
    let values = vec![(table.clone(), TensorView { ty: ty.clone(), data: &zeros })];
    runs[0].initialize(values, InitializeMode::Overwrite).await.unwrap();
    let push = async |run: &PlacedVariables, step: u64, gradient: f32| {
        let data = bytes(vec![-gradient; 400 * 500]);
        let gradient = Gradient { variable: table.clone(), value: TensorView { ty: table.ty.clone(), data: &data } };
        let sync = Some(SyncStep { step, replicas: 2 });
        let options = GradientOptions { optimizer: COUNT, clip_norm: None, sync, write: WriteOptions::WITH_VALUES };
        run.apply_gradients(vec![gradient], options).await.map(|mut values| values.remove(0))
    };
    let answers = tokio::join!(push(&runs[0], 1, 2.0), push(&runs[1], 1, 4.0), push(&runs[2], 1, 8.0));
    for answer in [answers.0, answers.1, answers.2] {
        let value = answer.unwrap();
        assert_eq!(value.version, 2, "also the one that was dropped");
        // The part of each task is the mean of two of the three, as a whole.
        for part in value.tensor.data.chunks(value.tensor.data.len() / 2) {
            let (elements, _) = part.as_chunks::<4>();
            assert!(elements.iter().all(|element| *element == elements[0]));
            assert!([3.0, 5.0, 6.0].contains(&f32::from_le_bytes(elements[0])));
        }
    }
    let error = push(&runs[0], 0, 1.0).await.unwrap_err();
    assert!(error.code == ErrorCode::Aborted && error.message.contains("`table` is of step `0`"), "{error}");
    for ps in servers {
        let VariableStatus { stale_gradients, dropped_gradients, version, .. } = status(&ps, "table");
        assert_eq!((stale_gradients, dropped_gradients, version), (1, 1, 2));
        ps.stop().await;
    }
}
