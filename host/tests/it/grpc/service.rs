//! What any gRPC client sees: authorization, health, reflection, limits, shutdown.

use super::*;
use dchost::client::channel::{Lane, Try};
use dchost::client::probe::Dialer;
use dchost::error::{Error, ErrorCode};
use dchost::handles::{Probe as _, ProbeOutcome};
use dchost::server::guard::Rpc;
use dchost::wire::header::Header;
use dchost::wire::status::from_status;
use dchost::wire::v1;
use dchost::wire::v1::cluster_client::ClusterClient;
use dchost::wire::v1::variables_client::VariablesClient;
use prost::Message as _;
use tonic::{Code, Request, Status};

async fn status(addr: SocketAddr, header: Option<v1::RequestHeader>) -> Result<v1::GetStatusResponse, Status> {
    let request = v1::GetStatusRequest { header, brief: false, row: None };
    ClusterClient::new(channel_to(addr).await).get_status(request).await.map(tonic::Response::into_inner)
}

fn header() -> Option<v1::RequestHeader> {
    Some((&Header::new(caller(1))).into())
}

/// Calls a method without knowing its messages: an empty one is sent, and what comes back is an error.
async fn call_blindly(channel: Channel, path: String) -> Status {
    let mut grpc = tonic::client::Grpc::new(channel);
    grpc.ready().await.expect("the connection is good");
    let codec = tonic_prost::ProstCodec::<(), ()>::default();
    let path = path.parse().expect("names are a path");
    match grpc.streaming(Request::new(tokio_stream::once(())), path, codec).await {
        Err(status) => status,
        Ok(mut response) => match response.get_mut().message().await {
            Err(status) => status,
            Ok(_) => Status::ok("it was let in"),
        },
    }
}

/// Aim: no rpc forgets the guard. Method: call every method that the descriptors list, on a server that permits nothing.
#[tokio::test]
async fn every_rpc_is_refused_when_authorization_denies() {
    let mut options = options(PS, 7, listener());
    options.authorize = Arc::new(|_, rpc, _| Err(Error::new(ErrorCode::PermissionDenied, rpc.path())));
    let server = start(options);
    let channel = channel_to(server.addr).await;
    let set = prost_types::FileDescriptorSet::decode(v1::FILE_DESCRIPTOR_SET).expect("the build wrote it");
    let mut called = 0;
    for file in &set.file {
        for service in &file.service {
            for method in &service.method {
                let rpc = format!("{}.{}/{}", file.package(), service.name(), method.name());
                let status = call_blindly(channel.clone(), format!("/{rpc}")).await;
                assert_eq!((status.code(), status.message()), (Code::PermissionDenied, rpc.as_str()));
                called += 1;
            }
        }
    }
    assert_eq!(called, Rpc::ALL.len());
    server.stop().await;
}

#[tokio::test]
async fn rpc_without_header_is_refused_and_a_server_may_run_no_ops() {
    let server = start(options(PS, 7, listener()));
    let channel = channel_to(server.addr).await;
    for rpc in [
        "Cluster/GetStatus",
        "Cluster/Session",
        "Cluster/Attend",
        "Variables/Push",
        "Ops/Call",
        "Ops/PutModule",
        "Ops/Fetch",
    ] {
        let status = call_blindly(channel.clone(), format!("/dchost.v1.{rpc}")).await;
        assert_eq!(from_status(&status).to_string(), "invalid-argument: `header` is missing", "{rpc}");
    }
    let _lease = server.guard.sessions().open(&caller(1)).expect("there is room");
    let call = v1::CallRequest {
        kind: Some(v1::call_request::Kind::Opening(v1::Opening { header: header(), ..Default::default() })),
    };
    let mut ops = v1::ops_client::OpsClient::new(channel);
    let status = ops.call(tokio_stream::once(call)).await.expect_err("it is not served");
    assert_eq!(from_status(&status).code, ErrorCode::FailedPrecondition);
    server.stop().await;
}

#[tokio::test]
async fn status_shows_sessions_and_checks_the_protocol() {
    let server = start(options(PS, 7, listener()));
    let _lease = server.guard.sessions().open(&caller(5)).expect("there is room");
    let answer = status(server.addr, header()).await.expect("it answers");
    assert_eq!(answer.header.map(|header| header.incarnation), Some(7));
    let runs: Vec<_> = answer.session.iter().filter_map(|session| Some(session.caller.as_ref()?.run_id)).collect();
    assert_eq!(runs, [5]);
    let other = header().map(|header| v1::RequestHeader { protocol: 2, ..header });
    let error = from_status(&status(server.addr, other).await.expect_err("it speaks 1"));
    assert_eq!(error.code, ErrorCode::FailedPrecondition);
    assert!(error.message.contains("`2`") && error.message.contains("`1`"), "{error}");
    server.stop().await;
}

/// Also to those who may call nothing else: probes and load balancers have no identity.
#[tokio::test]
async fn health_and_reflection_list_the_services_to_everyone() {
    use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient};
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
    use tonic_reflection::pb::v1::{ListServiceResponse, ServerReflectionRequest};

    let mut options = options(PS, 7, listener());
    options.authorize = Arc::new(|_, rpc, _| Err(Error::new(ErrorCode::PermissionDenied, rpc.path())));
    let server = start(options);
    let channel = channel_to(server.addr).await;
    let mut health = HealthClient::new(channel.clone());
    for service in ["", "dchost.v1.Cluster", "dchost.v1.Variables"] {
        let request = HealthCheckRequest { service: service.into() };
        let answer = health.check(request).await.expect("it is known").into_inner();
        assert_eq!(answer.status(), ServingStatus::Serving, "{service}");
    }
    let unserved = HealthCheckRequest { service: "dchost.v1.Ops".into() };
    assert_eq!(health.check(unserved).await.expect_err("it is not served").code(), Code::NotFound);

    let list = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut answers = ServerReflectionClient::new(channel)
        .server_reflection_info(tokio_stream::once(list))
        .await
        .expect("it is served")
        .into_inner();
    let Some(MessageResponse::ListServicesResponse(ListServiceResponse { service })) =
        answers.message().await.expect("it answers").and_then(|answer| answer.message_response)
    else {
        panic!("a list was asked for")
    };
    let names: Vec<_> = service.iter().map(|service| service.name.as_str()).collect();
    for name in ["dchost.v1.Cluster", "dchost.v1.Variables", "dchost.v1.Ops", "grpc.health.v1.Health"] {
        assert!(names.contains(&name), "{name} is not among {names:?}");
    }
    server.stop().await;
}

#[tokio::test]
async fn garbage_on_the_port_does_no_harm() {
    let server = start(options(PS, 7, listener()));
    let http2_then_nonsense = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".as_slice(), &[0xff; 4096]].concat();
    for bytes in [&[0_u8; 65536][..], b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", &http2_then_nonsense, b""] {
        let mut socket = TcpStream::connect(server.addr).await.expect("it listens");
        // The server may close before it has read everything.
        let _ = socket.write_all(bytes).await;
        let _ = socket.shutdown().await;
        let closed = tokio::time::timeout(LONG, socket.read_to_end(&mut Vec::new())).await;
        assert!(closed.is_ok(), "the server closes what it doesn't understand");
        status(server.addr, header()).await.expect("others are served as before");
    }
    server.stop().await;
}

#[tokio::test]
async fn shutdown_ends_long_polls_and_is_bounded() {
    let server = start(options(PS, 7, listener()));
    let peers = peers(server.addr, LONG, Duration::from_millis(300));
    let waiting = tokio::spawn(async move {
        let wait = |Try { channel, header, .. }: Try| async move {
            let variable = v1::VariableRef { name: "w".into(), dtype: v1::DType::F32.into(), ..Default::default() };
            let request = v1::UninitializedRequest { header: Some(header), variable: vec![variable], wait_ms: 600_000 };
            VariablesClient::new(channel).uninitialized(request).await
        };
        peers.call(PS, Lane::Control, false, wait).await
    });
    until("the session is open", || server.guard.sessions().list().len() == 1).await;
    server.stop().await;
    let error = tokio::time::timeout(LONG, waiting).await.expect("it ends").expect("no panic").expect_err("it is gone");
    assert_eq!(error.code, ErrorCode::PeerFailed, "{error}");
}

#[tokio::test]
async fn probe_tells_alive_refused_and_strange_apart() {
    let server = start(options(PS, 7, listener()));
    let dialer = Dialer::new("default", RunId(9), Handle::current());
    let dial = |address: String| {
        let dialer = dialer.clone();
        async move { tokio::time::timeout(LONG, dialer.probe(PS, &address)).await.expect("a probe is bounded") }
    };
    assert_eq!(dial(server.addr.to_string()).await, ProbeOutcome::Answered(Incarnation(7)));
    let refusing = Held::new();
    assert_eq!(dial(refusing.addr.to_string()).await, ProbeOutcome::Refused("connection refused".into()));
    let outcome = dial("no-such-host.invalid:1".into()).await;
    assert!(matches!(outcome, ProbeOutcome::NoAnswer(_)), "{outcome:?}");

    let strange = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
    let address = strange.local_addr().expect("it is bound").to_string();
    let greeting = tokio::spawn(async move {
        let (mut socket, _) = strange.accept().await.expect("the probe connects");
        let _ = socket.write_all(b"220 mail.test ESMTP\r\n").await;
        let _ = socket.read_to_end(&mut Vec::new()).await;
    });
    match dial(address).await {
        ProbeOutcome::NoAnswer(why) => assert!(why.contains("it listens"), "{why}"),
        other => panic!("{other:?}"),
    }
    greeting.abort();
    server.stop().await;
}

#[tokio::test]
async fn client_that_stays_does_not_hold_up_shutdown() {
    use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
    let server = start(options(PS, 7, listener()));
    let mut health = HealthClient::new(channel_to(server.addr).await);
    let watch = HealthCheckRequest { service: "dchost.v1.Cluster".into() };
    let mut watched = health.watch(watch).await.expect("it is served").into_inner();
    let mut statuses = Vec::new();
    statuses.push(watched.message().await.expect("it answers").expect("it answers").status());
    let started = std::time::Instant::now();
    server.stop().await;
    assert!(started.elapsed() < dchost::server::SHUTDOWN_TIMEOUT + Duration::from_secs(5), "{:?}", started.elapsed());
    // Watchers learn that the server stops before it does.
    statuses.push(watched.message().await.expect("it answers").expect("it answers").status());
    use tonic_health::pb::health_check_response::ServingStatus::{NotServing, Serving};
    assert_eq!(statuses, [Serving, NotServing]);
}
