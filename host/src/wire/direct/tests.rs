use super::*;
use crate::error::ErrorCode;
use proptest::prelude::*;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{ReadBuf, duplex};

fn initialized(version: Vec<u64>) -> v1::DirectResponse {
    let kind = v1::direct_response::Kind::Written(v1::PushResponse { header: None, version });
    v1::DirectResponse { kind: Some(kind), last: false }
}

/// Gives bytes out in pieces of so many, one after the other and again.
struct Torn {
    bytes: Vec<u8>,
    at: usize,
    sizes: Vec<usize>,
    turn: usize,
}

impl AsyncRead for Torn {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let size = self.sizes[self.turn % self.sizes.len()];
        self.turn += 1;
        let end = self.bytes.len().min(self.at + size.min(into.remaining()));
        into.put_slice(&self.bytes[self.at..end]);
        self.at = end;
        Poll::Ready(Ok(()))
    }
}

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().expect("the system gives a runtime").block_on(future)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    /// Aim: messages and values come out as they went in, however the connection tears them, and nothing is left.
    #[test]
    fn calls_come_out_as_they_went_in(
        calls in prop::collection::vec((prop::collection::vec(any::<u64>(), 0..4), prop::collection::vec(0..120_000_usize, 0..4)), 0..4),
        sizes in prop::collection::vec(1..50_000_usize, 1..6),
        by_piece in any::<bool>(),
    ) {
        run(async {
            let mut sent = Vec::new();
            let value = |call: usize, bytes: usize| (0..bytes).map(|i| (i / 7 + call) as u8).collect::<Vec<_>>();
            for (index, (versions, values)) in calls.iter().enumerate() {
                let values: Vec<_> = values.iter().map(|&bytes| value(index, bytes)).collect();
                let parts: Vec<_> = values.iter().map(Vec::as_slice).collect();
                write(&mut sent, framed(&initialized(versions.clone())), &parts).await.expect("memory takes all");
            }
            let mut reader = Reader::new(Torn { bytes: sent, at: 0, sizes, turn: 0 });
            for (index, (versions, values)) in calls.iter().enumerate() {
                let message = reader.message().await.expect("it is one").expect("there is one");
                assert_eq!(initialized(versions.clone()), message);
                for &bytes in values {
                    let mut read = Vec::new();
                    if by_piece {
                        read.extend_from_slice(&reader.piece(bytes).await.expect("all came"));
                    } else {
                        reader.append(&mut read, bytes).await.expect("all came");
                    }
                    assert!(read == value(index, bytes));
                }
            }
            assert!(reader.is_empty());
            assert!(reader.message::<v1::DirectResponse>().await.expect("a good end").is_none());
        });
    }
}

#[test]
fn parts_are_written_in_order_without_the_empty_ones() {
    let (head, values) = (b"head".as_slice(), [b"".as_slice(), b"a", b"", b"bcd"]);
    let mut parts = Parts { head, values: &values };
    let mut slices = [IoSlice::new(&[]); 4];
    assert_eq!(parts.chunks_vectored(&mut slices), 3);
    assert_eq!((&*slices[0], &*slices[1], &*slices[2]), (b"head".as_slice(), b"a".as_slice(), b"bcd".as_slice()));
    let mut written = Vec::new();
    while parts.has_remaining() {
        let taken = parts.chunk().len().min(3);
        written.extend_from_slice(&parts.chunk()[..taken]);
        parts.advance(taken);
    }
    assert_eq!(written, b"headabcd");
}

#[test]
fn large_values_reach_the_other_side_while_it_reads() {
    run(async {
        let (mut near, far) = duplex(5000);
        let value: Vec<u8> = (0..3_000_000).map(|i| (i / 3) as u8).collect();
        let head = framed(&initialized(vec![3]));
        let mut reader = Reader::new(far);
        let read = async {
            let message = reader.message::<v1::DirectResponse>().await.expect("it is one");
            let mut read = Vec::new();
            reader.append(&mut read, value.len()).await.expect("all came");
            (message, read)
        };
        let parts = [value.as_slice()];
        let (written, (message, read)) = tokio::join!(write(&mut near, head, &parts), read);
        written.expect("it is read");
        assert!(message == Some(initialized(vec![3])) && read == value);
    });
}

#[test]
fn what_is_no_message_is_refused_without_taking_its_memory() {
    run(async {
        for (bytes, kind) in [
            (vec![0xff; 4], io::ErrorKind::InvalidData),
            (vec![0, 0, 0, 2, 0xff, 0xff], io::ErrorKind::InvalidData),
            (vec![0, 0, 1], io::ErrorKind::UnexpectedEof),
            (vec![0, 0, 0, 9, 1], io::ErrorKind::UnexpectedEof),
        ] {
            let mut reader = Reader::new(bytes.as_slice());
            let error = reader.message::<v1::DirectResponse>().await.expect_err("it is none");
            assert_eq!(error.kind(), kind, "{bytes:?}");
            assert!(reader.unread.capacity() <= 2 * READ_BYTES);
        }
        let mut value = Vec::new();
        let error = Reader::new([1, 2].as_slice()).append(&mut value, 3).await.expect_err("it ends");
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        let error = Reader::new([1, 2].as_slice()).piece(3).await.expect_err("it ends");
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    });
}

#[test]
fn errors_keep_code_names_and_message() {
    let error = Error::new(ErrorCode::Uninitialized, "no value: `w`").with_names(["w"]);
    assert_eq!(error_of(error_to_direct(&error)), error);
}
