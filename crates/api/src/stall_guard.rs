//! A stream that fails when its peer stops reading.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// Fails a write that makes no progress for too long. Without it, a peer that stops reading would hold its
/// connection, buffers and permit forever.
pub(crate) struct StallGuard<S> {
    stream: S,
    max: Duration,
    /// Created at the first stall: most connections never have one.
    timer: Option<Pin<Box<Sleep>>>,
    is_stalled: bool,
}

impl<S> StallGuard<S> {
    pub(crate) fn new(stream: S, max: Duration) -> Self {
        Self {
            stream,
            max,
            timer: None,
            is_stalled: false,
        }
    }

    /// Turns a pending write into an error once it has been pending for too long.
    fn check_stall<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.is_stalled = false;
            return written;
        }
        let max = self.max;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(max)));
        if !self.is_stalled {
            self.is_stalled = true;
            timer.as_mut().reset(Instant::now() + max);
        }
        ready!(timer.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "the peer has stopped reading",
        )))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for StallGuard<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for StallGuard<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.check_stall(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.check_stall(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.check_stall(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let closed = Pin::new(&mut self.stream).poll_shutdown(context);
        self.check_stall(context, closed)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    const MAX: Duration = Duration::from_secs(30);
    const ALMOST_MAX: Duration = Duration::from_secs(29);

    #[tokio::test(start_paused = true)]
    async fn peer_that_stops_reading_is_disconnected_after_limit() {
        let (ours, _theirs) = duplex(4);
        let mut guarded = StallGuard::new(ours, MAX);
        let started = Instant::now();
        let error = guarded.write_all(b"more than four").await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(started.elapsed(), MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn slow_peer_is_served_to_the_end() {
        let (ours, mut theirs) = duplex(4);
        let mut guarded = StallGuard::new(ours, MAX);
        let started = Instant::now();
        let reader = tokio::spawn(async move {
            let mut all = Vec::new();
            let mut part = [0; 4];
            loop {
                tokio::time::advance(ALMOST_MAX).await;
                match theirs.read(&mut part).await.unwrap() {
                    0 => return all,
                    count => all.extend_from_slice(&part[..count]),
                }
            }
        });
        guarded.write_all(b"twelve bytes").await.unwrap();
        guarded.shutdown().await.unwrap();
        assert_eq!(reader.await.unwrap(), b"twelve bytes");
        assert!(
            started.elapsed() > MAX,
            "each wait is below the limit, their sum is not"
        );
    }
}
