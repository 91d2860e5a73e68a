//! A barrier on plain tonic streams: arrivals are counted and answered, nothing else.

use crate::{plain_server, roles};
use dchost::wire::v1::{self, attend_event, attend_request, cluster_client::ClusterClient, cluster_server};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming};

/// Messages that wait for a stream: never more than one does.
const QUEUED: usize = 4;

/// So many processes meet; the first has the server too, as a leader has.
pub(crate) fn measure(tasks: usize, rounds: usize) -> Option<f64> {
    let (tasks, rounds) = (tasks.to_string(), rounds.to_string());
    roles::meet(&["plain-leader", &tasks, &rounds], |address| {
        let others = tasks.parse::<usize>().unwrap_or(1) - 1;
        vec![["plain-member", &rounds, address].map(str::to_owned).to_vec(); others]
    })
}

type Events = Pin<Box<dyn Stream<Item = Result<v1::AttendEvent, Status>> + Send>>;

type EventSender = mpsc::Sender<Result<v1::AttendEvent, Status>>;

struct Plain {
    size: usize,
    waiting: Arc<Mutex<Vec<EventSender>>>,
}

#[tonic::async_trait]
impl cluster_server::Cluster for Plain {
    type AttendStream = Events;
    type SessionStream = Pin<Box<dyn Stream<Item = Result<v1::SessionEvent, Status>> + Send>>;

    async fn attend(&self, request: Request<Streaming<v1::AttendRequest>>) -> Result<Response<Events>, Status> {
        let (events, stream) = mpsc::channel(QUEUED);
        let (size, waiting) = (self.size, self.waiting.clone());
        let mut arrivals = request.into_inner();
        tokio::spawn(async move {
            while let Ok(Some(_)) = arrivals.message().await {
                let all = {
                    let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
                    waiting.push(events.clone());
                    if waiting.len() == size { std::mem::take(&mut *waiting) } else { Vec::new() }
                };
                for waiter in all {
                    let kind = Some(attend_event::Kind::Heartbeat(v1::Heartbeat {}));
                    // A stream that has gone has nobody to tell.
                    let _ = waiter.send(Ok(v1::AttendEvent { kind })).await;
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }

    async fn session(
        &self,
        _: Request<Streaming<v1::SessionRequest>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        Err(Status::unimplemented("plain"))
    }

    async fn get_status(&self, _: Request<v1::GetStatusRequest>) -> Result<Response<v1::GetStatusResponse>, Status> {
        Err(Status::unimplemented("plain"))
    }

    async fn drain(&self, _: Request<v1::DrainRequest>) -> Result<Response<v1::DrainResponse>, Status> {
        Err(Status::unimplemented("plain"))
    }
}

/// The role of the first task.
pub(crate) fn lead(tasks: usize, rounds: usize) {
    roles::runtime(true).block_on(async {
        let service = cluster_server::ClusterServer::new(Plain { size: tasks, waiting: Arc::default() });
        let address = plain_server::serve(service).await;
        roles::say(&address);
        meet(rounds, &address).await;
        roles::wait();
    });
}

/// The role of every other.
pub(crate) fn follow(rounds: usize, address: &str) {
    roles::runtime(true).block_on(meet(rounds, address));
    roles::wait();
}

async fn meet(rounds: usize, address: &str) {
    let channel = plain_server::channel(address);
    let (arrivals, stream) = mpsc::channel(QUEUED);
    let answer = ClusterClient::new(channel).attend(ReceiverStream::new(stream)).await.expect("it serves");
    let mut events = answer.into_inner();
    let samples = roles::rounds(rounds, async || {
        let kind = Some(attend_request::Kind::Heartbeat(v1::Heartbeat {}));
        arrivals.send(v1::AttendRequest { kind }).await.expect("the stream is open");
        events.next().await.expect("an answer comes").expect("and is good");
    });
    roles::say_all(&samples.await);
}
