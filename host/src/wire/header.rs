//! Request and response headers, tasks, identities.
//!
//! Every request, and the first message of every stream, carries a [`Header`]; every answer carries the incarnation of
//! the server that gave it.

use crate::cluster::Task;
use crate::error::{Error, ErrorCode, Result};
use crate::ids::{Attempt, Caller, ClientUse, Incarnation, RunId};
use crate::wire::v1;

/// The protocol that this build speaks; a server refuses any other, naming both.
pub const PROTOCOL: u32 = 1;

/// The name in the error of a data call that comes without a session: its caller opens one and tries again.
pub const SESSION: &str = "session";

/// What stands in every request, checked for form. Whether it is acceptable is the guard's business.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Who calls, in which container and attempt.
    pub caller: Caller,
    /// Of a write: counts from 1 for each run and server, applied once. 0: not a write.
    pub sequence: u64,
    /// The server that the caller means; none at first contact.
    pub expected: Option<Incarnation>,
}

impl Header {
    /// Makes the header of a call that is no write, at first contact.
    pub fn new(caller: Caller) -> Self {
        Header { caller, sequence: 0, expected: None }
    }
}

impl From<&Header> for v1::RequestHeader {
    fn from(header: &Header) -> Self {
        v1::RequestHeader {
            protocol: PROTOCOL,
            container: header.caller.container.clone(),
            caller: Some(v1::Caller { task: header.caller.task.map(v1::Task::from), run_id: header.caller.run_id.0 }),
            attempt: header.caller.attempt.map(v1::Attempt::from),
            sequence: header.sequence,
            expected_incarnation: header.expected.map_or(0, |incarnation| incarnation.0),
        }
    }
}

impl TryFrom<v1::RequestHeader> for Header {
    type Error = Error;

    /// Converts a header of this protocol.
    ///
    /// # Errors
    /// `invalid-argument` naming the field: no caller, run id 0, an unknown job, leader incarnation 0;
    /// `failed-precondition` for another protocol, naming both.
    fn try_from(header: v1::RequestHeader) -> Result<Self> {
        if header.protocol != PROTOCOL {
            return Err(Error::new(
                ErrorCode::FailedPrecondition,
                format!(
                    "caller speaks protocol `{}`, this server speaks `{PROTOCOL}`; run the same dchost everywhere",
                    header.protocol
                ),
            ));
        }
        let caller = header.caller.ok_or_else(|| missing("header.caller"))?;
        if caller.run_id == 0 {
            return Err(missing("header.caller.run_id"));
        }
        Ok(Header {
            caller: Caller {
                container: header.container,
                task: caller.task.map(|task| task_at("header.caller.task", task)).transpose()?,
                run_id: RunId(caller.run_id),
                attempt: header.attempt.map(Attempt::try_from).transpose()?,
            },
            sequence: header.sequence,
            expected: Some(header.expected_incarnation).filter(|&value| value != 0).map(Incarnation),
        })
    }
}

impl From<Task> for v1::Task {
    fn from(task: Task) -> Self {
        v1::Task { job: task.job.as_str().to_owned(), index: task.index }
    }
}

impl TryFrom<v1::Task> for Task {
    type Error = Error;

    /// Converts a task.
    ///
    /// # Errors
    /// `invalid-argument` for a job that is none of dchost's.
    fn try_from(task: v1::Task) -> Result<Self> {
        task_at("task", task)
    }
}

/// Converts the task in the field `field`, so that a fault names it.
pub fn task_at(field: &str, task: v1::Task) -> Result<Task> {
    match task.job.parse() {
        Ok(job) => Ok(Task::new(job, task.index)),
        Err(unknown) => Err(Error::new(ErrorCode::InvalidArgument, format!("{field}.job: {unknown}"))),
    }
}

impl From<Attempt> for v1::Attempt {
    fn from(attempt: Attempt) -> Self {
        v1::Attempt { leader_incarnation: attempt.leader.0, number: attempt.number }
    }
}

impl TryFrom<v1::Attempt> for Attempt {
    type Error = Error;

    /// Converts an attempt.
    ///
    /// # Errors
    /// `invalid-argument` without a leader incarnation.
    fn try_from(attempt: v1::Attempt) -> Result<Self> {
        if attempt.leader_incarnation == 0 {
            return Err(missing("attempt.leader_incarnation"));
        }
        Ok(Attempt { leader: Incarnation(attempt.leader_incarnation), number: attempt.number })
    }
}

/// Converts how a client uses its container; none: a task of a job.
pub fn client_use_to_wire(client_use: Option<ClientUse>) -> v1::ClientUse {
    match client_use {
        None => v1::ClientUse::Unspecified,
        Some(ClientUse::Exclusive) => v1::ClientUse::Exclusive,
        Some(ClientUse::Shared) => v1::ClientUse::Shared,
    }
}

/// Reads how a client uses its container; none: a task of a job.
///
/// # Errors
/// `invalid-argument` for a use that this build doesn't know.
pub fn client_use_from_wire(client_use: i32) -> Result<Option<ClientUse>> {
    match v1::ClientUse::try_from(client_use) {
        Ok(v1::ClientUse::Unspecified) => Ok(None),
        Ok(v1::ClientUse::Exclusive) => Ok(Some(ClientUse::Exclusive)),
        Ok(v1::ClientUse::Shared) => Ok(Some(ClientUse::Shared)),
        Err(_) => Err(Error::new(ErrorCode::InvalidArgument, format!("client_use: unknown value `{client_use}`"))),
    }
}

/// Makes the header of an answer.
pub fn response_header(incarnation: Incarnation) -> Option<v1::ResponseHeader> {
    Some(v1::ResponseHeader { incarnation: incarnation.0 })
}

/// Reads the answering server's incarnation.
///
/// # Errors
/// `internal` where the answer has none: what answers is no dchost server.
pub fn answered_by(header: Option<&v1::ResponseHeader>) -> Result<Incarnation> {
    header
        .map(|header| header.incarnation)
        .filter(|&value| value != 0)
        .map(Incarnation)
        .ok_or_else(|| Error::new(ErrorCode::Internal, "the answer lacks `header.incarnation`; is it a dchost server?"))
}

/// The fault of a field that has to be there.
pub fn missing(field: &str) -> Error {
    Error::new(ErrorCode::InvalidArgument, format!("`{field}` is missing"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::TaskType;
    use expect_test::{Expect, expect};

    fn header() -> Header {
        Header {
            caller: Caller {
                container: "default".into(),
                task: Some(Task::new(TaskType::Worker, 3)),
                run_id: RunId(7),
                attempt: Some(Attempt { leader: Incarnation(9), number: 2 }),
            },
            sequence: 5,
            expected: Some(Incarnation(11)),
        }
    }

    #[test]
    fn header_survives_the_wire() {
        let header = header();
        assert_eq!(Header::try_from(v1::RequestHeader::from(&header)).as_ref(), Ok(&header));
        let first = Header::new(Caller { task: None, attempt: None, ..header.caller });
        assert_eq!(Header::try_from(v1::RequestHeader::from(&first)).as_ref(), Ok(&first));
    }

    #[test]
    fn fault_names_its_field() {
        fn check(spoil: impl FnOnce(&mut v1::RequestHeader), expected: Expect) {
            let mut wire = v1::RequestHeader::from(&header());
            spoil(&mut wire);
            expected.assert_eq(&Header::try_from(wire).map_or_else(|error| error.to_string(), |_| "accepted".into()));
        }
        check(
            |header| header.protocol = 2,
            expect![
                "failed-precondition: caller speaks protocol `2`, this server speaks `1`; run the same dchost everywhere"
            ],
        );
        check(|header| header.caller = None, expect!["invalid-argument: `header.caller` is missing"]);
        check(
            |header| header.caller.get_or_insert_default().run_id = 0,
            expect!["invalid-argument: `header.caller.run_id` is missing"],
        );
        check(
            |header| header.caller.get_or_insert_default().task = Some(v1::Task { job: "master".into(), index: 0 }),
            expect![
                "invalid-argument: header.caller.task.job: unknown task type `master`, known are chief, worker, ps, evaluator and client"
            ],
        );
        check(
            |header| header.attempt = Some(v1::Attempt::default()),
            expect!["invalid-argument: `attempt.leader_incarnation` is missing"],
        );
    }
}
