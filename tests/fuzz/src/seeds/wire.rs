//! Seeds of the target `wire`: what tasks of a cluster send, in the form that the target reads.

use bytes::Bytes;
use dchost::server::guard::Rpc;
use dchost::wire::v1;
use prost::Message;

/// Calls of a leader's server, and single messages.
pub fn wire() -> Vec<(String, Vec<u8>)> {
    let variable = v1::VariableRef { name: "w".to_owned(), dtype: v1::DType::U8.into(), shape: vec![4], shard: None };
    let kind = v1::UpdateKind::Add.into();
    let item = v1::PushItem { variable: Some(variable.clone()), kind, ..Default::default() };
    let write = |sequence| v1::PushHeader {
        header: Some(header(sequence)),
        item: vec![item.clone()],
        want_values: true,
        ..v1::PushHeader::default()
    };
    let push = |kind| v1::PushRequest { kind: Some(kind) };
    let chunk = || push(v1::push_request::Kind::Chunk(v1::Chunk { item: 0, offset: 0, data: vec![1; 4].into() }));
    let written = |sequence| push(v1::push_request::Kind::Header(write(sequence)));
    let restored = push(v1::push_request::Kind::Header(v1::PushHeader { want_values: false, ..write(3) }));
    let pull = v1::PullRequest { header: Some(header(0)), variable: vec![variable.clone()], ..Default::default() };
    let ask = v1::UninitializedRequest { header: Some(header(0)), variable: vec![variable.clone()], wait_ms: 1000 };
    let register = |job: &str, index| v1::Register {
        header: Some(v1::RequestHeader {
            caller: Some(v1::Caller { task: Some(v1::Task { job: job.to_owned(), index }), run_id: 9 }),
            ..header(0)
        }),
        incarnation: 3,
        mode: v1::Mode::IndependentWorker.into(),
        replication: v1::Replication::BetweenGraph.into(),
        barrier: true,
        module_digest: vec![1; 32].into(),
        cluster: [("worker", vec!["a:1", "b:1"]), ("ps", vec!["c:1"])].map(job_addresses).into(),
    };
    let attend = |kind| v1::AttendRequest { kind: Some(kind) };
    use v1::attend_request::Kind;
    let arrival = v1::BarrierArrival { name: "b".to_owned(), generation: 0, timeout_ms: 1000 };
    let end = v1::End { ok: false, exit_code: 3, message: "trapped".to_owned(), leaving: false };

    let mut seeds = vec![
        (
            "write-read",
            vec![
                call(Rpc::Initialize, &written(1)),
                more(&chunk()),
                call(Rpc::Push, &written(2)),
                more(&chunk()),
                call(Rpc::Push, &written(2)),
                more(&chunk()),
                call(Rpc::Pull, &pull),
                call(Rpc::Uninitialized, &ask),
                call(Rpc::Restore, &restored),
                more(&chunk()),
                call(Rpc::Save, &v1::SaveRequest { header: Some(header(0)), list_only: false }),
                call(Rpc::Delete, &v1::DeleteRequest { header: Some(header(4)), name: vec!["w".to_owned()] }),
            ],
        ),
        ("broken-write", vec![call(Rpc::Initialize, &written(1)), call(Rpc::Push, &chunk()), more(&chunk())]),
        ("wait", vec![call(Rpc::Uninitialized, &ask)]),
        (
            "worker",
            vec![
                call(Rpc::Attend, &attend(Kind::Register(register("worker", 1)))),
                more(&attend(Kind::Heartbeat(v1::Heartbeat {}))),
                more(&attend(Kind::Arrival(arrival.clone()))),
                more(&attend(Kind::End(end.clone()))),
                call(Rpc::GetStatus, &v1::GetStatusRequest { header: Some(header(0)), ..Default::default() }),
            ],
        ),
        (
            "leader",
            vec![
                call(Rpc::Attend, &attend(Kind::Register(register("worker", 0)))),
                more(&attend(Kind::Arrival(arrival))),
                call(Rpc::Attend, &attend(Kind::Register(register("ps", 0)))),
            ],
        ),
        (
            "session",
            vec![
                call(Rpc::Session, &v1::SessionRequest { header: Some(header(0)), ..Default::default() }),
                call(Rpc::Drain, &v1::DrainRequest { header: Some(header(0)), ..Default::default() }),
            ],
        ),
        ("ops", ops()),
        ("header", vec![part(0xC0, &header(1))]),
        ("variable", vec![part(0xC1, &variable)]),
        ("tensor", vec![part(0xC2, &v1::TensorHeader { dtype: v1::DType::F32.into(), shape: vec![2, 3] })]),
        ("message", vec![part(0xC3, &attend(Kind::End(end)))]),
        (
            "event",
            vec![part(
                0xC5,
                &v1::AttendEvent {
                    kind: Some(v1::attend_event::Kind::Barrier(v1::BarrierResult {
                        name: "b".to_owned(),
                        ..Default::default()
                    })),
                },
            )],
        ),
        ("status", vec![part(0xC6, &v1::ErrorDetail::default())]),
    ];
    let tensors = v1::PullHeader {
        tensor: vec![v1::TensorHeader { dtype: v1::DType::U8.into(), shape: vec![4] }],
        ..v1::PullHeader::default()
    };
    let chunk = v1::Chunk { item: 0, offset: 0, data: vec![1; 4].into() };
    let bytes = [tensors.encode_length_delimited_to_vec(), chunk.encode_length_delimited_to_vec()].concat();
    seeds.push(("chunks", vec![bytes_part(0xC7, &bytes)]));
    seeds.into_iter().map(|(name, parts)| (name.to_owned(), parts.concat())).collect()
}

/// A run puts its component, starts ops, takes and drops what came of them, and fetches it.
fn ops() -> Vec<Vec<u8>> {
    use v1::call_request::Kind;
    let digest = Bytes::from_static(b"\xba\x78\x16\xbf\x8f\x01\xcf\xea\x41\x41\x40\xde\x5d\xae\x22\x23\xb0\x03\x61\xa3\x96\x17\x7a\x9c\xb4\x10\xff\x61\xf2\x00\x15\xad");
    let put = |kind| v1::PutModuleRequest { kind: Some(kind) };
    let ask = |kind| v1::CallRequest { kind: Some(kind) };
    let tensor = v1::TensorHeader { dtype: v1::DType::U8.into(), shape: vec![4] };
    let value = v1::RemoteValue {
        task: Some(v1::Task { job: "worker".to_owned(), index: 0 }),
        incarnation: 1,
        call: 1,
        result: 0,
        tensor: Some(tensor.clone()),
    };
    let start = |call, op: &str, input| {
        let input = vec![v1::Input { kind: Some(input) }];
        ask(Kind::Header(v1::CallHeader { call, op: op.to_owned(), input, timeout_ms: 1000 }))
    };
    let size = "abc".len() as u64;
    let module = v1::ModuleHeader { header: Some(header(0)), sha256: digest.clone(), size };
    let opening = v1::Opening { header: Some(header(0)), module_sha256: digest, argument: vec!["-v".to_owned()] };
    vec![
        call(Rpc::PutModule, &put(v1::put_module_request::Kind::Header(module))),
        more(&put(v1::put_module_request::Kind::Data("abc".into()))),
        call(Rpc::Call, &ask(Kind::Opening(opening))),
        more(&start(1, "echo", v1::input::Kind::Tensor(tensor))),
        more(&ask(Kind::Chunk(v1::Chunk { item: 0, offset: 0, data: vec![1; 4].into() }))),
        more(&start(2, "many", v1::input::Kind::Remote(value.clone()))),
        more(&start(3, "never", v1::input::Kind::Remote(value.clone()))),
        more(&ask(Kind::Take(v1::Take { call: 2 }))),
        more(&ask(Kind::Cancel(v1::Cancel { call: 3 }))),
        more(&ask(Kind::Drop(v1::Drop { call: 1, result: vec![0] }))),
        call(Rpc::Fetch, &v1::FetchRequest { header: Some(header(0)), value: Some(value) }),
    ]
}

fn header(sequence: u64) -> v1::RequestHeader {
    v1::RequestHeader {
        protocol: dchost::wire::header::PROTOCOL,
        container: "default".to_owned(),
        caller: Some(v1::Caller { task: Some(v1::Task { job: "worker".to_owned(), index: 1 }), run_id: 7 }),
        attempt: None,
        sequence,
        expected_incarnation: 0,
    }
}

fn job_addresses((job, addresses): (&str, Vec<&str>)) -> v1::JobAddresses {
    let address = (0..).zip(addresses.into_iter().map(str::to_owned)).collect();
    v1::JobAddresses { job: job.to_owned(), address }
}

fn call(rpc: Rpc, message: &impl Message) -> Vec<u8> {
    let at = Rpc::ALL.iter().position(|other| *other == rpc).expect("it is one of all");
    part(u8::try_from(at).expect("there are few"), message)
}

fn more(message: &impl Message) -> Vec<u8> {
    part(0x80, message)
}

fn part(kind: u8, message: &impl Message) -> Vec<u8> {
    bytes_part(kind, &message.encode_to_vec())
}

fn bytes_part(kind: u8, bytes: &[u8]) -> Vec<u8> {
    let [low, high] = u16::try_from(bytes.len()).expect("seeds are small").to_le_bytes();
    [&[kind, low, high], bytes].concat()
}
