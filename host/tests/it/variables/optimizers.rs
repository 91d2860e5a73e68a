//! Gradients on their way to a server that applies them.

use super::broken::{LARGE, Relay};
use super::rules::{chunk, raw, send, stream};
use super::*;
use dchost::coordinator::local::LocalVariables;
use dchost::error::ErrorCode;
use dchost::handles::{ApplyOptions, Gradient};
use dchost::variables::{Adam, BLOCK_BYTES, Optimizer};
use dchost::wire::v1;
use dchost::wire::v1::variables_client::VariablesClient;
use tokio::runtime::Handle;

const NUMBERS: Adam = Adam { learning_rate: 0.1, beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.01 };
/// Subtracts each gradient, and has a slot.
pub(super) const COUNTS: Optimizer = Optimizer::Momentum { learning_rate: 1.0, momentum: 0.0, nesterov: false };

pub(super) fn options(optimizer: Optimizer) -> ApplyOptions {
    ApplyOptions { optimizer, scale: 1.0, sync: None, write: WriteOptions::WITH_VALUES }
}

pub(super) fn f32s(name: &str, elements: usize) -> VariableRef {
    VariableRef::whole(name, TensorType::new(DType::F32, [elements as u64]))
}

pub(super) fn bytes(values: impl IntoIterator<Item = f32>) -> Vec<u8> {
    values.into_iter().flat_map(f32::to_le_bytes).collect()
}

pub(super) async fn apply(
    variables: &dyn TaskVariables,
    gradients: Vec<(&VariableRef, &[u8])>,
    options: ApplyOptions,
) -> Result<Vec<Value>> {
    let gradient = |(variable, data)| Gradient { variable: VariableRef::clone(variable), value: view(variable, data) };
    variables.apply(gradients.into_iter().map(gradient).collect(), options).await
}

/// Aim: whether a variable is in this process or in another's makes no difference, to the last bit. Method: the same gradients to
/// both, small ones that the server applies at once and those of several blocks.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_makes_the_steps_that_this_process_makes() {
    let ps = Ps::default();
    let remote = connect(ps.addr, 1);
    let local = LocalVariables::new(Store::default(), "default", None, Handle::current());
    let small = f32s("small", 5);
    let large = f32s("large", BLOCK_BYTES / 2 + 3);
    let ramp = |variable: &VariableRef, by: f32| bytes((0..variable.ty.shape[0]).map(|i| (i % 997) as f32 * by - 3.0));
    for optimizer in [
        Optimizer::Sgd { learning_rate: 0.1 },
        Optimizer::Momentum { learning_rate: 0.1, momentum: 0.9, nesterov: true },
        Optimizer::Adagrad { learning_rate: 0.1, decay: 0.1, epsilon: 1e-10 },
        Optimizer::RmsProp { learning_rate: 0.1, decay: 0.9, epsilon: 1e-8 },
        Optimizer::Adam(NUMBERS),
        Optimizer::AdamW(NUMBERS),
    ] {
        for variable in [&small, &large] {
            for variables in [&remote as &dyn TaskVariables, &local] {
                initialize(variables, variable, &ramp(variable, 0.5)).await.unwrap();
            }
        }
        for step in 1..=3 {
            let data = [&small, &large].map(|variable| ramp(variable, 0.01 * step as f32));
            let gradients = || vec![(&small, &data[0][..]), (&large, &data[1][..])];
            let scaled = ApplyOptions { scale: 0.25, ..options(optimizer) };
            let theirs = apply(&remote, gradients(), scaled).await.unwrap();
            let ours = apply(&local, gradients(), scaled).await.unwrap();
            assert!(theirs == ours, "{optimizer:?} step {step}");
            assert!(theirs[0].tensor.data != ramp(&small, 0.5), "{optimizer:?} changed something");
            assert_eq!(pull(&remote, &large).await.unwrap(), theirs[1]);
        }
    }
    let silent = ApplyOptions { write: WriteOptions::default(), ..options(Optimizer::Adam(NUMBERS)) };
    let data = ramp(&small, 1.0);
    let answer = apply(&remote, vec![(&small, &data)], silent).await.unwrap().remove(0);
    assert!(answer.tensor.data.is_empty() && answer.version == pull(&remote, &small).await.unwrap().version);
    let status = |name: &str| ps.store.statuses().into_iter().find(|status| status.name == name).unwrap();
    assert_eq!(status("large").slot_bytes, 2 * status("large").bytes);
    assert_eq!(ps.store.staged_bytes(), 0);
    assert!(ps.store.staged_bytes_peak() <= (5 + BLOCK_BYTES as u64 / 2 + 3) * 4, "one copy of what is on its way");
    ps.stop().await;
}

pub(super) fn header(request: v1::RequestHeader, variable: &VariableRef, optimizer: &Optimizer) -> v1::PushHeader {
    v1::PushHeader {
        header: Some(request),
        item: vec![v1::PushItem { variable: Some(variable.into()), ..Default::default() }],
        want_values: true,
        optimizer: Some(optimizer.into()),
        ..Default::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn retried_gradients_are_applied_once_with_the_same_answer() {
    let ps = Ps::default();
    let peers = peers(ps.addr, caller("default", WORKER, 1));
    let variables = RemoteVariables::new(peers.clone(), PS);
    for elements in [2, 40_000] {
        let w = &f32s(&format!("w{elements}"), elements);
        initialize(&variables, w, &bytes(vec![0.0; elements])).await.unwrap();
        let gradient = &bytes(vec![-1.0; elements]);
        let answer = thrice(&peers, |Try { channel, header: request, .. }| {
            send(channel, header(request, w, &COUNTS), vec![chunk(0, 0, gradient)])
        });
        assert!(answer.await.len() >= 2);
        let value = pull(&variables, w).await.unwrap();
        assert!(value.version == 2 && value.tensor.data == bytes(vec![1.0; elements]), "applied once");
        let value = apply(&variables, vec![(w, gradient)], options(COUNTS)).await.unwrap().remove(0);
        assert!(value.version == 3 && value.tensor.data == bytes(vec![2.0; elements]), "another step is another");
    }
    ps.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cut_gradients_are_retried_and_applied_once() {
    const ELEMENTS: usize = 300_000;
    let ps = Ps::default();
    let relay = Relay::start(ps.addr).await;
    let w = f32s("w", ELEMENTS);
    initialize(&connect(ps.addr, 99), &w, &bytes(vec![0.0; ELEMENTS])).await.unwrap();
    let gradient = bytes(vec![-1.0; ELEMENTS]);
    for (round, cut) in (1..).zip([LARGE + 1, ELEMENTS, 2 * ELEMENTS, 4 * ELEMENTS - 10]) {
        relay.cut([cut, cut / 2 + LARGE], None);
        let value = apply(&connect(relay.addr, round), vec![(&w, &gradient)], options(COUNTS)).await.unwrap().remove(0);
        assert_eq!(value.version, round + 1);
        assert!(value.tensor.data == bytes(vec![round as f32; ELEMENTS]), "round {round} is applied once");
    }
    until("freed staging", || ps.store.staged_bytes() == 0).await;
    ps.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_gradients_are_refused_and_change_nothing() {
    let ps = Ps::default();
    let peers = peers(ps.addr, caller("default", WORKER, 1));
    let variables = RemoteVariables::new(peers.clone(), PS);
    let w = f32s("w", 2);
    let n = VariableRef::whole("n", TensorType::new(DType::S32, [2]));
    initialize(&variables, &w, &[0; 8]).await.unwrap();
    initialize(&variables, &n, &[0; 8]).await.unwrap();
    let check = async |code, text: &str, variable: &VariableRef, spoil: fn(&mut v1::PushHeader)| {
        let error = raw(&peers, |request| {
            let mut header = header(request, variable, &COUNTS);
            spoil(&mut header);
            (header, vec![chunk(0, 0, &[1; 8])])
        })
        .await
        .unwrap_err();
        assert!(error.code == code && error.message.contains(text), "{error}");
    };
    fn spoiled(header: &mut v1::PushHeader) -> &mut v1::Optimizer {
        header.optimizer.as_mut().expect("it has one")
    }
    let invalid = ErrorCode::InvalidArgument;
    check(invalid, "optimizer `` is unknown", &w, |header| *spoiled(header) = v1::Optimizer::default()).await;
    let long = |header: &mut v1::PushHeader| spoiled(header).name = "x".repeat(1 << 20);
    check(invalid, "... (1048576 bytes)` is unknown", &w, long).await;
    check(invalid, "without its number `momentum`", &w, |header| {
        spoiled(header).hyperparameter.remove("momentum");
    })
    .await;
    check(invalid, "no number `dampening`", &w, |header| {
        spoiled(header).hyperparameter.insert("dampening".into(), 0.5);
    })
    .await;
    check(invalid, "momentum of momentum is `1`", &w, |header| {
        spoiled(header).hyperparameter.insert("momentum".into(), 1.0);
    })
    .await;
    check(invalid, "clip_scale", &w, |header| header.clip_scale = f64::NAN).await;
    check(invalid, "clip_scale", &w, |header| header.clip_scale = -0.5).await;
    check(invalid, "clip_scale", &w, |header| header.clip_scale = 1.5).await;
    let without = |header: &mut v1::PushHeader| (header.optimizer, header.clip_scale) = (None, 0.5);
    check(invalid, "belongs to a push with an optimizer", &w, without).await;
    check(invalid, "no base versions", &w, |header| header.item[0].base_version = Some(1)).await;
    check(invalid, "f32 and f64 only", &n, |_| ()).await;
    check(invalid, "`w` stands twice", &w, |header| header.item.push(header.item[0].clone())).await;
    check(invalid, "`f32[2]`", &f32s("w", 3), |_| ()).await;
    check(ErrorCode::Uninitialized, "`x`", &f32s("x", 2), |_| ()).await;
    check(invalid, "`0` replicas", &w, |header| header.sync = Some(v1::Sync::default())).await;
    let without = |header: &mut v1::PushHeader| {
        (header.optimizer, header.sync) = (None, Some(v1::Sync { step: 1, replicas: 2 }));
    };
    check(invalid, "`sync` belongs to a push with an optimizer", &w, without).await;
    let initializes = peers.call(PS, Lane::Bulk, true, |Try { channel, header: request, .. }| {
        let header = header(request, &w, &COUNTS);
        async move {
            let push = stream(header, vec![chunk(0, 0, &[1; 8])]);
            VariablesClient::new(channel).initialize(push).await.map(drop)
        }
    });
    let error = initializes.await.unwrap_err();
    assert!(error.code == invalid && error.message.contains("belong to Push"), "{error}");
    for variable in [&w, &n] {
        let value = pull(&variables, variable).await.unwrap();
        assert_eq!((&value.tensor.data[..], value.version), (&[0; 8][..], 1));
    }
    assert_eq!((ps.store.staged_bytes(), ps.store.variable_bytes()), (0, 16), "no slots either");
    ps.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_count_as_variable_bytes_and_go_with_their_variable() {
    let ps = Ps::start(StoreOptions { variable_bytes_max: Some(5 << 20), ..Default::default() });
    let variables = connect(ps.addr, 1);
    let w = f32s("w", (2 << 20) / 4);
    let gradient = bytes(vec![1.0; (2 << 20) / 4]);
    initialize(&variables, &w, &gradient).await.unwrap();
    let error = apply(&variables, vec![(&w, &gradient)], options(Optimizer::Adam(NUMBERS))).await.unwrap_err();
    assert!(error.code == ErrorCode::ResourceExhausted && error.message.contains("--max-variable-bytes"), "{error}");
    assert_eq!((pull(&variables, &w).await.unwrap().version, ps.store.variable_bytes()), (1, 2 << 20));
    assert_eq!(ps.store.staged_bytes_peak(), 2 << 20, "of initialize: the gradient was refused by its header");
    apply(&variables, vec![(&w, &gradient)], options(COUNTS)).await.unwrap();
    assert_eq!(ps.store.variable_bytes(), 4 << 20);
    let error = apply(&variables, vec![(&w, &gradient)], options(Optimizer::Adam(NUMBERS))).await.unwrap_err();
    assert!(error.code == ErrorCode::FailedPrecondition && error.message.contains("`momentum`"), "{error}");
    initialize(&variables, &w, &gradient).await.unwrap();
    assert_eq!(ps.store.variable_bytes(), 2 << 20, "initialized anew");
    ps.stop().await;
}
