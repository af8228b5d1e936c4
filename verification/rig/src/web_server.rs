//! A small web server on loopback, for pages that a browser opens.
//!
//! It runs on its own thread, so a blocking test does not block its pages.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONNECTION, HeaderName, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::sync::oneshot;

const REQUEST_BYTES_MAX: usize = 4 << 20;

/// A request of a page.
#[derive(Clone, Debug)]
pub struct WebRequest {
    /// With its query.
    pub path: String,
    pub body: Vec<u8>,
}

#[derive(Clone, Debug)]
pub struct WebResponse {
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    pub body: String,
}

impl WebResponse {
    /// A successful response with this content type.
    pub fn content(content_type: &str, body: impl Into<String>) -> Self {
        Self {
            status: 200,
            headers: vec![("content-type", content_type.into())],
            body: body.into(),
        }
    }

    #[must_use]
    pub fn with_header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }
}

type Handler = Arc<dyn Fn(WebRequest) -> WebResponse + Send + Sync>;

/// A server on a loopback port. Dropping it closes all its connections.
#[derive(Debug)]
pub struct WebServer {
    port: u16,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl WebServer {
    /// Answers every request by a function. Each connection serves one request, so that the next one is made to where
    /// the name leads by then.
    pub fn start(handler: impl Fn(WebRequest) -> WebResponse + Send + Sync + 'static) -> Self {
        let handler: Handler = Arc::new(handler);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        listener.set_nonblocking(true).expect("a new socket");
        let port = listener.local_addr().expect("it is bound").port();
        let (stop, stopped) = oneshot::channel();
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime needs no more than a few file handles");
            runtime.block_on(async {
                tokio::select! {
                    () = accept(listener, handler) => {}
                    _ = stopped => {} // also when the sender was dropped
                }
            });
        });
        Self {
            port,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    pub fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for WebServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // Its panic was printed, and the test sees closed connections.
            thread.join().ok();
        }
    }
}

async fn accept(listener: TcpListener, handler: Handler) {
    let listener = tokio::net::TcpListener::from_std(listener).expect("we are in a runtime");
    loop {
        // A client that disconnected before it was accepted is harmless.
        let Ok((client, _)) = listener.accept().await else {
            continue;
        };
        let handler = Arc::clone(&handler);
        tokio::spawn(async move {
            let service = service_fn(|request| answer(request, &handler));
            let connection = hyper::server::conn::http1::Builder::new()
                .keep_alive(false)
                .serve_connection(TokioIo::new(client), service);
            connection.await.ok(); // an error is a disconnected client
        });
    }
}

async fn answer(
    request: Request<Incoming>,
    handler: &Handler,
) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let path = request.uri().to_string();
    let body = Limited::new(request.into_body(), REQUEST_BYTES_MAX);
    let Ok(body) = body.collect().await else {
        let mut refused = Response::new(Full::default());
        *refused.status_mut() = StatusCode::PAYLOAD_TOO_LARGE;
        return Ok(refused);
    };
    let body = body.to_bytes().to_vec();
    let made = handler(WebRequest { path, body });
    let mut response = Response::new(Full::from(made.body));
    *response.status_mut() =
        StatusCode::from_u16(made.status).expect("the test names an HTTP status");
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    for (name, value) in made.headers {
        let value = HeaderValue::try_from(value).expect("the test names header values");
        headers.insert(HeaderName::from_static(name), value);
    }
    Ok(response)
}
