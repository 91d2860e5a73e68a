//! What the service refuses, and writes that are applied once.

use super::*;
use dchost::error::ErrorCode;
use dchost::wire::v1::variables_client::VariablesClient;
use dchost::wire::v1::{self, push_request};
use tonic::transport::Channel;

fn header(header: v1::RequestHeader, variable: &VariableRef, want_values: bool) -> v1::PushHeader {
    let kind = v1::UpdateKind::Add.into();
    let item = v1::PushItem { variable: Some(variable.into()), kind, ..Default::default() };
    v1::PushHeader { header: Some(header), item: vec![item], want_values, ..Default::default() }
}

pub(super) fn stream(
    header: v1::PushHeader,
    chunks: Vec<v1::Chunk>,
) -> impl tonic::IntoStreamingRequest<Message = v1::PushRequest> {
    let kinds =
        std::iter::once(push_request::Kind::Header(header)).chain(chunks.into_iter().map(push_request::Kind::Chunk));
    tokio_stream::iter(kinds.map(|kind| v1::PushRequest { kind: Some(kind) }).collect::<Vec<_>>())
}

pub(super) fn chunk(item: u32, offset: u64, data: &[u8]) -> v1::Chunk {
    v1::Chunk { item, offset, data: data.to_vec().into() }
}

/// Sends one push as it is, and collects its answer.
pub(super) async fn send(
    channel: Channel,
    header: v1::PushHeader,
    chunks: Vec<v1::Chunk>,
) -> Result<Vec<v1::PullResponse>, Status> {
    let mut answer = VariablesClient::new(channel).push(stream(header, chunks)).await?.into_inner();
    let mut messages = Vec::new();
    while let Some(message) = answer.message().await? {
        messages.push(message);
    }
    Ok(messages)
}

/// Sends one push in a call of its own, without the client's checks.
pub(super) async fn raw(
    peers: &Peers,
    push: impl Fn(v1::RequestHeader) -> (v1::PushHeader, Vec<v1::Chunk>),
) -> Result<()> {
    let push = &push;
    peers
        .call(PS, Lane::Bulk, true, move |Try { channel, header, .. }| async move {
            let (header, chunks) = push(header);
            send(channel, header, chunks).await.map(drop)
        })
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn retried_write_is_applied_once_with_the_same_answer() {
    let ps = Ps::default();
    let peers = peers(ps.addr, caller("default", WORKER, 1));
    let variables = RemoteVariables::new(peers.clone(), PS);
    for bytes in [8, 100_000] {
        let variable = u8s(&format!("v{bytes}"), bytes);
        initialize(&variables, &variable, &vec![1; bytes]).await.unwrap();
        let one = &vec![1; bytes];
        let answer = thrice(&peers, |Try { channel, header: request, .. }| {
            send(channel, header(request, &variable, true), vec![chunk(0, 0, one)])
        });
        assert_eq!(answer.await.len(), 2);
        let value = pull(&variables, &variable).await.unwrap();
        assert_eq!(value.version, 2);
        assert!(value.tensor.data.iter().all(|&byte| byte == 2));
        push(&variables, &variable, UpdateKind::Add, one).await.unwrap();
        assert_eq!(pull(&variables, &variable).await.unwrap().version, 3, "another write is another write");
    }
    ps.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn faulty_streams_are_refused_and_change_nothing() {
    let ps = Ps::default();
    let peers = peers(ps.addr, caller("default", WORKER, 1));
    let variables = RemoteVariables::new(peers.clone(), PS);
    let w = VariableRef::whole("w", TensorType::new(DType::F32, [4]));
    initialize(&variables, &w, &[0; 16]).await.unwrap();
    let check = async |code, text: &str, chunks: Vec<v1::Chunk>, spoil: fn(&mut v1::PushHeader)| {
        let error = raw(&peers, |request| {
            let mut header = header(request, &w, false);
            spoil(&mut header);
            (header, chunks.clone())
        })
        .await
        .unwrap_err();
        assert!(error.code == code && error.message.contains(text), "{error}");
    };
    let good = || vec![chunk(0, 0, &[1; 16])];
    let invalid = ErrorCode::InvalidArgument;
    check(invalid, "ended in item `0` at offset `8`", vec![chunk(0, 0, &[1; 8])], |_| ()).await;
    check(invalid, "item `0` at offset `8` comes next", vec![chunk(0, 0, &[1; 8]), chunk(0, 12, &[1; 4])], |_| ())
        .await;
    check(invalid, "whole elements", vec![chunk(0, 0, &[1; 3])], |_| ()).await;
    check(invalid, "overruns", vec![chunk(0, 0, &[1; 20])], |_| ()).await;
    check(invalid, "after all items", [good(), good()].concat(), |_| ()).await;
    check(invalid, "`item.variable` is missing", good(), |header| header.item[0].variable = None).await;
    check(invalid, "kind number `9`", good(), |header| header.item[0].kind = 9).await;
    check(invalid, "`if_absent`", good(), |header| header.if_absent = true).await;
    check(invalid, "consistency number `7`", good(), |header| header.consistency = 7).await;
    check(invalid, "a base version needs the whole", good(), |header| {
        header.consistency = v1::Consistency::Relaxed.into();
        header.item[0].base_version = Some(1);
    })
    .await;
    check(invalid, "count writes from 1", good(), |header| header.header.as_mut().unwrap().sequence = 0).await;
    check(invalid, "`sync` belongs to a push with", good(), |header| header.sync = Some(v1::Sync::default())).await;
    check(invalid, "no such part", good(), |header| {
        header.item[0].variable.as_mut().unwrap().shard = Some(v1::Shard::default());
    })
    .await;
    let value = pull(&variables, &w).await.unwrap();
    assert_eq!((&value.tensor.data[..], value.version), (&[0; 16][..], 1));
    assert_eq!(ps.store.staged_bytes(), 0);
    assert_eq!(raw(&peers, |request| (header(request, &w, false), good())).await, Ok(()));
    ps.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn evaluator_may_read_and_not_write() {
    let ps = Ps::default();
    let w = u8s("w", 2);
    initialize(&connect(ps.addr, 1), &w, &[1, 2]).await.unwrap();
    let evaluator = RemoteVariables::new(peers(ps.addr, caller("default", EVALUATOR, 2)), PS);
    assert_eq!(pull(&evaluator, &w).await.unwrap().tensor.data, [1, 2][..]);
    for error in [
        initialize(&evaluator, &w, &[0, 0]).await.unwrap_err(),
        push(&evaluator, &w, UpdateKind::Assign, &[0, 0]).await.unwrap_err(),
    ] {
        assert_eq!(error.code, ErrorCode::FailedPrecondition);
        assert!(error.message.contains("`evaluator:0`"), "{error}");
    }
    assert_eq!(pull(&evaluator, &w).await.unwrap().version, 1);
    ps.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_reach_the_caller() {
    let ps = Ps::start(StoreOptions { variable_bytes_max: Some(1 << 20), ..Default::default() });
    let variables = connect(ps.addr, 1);
    let error = initialize(&variables, &u8s("large", 2 << 20), &vec![0; 2 << 20]).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::ResourceExhausted);
    assert!(error.message.contains("--max-variable-bytes"), "{error}");
    initialize(&variables, &u8s("fits", 1 << 20), &vec![0; 1 << 20]).await.unwrap();
    ps.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn new_attempt_begins_with_an_empty_container() {
    let ps = Ps::default();
    let attempt = |number| Some(Attempt { leader: Incarnation(5), number });
    let first =
        RemoteVariables::new(peers(ps.addr, Caller { attempt: attempt(0), ..caller("default", WORKER, 1) }), PS);
    let w = u8s("w", 1);
    initialize(&first, &w, &[1]).await.unwrap();
    let second =
        RemoteVariables::new(peers(ps.addr, Caller { attempt: attempt(1), ..caller("default", WORKER, 2) }), PS);
    assert_eq!(second.uninitialized(vec![w.clone()], Duration::ZERO).await, Ok(vec!["w".to_owned()]));
    initialize(&second, &w, &[2]).await.unwrap();
    let late = initialize(&first, &w, &[3]).await.unwrap_err();
    assert!(matches!(late.code, ErrorCode::Aborted | ErrorCode::Cancelled), "{late}");
    assert_eq!(pull(&second, &w).await.unwrap().tensor.data, [2][..]);
    ps.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn container_of_a_split_client_goes_with_its_last_session() {
    let ps = Ps::default();
    let w = u8s("w", 1);
    let connect = |container: &str, run| {
        let peers = peers(ps.addr, caller(container, WORKER, run));
        (peers.clone(), RemoteVariables::new(peers, PS))
    };
    let own = "run-0123456789abcdef";
    let (first_peers, first) = connect(own, 1);
    let (second_peers, second) = connect(own, 2);
    let (named_peers, named) = connect("run-mine", 3);
    initialize(&named, &w, &[1]).await.unwrap();
    initialize(&first, &w, &[1]).await.unwrap();
    pull(&second, &w).await.unwrap();
    first_peers.close().await;
    assert_eq!(pull(&second, &w).await.unwrap().version, 1);
    second_peers.close().await;
    named_peers.close().await;
    until("the end of the container", || ps.store.statuses().len() == 1).await;
    assert_eq!(ps.store.statuses()[0].container, "run-mine");
    ps.stop().await;
}
