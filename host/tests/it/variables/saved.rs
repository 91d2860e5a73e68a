//! Save and restore against a real server: hostile streams, and writes that are applied once.

use super::broken::{LARGE, Relay};
use super::optimizers::{COUNTS, apply, bytes, f32s, options};
use super::rules::{chunk, stream};
use super::*;
use dchost::client::channel::Try;
use dchost::client::variables::{Restore, SaveStream, Source};
use dchost::error::ErrorCode;
use dchost::variables::{SlotState, tensor_count};
use dchost::wire::v1;
use dchost::wire::v1::variables_client::VariablesClient;

/// Everything that a stream has, tensor by tensor.
async fn tensors(mut stream: SaveStream) -> Result<Vec<Vec<u8>>> {
    let saved: Vec<_> = stream.saved().to_vec();
    let mut all = Vec::new();
    for saved in saved {
        let bytes = saved.variable.ty.checked_size_bytes()?;
        for _ in 0..tensor_count(saved.slots) {
            let mut data = Vec::new();
            while data.len() < bytes {
                data.extend_from_slice(&stream.next().await?);
            }
            all.push(data);
        }
    }
    Ok(all)
}

/// Aim: what a task sends is what it held when it was asked, whatever happens meanwhile, and lists of any length come whole.
#[tokio::test(flavor = "multi_thread")]
async fn a_save_is_of_one_moment() {
    let ps = Ps::default();
    let run = connect(ps.addr, 1);
    let large = f32s("large", 3_000_000);
    initialize(&run, &large, &bytes(vec![1.0; 3_000_000])).await.unwrap();
    let gradient = bytes(vec![-1.0; 3_000_000]);
    apply(&run, vec![(&large, &gradient)], options(COUNTS)).await.unwrap();
    let name = |at| format!("{}{at:05}", "n".repeat(200));
    let small: Vec<_> = (0..6000).map(|at| u8s(&name(at), 1)).collect();
    let values = small.iter().map(|variable| (variable.clone(), view(variable, &[7]))).collect();
    run.initialize(values, InitializeMode::Overwrite).await.unwrap();

    let tool = RemoteVariables::new(peers(ps.addr, Caller { task: None, ..caller("default", WORKER, 2) }), PS);
    let stream = tool.save().await.unwrap();
    assert_eq!(tool.list().await.unwrap(), stream.saved(), "1.3 MB of names are several headers");
    assert_eq!((stream.saved().len(), stream.saved()[0].version), (6001, 2));
    apply(&run, vec![(&large, &gradient)], options(COUNTS)).await.unwrap();
    run.initialize(vec![(small[0].clone(), view(&small[0], &[8]))], InitializeMode::Overwrite).await.unwrap();
    let tensors = tensors(stream).await.unwrap();
    assert_eq!(tensors.len(), 6002);
    assert!(tensors[0] == bytes(vec![2.0; 3_000_000]) && tensors[1] == gradient, "the value, and its slot");
    assert!(tensors[2..].iter().all(|tensor| *tensor == [7]));
    ps.stop().await;
}

fn source(data: Vec<u8>) -> Source<usize> {
    let data = bytes::Bytes::from(data);
    Arc::new(move |at, range| Ok(data.slice(*at + range.start as usize..*at + range.end as usize)))
}

#[tokio::test(flavor = "multi_thread")]
async fn cut_restores_are_retried_and_applied_once() {
    const ELEMENTS: usize = 300_000;
    let ps = Ps::default();
    let relay = Relay::start(ps.addr).await;
    let w = f32s("w", ELEMENTS);
    let data = [bytes(vec![3.0; ELEMENTS]), bytes(vec![0.5; ELEMENTS])].concat();
    let slots = SlotState::checked("momentum", 9).ok();
    for (round, cut) in (1..).zip([LARGE + 1, ELEMENTS, 4 * ELEMENTS, 8 * ELEMENTS - 10]) {
        relay.cut([cut, cut / 2 + LARGE], None);
        let item = Restore { variable: w.clone(), slots, tensors: vec![0, 4 * ELEMENTS] };
        let versions = connect(relay.addr, round).restore(vec![item], &source(data.clone())).await;
        assert_eq!(versions, Ok(vec![round]), "round {round} is applied once");
    }
    let saved = tensors(connect(ps.addr, 99).save().await.unwrap()).await.unwrap();
    assert!(saved.concat() == data);
    until("freed staging", || ps.store.staged_bytes() == 0).await;
    ps.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_fails_is_what_is_told_and_nothing_is_set() {
    let ps = Ps::default();
    let run = connect(ps.addr, 1);
    let gone: Source<usize> = Arc::new(|_, range| match range.start {
        0 => Ok(vec![0; range.end as usize].into()),
        _ => Err(dchost::error::Error::new(ErrorCode::DataLoss, "the disk has gone")),
    });
    let item = Restore { variable: f32s("w", 300_000), slots: None, tensors: vec![0] };
    let error = run.restore(vec![item], &gone).await.unwrap_err();
    assert!(error.code == ErrorCode::DataLoss && error.message.contains("the disk has gone"), "{error}");
    assert!(run.list().await.unwrap().is_empty());
    until("freed staging", || ps.store.staged_bytes() == 0).await;
    ps.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_restores_are_refused_and_change_nothing() {
    let ps = Ps::default();
    let peers = peers(ps.addr, caller("default", WORKER, 1));
    let variables = RemoteVariables::new(peers.clone(), PS);
    let w = f32s("w", 2);
    let n = VariableRef::whole("n", TensorType::new(DType::S32, [2]));
    initialize(&variables, &w, &[0; 8]).await.unwrap();
    initialize(&variables, &n, &[0; 8]).await.unwrap();
    let check = async |text: &str, variable: &VariableRef, spoil: fn(&mut v1::PushHeader), sizes: &[usize]| {
        let restore = peers.call(PS, Lane::Bulk, true, |Try { channel, header: request, .. }| {
            let slots = Some(v1::Slots { method: "momentum".into(), step: 1 });
            let item = v1::PushItem { variable: Some(variable.into()), slots, ..Default::default() };
            let mut header = v1::PushHeader { header: Some(request), item: vec![item], ..Default::default() };
            spoil(&mut header);
            let chunks = (0..).zip(sizes).map(|(item, size)| chunk(item, 0, &vec![1; *size])).collect();
            async move { VariablesClient::new(channel).restore(stream(header, chunks)).await.map(drop) }
        });
        let error = restore.await.unwrap_err();
        assert!(error.code == ErrorCode::InvalidArgument && error.message.contains(text), "{error}");
    };
    let whole = &[8, 8][..];
    check("`sgd` keeps no slots", &w, |h| h.item[0].slots.as_mut().unwrap().method = "sgd".into(), whole).await;
    let long = |h: &mut v1::PushHeader| h.item[0].slots.as_mut().unwrap().method = "x".repeat(1 << 20);
    check("... (1048576 bytes)` keeps no slots", &w, long, whole).await;
    check("steps are not restored", &w, |h| h.item[0].slots.as_mut().unwrap().step = u64::MAX, whole).await;
    check("no base versions", &w, |h| h.item[0].base_version = Some(1), whole).await;
    check("nothing else", &w, |h| h.if_absent = true, whole).await;
    check("nothing else", &w, |h| h.clip_scale = 0.5, whole).await;
    check("nothing else", &w, |h| h.sync = Some(v1::Sync { step: 1, replicas: 2 }), whole).await;
    check("nothing else", &w, |h| h.want_values = true, whole).await;
    check("as a whole", &w, |h| h.consistency = 1, whole).await;
    check("f32 and f64 only", &n, |_| (), whole).await;
    check("`w` stands twice", &w, |h| h.item.push(h.item[0].clone()), whole).await;
    check("variable `w` is `f32[2]` here", &f32s("w", 3), |_| (), &[12, 12]).await;
    check("ended in item `1` at offset `0`", &w, |_| (), &[8]).await;
    check("item `1`", &w, |_| (), &[8, 12]).await;
    check("after all items", &w, |_| (), &[8, 8, 8]).await;
    check("`item.variable` is missing", &w, |h| h.item[0].variable = None, whole).await;
    let pushes = peers.call(PS, Lane::Bulk, true, |Try { channel, header: request, .. }| {
        let slots = Some(v1::Slots { method: "momentum".into(), step: 1 });
        let item = v1::PushItem { variable: Some((&w).into()), slots, ..Default::default() };
        let header = v1::PushHeader { header: Some(request), item: vec![item], ..Default::default() };
        async move { VariablesClient::new(channel).push(stream(header, vec![chunk(0, 0, &[1; 8])])).await.map(drop) }
    });
    assert!(pushes.await.is_err_and(|error| error.message.contains("`slots` belong to Restore")));
    for variable in [&w, &n] {
        let value = pull(&variables, variable).await.unwrap();
        assert_eq!((&value.tensor.data[..], value.version), (&[0; 8][..], 1));
    }
    assert_eq!((ps.store.staged_bytes(), ps.store.variable_bytes()), (0, 16));
    ps.stop().await;
}
