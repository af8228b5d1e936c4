//! The event stream: server-sent events, followed across broken connections by cursor.

use std::ops::ControlFlow;
use std::time::Duration;

use futures::StreamExt as _;
use rand::Rng as _;

use super::Client;
use crate::failure::{Failure, root_cause};

/// The longest line that is taken; a server that sends more is not ours.
const LINE_BYTES_MAX: usize = 4 << 20;
/// A stream that says nothing (not even a heartbeat) for this long is dead.
const SILENCE_MAX: Duration = Duration::from_secs(60);
const RETRY_FIRST: Duration = Duration::from_millis(200);
const RETRY_MAX: Duration = Duration::from_secs(10);

/// One message: the cursor after it, and its data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) cursor: Option<String>,
    pub(crate) data: String,
}

/// A stream of messages that reconnects where it was.
pub(crate) struct Feed<'c> {
    client: &'c Client,
    query: Vec<(&'static str, String)>,
    cursor: Option<String>,
}

impl<'c> Feed<'c> {
    /// The feed after `cursor`; from the oldest event without one.
    pub(crate) fn new(
        client: &'c Client,
        query: Vec<(&'static str, String)>,
        cursor: Option<String>,
    ) -> Self {
        Self {
            client,
            query,
            cursor,
        }
    }

    /// Hands over messages until `each` breaks. A lost connection is made again after the last
    /// message that was handed over; only a refusal, or a first connection that fails, ends it.
    pub(crate) async fn follow(
        &mut self,
        mut each: impl FnMut(&Message) -> Result<ControlFlow<()>, Failure>,
        mut lost: impl FnMut(&str),
    ) -> Result<(), Failure> {
        let mut connected_once = false;
        let mut pause = RETRY_FIRST;
        loop {
            match self.read(&mut each, &mut pause).await? {
                End::Enough => return Ok(()),
                End::Lost(reason) => {
                    connected_once = true;
                    lost(&reason);
                }
                End::NotReached(failure) if connected_once => lost(&failure.to_string()),
                End::NotReached(failure) => return Err(failure),
            }
            // Spread out, so that a node that comes back is not met by everyone at once.
            tokio::time::sleep(pause.mul_f64(rand::rng().random_range(0.5..1.0))).await;
            pause = (pause * 2).min(RETRY_MAX);
        }
    }

    async fn read(
        &mut self,
        each: &mut impl FnMut(&Message) -> Result<ControlFlow<()>, Failure>,
        pause: &mut Duration,
    ) -> Result<End, Failure> {
        let mut query = self.query.clone();
        query.extend(self.cursor.clone().map(|cursor| ("after", cursor)));
        let response = match self.client.stream("/api/v1/events/stream", &query).await {
            Ok(response) => response,
            Err(failure @ Failure::Unreachable(_)) => return Ok(End::NotReached(failure)),
            Err(failure @ (Failure::Refused(_) | Failure::Usage(_))) => return Err(failure),
        };
        let mut chunks = response.bytes_stream();
        let mut parser = Parser::default();
        loop {
            let chunk = match tokio::time::timeout(SILENCE_MAX, chunks.next()).await {
                Ok(Some(Ok(chunk))) => chunk,
                Ok(Some(Err(e))) => return Ok(End::Lost(root_cause(&e))),
                Ok(None) => return Ok(End::Lost("the node ended the stream".to_owned())),
                Err(_) => return Ok(End::Lost("the stream fell silent".to_owned())),
            };
            *pause = RETRY_FIRST;
            for message in parser.take(&chunk)? {
                if each(&message)?.is_break() {
                    return Ok(End::Enough);
                }
                if message.cursor.is_some() {
                    self.cursor = message.cursor;
                }
            }
        }
    }
}

enum End {
    Enough,
    Lost(String),
    NotReached(Failure),
}

/// Cuts bytes into messages.
#[derive(Default)]
struct Parser {
    rest: Vec<u8>,
    message: Message,
}

impl Parser {
    fn take(&mut self, chunk: &[u8]) -> Result<Vec<Message>, Failure> {
        let mut whole = Vec::new();
        for part in chunk.split_inclusive(|byte| *byte == b'\n') {
            self.rest.extend_from_slice(part);
            if self.rest.len() + self.message.data.len() > LINE_BYTES_MAX {
                let message = "the event stream sends lines without end".to_owned();
                return Err(Failure::Unreachable(message));
            }
            if part.ends_with(b"\n") {
                let line = std::mem::take(&mut self.rest);
                let line = String::from_utf8_lossy(&line);
                whole.extend(self.line(line.trim_end_matches(['\n', '\r'])));
            }
        }
        Ok(whole)
    }

    /// Takes one line; an empty one ends a message.
    fn line(&mut self, line: &str) -> Option<Message> {
        if line.is_empty() {
            let message = std::mem::take(&mut self.message);
            return (message != Message::default()).then_some(message);
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "id" => self.message.cursor = Some(value.to_owned()),
            "data" => {
                if !self.message.data.is_empty() {
                    self.message.data.push('\n');
                }
                self.message.data.push_str(value);
            }
            // Comments (heartbeats), event names and retry hints say nothing that is used here.
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(cursor: &str, data: &str) -> Message {
        Message {
            cursor: Some(cursor.to_owned()),
            data: data.to_owned(),
        }
    }

    #[test]
    fn messages_survive_any_cut() {
        let text = ": hello\n\nid: c1\nevent: TxAccepted\ndata: {\"a\":1}\n\nid: c2\r\ndata: x\r\ndata: y\r\n\r\n";
        let whole = vec![message("c1", "{\"a\":1}"), message("c2", "x\ny")];
        for cut in 0..text.len() {
            let mut parser = Parser::default();
            let mut got = parser.take(&text.as_bytes()[..cut]).unwrap();
            got.extend(parser.take(&text.as_bytes()[cut..]).unwrap());
            assert_eq!(got, whole, "cut at {cut}");
        }
    }

    #[test]
    fn endless_lines_are_refused() {
        let mut parser = Parser::default();
        assert!(parser.take(&vec![b'x'; LINE_BYTES_MAX + 1]).is_err());
    }
}
