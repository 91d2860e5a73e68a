//! The rpcs that carry tensors, served without tonic's codec, which would copy them twice; see `wire::bulk`.

use super::rows::Rows;
use super::{Values, VariablesService};
use crate::server::guard::Rpc;
use crate::wire::bulk::{decode_request, encode_response};
use crate::wire::transport::MESSAGE_BYTES_MAX;
use crate::wire::v1;
use crate::wire::v1::variables_server::VariablesServer;
use std::convert::Infallible;
use std::task::{Context, Poll};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tonic::codegen::{BoxFuture, Service};
use tonic::server::NamedService;

/// The service as a server takes it: these rpcs here, the others by the generated code.
#[derive(Clone)]
pub struct BulkVariables {
    service: VariablesService,
    generated: VariablesServer<VariablesService>,
}

impl BulkVariables {
    pub(super) fn new(service: VariablesService) -> Self {
        let generated = VariablesServer::new(service.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX);
        BulkVariables { service, generated }
    }
}

impl NamedService for BulkVariables {
    const NAME: &'static str = <VariablesServer<VariablesService> as NamedService>::NAME;
}

/// What the generated code has of these rpcs is never called.
pub(super) fn not_here() -> Status {
    Status::internal(
        "a call that carries tensors went past `server::variables::bulk`; a bug in dchost, please report it",
    )
}

impl Service<Request<Body>> for BulkVariables {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Response<Body>, Infallible>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Service::<Request<Body>>::poll_ready(&mut self.generated, cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let Some(method) = request.uri().path().strip_prefix('/').and_then(|path| path.strip_prefix(Self::NAME)) else {
            return self.generated.call(request);
        };
        let service = self.service.clone();
        match method {
            "/Initialize" => answer(async move {
                let (header, mut incoming) = Values::of_stream(decode_request(request)?).await?;
                let answer = service.initialize_from(header, &mut incoming).await?;
                Ok(encode_response(tokio_stream::once(Ok(answer))))
            }),
            "/Push" => answer(async move {
                let (header, mut incoming) = Values::of_stream(decode_request(request)?).await?;
                let (admitted, snapshots) = service.push_from(header, &mut incoming).await?;
                Ok(encode_response(service.send(admitted, snapshots)))
            }),
            "/Pull" => answer(async move {
                let mut request: v1::PullRequest = only_message(request).await?;
                let admitted = service.guard.admit(Rpc::Pull, request.header.take())?;
                Ok(encode_response(service.pull_stream(admitted, request).await?))
            }),
            "/Gather" => answer(async move {
                let mut request: v1::GatherRequest = only_message(request).await?;
                let admitted = service.guard.admit(Rpc::Gather, request.header.take())?;
                Ok(encode_response(service.gather_stream(admitted, request).await?))
            }),
            "/Scatter" => answer(async move {
                let (header, mut incoming) = Rows::of_stream(decode_request(request)?).await?;
                let answer = service.scatter_from(header, &mut incoming).await?;
                Ok(encode_response(tokio_stream::once(Ok(answer))))
            }),
            "/Save" => answer(async move {
                let request: v1::SaveRequest = only_message(request).await?;
                Ok(encode_response(service.save_stream(request).await?))
            }),
            "/Restore" => answer(async move {
                let (header, mut incoming) = Values::of_stream(decode_request(request)?).await?;
                let answer = service.restore_from(header, &mut incoming).await?;
                Ok(encode_response(tokio_stream::once(Ok(answer))))
            }),
            _ => self.generated.call(request),
        }
    }
}

/// The message of a request that isn't a stream.
async fn only_message<T: prost::Message + Default>(request: Request<Body>) -> Result<T, Status> {
    let message = decode_request(request)?.message().await?;
    message.ok_or_else(|| Status::internal("request has no message"))
}

/// A failed call answers with its status alone.
fn answer(
    call: impl Future<Output = Result<Response<Body>, Status>> + Send + 'static,
) -> BoxFuture<Response<Body>, Infallible> {
    Box::pin(async move { Ok(call.await.unwrap_or_else(Status::into_http)) })
}
