use super::*;
use crate::cluster::TaskType;
use crate::ids::RunId;

fn registration() -> Registration {
    let mut cluster = ClusterSpec::new().with_job(TaskType::Chief, ["c:1"]).with_job(TaskType::Worker, ["a:1", "b:1"]);
    cluster.insert(Task::new(TaskType::Ps, 7), "p:1");
    Registration {
        task: Task::new(TaskType::Worker, 1),
        incarnation: Incarnation(5),
        run_id: RunId(6),
        attempt: Some(Attempt { leader: Incarnation(7), number: 1 }),
        mode: Some(Mode::IndependentWorker),
        replication: Replication::BetweenGraph,
        barrier: true,
        module_digest: Some([9; 32]),
        cluster,
    }
}

/// Encodes and decodes, as a connection does.
fn through<M: prost::Message + Default>(message: &M) -> M {
    M::decode(message.encode_to_vec().as_slice()).expect("it was encoded by prost")
}

fn receive(registration: &Registration, spoil: impl FnOnce(&mut v1::Register)) -> Result<Registration> {
    let Some(Request::Register(mut register)) = through(&registration_to_wire("default", registration)).kind else {
        panic!("a registration is written as one");
    };
    spoil(&mut register);
    let header = Header::try_from(register.header.clone().expect("it has a header"))?;
    registration_from_wire(header.caller, register)
}

#[test]
fn registration_survives_the_wire() {
    let first = registration();
    assert_eq!(receive(&first, |_| ()), Ok(first.clone()));
    let server = Registration {
        attempt: None,
        mode: None,
        replication: Replication::InGraph,
        barrier: false,
        module_digest: None,
        cluster: ClusterSpec::new(),
        ..first
    };
    assert_eq!(receive(&server, |_| ()), Ok(server));
}

#[test]
fn bad_registration_names_its_field() {
    type Spoil = fn(&mut v1::Register);
    let spoilers: [(Spoil, &str); 6] = [
        (|register| register.incarnation = 0, "register.incarnation"),
        (|register| register.module_digest = vec![1; 31].into(), "register.module_digest"),
        (|register| register.mode = 77, "register.mode"),
        (|register| register.replication = 0, "register.replication"),
        (|register| register.cluster[0].job = "master".into(), "register.cluster.job"),
        (
            |register| register.header.get_or_insert_default().caller.get_or_insert_default().task = None,
            "register.header.caller.task",
        ),
    ];
    for (spoil, field) in spoilers {
        let error = receive(&registration(), spoil).expect_err("refused");
        assert!(error.code == ErrorCode::InvalidArgument && error.message.contains(field), "{field}: {error}");
    }
}

#[test]
fn member_messages_survive_the_wire() {
    let arrival = |name: &str, timeout| {
        MemberMessage::Arrival(BarrierArrival { name: name.into(), generation: u64::MAX, timeout })
    };
    let end = EndReport { ok: false, exit_code: 202, message: "gone".into(), leaving: true };
    for message in [
        MemberMessage::Heartbeat,
        arrival("", None),
        arrival("epoch", Some(Duration::from_millis(1))),
        MemberMessage::End(end),
    ] {
        assert_eq!(message_from_wire(through(&message_to_wire(message.clone()))), Ok(message));
    }
    // Shorter than the wire's unit: still a timeout.
    let short = message_to_wire(arrival("", Some(Duration::ZERO)));
    assert_eq!(message_from_wire(short), Ok(arrival("", Some(Duration::from_millis(1)))));
    assert!(message_from_wire(registration_to_wire("default", &registration())).is_err());
    assert!(message_from_wire(v1::AttendRequest::default()).is_err());
}

#[test]
fn leader_events_survive_the_wire() {
    let task = Task::new(TaskType::Worker, 1);
    let cause = Cause { task, exit_code: 201, message: "never seen".into() };
    let attempt = Attempt { leader: Incarnation(7), number: 1 };
    let error = Error::new(ErrorCode::PeerFailed, "worker:1 is lost").with_tasks([task]);
    let state = |state| LeaderEvent::Task { task, state, message: "probe refused".into() };
    for event in [
        LeaderEvent::Heartbeat,
        LeaderEvent::Barrier { name: String::new(), generation: 3, result: Ok(()) },
        LeaderEvent::Barrier { name: "epoch".into(), generation: 0, result: Err(error) },
        LeaderEvent::AttemptBegins { attempt, cause: cause.clone() },
        state(TaskState::NeverSeen),
        state(TaskState::Running),
        state(TaskState::Suspect),
        state(TaskState::Ended),
        state(TaskState::Lost),
        LeaderEvent::TrainingEnded { cause: None },
        LeaderEvent::TrainingEnded { cause: Some(cause.clone()) },
        LeaderEvent::JobEnded { cause: None },
        LeaderEvent::JobEnded { cause: Some(cause) },
    ] {
        assert_eq!(event_from_wire(through(&event_to_wire(event.clone()))), Ok(Some(event)));
    }
    assert_eq!(event_from_wire(v1::AttendEvent::default()), Ok(None), "a kind of a newer leader is passed over");
}

#[test]
fn answer_survives_the_wire() {
    for (mode, training_ended) in [(None, true), (Some(Mode::SplitClient), false)] {
        let registered = Registered {
            leader_incarnation: Incarnation(3),
            attempt: Attempt { leader: Incarnation(3), number: 0 },
            mode,
            replication: Replication::InGraph,
            training_ended,
        };
        let Some(Event::Registered(wire)) = through(&registered_to_wire(&registered)).kind else {
            panic!("an answer is written as one");
        };
        assert_eq!(registered_from_wire(wire), Ok(registered));
    }
}
