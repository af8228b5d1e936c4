//! The attacker's web server, and a browser that opens its page.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use proof::{Outcome, eventually};
use reqwest::Url;
use rig::chromium::Chromium;
use rig::web_server::{WebRequest, WebResponse, WebServer};
use serde_json::Value;

const ATTACK: &str = include_str!("attack.js");
const SERVICE_WORKER: &str = include_str!("service-worker.js");

/// A page has tried everything well before this, even on a busy machine.
const REPORT_WITHIN: Duration = Duration::from_secs(60);

/// The name of the attacker's site.
pub(super) const SITE: &str = "attacker.example";

pub(super) struct Attacker {
    server: WebServer,
    shared: Arc<Shared>,
}

/// A page to be opened.
pub(super) struct Page {
    pub(super) url: String,
    /// Names beside the attacker's, and the ports to which they lead.
    pub(super) hosts: Vec<(&'static str, u16)>,
    /// The constant `C` of the script, without the attacker's address.
    pub(super) settings: Value,
    /// Leads the page's name to another server, at the page's request.
    pub(super) rebind: Option<Box<dyn Fn() + Send + Sync>>,
}

/// What the page reports about one way.
#[derive(Clone, Debug)]
pub(super) struct Attempt {
    pub(super) way: String,
    /// The HTTP status, if the browser showed it to the page.
    pub(super) status: u64,
    /// What the page could read.
    pub(super) read: String,
}

#[derive(Default)]
struct Shared {
    page: Mutex<String>,
    rebind: Mutex<Option<Box<dyn Fn() + Send + Sync>>>,
    report: Mutex<Option<Value>>,
}

impl Attacker {
    pub(super) fn start() -> Self {
        let shared = Arc::new(Shared::default());
        let served = Arc::clone(&shared);
        let server = WebServer::start(move |request| served.answer(&request));
        Self { server, shared }
    }

    pub(super) fn port(&self) -> u16 {
        self.server.port()
    }

    /// The origin of its own pages.
    pub(super) fn origin(&self) -> String {
        format!("http://{SITE}:{}", self.port())
    }

    /// Opens the page in a new browser, and returns what it tried.
    pub(super) async fn open(&self, mut page: Page) -> Outcome<Vec<Attempt>> {
        page.settings["own"] = self.origin().into();
        page.settings["rebinds"] = page.rebind.is_some().into();
        *lock(&self.shared.page) = format!(
            "<!doctype html><meta charset=utf-8><body><script>const C = {};</script><script>{ATTACK}</script>",
            page.settings
        );
        *lock(&self.shared.rebind) = page.rebind;
        lock(&self.shared.report).take();
        let mut hosts = vec![(SITE, self.port())];
        hosts.extend(page.hosts);
        let browser = Chromium::open(&page.url, &hosts);
        let reported = eventually("the page reports", REPORT_WITHIN, || async {
            Ok(lock(&self.shared.report).take())
        });
        match reported.await {
            Ok(attempts) => parse_attempts(&attempts),
            Err(error) => Err(format!("{error}; the browser: {}", browser.log()).into()),
        }
    }
}

fn parse_attempts(reported: &Value) -> Outcome<Vec<Attempt>> {
    let attempts = reported.as_array().ok_or("the page reports no list")?;
    let text = |attempt: &Value, key: &str| attempt[key].as_str().unwrap_or_default().to_owned();
    let parsed = attempts.iter().map(|attempt| Attempt {
        way: text(attempt, "way"),
        status: attempt["status"].as_u64().unwrap_or_default(),
        read: text(attempt, "read"),
    });
    Ok(parsed.collect())
}

impl Shared {
    fn answer(&self, request: &WebRequest) -> WebResponse {
        let path = request.path.split('?').next().unwrap_or_default();
        let response = match path {
            "/rebind" => {
                if let Some(rebind) = lock(&self.rebind).as_ref() {
                    rebind();
                }
                WebResponse::content("text/plain", "")
            }
            "/report" => {
                *lock(&self.report) = serde_json::from_slice(&request.body).ok();
                WebResponse::content("text/plain", "")
            }
            "/bounce" => redirect(&request.path),
            "/empty" => WebResponse::content("text/html", ""),
            "/service-worker.js" => WebResponse::content("text/javascript", SERVICE_WORKER),
            _ => WebResponse::content("text/html", lock(&self.page).clone()),
        };
        response.with_header("x-attacker", "1")
    }
}

/// With method and body, to the address in the query.
fn redirect(path: &str) -> WebResponse {
    let url = Url::parse(&format!("http://{SITE}{path}"));
    let to = url.ok().and_then(|url| {
        let mut pairs = url.query_pairs();
        Some(pairs.find(|(name, _)| name == "to")?.1.into_owned())
    });
    WebResponse {
        status: 307,
        headers: vec![("location", to.unwrap_or_default())],
        body: String::new(),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("nothing panics while it holds this")
}
