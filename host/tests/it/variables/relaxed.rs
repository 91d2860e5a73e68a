//! Relaxed updates and reads: in whole chunks, each applied once.

use super::broken::{LARGE, Relay};
use super::*;
use dchost::error::ErrorCode;
use dchost::handles::Consistency;
use dchost::wire::tensor::CHUNK_BYTES;
use dchost::wire::v1;
use dchost::wire::v1::variables_client::VariablesClient;
use std::sync::atomic::{AtomicBool, Ordering};

const RELAXED: WriteOptions = WriteOptions { want_values: false, consistency: Consistency::Relaxed };

fn s32s(name: &str, bytes: usize) -> VariableRef {
    VariableRef::whole(name, TensorType::new(DType::S32, [bytes as u64 / 4]))
}

fn filled(value: i32, bytes: usize) -> Vec<u8> {
    std::iter::repeat_n(value.to_le_bytes(), bytes / 4).flatten().collect()
}

async fn add(
    variables: &dyn TaskVariables,
    variable: &VariableRef,
    data: &[u8],
    options: WriteOptions,
) -> Result<Value> {
    let change = Change { variable: variable.clone(), kind: UpdateKind::Add, value: view(variable, data), base: None };
    variables.push(vec![change], options).await.map(|mut values| values.remove(0))
}

async fn read(variables: &dyn TaskVariables, variable: &VariableRef, consistency: Consistency) -> Result<Value> {
    let options = ReadOptions { consistency, ..ReadOptions::default() };
    variables.pull(vec![variable.clone()], options).await.map(|mut values| values.remove(0))
}

fn partial_writes(ps: &Ps) -> u64 {
    ps.store.statuses().iter().map(|status| status.partial_writes).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn relaxed_calls_do_what_atomic_ones_do_where_nobody_else_is() {
    let ps = Ps::default();
    let variables = connect(ps.addr, 1);
    for bytes in [0, 4, CHUNK_BYTES, CHUNK_BYTES + 4, (3 << 20) + 12_344] {
        let variable = s32s(&format!("v{bytes}"), bytes);
        initialize(&variables, &variable, &filled(1, bytes)).await.unwrap();
        let value = add(&variables, &variable, &filled(2, bytes), RELAXED).await.unwrap();
        assert!(value.version == 2 && value.tensor.data.is_empty());
        let with_values = WriteOptions { want_values: true, ..RELAXED };
        let value = add(&variables, &variable, &filled(2, bytes), with_values).await.unwrap();
        assert!(value.version == 3 && value.tensor.data == filled(5, bytes));
        let value = read(&variables, &variable, Consistency::Relaxed).await.unwrap();
        assert!(value.version == 3 && value.tensor.data == filled(5, bytes) && value.tensor.ty == variable.ty);
    }
    assert_eq!(ps.store.staged_bytes_peak(), (3 << 20) + 12_344, "only the initial values were staged");
    ps.stop().await;
}

/// Aim: an update whose connection breaks at any chunk is applied once. Method: cuts before, in and behind each chunk's bytes, then
/// twice at places further back and further on than the first.
#[tokio::test(flavor = "multi_thread")]
async fn updates_cut_at_every_chunk_are_taken_up_and_applied_once() {
    const CHUNKS: usize = 5;
    const BYTES: usize = CHUNKS * CHUNK_BYTES;
    let ps = Ps::default();
    let relay = Relay::start(ps.addr).await;
    let w = s32s("w", BYTES);
    initialize(&connect(ps.addr, 99), &w, &filled(0, BYTES)).await.unwrap();
    let one = filled(1, BYTES);
    // Headers and frames take some bytes too, so that a cut is somewhere around the boundary.
    let near = |chunk: usize| [0, 100, 500, 1500].map(|more| vec![(chunk * CHUNK_BYTES + more).max(LARGE + 1)]);
    let cuts = (0..=CHUNKS).flat_map(near).chain([
        vec![3 * CHUNK_BYTES, CHUNK_BYTES, 4 * CHUNK_BYTES],
        vec![CHUNK_BYTES, 2 * CHUNK_BYTES, 3 * CHUNK_BYTES, 2 * CHUNK_BYTES],
    ]);
    let mut sum = 0;
    for cuts in cuts {
        sum += 1;
        relay.cut(cuts.clone(), None);
        let value = add(&connect(relay.addr, sum), &w, &one, RELAXED).await.unwrap();
        assert_eq!(value.version, sum + 1, "{cuts:?}");
        let seen = pull(&connect(ps.addr, 98), &w).await.unwrap();
        let as_expected = seen.tensor.data.chunks(4).all(|element| element == (sum as i32).to_le_bytes());
        assert!(seen.version == sum + 1 && as_expected, "applied once: {cuts:?}");
    }
    assert_eq!(partial_writes(&ps), 0);
    ps.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_update_that_never_completes_is_told_to_all() {
    const BYTES: usize = 4 * CHUNK_BYTES;
    let ps = Ps::default();
    let relay = Relay::start(ps.addr).await;
    let w = s32s("w", BYTES);
    initialize(&connect(ps.addr, 99), &w, &filled(7, BYTES)).await.unwrap();
    relay.cut([], Some(BYTES / 2 + CHUNK_BYTES / 2));
    let peers = grpc::peers_of(caller("default", WORKER, 1), relay.addr, LONG, Duration::from_secs(1));
    let error = add(&RemoteVariables::new(peers.clone(), PS), &w, &filled(1, BYTES), RELAXED).await.unwrap_err();
    assert_eq!((error.code, &*error.tasks), (ErrorCode::PeerFailed, &[PS][..]), "{error}");
    assert!(error.message.ends_with("a part of this relaxed update may have been applied"), "{error}");
    assert_eq!((partial_writes(&ps), pull(&connect(ps.addr, 98), &w).await.unwrap().version), (0, 1));
    peers.close().await;
    until("the partial write", || partial_writes(&ps) == 1).await;
    let value = pull(&connect(ps.addr, 98), &w).await.unwrap();
    let applied = value.tensor.data.chunks(4).filter(|element| **element == 8_i32.to_le_bytes()).count() * 4;
    assert!(value.version == 2 && applied == 2 * CHUNK_BYTES, "{applied} bytes");
    let status = connect_peers(ps.addr)
        .call(PS, Lane::Control, false, |Try { channel, header, .. }| async move {
            let request = v1::GetStatusRequest { header: Some(header), ..Default::default() };
            Ok(v1::cluster_client::ClusterClient::new(channel).get_status(request).await?.into_inner())
        })
        .await
        .unwrap();
    assert_eq!((status.variable[0].partial_writes, status.variable[0].version), (1, 2));
    ps.stop().await;
}

fn connect_peers(addr: SocketAddr) -> Peers {
    peers(addr, caller("default", WORKER, 97))
}

/// A caller that sends what it mustn't is told, and what it had sent is no secret.
#[tokio::test(flavor = "multi_thread")]
async fn a_faulty_chunk_ends_the_update_where_it_is() {
    const BYTES: usize = 2 * CHUNK_BYTES;
    let ps = Ps::default();
    let w = u8s("w", BYTES);
    initialize(&connect(ps.addr, 99), &w, &vec![0; BYTES]).await.unwrap();
    let reference = &w;
    let push = |Try { channel, header, .. }: Try| async move {
        let item =
            v1::PushItem { variable: Some(reference.into()), kind: v1::UpdateKind::Add.into(), ..Default::default() };
        let consistency = v1::Consistency::Relaxed.into();
        let header = v1::PushHeader { header: Some(header), item: vec![item], consistency, ..Default::default() };
        let chunk = |offset: usize| v1::Chunk { item: 0, offset: offset as u64, data: vec![1; CHUNK_BYTES].into() };
        let kinds = [
            v1::push_request::Kind::Header(header),
            v1::push_request::Kind::Chunk(chunk(0)),
            v1::push_request::Kind::Chunk(chunk(1)),
        ];
        let stream = tokio_stream::iter(kinds.map(|kind| v1::PushRequest { kind: Some(kind) }));
        VariablesClient::new(channel).push(stream).await.map(drop)
    };
    let error = connect_peers(ps.addr).call(PS, Lane::Bulk, true, push).await.unwrap_err();
    assert!(error.code == ErrorCode::InvalidArgument && error.message.contains("comes next"), "{error}");
    until("the partial write", || partial_writes(&ps) == 1).await;
    let value = pull(&connect(ps.addr, 98), &w).await.unwrap();
    assert!(value.version == 2 && value.tensor.data.iter().filter(|&&byte| byte == 1).count() == CHUNK_BYTES);
    ps.stop().await;
}

/// Aim: nobody sees a part of a chunk, nothing is lost, and versions only rise. Method: runs that add relaxed and whole at the same
/// time, all elements of a chunk by the same number, while others read both ways.
#[tokio::test(flavor = "multi_thread")]
async fn chunks_are_whole_for_all_readers() {
    const BYTES: usize = 6 * CHUNK_BYTES + 400;
    const ROUNDS: usize = 15;
    let ps = Ps::default();
    let w = s32s("w", BYTES);
    initialize(&connect(ps.addr, 99), &w, &filled(0, BYTES)).await.unwrap();
    let one = Arc::new(filled(1, BYTES));
    let writers: Vec<_> = (1..=3)
        .map(|run| {
            let (variables, w, one) = (connect(ps.addr, run), w.clone(), one.clone());
            tokio::spawn(async move {
                let options = if run == 3 { WriteOptions::default() } else { RELAXED };
                for _ in 0..ROUNDS {
                    add(&variables, &w, &one, options).await.unwrap();
                }
            })
        })
        .collect();
    let over = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = [Consistency::Atomic, Consistency::Relaxed]
        .into_iter()
        .zip(10..)
        .map(|(consistency, run)| {
            let (variables, w, over) = (connect(ps.addr, run), w.clone(), over.clone());
            tokio::spawn(async move {
                let (mut last, mut least) = (0, 0);
                while !over.load(Ordering::Relaxed) {
                    let value = read(&variables, &w, consistency).await.unwrap();
                    assert!(value.version >= last, "versions rise");
                    last = value.version;
                    let firsts: Vec<_> = value
                        .tensor
                        .data
                        .chunks(CHUNK_BYTES)
                        .map(|chunk| {
                            let (first, _) = chunk.split_at(4);
                            assert!(chunk.chunks(4).all(|element| element == first), "a torn chunk");
                            i32::from_le_bytes(first.try_into().expect("4 bytes"))
                        })
                        .collect();
                    let smallest = firsts.iter().copied().min().unwrap_or_default();
                    assert!(smallest >= least, "no chunk goes backward");
                    assert!(smallest as u64 >= value.version - 1, "all up to the version is in it");
                    least = smallest;
                }
            })
        })
        .collect();
    for writer in writers {
        tokio::time::timeout(LONG, writer).await.expect("writers get on").unwrap();
    }
    over.store(true, Ordering::Relaxed);
    for reader in readers {
        reader.await.unwrap();
    }
    let value = pull(&connect(ps.addr, 98), &w).await.unwrap();
    assert_eq!(value.version, 3 * ROUNDS as u64 + 1);
    assert!(value.tensor.data == filled(3 * ROUNDS as i32, BYTES), "nothing is lost");
    ps.stop().await;
}
