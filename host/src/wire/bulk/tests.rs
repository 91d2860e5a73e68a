//! What is encoded here is what tonic's codec makes, and what it makes is decoded here, however it is cut.

use super::*;
use proptest::prelude::*;
use prost::Message as _;

fn chunk(item: u32, offset: u64, data: Vec<u8>) -> v1::PushRequest {
    v1::PushRequest { kind: Some(v1::push_request::Kind::Chunk(v1::Chunk { item, offset, data: data.into() })) }
}

fn header(names: usize) -> v1::PushRequest {
    let item = |index| v1::PushItem {
        variable: Some(v1::VariableRef { name: format!("v{index}"), ..Default::default() }),
        ..Default::default()
    };
    let header = v1::PushHeader { item: (0..names).map(item).collect(), ..Default::default() };
    v1::PushRequest { kind: Some(v1::push_request::Kind::Header(header)) }
}

/// The frames of a body, and its trailers.
async fn frames(mut body: Body) -> (Vec<Bytes>, Option<HeaderMap>) {
    let (mut frames, mut trailers) = (Vec::new(), None);
    while let Some(frame) = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        match frame.unwrap().into_data() {
            Ok(data) => frames.push(data),
            Err(frame) => trailers = frame.into_trailers().ok(),
        }
    }
    (frames, trailers)
}

/// Pieces as they may come, then trailers or what else is the end.
struct Pieced(std::vec::IntoIter<Result<Frame<Bytes>, Status>>);

impl http_body::Body for Pieced {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Poll::Ready(self.0.next())
    }
}

fn messages<T: prost::Message + Default>(frames: Vec<Result<Frame<Bytes>, Status>>, side: Side) -> Messages<T> {
    let body = Body::new(Pieced(frames.into_iter()));
    Messages { body, unread: Pieces::default(), side, ended: false, of: PhantomData }
}

async fn all<T: prost::Message + Default>(mut messages: Messages<T>) -> (Vec<T>, Result<(), Status>) {
    let mut read = Vec::new();
    loop {
        match messages.message().await {
            Ok(Some(message)) => read.push(message),
            Ok(None) => return (read, Ok(())),
            Err(status) => return (read, Err(status)),
        }
    }
}

fn good_end() -> Result<Frame<Bytes>, Status> {
    trailers(&Status::new(Code::Ok, ""))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn the_bytes_are_those_of_the_codec_and_are_read_however_they_are_cut(
        chunks in prop::collection::vec((0..3_u32, prop_oneof![Just(0_u64), 1..1_u64 << 40], 0..9000_usize), 0..5),
        cuts in prop::collection::vec(1..7000_usize, 1..8),
    ) {
        let sent: Vec<_> = std::iter::once(header(3))
            .chain(chunks.iter().map(|&(item, offset, bytes)| chunk(item, offset, (0..bytes).map(|i| i as u8).collect())))
            .collect();
        let expected: Vec<u8> = sent.iter().flat_map(|message| {
            let bytes = message.encode_to_vec();
            [&[0][..], &(bytes.len() as u32).to_be_bytes(), &bytes].concat()
        }).collect();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (made, none) = runtime.block_on(frames(encode_request(tokio_stream::iter(sent.clone()))));
        prop_assert!(none.is_none());
        prop_assert!(made.concat() == expected);

        let mut rest = Bytes::from(expected);
        let mut pieces = Vec::new();
        for cut in cuts.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            pieces.push(Ok(Frame::data(rest.split_to((*cut).min(rest.len())))));
        }
        pieces.push(good_end());
        let (read, end) = runtime.block_on(all::<v1::PushRequest>(messages(pieces, Side::Client)));
        prop_assert!(end.is_ok());
        prop_assert!(read == sent);
    }
}

#[tokio::test]
async fn the_bytes_of_a_large_chunk_are_neither_copied_to_send_nor_to_receive_them() {
    let data = Bytes::from(vec![7; 256 << 10]);
    let chunk = v1::Chunk { item: 1, offset: 2, data: data.clone() };
    let message = v1::PullResponse { kind: Some(v1::pull_response::Kind::Chunk(chunk)) };
    let (made, end) = frames(encode_response(tokio_stream::iter([Ok(message.clone())])).into_body()).await;
    assert_eq!(made.len(), 2);
    assert_eq!(made[1].as_ptr(), data.as_ptr());
    assert_eq!(end.unwrap()["grpc-status"], "0");

    let mut pieces: Vec<_> = made.into_iter().map(|data| Ok(Frame::data(data))).collect();
    pieces.push(good_end());
    let (read, end) = all::<v1::PullResponse>(messages(pieces, Side::Client)).await;
    assert!(end.is_ok() && read == [message]);
    let Some(v1::pull_response::Kind::Chunk(chunk)) = &read[0].kind else { panic!("{read:?}") };
    assert_eq!(chunk.data.as_ptr(), data.as_ptr());
}

#[tokio::test]
async fn a_bad_end_is_told_on_each_side() {
    let whole = || Ok(Frame::data(framed(&header(1)).freeze()));
    let half = || Ok(Frame::data(framed(&header(1)).freeze().slice(..7)));
    let cut = || Err(Status::unavailable("cut"));
    let gone = || Err(Status::cancelled("reset"));
    let refused = || trailers(&Status::aborted("no"));
    for (side, pieces, expected) in [
        (Side::Client, vec![whole(), good_end()], (1, None)),
        (Side::Client, vec![whole(), refused()], (1, Some(Code::Aborted))),
        (Side::Client, vec![whole(), cut()], (1, Some(Code::Unavailable))),
        (Side::Client, vec![whole(), gone()], (1, Some(Code::Cancelled))),
        (Side::Client, vec![whole()], (1, Some(Code::Unknown))),
        (Side::Client, vec![half(), good_end()], (0, Some(Code::Internal))),
        (Side::Server, vec![whole()], (1, None)),
        (Side::Server, vec![whole(), cut()], (1, Some(Code::Unavailable))),
        // The client has gone; whoever reads finds that the stream is too short.
        (Side::Server, vec![whole(), gone()], (1, None)),
        (Side::Server, vec![half()], (0, Some(Code::Internal))),
        (Side::Server, vec![Ok(Frame::data(Bytes::from_static(&[1, 0, 0, 0, 0])))], (0, Some(Code::Unimplemented))),
        (Side::Server, vec![Ok(Frame::data(Bytes::from_static(&[0, 1, 0, 0, 0])))], (0, Some(Code::OutOfRange))),
        (Side::Server, vec![Ok(Frame::data(Bytes::from_static(&[0, 0, 0, 0, 1, 255])))], (0, Some(Code::Internal))),
    ] {
        let shown = format!("{side:?} {pieces:?}");
        let (read, end) = all::<v1::PushRequest>(messages(pieces, side)).await;
        assert_eq!((read.len(), end.err().map(|status| status.code())), expected, "{shown}");
    }
}

#[tokio::test]
async fn compressed_messages_are_refused() {
    let request = |encoding: &str| Request::post("/x").header("grpc-encoding", encoding).body(Body::empty()).unwrap();
    assert!(decode_request::<v1::PushRequest>(request("identity")).is_ok());
    let status = decode_request::<v1::PushRequest>(request("gzip")).unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented);
}

/// Aim: many small values are few frames, of which a receiver takes only so many while it is slow; and none waits for the next.
#[tokio::test]
async fn small_messages_share_frames_and_wait_for_none() {
    let sent: Vec<_> = (0..10_000).map(|item| chunk(item, 0, vec![1; 8])).collect();
    let (made, _) = frames(encode_request(tokio_stream::iter(sent.clone()))).await;
    let small = made.iter().filter(|frame| frame.len() < 256).count();
    assert!(small <= 1 && made.len() < 1000, "{small} of {} frames are small", made.len());
    let pieces = made.into_iter().map(|data| Ok(Frame::data(data))).chain([good_end()]).collect();
    let (read, end) = all::<v1::PushRequest>(messages(pieces, Side::Client)).await;
    assert!(end.is_ok() && read == sent);

    let (sender, receiver) = tokio::sync::mpsc::channel(4);
    let mut body = encode_request(tokio_stream::wrappers::ReceiverStream::new(receiver));
    for item in 0..2 {
        sender.send(chunk(item, 0, vec![1; 8])).await.unwrap();
        let frame = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await;
        assert!(frame.is_some_and(|frame| frame.is_ok_and(|frame| frame.is_data())));
    }
}
