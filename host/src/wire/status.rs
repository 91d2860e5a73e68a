//! The table of error codes: domain to gRPC status and detail, and back.
//!
//! Every error status that dchost makes carries an `ErrorDetail`, inside a `google.rpc.Status` in
//! `grpc-status-details-bin`, where any gRPC client looks for details. Its presence also tells an answer of a dchost
//! server from a status that a transport, a proxy or another server made up.

use crate::cluster::Task;
use crate::error::{Error, ErrorCode};
use crate::variables::{Shard, StoredShard};
use crate::wire::v1;
use crate::wire::v1::error_detail::Code as Detail;
use prost::Message as _;
use tonic::{Code, Status};

/// Names the detail within the `google.protobuf.Any`.
const TYPE_URL: &str = "type.googleapis.com/dchost.v1.ErrorDetail";

/// A status travels in HTTP/2 trailers, whose size peers limit: longest message, in bytes.
const MESSAGE_BYTES_MAX: usize = 4 << 10;

/// Longest list of names in one detail, in bytes, for the same reason.
const NAMES_BYTES_MAX: usize = 8 << 10;

/// Most tasks in one detail, for the same reason.
const TASKS_MAX: usize = 1024;

/// Longest list of how variables are held in one detail, in bytes, for the same reason; one of them takes 1.3 KiB at most.
const STORED_BYTES_MAX: usize = 2 << 10;

/// `google.rpc.Status`, as the `grpc-status-details-bin` convention wants it.
#[derive(Clone, PartialEq, prost::Message)]
struct RpcStatus {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<prost_types::Any>,
}

/// The gRPC code and the detail of an error code: the one table of this edge.
pub const fn code_to_wire(code: ErrorCode) -> (Code, Detail) {
    match code {
        ErrorCode::Cancelled => (Code::Cancelled, Detail::Unspecified),
        ErrorCode::Unknown => (Code::Unknown, Detail::Unspecified),
        ErrorCode::InvalidArgument => (Code::InvalidArgument, Detail::Unspecified),
        ErrorCode::DeadlineExceeded => (Code::DeadlineExceeded, Detail::Unspecified),
        ErrorCode::NotFound => (Code::NotFound, Detail::Unspecified),
        ErrorCode::AlreadyExists => (Code::AlreadyExists, Detail::Unspecified),
        ErrorCode::PermissionDenied => (Code::PermissionDenied, Detail::Unspecified),
        ErrorCode::ResourceExhausted => (Code::ResourceExhausted, Detail::Unspecified),
        ErrorCode::FailedPrecondition => (Code::FailedPrecondition, Detail::Unspecified),
        ErrorCode::Aborted => (Code::Aborted, Detail::Unspecified),
        ErrorCode::OutOfRange => (Code::OutOfRange, Detail::Unspecified),
        ErrorCode::Unimplemented => (Code::Unimplemented, Detail::Unspecified),
        ErrorCode::Internal => (Code::Internal, Detail::Unspecified),
        ErrorCode::Unavailable => (Code::Unavailable, Detail::Unspecified),
        ErrorCode::DataLoss => (Code::DataLoss, Detail::Unspecified),
        ErrorCode::Unauthenticated => (Code::Unauthenticated, Detail::Unspecified),
        ErrorCode::Uninitialized => (Code::FailedPrecondition, Detail::Uninitialized),
        ErrorCode::PeerFailed => (Code::Aborted, Detail::PeerFailed),
        ErrorCode::PeerRestarted => (Code::Aborted, Detail::PeerRestarted),
    }
}

/// The error code of a gRPC code and a detail; a detail that says more than the code wins.
pub const fn code_from_wire(code: Code, detail: Detail) -> ErrorCode {
    match detail {
        Detail::Uninitialized => ErrorCode::Uninitialized,
        Detail::PeerFailed => ErrorCode::PeerFailed,
        Detail::PeerRestarted => ErrorCode::PeerRestarted,
        Detail::Unspecified => match code {
            // A status that says ok where an error is expected is a fault of the one that made it.
            Code::Ok => ErrorCode::Internal,
            Code::Cancelled => ErrorCode::Cancelled,
            Code::Unknown => ErrorCode::Unknown,
            Code::InvalidArgument => ErrorCode::InvalidArgument,
            Code::DeadlineExceeded => ErrorCode::DeadlineExceeded,
            Code::NotFound => ErrorCode::NotFound,
            Code::AlreadyExists => ErrorCode::AlreadyExists,
            Code::PermissionDenied => ErrorCode::PermissionDenied,
            Code::ResourceExhausted => ErrorCode::ResourceExhausted,
            Code::FailedPrecondition => ErrorCode::FailedPrecondition,
            Code::Aborted => ErrorCode::Aborted,
            Code::OutOfRange => ErrorCode::OutOfRange,
            Code::Unimplemented => ErrorCode::Unimplemented,
            Code::Internal => ErrorCode::Internal,
            Code::Unavailable => ErrorCode::Unavailable,
            Code::DataLoss => ErrorCode::DataLoss,
            Code::Unauthenticated => ErrorCode::Unauthenticated,
        },
    }
}

/// The code, detail and message of an error, for messages that carry an error within (a barrier's result).
///
/// Message and lists are cut to what trailers may carry; what was cut is counted in the message.
pub fn error_to_wire(error: &Error) -> (Code, v1::ErrorDetail, String) {
    let (code, detail) = code_to_wire(error.code);
    let mut bytes_left = NAMES_BYTES_MAX;
    let names: Vec<String> = error
        .names
        .iter()
        .take_while(|name| {
            let fits = bytes_left.checked_sub(name.len());
            bytes_left = fits.unwrap_or(0);
            fits.is_some()
        })
        .cloned()
        .collect();
    let tasks: Vec<v1::Task> = error.tasks.iter().take(TASKS_MAX).map(|&task| task.into()).collect();
    let mut message = error.message.clone();
    if message.len() > MESSAGE_BYTES_MAX {
        message.truncate(message.floor_char_boundary(MESSAGE_BYTES_MAX));
        message.push_str(" ...");
    }
    let cut = (error.names.len() - names.len()) + (error.tasks.len() - tasks.len());
    if cut > 0 {
        message.push_str(&format!(" (and {cut} more)"));
    }
    let stored = stored_to_wire(error);
    (code, v1::ErrorDetail { code: detail.into(), tasks, names, stored }, message)
}

/// The error of a code, detail and message. A task that this build doesn't know is left out.
pub fn error_from_wire(code: Code, detail: v1::ErrorDetail, message: String) -> Error {
    let kind = Detail::try_from(detail.code).unwrap_or(Detail::Unspecified);
    let tasks = detail.tasks.into_iter().filter_map(|task| Task::try_from(task).ok()).collect();
    // What makes no sense is nothing to go by; the message tells the guest of it.
    let stored = detail.stored.into_iter().filter_map(stored_from_wire).collect();
    Error { code: code_from_wire(code, kind), message, tasks, names: detail.names, stored }
}

/// Those that trailers have room for: whoever goes by them calls again, and is told of the rest.
fn stored_to_wire(error: &Error) -> Vec<v1::StoredShard> {
    let mut bytes_left = STORED_BYTES_MAX;
    let convert = |StoredShard { name, shard }: &StoredShard| v1::StoredShard {
        name: name.clone(),
        index: shard.as_ref().map_or(0, |shard| shard.index),
        first_row: shard.as_ref().map_or(0, |shard| shard.first_row),
        whole_rows: shard.as_ref().map_or(0, |shard| shard.whole_rows),
        ps: shard.as_ref().map_or_else(Vec::new, |shard| shard.ps.to_vec()),
    };
    let fits = |stored: &v1::StoredShard| {
        let left = bytes_left.checked_sub(stored.encoded_len());
        bytes_left = left.unwrap_or(0);
        left.is_some()
    };
    error.stored.iter().map(convert).take_while(fits).collect()
}

fn stored_from_wire(stored: v1::StoredShard) -> Option<StoredShard> {
    let v1::StoredShard { name, index, first_row, whole_rows, ps } = stored;
    if ps.is_empty() {
        return Some(StoredShard { name, shard: None });
    }
    let shard = Shard { index, first_row, whole_rows, ps: ps.into() };
    // How many rows it has follows from the map; one it has at least.
    shard.check(&name, 1).is_ok().then_some(StoredShard { name, shard: Some(shard) })
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        let (code, detail, message) = error_to_wire(&error);
        let any = prost_types::Any { type_url: TYPE_URL.into(), value: detail.encode_to_vec() };
        let status = RpcStatus { code: code.into(), message: message.clone(), details: vec![any] };
        Status::with_details(code, message, status.encode_to_vec().into())
    }
}

/// Reads the answer of a dchost server; none where the status comes from elsewhere: a transport, a proxy, another server.
pub fn answer(status: &Status) -> Option<Error> {
    let rpc = RpcStatus::decode(status.details()).ok()?;
    let any = rpc.details.iter().find(|any| any.type_url == TYPE_URL)?;
    let detail = v1::ErrorDetail::decode(any.value.as_slice()).ok()?;
    Some(error_from_wire(status.code(), detail, status.message().to_owned()))
}

/// The error of any status; one without a dchost detail maps by its code alone.
pub fn from_status(status: &Status) -> Error {
    answer(status)
        .unwrap_or_else(|| error_from_wire(status.code(), v1::ErrorDetail::default(), status.message().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::TaskType;
    use crate::wire::transport::HEADER_LIST_BYTES_MAX;

    /// Every code; the match makes the compiler ask for new ones.
    fn all_codes() -> Vec<ErrorCode> {
        use ErrorCode as E;
        let first = E::Cancelled;
        std::iter::successors(Some(first), |code| {
            Some(match code {
                E::Cancelled => E::Unknown,
                E::Unknown => E::InvalidArgument,
                E::InvalidArgument => E::DeadlineExceeded,
                E::DeadlineExceeded => E::NotFound,
                E::NotFound => E::AlreadyExists,
                E::AlreadyExists => E::PermissionDenied,
                E::PermissionDenied => E::ResourceExhausted,
                E::ResourceExhausted => E::FailedPrecondition,
                E::FailedPrecondition => E::Aborted,
                E::Aborted => E::OutOfRange,
                E::OutOfRange => E::Unimplemented,
                E::Unimplemented => E::Internal,
                E::Internal => E::Unavailable,
                E::Unavailable => E::DataLoss,
                E::DataLoss => E::Unauthenticated,
                E::Unauthenticated => E::Uninitialized,
                E::Uninitialized => E::PeerFailed,
                E::PeerFailed => E::PeerRestarted,
                E::PeerRestarted => return None,
            })
        })
        .collect()
    }

    #[test]
    fn every_error_survives_the_wire() {
        for code in all_codes() {
            let part = Shard { index: 1, first_row: 5, whole_rows: 9, ps: [2, 0].into() };
            let error = Error::new(code, format!("{code} \u{fc}ber `x`"))
                .with_tasks([Task::new(TaskType::Ps, 1), Task::new(TaskType::Worker, 0)])
                .with_names(["w", "b"])
                .with_stored(StoredShard { name: "b".into(), shard: None })
                .with_stored(StoredShard { name: "w".into(), shard: Some(part) });
            let status = Status::from(error.clone());
            // Through the headers, as a peer sees it.
            let received = Status::from_header_map(&status.into_http::<()>().into_parts().0.headers)
                .expect("an error status has a grpc-status header");
            assert_eq!(answer(&received).as_ref(), Some(&error));
            assert_eq!(from_status(&received), error);
        }
    }

    #[test]
    fn foreign_status_maps_by_its_code() {
        for value in 1..=16 {
            let code = Code::from_i32(value);
            let status = Status::new(code, "as others say");
            assert_eq!(answer(&status), None);
            let error = from_status(&status);
            assert_eq!(code_to_wire(error.code), (code, Detail::Unspecified));
            assert_eq!(error.message, "as others say");
        }
    }

    #[test]
    fn long_error_fits_in_trailers() {
        let part = |index| Shard { index, first_row: 0, whole_rows: 999, ps: (1_000_000..1_000_256).collect() };
        let stored = |index| StoredShard { name: "n".repeat(256), shard: Some(part(index)) };
        let names: Vec<_> = (0..200_000).map(|index| format!("variable/{index}")).collect();
        let tasks = (0..5000).map(|index| Task::new(TaskType::Worker, index));
        let error =
            Error::new(ErrorCode::Uninitialized, "\u{20ac}".repeat(100_000)).with_names(names).with_tasks(tasks);
        let error = (0..99).map(stored).fold(error, Error::with_stored);
        let headers = Status::from(error).into_http::<()>().into_parts().0.headers;
        let size: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 32).sum();
        assert!(size < HEADER_LIST_BYTES_MAX as usize, "{size} bytes");
        let error = from_status(&Status::from_header_map(&headers).expect("an error status has a grpc-status header"));
        assert!(!error.names.is_empty() && error.tasks.len() == TASKS_MAX && !error.stored.is_empty());
        assert!(error.message.ends_with("more)"), "{}", error.message);
    }
}
