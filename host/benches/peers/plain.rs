//! Plain tonic: streams of the same messages with the same settings, and nothing of dchost behind them.
//!
//! The server drops what it gets and the client too; neither copies, stages or adds. What dchost does beside is what it takes more.

use crate::lane::Lane;
use crate::question::{Bounds, Question};
use crate::{plain_barrier, plain_server, roles};
use bytes::Bytes;
use dchost::server::variables::PullStream;
use dchost::wire::v1::{self, pull_response, push_request, variables_client::VariablesClient, variables_server};
use tokio_stream::StreamExt;
use tonic::transport::Channel;
use tonic::{Request, Response, Status, Streaming};

/// What tables call it.
pub(crate) const NAME: &str = "tonic stream";

/// The best chunk size of a plain stream on loopback.
const CHUNK_BYTES: usize = 256 << 10;

/// The largest value that is asked for.
const VALUE_BYTES_MAX: usize = 64 << 20;

pub(crate) fn lane(bounds: Bounds) -> Box<dyn Lane> {
    // The client before the server: it ends first.
    let mut running = None;
    let answer = move |question| match question {
        Question::Barrier(tasks) => plain_barrier::measure(tasks, bounds.rounds),
        Question::Push(_) | Question::Pull(_) => {
            let (client, _) = running.get_or_insert_with(|| {
                let (server, address) = roles::start_server(&["plain-ps"]);
                (roles::start(&["plain-client", &address]), server)
            });
            client.ask(&question.line(bounds)?)
        }
        _ => None,
    };
    Box::new(crate::lane::Fresh {
        name: NAME,
        knows: |question| question.is_transfer() || question.is_barrier(),
        answer,
    })
}

/// Takes and gives bytes, and does nothing else.
struct Plain(Bytes);

fn chunks(data: &Bytes) -> impl Iterator<Item = v1::Chunk> + Send + 'static {
    let data = data.clone();
    (0..data.len()).step_by(CHUNK_BYTES).map(move |offset| {
        let end = (offset + CHUNK_BYTES).min(data.len());
        v1::Chunk { item: 0, offset: offset as u64, data: data.slice(offset..end) }
    })
}

#[tonic::async_trait]
impl variables_server::Variables for Plain {
    type PushStream = PullStream;
    type PullStream = PullStream;
    type GatherStream = PullStream;
    type SaveStream = tokio_stream::Empty<Result<v1::SaveResponse, Status>>;

    async fn push(&self, request: Request<Streaming<v1::PushRequest>>) -> Result<Response<PullStream>, Status> {
        let mut stream = request.into_inner();
        while stream.message().await?.is_some() {}
        Ok(Response::new(Box::pin(tokio_stream::empty())))
    }

    async fn pull(&self, request: Request<v1::PullRequest>) -> Result<Response<PullStream>, Status> {
        let size = request.into_inner().variable.first().map_or(0, |variable| variable.shape[0]);
        let data = self.0.slice(..size as usize);
        let message = |chunk| Ok(v1::PullResponse { kind: Some(pull_response::Kind::Chunk(chunk)) });
        Ok(Response::new(Box::pin(tokio_stream::iter(chunks(&data)).map(message))))
    }

    async fn initialize(&self, _: Request<Streaming<v1::PushRequest>>) -> Result<Response<v1::PushResponse>, Status> {
        Err(Status::unimplemented("plain"))
    }

    async fn gather(&self, _: Request<v1::GatherRequest>) -> Result<Response<PullStream>, Status> {
        Err(Status::unimplemented("plain"))
    }

    async fn scatter(&self, _: Request<Streaming<v1::ScatterRequest>>) -> Result<Response<v1::PushResponse>, Status> {
        Err(Status::unimplemented("plain"))
    }

    async fn uninitialized(
        &self,
        _: Request<v1::UninitializedRequest>,
    ) -> Result<Response<v1::UninitializedResponse>, Status> {
        Err(Status::unimplemented("plain"))
    }

    async fn delete(&self, _: Request<v1::DeleteRequest>) -> Result<Response<v1::DeleteResponse>, Status> {
        Err(Status::unimplemented("plain"))
    }

    async fn save(&self, _: Request<v1::SaveRequest>) -> Result<Response<Self::SaveStream>, Status> {
        Err(Status::unimplemented("plain"))
    }

    async fn restore(&self, _: Request<Streaming<v1::PushRequest>>) -> Result<Response<v1::PushResponse>, Status> {
        Err(Status::unimplemented("plain"))
    }
}

/// The role of a server.
pub(crate) fn serve() {
    let runtime = roles::runtime(false);
    runtime.block_on(async {
        let plain = Plain(Bytes::from(vec![0; VALUE_BYTES_MAX]));
        roles::say(plain_server::serve(variables_server::VariablesServer::new(plain)).await);
    });
    roles::wait();
}

/// The role of a client.
pub(crate) fn answer(address: &str) {
    roles::runtime(true).block_on(async {
        let channel = plain_server::channel(address);
        let all = Bytes::from(vec![1; VALUE_BYTES_MAX]);
        for asked in roles::asked() {
            let data = all.slice(..asked.size);
            roles::say(match asked.what.as_str() {
                "push" => roles::timed(asked.seconds, async || push(&channel, &data).await).await,
                "pull" => roles::timed(asked.seconds, async || pull(&channel, asked.size).await).await,
                other => panic!("there is no question `{other}`"),
            });
        }
    });
}

async fn push(channel: &Channel, data: &Bytes) {
    let message = |chunk| v1::PushRequest { kind: Some(push_request::Kind::Chunk(chunk)) };
    let stream = tokio_stream::iter(chunks(data).map(message));
    let answer = VariablesClient::new(channel.clone()).push(stream).await.expect("the plain push works");
    answer.into_inner().message().await.expect("the plain push ends well");
}

async fn pull(channel: &Channel, size: usize) {
    let variable = vec![v1::VariableRef { shape: vec![size as u64], ..Default::default() }];
    let request = v1::PullRequest { variable, ..Default::default() };
    let answer = VariablesClient::new(channel.clone()).pull(request).await.expect("the plain pull works");
    let mut stream = answer.into_inner();
    while stream.message().await.expect("the plain pull goes on").is_some() {}
}
