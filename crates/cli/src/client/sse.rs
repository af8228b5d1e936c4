//! The event stream: server-sent events, resumed by cursor after a lost connection.

use std::ops::ControlFlow;
use std::time::Duration;

use futures::StreamExt as _;
use rand::Rng as _;

use super::Client;
use crate::failure::{Failure, root_cause};

/// The longest accepted line; a Lanekeeper node never sends more.
const LINE_BYTES_MAX: usize = 4 << 20;
/// A stream without any byte (not even a heartbeat) for this long is considered lost.
const SILENCE_MAX: Duration = Duration::from_secs(60);
const RETRY_FIRST: Duration = Duration::from_millis(200);
const RETRY_MAX: Duration = Duration::from_secs(10);

/// One message: its data, and the cursor that resumes after it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    pub cursor: Option<String>,
    pub data: String,
}

/// A stream of messages that reconnects after the last one it delivered.
pub struct EventFeed<'c> {
    client: &'c Client,
    query: Vec<(&'static str, String)>,
    cursor: Option<String>,
}

impl<'c> EventFeed<'c> {
    /// The feed after `cursor`, or from the oldest event.
    pub fn new(
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

    /// Delivers messages until `each` breaks. A lost connection is resumed after the last delivered
    /// message; only a refusal or a failed first connection ends the feed.
    pub async fn follow(
        &mut self,
        mut each: impl FnMut(&Message) -> Result<ControlFlow<()>, Failure>,
        mut lost: impl FnMut(&str),
    ) -> Result<(), Failure> {
        let mut connected_once = false;
        let mut pause = RETRY_FIRST;
        loop {
            match self.read_connection(&mut each, &mut pause).await? {
                StreamEnd::Stopped => return Ok(()),
                StreamEnd::Lost(reason) => {
                    connected_once = true;
                    lost(&reason);
                }
                StreamEnd::Unreachable(failure) if connected_once => lost(&failure.to_string()),
                StreamEnd::Unreachable(failure) => return Err(failure),
            }
            // Jitter, so that not all clients reconnect to a restarted node at the same moment.
            let jittered = pause.mul_f64(rand::rng().random_range(0.5..1.0));
            tokio::time::sleep(jittered).await;
            pause = (pause * 2).min(RETRY_MAX);
        }
    }

    async fn read_connection(
        &mut self,
        each: &mut impl FnMut(&Message) -> Result<ControlFlow<()>, Failure>,
        pause: &mut Duration,
    ) -> Result<StreamEnd, Failure> {
        let mut query = self.query.clone();
        query.extend(self.cursor.clone().map(|cursor| ("after", cursor)));
        let response = match self
            .client
            .get_stream("/api/v1/events/stream", &query)
            .await
        {
            Ok(response) => response,
            Err(failure @ Failure::Unreachable(_)) => return Ok(StreamEnd::Unreachable(failure)),
            Err(failure @ (Failure::Refused(_) | Failure::Usage(_))) => return Err(failure),
        };
        let mut chunks = response.bytes_stream();
        let mut parser = Parser::default();
        loop {
            let chunk = match tokio::time::timeout(SILENCE_MAX, chunks.next()).await {
                Ok(Some(Ok(chunk))) => chunk,
                Ok(Some(Err(e))) => return Ok(StreamEnd::Lost(root_cause(&e))),
                Ok(None) => return Ok(StreamEnd::Lost("the node ended the stream".to_owned())),
                Err(_) => return Ok(StreamEnd::Lost("no heartbeat arrived".to_owned())),
            };
            *pause = RETRY_FIRST;
            for message in parser.push(&chunk)? {
                if each(&message)?.is_break() {
                    return Ok(StreamEnd::Stopped);
                }
                if message.cursor.is_some() {
                    self.cursor = message.cursor;
                }
            }
        }
    }
}

enum StreamEnd {
    Stopped,
    Lost(String),
    Unreachable(Failure),
}

/// Splits bytes into messages.
#[derive(Default)]
struct Parser {
    rest: Vec<u8>,
    message: Message,
}

impl Parser {
    fn push(&mut self, chunk: &[u8]) -> Result<Vec<Message>, Failure> {
        let mut messages = Vec::new();
        for part in chunk.split_inclusive(|byte| *byte == b'\n') {
            self.rest.extend_from_slice(part);
            if self.rest.len() + self.message.data.len() > LINE_BYTES_MAX {
                let message = "the event stream contains a line that is too long".to_owned();
                return Err(Failure::Unreachable(message));
            }
            if part.ends_with(b"\n") {
                let line = std::mem::take(&mut self.rest);
                let line = String::from_utf8_lossy(&line);
                messages.extend(self.push_line(line.trim_end_matches(['\n', '\r'])));
            }
        }
        Ok(messages)
    }

    /// Processes one line; an empty one ends a message.
    fn push_line(&mut self, line: &str) -> Option<Message> {
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
            // Comments (heartbeats), event names and retry hints are not used.
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
    fn messages_are_parsed_across_any_chunk_boundary() {
        let text = ": hello\n\nid: c1\nevent: TxAccepted\ndata: {\"a\":1}\n\nid: c2\r\ndata: x\r\ndata: y\r\n\r\n";
        let whole = vec![message("c1", "{\"a\":1}"), message("c2", "x\ny")];
        for cut in 0..text.len() {
            let mut parser = Parser::default();
            let mut got = parser.push(&text.as_bytes()[..cut]).unwrap();
            got.extend(parser.push(&text.as_bytes()[cut..]).unwrap());
            assert_eq!(got, whole, "cut at {cut}");
        }
    }

    #[test]
    fn overlong_line_is_refused() {
        let mut parser = Parser::default();
        assert!(parser.push(&vec![b'x'; LINE_BYTES_MAX + 1]).is_err());
    }
}
