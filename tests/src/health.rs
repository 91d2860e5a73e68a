//! A gRPC health check, spoken by hand: enough HTTP/2 to ask one question, and nothing of dchost's own code.

use crate::PATIENCE;
use anyhow::{Context, Result, bail, ensure};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// A gRPC message of no bytes: not compressed, length 0. As a `HealthCheckRequest` it asks for the server as a whole.
const EMPTY_MESSAGE: [u8; 5] = [0; 5];

/// `HealthCheckResponse { status: SERVING }` in its frame.
const SERVING: [u8; 7] = [0, 0, 0, 0, 2, 8, 1];

/// Sends an HTTP/2 ping to a server on loopback and returns how long its answer took: the least that a living gRPC server
/// does, whatever else its process is busy with.
///
/// # Errors
/// Nothing listens, or no answer comes within [`PATIENCE`].
pub fn ping(port: u16) -> Result<Duration> {
    const WORD: &[u8] = b"12345678";
    let (mut stream, sent) = connect(port)?;
    stream.write_all(&frame(PING, 0, 0, WORD)).context("send a ping")?;
    loop {
        let (kind, flags, body) = read_frame(&mut stream)?;
        if kind == PING && flags & ACK != 0 {
            ensure!(body == WORD, "the answer to another ping");
            return Ok(sent.elapsed());
        }
    }
}

/// Asks `grpc.health.v1.Health/Check` of a server on loopback and returns how long the answer took, connecting included.
///
/// # Errors
/// Nothing listens, no answer comes within [`PATIENCE`], or the server says that it isn't serving.
pub fn health(port: u16) -> Result<Duration> {
    let (mut stream, sent) = connect(port)?;
    // HPACK without dynamic table and Huffman: indexed where the static table has the whole header.
    let mut headers = vec![0x83, 0x86];
    let literal = |name: &[u8], value: &str| [name, &[len(value)], value.as_bytes()].concat();
    headers.extend(literal(&[0x04], "/grpc.health.v1.Health/Check"));
    headers.extend(literal(&[0x01], "localhost"));
    headers.extend(literal(&[0x0f, 0x10], "application/grpc"));
    headers.extend(literal(&[0x00, 2, b't', b'e'], "trailers"));
    let request = [frame(HEADERS, END_HEADERS, 1, &headers), frame(DATA, END_STREAM, 1, &EMPTY_MESSAGE)].concat();
    stream.write_all(&request).context("send a health check")?;
    loop {
        match read_frame(&mut stream)? {
            (DATA, _, body) if !body.is_empty() => {
                ensure!(body == SERVING, "the server answers {body:?} instead of SERVING");
                return Ok(sent.elapsed());
            }
            (HEADERS, flags, body) if flags & END_STREAM != 0 => bail!("an answer of headers alone: {body:?}"),
            _ => {}
        }
    }
}

/// Connects and sends the preface; the clock starts when the connection stands.
fn connect(port: u16) -> Result<(TcpStream, Instant)> {
    let began = Instant::now();
    let mut stream = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port))).context("connect")?;
    stream.set_read_timeout(Some(PATIENCE)).context("set a timeout")?;
    stream.set_nodelay(true).context("send at once")?;
    stream.write_all(&[PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()).context("send the preface")?;
    Ok((stream, began))
}

fn len(value: &str) -> u8 {
    u8::try_from(value.len()).expect("headers of this file are short")
}

/// One frame, for stream 0 (the connection) or 1.
fn frame(kind: u8, flags: u8, stream: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).expect("frames of this file are short").to_be_bytes();
    [&length[1..], &[kind, flags, 0, 0, 0, stream], body].concat()
}

/// The next frame: kind, flags, body.
fn read_frame(stream: &mut TcpStream) -> Result<(u8, u8, Vec<u8>)> {
    let mut header = [0; 9];
    stream.read_exact(&mut header).context("read a frame's header")?;
    let len = u32::from_be_bytes([0, header[0], header[1], header[2]]);
    ensure!(len <= 1 << 20, "a frame of {len} bytes");
    let mut body = vec![0; len as usize];
    stream.read_exact(&mut body).context("read a frame")?;
    Ok((header[3], header[4], body))
}
