//! The Ops service: guarded, and not served yet.

use crate::error::{Error, ErrorCode};
use crate::server::guard::{Guard, Rpc};
use crate::wire::v1;
use crate::wire::v1::{call_request, ops_server, put_module_request};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

/// Answers every admitted call with unimplemented, so that reflection shows the contract and callers learn at once.
#[derive(Clone)]
pub struct OpsService {
    guard: Guard,
}

impl OpsService {
    /// Makes the service.
    pub fn new(guard: Guard) -> Self {
        OpsService { guard }
    }

    fn refuse(&self, rpc: Rpc, header: Option<v1::RequestHeader>) -> Status {
        match self.guard.admit(rpc, header) {
            Ok(_) => Error::new(ErrorCode::Unimplemented, format!("{rpc} is not served by this version")).into(),
            Err(error) => error.into(),
        }
    }
}

#[tonic::async_trait]
impl ops_server::Ops for OpsService {
    type PutModuleStream = ReceiverStream<Result<v1::PutModuleResponse, Status>>;
    type CallStream = ReceiverStream<Result<v1::CallResponse, Status>>;

    async fn put_module(
        &self,
        request: Request<Streaming<v1::PutModuleRequest>>,
    ) -> Result<Response<Self::PutModuleStream>, Status> {
        let first = super::first_message(request.into_inner()).await?.0;
        let header = match first.and_then(|first| first.kind) {
            Some(put_module_request::Kind::Header(module)) => module.header,
            Some(put_module_request::Kind::Data(_)) | None => None,
        };
        Err(self.refuse(Rpc::PutModule, header))
    }

    async fn call(&self, request: Request<Streaming<v1::CallRequest>>) -> Result<Response<Self::CallStream>, Status> {
        let first = super::first_message(request.into_inner()).await?.0;
        let header = match first.and_then(|first| first.kind) {
            Some(call_request::Kind::Header(call)) => call.header,
            Some(_) | None => None,
        };
        Err(self.refuse(Rpc::Call, header))
    }
}
