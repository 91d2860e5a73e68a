//! The Ops service: components that callers bring, and calls of their ops.
//!
//! What a run has here beside its session (the component that it put, its instance, results that it left) is held in
//! `Runs` and goes with the session. A stream of calls is served by `calls`, a component is taken by `put`.

mod calls;
mod places;
mod put;
mod run;

use crate::error::{Error, ErrorCode, Result};
use crate::handles::{OpHost, OpOpening, RemoteValue};
use crate::ids::{Caller, RunId};
use crate::server::answers::{Answers, of_session, while_session};
use crate::server::first_message;
use crate::server::guard::{Guard, Rpc};
use crate::server::session::Lease;
use crate::server::variables::is_run_container;
use crate::wire::header::{missing, response_header};
use crate::wire::ops::digest;
use crate::wire::tensor::chunks;
use crate::wire::v1;
use crate::wire::v1::{call_request, fetch_response, ops_server, put_module_request};
use places::{Places, Who};
use run::Runs;
use std::sync::Arc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

/// Serves ops. Cheap to clone.
#[derive(Clone)]
pub struct OpsService {
    guard: Guard,
    host: Option<Arc<dyn OpHost>>,
    runs: Runs,
    places: Places,
}

impl OpsService {
    /// Makes the service; without `host` it refuses every call. From now on the end of a session ends the run's instance here
    /// and drops what the run has left.
    pub fn new(guard: Guard, host: Option<Arc<dyn OpHost>>) -> Self {
        let runs = Runs::default();
        let ended = runs.clone();
        guard.sessions().on_end(Arc::new(move |end| ended.end(&end.caller)));
        OpsService { guard, host, runs, places: Places::default() }
    }

    /// Counts the instances that the run of a session has here.
    pub(super) fn instances(&self) -> impl Fn(&Caller) -> u32 + Send + Sync + 'static {
        let runs = self.runs.clone();
        move |caller| runs.instances(caller)
    }

    fn stay(&self, caller: &Caller) -> Result<Stay> {
        if !is_run_container(&caller.container) {
            return Ok(Stay(None));
        }
        let run_id = RunId::draw(&mut rand::rng());
        let stays = Caller { task: Some(self.guard.task()), run_id, ..caller.clone() };
        self.guard.sessions().open(&stays).map(|lease| Stay(Some(lease)))
    }

    fn host(&self) -> Result<Arc<dyn OpHost>> {
        self.host.clone().ok_or_else(|| {
            Error::new(ErrorCode::FailedPrecondition, format!("{} runs no ops for others", self.guard.task()))
        })
    }
}

/// Keeps a client's own container until an instance that may write into it is really gone: one that runs is told to end, but may
/// write once more before it does, and would bring back what was deleted. None in the containers of jobs, which nothing deletes.
struct Stay(Option<Lease>);

impl Drop for Stay {
    fn drop(&mut self) {
        if let Some(lease) = self.0.take() {
            lease.close();
        }
    }
}

#[tonic::async_trait]
impl ops_server::Ops for OpsService {
    type PutModuleStream = Answers<v1::PutModuleResponse>;
    type CallStream = Answers<v1::CallResponse>;
    type FetchStream = Answers<v1::FetchResponse>;

    async fn put_module(
        &self,
        request: Request<Streaming<v1::PutModuleRequest>>,
    ) -> Result<Response<Self::PutModuleStream>, Status> {
        let address = request.remote_addr().map(|address| address.ip());
        let mut requests = request.into_inner();
        let first = first_message(requests.message()).await?;
        let module = match first.and_then(|first| first.kind) {
            Some(put_module_request::Kind::Header(module)) => Some(module),
            Some(_) | None => None,
        };
        let header = module.as_ref().and_then(|module| module.header.clone());
        let admitted = self.guard.admit(Rpc::PutModule, header)?;
        let module = module.ok_or_else(|| missing("header"))?;
        let host = self.host()?;
        let put = put::Put {
            task: self.guard.task(),
            incarnation: self.guard.incarnation(),
            host,
            run: self.runs.of(&admitted)?,
            who: Who::new(&admitted.caller, admitted.client_use.is_some(), address),
            admitted,
            module: digest("sha256", &module.sha256)?,
            size: module.size,
            places: self.places.clone(),
        };
        put.check()?;
        Ok(Response::new(Box::pin(ReceiverStream::new(put.serve(requests)))))
    }

    async fn call(&self, request: Request<Streaming<v1::CallRequest>>) -> Result<Response<Self::CallStream>, Status> {
        let mut requests = request.into_inner();
        let first = first_message(requests.message()).await?;
        let opening = match first.and_then(|first| first.kind) {
            Some(call_request::Kind::Opening(opening)) => Some(opening),
            Some(_) | None => None,
        };
        let header = opening.as_ref().and_then(|opening| opening.header.clone());
        let admitted = self.guard.admit(Rpc::Call, header)?;
        let opening = opening.ok_or_else(|| missing("opening"))?;
        let host = self.host()?;
        let run = self.runs.of(&admitted)?;
        let module = digest("module_sha256", &opening.module_sha256)?;
        let (caller, client_use) = (admitted.caller.clone(), admitted.client_use);
        let opening = OpOpening { caller, client_use, module, args: opening.argument };
        let instance = run.instance(opening, |opening| {
            let stay = self.stay(&admitted.caller)?;
            host.open(opening, Box::new(stay))
        })?;
        let replaced = run.stream();
        let stream = calls::serve(calls::Options {
            task: self.guard.task(),
            incarnation: self.guard.incarnation(),
            admitted: admitted.clone(),
            host,
            run,
            instance,
            replaced,
            requests,
        });
        Ok(Response::new(of_session(admitted, ReceiverStream::new(stream))))
    }

    async fn fetch(&self, request: Request<v1::FetchRequest>) -> Result<Response<Self::FetchStream>, Status> {
        let v1::FetchRequest { header, value } = request.into_inner();
        let admitted = self.guard.admit(Rpc::Fetch, header)?;
        let value = RemoteValue::try_from(value.ok_or_else(|| missing("value"))?)?;
        let tensor = self.runs.of(&admitted)?.kept(self.guard.task(), self.guard.incarnation(), &value)?;
        let header = fetch_response::Kind::Header(v1::FetchHeader {
            header: response_header(self.guard.incarnation()),
            tensor: Some((&tensor.ty).into()),
        });
        let kinds = std::iter::once(header).chain(chunks(vec![tensor]).map(fetch_response::Kind::Chunk));
        let messages = kinds.map(|kind| Ok(v1::FetchResponse { kind: Some(kind) }));
        Ok(Response::new(while_session(admitted, tokio_stream::iter(messages))))
    }
}
