//! Tries the network: each guest argument is one thing to try, `HOW=TARGET`; tells how each went, fails at nothing. After
//! `again` it goes on trying all that stands before it, without a word, until it is ended.

use dchost_guest::{WorkerContext, worker_fn};
use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream, ToSocketAddrs as _, UdpSocket};

#[worker_fn]
fn train(ctx: &WorkerContext) {
    let args = ctx.args();
    for (index, arg) in args.iter().enumerate() {
        if arg == "again" {
            println!("again");
            loop {
                args[..index].iter().for_each(|arg| drop(tries(arg)));
            }
        }
        match tries(arg) {
            Ok(text) => println!("{arg}: {text}"),
            Err(error) => println!("{arg}: {:?}", error.kind()),
        }
    }
}

fn tries(arg: &str) -> io::Result<String> {
    let (how, target) = arg.split_once('=').unwrap_or((arg, ""));
    match how {
        "tcp" => tcp(target),
        "udp" => udp("0.0.0.0:0", target),
        "udp-loopback" => udp("127.0.0.1:0", target),
        "lookup" => lookup(target),
        "listen" => TcpListener::bind(target).map(|_| "listens".to_owned()),
        "bind-udp" => UdpSocket::bind(target).and_then(|socket| Ok(format!("bound to {}", socket.local_addr()?))),
        "many" => many(target),
        _ => panic!("cannot try `{arg}`"),
    }
}

/// Says hello and waits for the answer.
fn tcp(target: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(target)?;
    stream.write_all(b"hello\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

fn udp(from: &str, target: &str) -> io::Result<String> {
    let socket = UdpSocket::bind(from)?;
    socket.send_to(b"hello", target)?;
    let mut answer = [0; 64];
    let (bytes, _) = socket.recv_from(&mut answer)?;
    Ok(format!("{} on {}", String::from_utf8_lossy(&answer[..bytes]), socket.local_addr()?.ip()))
}

fn lookup(target: &str) -> io::Result<String> {
    let addresses: Vec<_> = target.to_socket_addrs()?.map(|address| address.to_string()).collect();
    Ok(addresses.join(" "))
}

/// Opens connections and keeps them, until one is refused; at most 10000.
fn many(target: &str) -> io::Result<String> {
    let mut streams = Vec::new();
    while streams.len() < 10_000 {
        match TcpStream::connect(target) {
            Ok(stream) => streams.push(stream),
            Err(error) => return Ok(format!("{} open, then {:?}", streams.len(), error.kind())),
        }
    }
    Ok("no end".to_owned())
}
