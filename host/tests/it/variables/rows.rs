//! Rows on their way from and to a server.

use super::broken::{LARGE, Relay};
use super::rules::chunk;
use super::*;
use dchost::coordinator::local::LocalVariables;
use dchost::error::ErrorCode;
use dchost::handles::RowChange;
use dchost::variables::ROWS_MAX;
use dchost::wire::v1::scatter_request::Kind;
use dchost::wire::v1::variables_client::VariablesClient;
use dchost::wire::v1::{self, pull_response};
use tokio::runtime::Handle;
use tonic::transport::Channel;

fn table(name: &str, rows: usize, width: usize) -> VariableRef {
    VariableRef::whole(name, TensorType::new(DType::S32, [rows as u64, width as u64]))
}

/// Rows whose elements tell where they are.
fn ramp(elements: usize, from: i32) -> Vec<u8> {
    (from..from + elements as i32).flat_map(i32::to_le_bytes).collect()
}

async fn scatter(
    variables: &dyn TaskVariables,
    table: &VariableRef,
    rows: &[u64],
    kind: UpdateKind,
    data: &[u8],
) -> Result<u64> {
    let value = TensorView { ty: table.ty.with_rows(rows.len() as u64), data };
    variables.scatter(RowChange { variable: table.clone(), rows: rows.to_vec(), kind, value }).await
}

/// Aim: whether a variable is in this process or in another's makes no difference. Method: the same calls to both, with lists that a
/// server answers at once, that it copies on another thread, that it sends out of its blocks, and that take several messages.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_reads_and_changes_the_rows_that_this_process_does() {
    const ROWS: usize = 300_000;
    let ps = Ps::default();
    let remote = connect(ps.addr, 1);
    let local = LocalVariables::new(Store::default(), "default", None, Handle::current());
    let (t, empty) = (table("t", ROWS, 3), table("empty", 5, 0));
    let places = |count: usize| (0..count as u64).map(|at| at * 7919 % ROWS as u64).collect::<Vec<_>>();
    for variables in [&remote as &dyn TaskVariables, &local] {
        initialize(variables, &t, &ramp(ROWS * 3, 0)).await.unwrap();
        initialize(variables, &empty, &[]).await.unwrap();
    }
    let mut version = 1;
    for (count, kind) in [
        (3, UpdateKind::Add),
        (6000, UpdateKind::Sub),
        (30_000, UpdateKind::Min),
        (400_000, UpdateKind::Max),
        (ROWS_MAX, UpdateKind::Add),
        (2, UpdateKind::Assign),
    ] {
        let (rows, change) = (places(count), ramp(count * 3, 5));
        version += 1;
        for variables in [&remote as &dyn TaskVariables, &local] {
            assert_eq!(scatter(variables, &t, &rows, kind, &change).await, Ok(version), "{count} rows");
        }
        let theirs = remote.gather(t.clone(), rows.clone()).await.unwrap();
        assert!(theirs == local.gather(t.clone(), rows).await.unwrap(), "{count} rows");
        assert_eq!((theirs.tensor.ty.shape, theirs.version), (vec![count as u64, 3], version));
        let theirs = pull(&remote, &t).await.unwrap();
        assert!(theirs == pull(&local, &t).await.unwrap(), "{count} rows");
        assert_eq!(ps.store.staged_bytes(), 0);
    }
    let most = (ROWS_MAX * (8 + 3 * 4)) as u64;
    assert!(ps.store.staged_bytes_peak() <= most, "one copy of what is on its way: {}", ps.store.staged_bytes_peak());
    for variables in [&remote as &dyn TaskVariables, &local] {
        assert_eq!(scatter(variables, &t, &[], UpdateKind::Add, &[]).await, Ok(version), "no change, no version");
        let none = variables.gather(t.clone(), Vec::new()).await.unwrap();
        assert_eq!((none.tensor.ty.shape, none.version), (vec![0, 3], version));
        assert_eq!(
            scatter(variables, &empty, &[4, 4], UpdateKind::Add, &[]).await,
            Ok(2),
            "rows without bytes are rows"
        );
        let none = variables.gather(empty.clone(), vec![4, 0, 4]).await.unwrap();
        assert_eq!((none.tensor.ty.shape, none.tensor.data.len(), none.version), (vec![3, 0], 0, 2));
        for error in [
            variables.gather(t.clone(), vec![0, ROWS as u64]).await.unwrap_err(),
            scatter(variables, &t, &[0, ROWS as u64], UpdateKind::Add, &[0; 24]).await.unwrap_err(),
        ] {
            assert_eq!(error.code, ErrorCode::OutOfRange);
            assert!(error.message.contains("row `300000` (number `1` of those asked for)"), "{error}");
        }
        for error in [
            variables.gather(table("x", 2, 1), vec![0]).await.unwrap_err(),
            scatter(variables, &table("x", 2, 1), &[0], UpdateKind::Add, &[0; 4]).await.unwrap_err(),
        ] {
            assert_eq!((error.code, &*error.names), (ErrorCode::Uninitialized, &["x".to_owned()][..]));
        }
        for error in [
            variables.gather(t.clone(), vec![0; ROWS_MAX + 1]).await.unwrap_err(),
            scatter(variables, &t, &vec![0; ROWS_MAX + 1], UpdateKind::Add, &[]).await.unwrap_err(),
            scatter(variables, &t, &[0], UpdateKind::Add, &[0; 8]).await.unwrap_err(),
        ] {
            assert_eq!(error.code, ErrorCode::InvalidArgument, "{error}");
        }
    }
    ps.stop().await;
}

/// Aim: an answer may be much larger than the variable, and the server holds little of it. Method: one row, a million times.
#[tokio::test(flavor = "multi_thread")]
async fn one_row_a_million_times_is_answered_in_chunks() {
    let ps = Ps::default();
    let peers = peers(ps.addr, caller("default", WORKER, 1));
    let t = table("t", 2, 1000);
    initialize(&RemoteVariables::new(peers.clone(), PS), &t, &ramp(2000, 0)).await.unwrap();
    let bytes = peers.call(PS, Lane::Bulk, false, |Try { channel, header, .. }| {
        let request = v1::GatherRequest { header: Some(header), variable: Some((&t).into()), row: vec![1; ROWS_MAX] };
        async move {
            let mut answer = VariablesClient::new(channel).gather(request).await?.into_inner();
            let mut bytes = 0;
            while let Some(message) = answer.message().await? {
                match message.kind {
                    Some(pull_response::Kind::Chunk(chunk)) => {
                        assert!(chunk.offset == bytes && chunk.data.len() <= 256 << 10);
                        bytes += chunk.data.len() as u64;
                    }
                    _ => assert_eq!(bytes, 0, "the header is the first"),
                }
                if bytes > 64 << 20 {
                    break;
                }
            }
            // What nobody reads is not made.
            Ok(bytes)
        }
    });
    assert!(bytes.await.unwrap() > 64 << 20);
    ps.stop().await;
}

fn header(request: v1::RequestHeader, table: &VariableRef, rows: &[u64]) -> v1::ScatterHeader {
    v1::ScatterHeader {
        header: Some(request),
        variable: Some(table.into()),
        kind: v1::UpdateKind::Add.into(),
        row: rows.to_vec(),
        optimizer: None,
    }
}

/// Sends one change of rows as it is.
async fn send(channel: Channel, kinds: Vec<Option<Kind>>) -> Result<v1::PushResponse, Status> {
    let messages = kinds.into_iter().map(|kind| v1::ScatterRequest { kind });
    let stream = tokio_stream::iter(messages.collect::<Vec<_>>());
    Ok(VariablesClient::new(channel).scatter(stream).await?.into_inner())
}

/// Sends one change of rows in a call of its own, without the client's checks.
async fn raw(peers: &Peers, kinds: impl Fn(v1::RequestHeader) -> Vec<Option<Kind>>) -> Result<Vec<u64>> {
    let kinds = &kinds;
    peers
        .call(PS, Lane::Bulk, true, move |Try { channel, header, .. }| async move {
            Ok(send(channel, kinds(header)).await?.version)
        })
        .await
}

fn rows(rows: &[u64]) -> Option<Kind> {
    Some(Kind::Rows(v1::ScatterRows { row: rows.to_vec() }))
}

fn data(offset: u64, data: &[u8]) -> Option<Kind> {
    Some(Kind::Chunk(chunk(0, offset, data)))
}

#[tokio::test(flavor = "multi_thread")]
async fn retried_rows_are_changed_once_with_the_same_answer() {
    let ps = Ps::default();
    let peers = peers(ps.addr, caller("default", WORKER, 1));
    let variables = RemoteVariables::new(peers.clone(), PS);
    for count in [2_usize, 50_000] {
        let t = &table(&format!("t{count}"), count, 2);
        initialize(&variables, t, &vec![0; count * 8]).await.unwrap();
        let places: &Vec<_> = &(0..count as u64).rev().collect();
        let change = &ramp(count * 2, 1);
        let (first, more) = places.split_at(count / 2);
        let answer = thrice(&peers, |Try { channel, header: request, .. }| {
            send(channel, vec![Some(Kind::Header(header(request, t, first))), rows(more), data(0, change)])
        });
        assert_eq!(answer.await.version, [2]);
        let value = variables.gather(t.clone(), places.clone()).await.unwrap();
        assert!(value.version == 2 && value.tensor.data == *change, "changed once");
    }
    ps.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cut_rows_are_retried_and_changed_once() {
    const ROWS: usize = 100_000;
    let ps = Ps::default();
    let relay = Relay::start(ps.addr).await;
    let t = table("t", ROWS, 4);
    initialize(&connect(ps.addr, 99), &t, &vec![0; ROWS * 16]).await.unwrap();
    let places: Vec<_> = (0..ROWS as u64).collect();
    let one: Vec<u8> = std::iter::repeat_n(1_i32.to_le_bytes(), ROWS * 4).flatten().collect();
    // Within the rows, at their end, within the value, near its end.
    for (round, cut) in (1..).zip([LARGE + 1, 300_000, ROWS * 8, ROWS * 18]) {
        relay.cut([cut, cut / 2 + LARGE], None);
        let written = scatter(&connect(relay.addr, round), &t, &places, UpdateKind::Add, &one).await;
        assert_eq!(written, Ok(round + 1));
        let value = connect(ps.addr, 98).gather(t.clone(), places.clone()).await.unwrap();
        assert_eq!(value.version, round + 1, "changed once");
        assert!(value.tensor.data.chunks(4).all(|element| element == (round as i32).to_le_bytes()));
    }
    until("freed staging", || ps.store.staged_bytes() == 0).await;
    ps.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_rows_are_refused_and_change_nothing() {
    let ps = Ps::default();
    let peers = peers(ps.addr, caller("default", WORKER, 1));
    let variables = RemoteVariables::new(peers.clone(), PS);
    let t = table("t", 3, 2);
    let scalar = VariableRef::whole("s", TensorType::new(DType::S32, []));
    initialize(&variables, &t, &[0; 24]).await.unwrap();
    initialize(&variables, &scalar, &[0; 4]).await.unwrap();
    let spoiled = async |code, text: &str, spoil: fn(&mut v1::ScatterHeader), rest: Vec<Option<Kind>>| {
        let error = raw(&peers, |request| {
            let mut header = header(request, &t, &[0, 2]);
            spoil(&mut header);
            [vec![Some(Kind::Header(header))], rest.clone()].concat()
        })
        .await
        .unwrap_err();
        assert!(error.code == code && error.message.contains(text), "{error}");
    };
    let check = async |code, text: &str, rest: Vec<Option<Kind>>| spoiled(code, text, |_| (), rest).await;
    let good = || vec![data(0, &[1; 16])];
    let (invalid, range) = (ErrorCode::InvalidArgument, ErrorCode::OutOfRange);
    check(invalid, "ended in item `0` at offset `0` of `16`", vec![]).await;
    check(invalid, "ended in item `0` at offset `8` of `24`", vec![rows(&[1]), data(0, &[1; 8])]).await;
    check(invalid, "overruns", vec![data(0, &[1; 24])]).await;
    check(invalid, "after all items", [good(), good()].concat()).await;
    check(invalid, "whole elements", vec![data(0, &[1; 3])]).await;
    check(invalid, "rows behind its first chunk", vec![data(0, &[1; 8]), rows(&[1])]).await;
    check(invalid, "a message of no rows", vec![rows(&[])]).await;
    check(invalid, "neither header nor rows nor chunk", vec![None]).await;
    check(invalid, "second header", vec![Some(Kind::Header(v1::ScatterHeader::default()))]).await;
    check(range, "row `3` (number `2` of those asked for)", vec![rows(&[3]), data(0, &[1; 24])]).await;
    let many = vec![rows(&vec![0; ROWS_MAX / 2]), rows(&vec![0; ROWS_MAX / 2])];
    check(invalid, "`1048578` rows of variable `t` in one call", many).await;
    spoiled(invalid, "`1048577` rows", |header| header.row = vec![0; ROWS_MAX + 1], good()).await;
    spoiled(range, "row `18446744073709551615`", |header| header.row = vec![u64::MAX], good()).await;
    spoiled(invalid, "`variable` is missing", |header| header.variable = None, good()).await;
    spoiled(invalid, "kind number `9`", |header| header.kind = 9, good()).await;
    spoiled(invalid, "count writes from 1", |header| header.header.as_mut().unwrap().sequence = 0, good()).await;
    let optimizer = |header: &mut v1::ScatterHeader| header.optimizer = Some(v1::Optimizer::default());
    spoiled(ErrorCode::Unimplemented, "scatter with an optimizer", optimizer, good()).await;
    let other = |header: &mut v1::ScatterHeader| header.variable.as_mut().unwrap().shape = vec![3, 1];
    spoiled(invalid, "`s32[3, 2]` here", other, vec![data(0, &[1; 8])]).await;
    let rowless = |header: &mut v1::ScatterHeader| {
        header.variable = Some((&VariableRef::whole("s", TensorType::new(DType::S32, []))).into())
    };
    spoiled(invalid, "is a scalar", rowless, good()).await;
    let headless = raw(&peers, |_| vec![data(0, &[1; 16])]).await.unwrap_err();
    assert_eq!(headless.code, invalid, "{headless}");

    let gather = async |variable: Option<v1::VariableRef>, row: Vec<u64>| {
        let request = v1::GatherRequest { header: None, variable, row };
        let request = &request;
        let ask = |Try { channel, header, .. }| async move {
            let request = v1::GatherRequest { header: Some(header), ..request.clone() };
            VariablesClient::new(channel).gather(request).await.map(drop)
        };
        peers.call(PS, Lane::Bulk, false, ask).await.unwrap_err()
    };
    for (error, code, text) in [
        (gather(None, vec![]).await, invalid, "`variable` is missing"),
        (gather(Some((&t).into()), vec![0, 3]).await, range, "row `3` (number `1` of those asked for)"),
        (gather(Some((&t).into()), vec![0; ROWS_MAX + 1]).await, invalid, "`1048577` rows"),
        (gather(Some((&scalar).into()), vec![]).await, invalid, "is a scalar"),
        (gather(Some((&table("t", 4, 2)).into()), vec![3]).await, invalid, "`s32[3, 2]` here"),
    ] {
        assert!(error.code == code && error.message.contains(text), "{error}");
    }

    let value = pull(&variables, &t).await.unwrap();
    assert_eq!((&value.tensor.data[..], value.version), (&[0; 24][..], 1));
    assert_eq!(ps.store.staged_bytes(), 0);
    let answer = raw(&peers, |request| vec![Some(Kind::Header(header(request, &t, &[0, 2]))), data(0, &[1; 16])]).await;
    assert_eq!(answer, Ok(vec![2]));
    ps.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_evaluator_reads_rows_and_changes_none() {
    let ps = Ps::default();
    let t = table("t", 2, 1);
    initialize(&connect(ps.addr, 1), &t, &ramp(2, 5)).await.unwrap();
    let evaluator = RemoteVariables::new(peers(ps.addr, caller("default", EVALUATOR, 2)), PS);
    assert_eq!(evaluator.gather(t.clone(), vec![1]).await.unwrap().tensor.data, ramp(1, 6));
    let error = scatter(&evaluator, &t, &[1], UpdateKind::Add, &ramp(1, 1)).await.unwrap_err();
    assert!(error.code == ErrorCode::FailedPrecondition && error.message.contains("`evaluator:0`"), "{error}");
    assert_eq!(pull(&evaluator, &t).await.unwrap().version, 1);
    ps.stop().await;
}

/// A run that ends within a change of rows gives its staging memory back, that of the rows too.
#[tokio::test(flavor = "multi_thread")]
async fn end_of_the_session_frees_unfinished_rows() {
    let ps = Ps::default();
    let t = table("t", 100_000, 1);
    initialize(&connect(ps.addr, 99), &t, &vec![7; 400_000]).await.unwrap();
    let peers = peers(ps.addr, caller("default", WORKER, 1));
    let scattering = tokio::spawn({
        let (peers, t) = (peers.clone(), t.clone());
        async move {
            let t = &t;
            let scatter = |attempt: Try| async move {
                let places: Vec<_> = (0..100_000).collect();
                let (messages, receiver) = tokio::sync::mpsc::channel(4);
                for kind in [Some(Kind::Header(header(attempt.header, t, &places))), data(0, &[1; 200_000])] {
                    messages.send(v1::ScatterRequest { kind }).await.expect("the receiver is here");
                }
                let stream = tokio_stream::wrappers::ReceiverStream::new(receiver);
                let answer = VariablesClient::new(attempt.channel).scatter(stream).await.map(drop);
                drop(messages);
                answer
            };
            peers.call(PS, Lane::Bulk, true, scatter).await
        }
    });
    until("rows and a staged half", || ps.store.staged_bytes() == 1_000_000).await;
    peers.close().await;
    until("freed staging", || ps.store.staged_bytes() == 0).await;
    assert_eq!(scattering.await.unwrap().unwrap_err().code, ErrorCode::Cancelled);
    assert_eq!(pull(&connect(ps.addr, 98), &t).await.unwrap().version, 1);
    ps.stop().await;
}
