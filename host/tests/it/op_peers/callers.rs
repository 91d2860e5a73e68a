//! Callers that mean no good to a server.

use super::*;
use dchost::client::channel::connect::endpoint;
use dchost::server::guard::{Guard, authorize};
use dchost::server::{Server, ServerOptions};
use dchost::variables::Store;
use dchost::wire::header::Header;
use dchost::wire::ops::proof;
use dchost::wire::v1;
use dchost::wire::v1::call_request::Kind;
use dchost::wire::v1::call_response::Kind as Answer;
use dchost::wire::v1::cluster_client::ClusterClient;
use dchost::wire::v1::ops_client::OpsClient;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;
use tonic::{Code, Streaming};

/// Bytes that each side of a connection takes unread.
const WINDOW_BYTES: usize = 16 << 20;

/// Ops by their names: `nothing`, `eager` (small enough to be sent unasked) and `large`.
#[derive(Default)]
struct Fakes {
    calls: Arc<AtomicUsize>,
}

impl Fakes {
    fn results(op: &str) -> Vec<Tensor> {
        match op {
            "eager" => vec![u8s(vec![1; 16 << 10].into())],
            "large" => vec![u8s(vec![1; TENSOR_BYTES_MAX as usize].into())],
            _ => Vec::new(),
        }
    }
}

impl OpHost for Fakes {
    fn limits(&self) -> OpLimits {
        OpLimits { component_bytes_max: 1000, tensor_bytes_max: TENSOR_BYTES_MAX }
    }

    fn component(&self, _module: &[u8; 32]) -> Option<bytes::Bytes> {
        Some(bytes::Bytes::from_static(COMPONENT))
    }

    fn load(&self, _module: [u8; 32], _component: bytes::Bytes) -> BoxFuture<'_, Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn fetch(&self, _caller: Caller, _value: RemoteValue) -> BoxFuture<'static, Result<Tensor>> {
        Box::pin(async { Err(Error::new(ErrorCode::NotFound, "nobody else is there")) })
    }

    fn open(&self, _opening: OpOpening, _until_gone: Box<dyn Send + Sync>) -> Result<Arc<dyn OpInstance>> {
        Ok(Arc::new(Fakes { calls: self.calls.clone() }))
    }
}

impl OpInstance for Fakes {
    fn call(
        &self,
        op: String,
        _inputs: BoxFuture<'static, Result<Vec<Tensor>>>,
    ) -> BoxFuture<'static, Result<Vec<Tensor>>> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move { Ok(Fakes::results(&op)) })
    }
}

/// A server of ops.
struct Ps {
    calls: Arc<AtomicUsize>,
    guard: Guard,
    address: String,
    channel: Channel,
    _shutdown: tokio_util::sync::DropGuard,
}

/// Calls of one run, as bytes on a stream.
struct Stream {
    requests: mpsc::Sender<v1::CallRequest>,
    answers: Streaming<v1::CallResponse>,
}

impl Ps {
    async fn start() -> Ps {
        let host = Fakes::default();
        let calls = host.calls.clone();
        let server = Server::new(ServerOptions {
            task: PS,
            incarnation: Incarnation(7),
            listener: std::net::TcpListener::bind("127.0.0.1:0").expect("loopback has a free port"),
            cluster: ClusterSpec::new().with_job(TaskType::Ps, ["ps.test:1"]),
            leader: None,
            store: Store::default(),
            rejoin_timeout: LONG,
            ops: Some(Arc::new(host)),
            authorize: Arc::new(authorize),
        });
        let server = server.expect("the listener is good");
        let (address, guard, shutdown) = (server.local_addr(), server.guard(), CancellationToken::new());
        tokio::spawn(server.run(shutdown.clone()));
        let address = address.to_string();
        let channel = connect(&address).await;
        Ps { calls, guard, address, channel, _shutdown: shutdown.drop_guard() }
    }

    fn header() -> Option<v1::RequestHeader> {
        Some((&Header::new(caller(1))).into())
    }

    /// Shows that the run has the component.
    async fn put(&self) {
        let (requests, stream) = mpsc::channel(4);
        let send = async |kind| requests.send(v1::PutModuleRequest { kind: Some(kind) }).await.expect("it is read");
        let header = v1::ModuleHeader { header: Self::header(), sha256: vec![7; 32].into(), size: 11 };
        send(v1::put_module_request::Kind::Header(header)).await;
        let answers = OpsClient::new(self.channel.clone()).put_module(ReceiverStream::new(stream)).await;
        let mut answers = answers.expect("it is taken").into_inner();
        let asked = answers.message().await.expect("it asks").expect("it asks");
        send(v1::put_module_request::Kind::Proof(proof(&asked.challenge, COMPONENT).to_vec().into())).await;
        assert!(answers.message().await.expect("it answers").expect("it answers").ready);
    }

    async fn open(&self) -> Stream {
        let (requests, stream) = mpsc::channel(4);
        let opening = v1::Opening { header: Self::header(), module_sha256: vec![7; 32].into(), argument: Vec::new() };
        requests.send(request(Kind::Opening(opening))).await.expect("it is new");
        let answers = OpsClient::new(self.channel.clone()).call(ReceiverStream::new(stream)).await;
        let mut stream = Stream { requests, answers: answers.expect("it is taken").into_inner() };
        assert!(matches!(stream.next().await, Answer::Opened(_)));
        stream
    }
}

impl Stream {
    async fn call(&self, call: u64, op: &str) {
        let header = v1::CallHeader { call, op: op.to_owned(), ..Default::default() };
        self.requests.send(request(Kind::Header(header))).await.expect("it is read");
    }

    async fn release(&self, call: u64) {
        let release = v1::Drop { call, result: Vec::new() };
        self.requests.send(request(Kind::Drop(release))).await.expect("it is read");
    }

    async fn next(&mut self) -> Answer {
        let next = tokio::time::timeout(LONG, self.answers.message()).await.expect("it comes");
        next.expect("the stream is whole").expect("it goes on").kind.expect("it is known")
    }

    /// How the next call ended.
    async fn result(&mut self) -> v1::CallResult {
        loop {
            if let Answer::Result(result) = self.next().await {
                return result;
            }
        }
    }
}

async fn connect(address: &str) -> Channel {
    endpoint(address).expect("it is an address").connect().await.expect("it listens")
}

fn request(kind: Kind) -> v1::CallRequest {
    v1::CallRequest { kind: Some(kind) }
}

/// Aim: a caller that reads no answers can't fill a server's memory with them, also where it releases each result at once.
/// Method: beyond some answers that wait nothing is taken of the stream any more; once they are read all goes on.
#[tokio::test]
async fn answers_that_nobody_reads_stop_the_stream() {
    const CALLS: u64 = 10_000;
    let ps = Ps::start().await;
    let _lease = ps.guard.sessions().open(&caller(1)).expect("there is room");
    ps.put().await;
    let mut stream = ps.open().await;
    let requests = stream.requests.clone();
    let sending = tokio::spawn(async move {
        for call in 1..=CALLS {
            let header = v1::CallHeader { call, op: "eager".to_owned(), ..Default::default() };
            let release = v1::Drop { call, result: Vec::new() };
            for kind in [Kind::Header(header), Kind::Drop(release)] {
                requests.send(request(kind)).await.expect("it is read");
            }
        }
    });
    // What the connection takes, and twice what the server lets wait: answers, and calls that end meanwhile.
    let unread = WINDOW_BYTES / (16 << 10) + 2 * 1024;
    until("all are sent, and many are called", || sending.is_finished() && ps.calls.load(Ordering::Relaxed) > 1000)
        .await;
    // The server has its turn as often as it needs to take them all.
    for _ in 0..500 {
        let header = Some((&Header::new(caller(2))).into());
        let asked = v1::GetStatusRequest { header, brief: true };
        ClusterClient::new(ps.channel.clone()).get_status(asked).await.expect("it answers others");
    }
    for read in 1..=CALLS as usize {
        // Or refused: more wait there than may.
        let code = stream.result().await.code;
        assert!([0, Code::ResourceExhausted as u32].contains(&code), "{code}");
        let ahead = ps.calls.load(Ordering::Relaxed).saturating_sub(read);
        assert!(ahead < unread + 100, "{ahead} calls are ahead of what is read");
    }
    sending.await.expect("all are sent");
    stream.call(CALLS + 1, "nothing").await;
    assert_eq!(stream.result().await.code, 0, "it goes on");
}

/// Aim: results hold their room as long as anybody reads them, also by another call than the one that released them.
#[tokio::test]
async fn a_result_that_is_fetched_holds_its_room_after_its_release() {
    let ps = Ps::start().await;
    let _lease = ps.guard.sessions().open(&caller(1)).expect("there is room");
    ps.put().await;
    let mut stream = ps.open().await;
    let ty = TensorType::new(DType::U8, [TENSOR_BYTES_MAX]);
    let mut unread = Vec::new();
    for call in 1..=4 {
        stream.call(call, "large").await;
        assert_eq!(stream.result().await.code, 0);
        let value = RemoteValue { task: PS, incarnation: Incarnation(7), call, result: 0, ty: ty.clone() };
        let fetch = v1::FetchRequest { header: Ps::header(), value: Some((&value).into()) };
        // Else what isn't read of it would keep the other stream of the connection from being read.
        let channel = connect(&ps.address).await;
        unread.push(OpsClient::new(channel).fetch(fetch).await.expect("it is there").into_inner());
        stream.release(call).await;
    }
    stream.call(5, "large").await;
    let result = stream.result().await;
    assert_eq!(result.code, Code::ResourceExhausted as u32);
    assert!(result.message.contains("take or release some first"), "{}", result.message);
    drop(unread);
    let again = async {
        for call in 6.. {
            stream.call(call, "large").await;
            if stream.result().await.code == 0 {
                return;
            }
        }
    };
    tokio::time::timeout(LONG, again).await.expect("room is given back when nobody reads any more");
}

/// Aim: a run has one stream of calls, so that what it may have under way is bounded, and a caller that comes again isn't kept
/// waiting by its own broken connection.
#[tokio::test]
async fn a_second_stream_of_a_run_ends_the_first() {
    let ps = Ps::start().await;
    let _lease = ps.guard.sessions().open(&caller(1)).expect("there is room");
    ps.put().await;
    let mut first = ps.open().await;
    let mut second = ps.open().await;
    let status = tokio::time::timeout(LONG, first.answers.message()).await.expect("it comes").expect_err("it is over");
    assert_eq!(status.code(), Code::Cancelled);
    second.call(1, "nothing").await;
    assert_eq!(second.result().await.code, 0);
}
