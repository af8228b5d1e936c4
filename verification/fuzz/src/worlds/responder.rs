//! A server on a loopback socket that answers requests with what an input says, whatever was asked.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::parts::first_line;

/// Longest head of a request of ours.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Longest body of a request of ours.
const BODY_BYTES_MAX: usize = 8 << 20;
/// The answer to the question for the chain's id, which comes before all others.
const CHAIN_ID: &[u8] = br#"{"jsonrpc":"2.0","id":0,"result":"0x7a69"}"#;

/// The server. Its connections live as long as its runtime.
pub(crate) struct Responder {
    address: SocketAddr,
    script: Arc<Mutex<Script>>,
}

/// What is answered next.
#[derive(Default)]
struct Script {
    /// The last one is given again and again.
    answers: VecDeque<Answer>,
    /// Whether also the chain's id is answered so.
    lies_about_chain: bool,
}

/// One answer.
#[derive(Clone, Default)]
struct Answer {
    status: u16,
    retry_after: Option<String>,
    body: Vec<u8>,
    /// The body is all there is on the wire, and then the connection ends.
    is_raw: bool,
}

impl Answer {
    /// From a part of an input: `200`, `429 5` or `raw` in the first line, then the body.
    fn read(part: &[u8]) -> Self {
        let (line, body) = first_line(part);
        let mut words = line.split(' ');
        let word = words.next().unwrap_or_default();
        Self {
            status: word.parse().unwrap_or(200),
            retry_after: words.next().map(str::to_owned),
            body: body.to_vec(),
            is_raw: word == "raw",
        }
    }

    async fn write(&self, stream: &mut TcpStream) -> io::Result<()> {
        if self.is_raw {
            stream.write_all(&self.body).await?;
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        // Three digits, as the protocol wants them: what else a node may send, it can send raw.
        let (status, length) = (self.status.clamp(200, 999), self.body.len());
        let mut head = format!("HTTP/1.1 {status} X\r\ncontent-length: {length}\r\n");
        if let Some(after) = &self.retry_after {
            let after: String = after.chars().filter(|c| !c.is_control()).collect();
            write!(head, "retry-after: {after}\r\n").expect("writing to a string");
        }
        head.push_str("\r\n");
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(&self.body).await
    }
}

impl Responder {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.expect("a loopback socket can be opened");
        let address = listener
            .local_addr()
            .expect("a bound socket has an address");
        let script = Arc::new(Mutex::new(Script::default()));
        let shared = Arc::clone(&script);
        tokio::spawn(async move {
            // Ends with the runtime.
            while let Ok((stream, _)) = listener.accept().await {
                let script = Arc::clone(&shared);
                tokio::spawn(async move {
                    // A connection that breaks is what the input wanted.
                    serve(stream, &script).await.ok();
                });
            }
        });
        Self { address, script }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Sets what comes next.
    pub(crate) fn answer_with(&self, parts: &[&[u8]], lies_about_chain: bool) {
        let mut script = self.script.lock().unwrap_or_else(PoisonError::into_inner);
        *script = Script {
            answers: parts.iter().map(|part| Answer::read(part)).collect(),
            lies_about_chain,
        };
    }
}

async fn serve(mut stream: TcpStream, script: &Mutex<Script>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut read = Vec::new();
    loop {
        let body = request(&mut stream, &mut read).await?;
        let is_chain_id = body.windows(11).any(|window| window == b"eth_chainId");
        let answer = script
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .next(is_chain_id);
        answer.write(&mut stream).await?;
    }
}

impl Script {
    fn next(&mut self, is_chain_id: bool) -> Answer {
        if is_chain_id && !self.lies_about_chain {
            return Answer {
                status: 200,
                body: CHAIN_ID.to_vec(),
                ..Answer::default()
            };
        }
        if self.answers.len() > 1 {
            return self.answers.pop_front().unwrap_or_default();
        }
        self.answers.front().cloned().unwrap_or_default()
    }
}

/// Reads one request; gives its body. What follows stays in `read`.
async fn request(stream: &mut TcpStream, read: &mut Vec<u8>) -> io::Result<Vec<u8>> {
    let end = loop {
        if let Some(at) = read.windows(4).position(|window| window == b"\r\n\r\n") {
            break at + 4;
        }
        if read.len() > HEAD_BYTES_MAX || stream.read_buf(read).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    };
    let head = String::from_utf8_lossy(&read[..end]).to_ascii_lowercase();
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length:"));
    let length: usize = length
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(0);
    if length > BODY_BYTES_MAX {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    while read.len() < end + length {
        if stream.read_buf(read).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    let rest = read.split_off(end + length);
    let body = read.split_off(end);
    *read = rest;
    Ok(body)
}
