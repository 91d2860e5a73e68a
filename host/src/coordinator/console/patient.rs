//! A stream that waits for its reader, whatever mode the stream is in.

use rustix::event::{PollFd, PollFlags, poll};
use std::io::{self, Write};
use std::os::fd::AsFd;

/// Writes to a stream that another process may have made non-blocking: such a mode belongs to the pipe or terminal, which
/// whoever started this process may share with it. A write that finds no room waits for it, as it does on any other stream.
#[derive(Debug)]
pub struct Patient<W>(pub W);

impl<W: AsFd> Patient<W> {
    fn when_ready<T>(&mut self, mut act: impl FnMut(&mut W) -> io::Result<T>) -> io::Result<T> {
        loop {
            match act(&mut self.0) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    match poll(&mut [PollFd::new(&self.0, PollFlags::OUT)], None) {
                        Ok(_) | Err(rustix::io::Errno::INTR) => {}
                        Err(error) => return Err(error.into()),
                    }
                }
                done => return done,
            }
        }
    }
}

impl<W: Write + AsFd> Write for Patient<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.when_ready(|stream| stream.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.when_ready(Write::flush)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{LineWriter, Read as _};
    use std::os::fd::BorrowedFd;
    use std::os::unix::net::UnixStream;
    use std::thread;

    /// As standard output is: with a buffer before the stream.
    struct Buffered(LineWriter<UnixStream>);

    impl AsFd for Buffered {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.0.get_ref().as_fd()
        }
    }

    impl Write for Buffered {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            self.0.flush()
        }
    }

    /// Aim: nothing is lost and nothing comes twice. Method: far more than the stream holds, and a reader that comes late.
    #[test]
    fn a_stream_that_does_not_block_is_waited_for() {
        let (mut reader, writer) = UnixStream::pair().unwrap();
        writer.set_nonblocking(true).unwrap();
        let lines: String = (0..100_000).map(|line| format!("line {line}\n")).collect();
        let wanted = lines.clone();
        let writing = thread::spawn(move || {
            let mut patient = Patient(Buffered(LineWriter::new(writer)));
            for line in lines.split_inclusive('\n') {
                patient.write_all(line.as_bytes())?;
            }
            patient.flush()
        });
        let mut seen = String::new();
        reader.read_to_string(&mut seen).unwrap();
        writing.join().unwrap().unwrap();
        assert!(seen == wanted, "{} of {} bytes", seen.len(), wanted.len());
    }

    #[test]
    fn a_reader_that_has_gone_ends_the_wait() {
        let (mut reader, writer) = io::pipe().unwrap();
        rustix::io::ioctl_fionbio(&writer, true).unwrap();
        let writing = thread::spawn(move || Patient(writer).write_all(&[0; 1 << 20]));
        reader.read_exact(&mut [0]).unwrap();
        drop(reader);
        assert_eq!(writing.join().unwrap().unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
