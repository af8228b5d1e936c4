//! 14.7: pages of other sites in a real browser, with and without DNS rebinding, try every way by which a page can send
//! something to a node that `lanekeeper dev` started without keys, and to its dev chain: nothing is paid, and nothing is
//! read. The same pages do pay where the operator allows their origin or name, which shows that they work.

mod attacker;
mod wire;

use std::collections::BTreeSet;

use alloy_primitives::{U256, hex};
use proof::transfer::transfer;
use proof::{Options, Outcome, Report, Scratch, Server, ensure, flag, random_address};
use rig::chromium;
use rig::evm::CHAIN_ID;
use serde_json::{Value, json};

use attacker::{Attacker, Attempt, Page, SITE};
use wire::Wire;

/// A name of the attacker that leads to its own server first, and to the attacked one afterwards.
const REBOUND: &str = "rebound.example";

/// The account whose signed transaction the page has: the keys of a dev chain are public.
const SIGNED_ACCOUNT: u32 = 9;

/// The issue demands this many ways; a list that shrinks must not go unnoticed.
const WAYS_MIN: usize = 12;

/// Ways that need no preflight request, so that the browser sends their bodies to another site.
const BODIES_MIN: usize = 8;

/// The honest payment, whose traces no page may read.
const HONEST: &str = "honest-payment";

pub(crate) async fn prove(report: &mut Report) -> Outcome<String> {
    report.fact("browser", chromium::version());
    let attacker = Attacker::start();
    let mut counts = Counts::default();
    for page in chosen()? {
        report.part(page.name());
        counts = counts.plus(page.attack(report, &attacker).await?);
    }
    report.part("controls");
    let paid = control_by_origin(&attacker).await?;
    report.fact("paidByAnAllowedOrigin", json!(paid));
    let rebound = control_by_name(&attacker).await?;
    report.fact("paidByAnAllowedName", json!(rebound));
    ensure(
        counts.ways.len() >= WAYS_MIN,
        format!("only {} ways were tried", counts.ways.len()),
    )?;
    Ok(format!(
        "{} attempts by {} ways in {}, with and without DNS rebinding: {} bodies and {} preflight requests reached the \
         servers, 0 txs, 0 balances changed, 0 read; the same page pays by {} ways from an allowed origin, by {} under an \
         allowed name",
        counts.attempts,
        counts.ways.len(),
        chromium::version(),
        counts.bodies,
        counts.preflights,
        paid.len(),
        rebound.len(),
    ))
}

/// Where the page comes from, and what it attacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// Another site, against addresses.
    Foreign,
    /// Another port of `localhost`: a browser calls it the same site.
    Neighbour,
    /// A name that was rebound to the API: the page has the same origin as the node.
    ReboundApi,
    /// The same, to the dev chain.
    ReboundChain,
}

impl Origin {
    const ALL: [Self; 4] = [
        Self::Foreign,
        Self::Neighbour,
        Self::ReboundApi,
        Self::ReboundChain,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Foreign => "foreign",
            Self::Neighbour => "neighbour",
            Self::ReboundApi => "rebound-api",
            Self::ReboundChain => "rebound-chain",
        }
    }

    async fn attack(self, report: &mut Report, attacker: &Attacker) -> Outcome<Counts> {
        let world = World::start("").await?;
        let wires = world.wires(self, attacker).await?;
        let before = world.snapshot().await?;
        let attempts = attacker.open(world.page(self, attacker, &wires)?).await?;
        let recipients = attempts.iter().map(|attempt| recipient(&attempt.way));
        world.ensure_unpaid(&recipients.collect::<Vec<_>>()).await?;
        let after = world.snapshot().await?;
        ensure(
            before == after,
            format!("{}: from {before:?} to {after:?}", self.name()),
        )?;
        for attempt in &attempts {
            world.ensure_unread(attempt)?;
        }
        let counts = Counts::of(&attempts, &wires);
        report.note("attempts", show(&attempts));
        report.fact("counts", counts.to_json());
        ensure(
            counts.bodies >= BODIES_MIN,
            format!("{}: only {} bodies were sent", self.name(), counts.bodies),
        )?;
        Ok(counts)
    }
}

/// The selected pages: `--page foreign,…`, by default all.
fn chosen() -> Outcome<Vec<Origin>> {
    let named = flag("page", "");
    let names: Vec<&str> = named.split(',').filter(|name| !name.is_empty()).collect();
    let known = |name: &&str| Origin::ALL.iter().any(|origin| origin.name() == *name);
    if let Some(unknown) = names.iter().find(|name| !known(name)) {
        return Err(format!("--page {unknown}: there is no such page").into());
    }
    let is_chosen = |origin: &Origin| names.is_empty() || names.contains(&origin.name());
    Ok(Origin::ALL.into_iter().filter(is_chosen).collect())
}

/// A page of an allowed origin may pay by JSON, and by nothing that a browser sends without a preflight request.
async fn control_by_origin(attacker: &Attacker) -> Outcome<Vec<String>> {
    let http = format!("[http]\nallowedOrigins = [{:?}]\n", attacker.origin());
    let world = World::start(&http).await?;
    let wires = world.wires(Origin::Foreign, attacker).await?;
    let page = world.page(Origin::Foreign, attacker, &wires)?;
    attacker.open(page).await?;
    let paid = world.paid().await?;
    let has = |way: &str| paid.iter().any(|paid| paid.starts_with(way));
    ensure(has("fetch-json"), format!("the control paid {paid:?} only"))?;
    let simple = ["fetch-text", "form-", "beacon-text", "xhr-text", "ping"];
    let bypass = simple.iter().find(|way| has(way));
    ensure(bypass.is_none(), format!("without a preflight: {paid:?}"))?;
    Ok(paid)
}

/// A page whose name is rebound to the node pays if that name is allowed: the rebinding leads to the node.
async fn control_by_name(attacker: &Attacker) -> Outcome<Vec<String>> {
    let world = World::start(&format!("[http]\nallowedHosts = [{REBOUND:?}]\n")).await?;
    let wires = world.wires(Origin::ReboundApi, attacker).await?;
    let page = world.page(Origin::ReboundApi, attacker, &wires)?;
    attacker.open(page).await?;
    let paid = world.paid().await?;
    let has = |way: &str| paid.iter().any(|paid| paid.starts_with(way));
    let has_all = has("fetch-json") && has("peer-fetch") && has("peer-xhr");
    ensure(has_all, format!("the control paid {paid:?} only"))?;
    Ok(paid)
}

/// A node without keys, as `lanekeeper dev` starts it, with one confirmed payment.
struct World {
    server: Server,
    signer: String,
    _home: Scratch,
}

/// What a page must not change.
#[derive(Debug, PartialEq, Eq)]
struct Snapshot {
    requests: BTreeSet<String>,
    /// Nonce and balance of every account.
    accounts: Vec<(u64, U256)>,
}

/// The relays to the attacked servers.
struct Wires {
    api: Option<Wire>,
    chain: Option<Wire>,
}

impl World {
    /// With further lines of configuration.
    async fn start(config: &str) -> Outcome<Self> {
        let home = Scratch::new()?;
        let file = home.path().join("dev.toml");
        std::fs::write(&file, config)?;
        let options = Options {
            dir: home.folder("data")?,
            args: vec!["--config".into(), file.display().to_string()],
            ..Options::default()
        };
        let server = Server::dev(&options).await?;
        let signer = server.accounts[0].clone();
        let payload = json!({"to": random_address(), "value": "1"});
        let body = json!({"signer": signer, "requestId": HONEST, "payload": payload});
        let wait = "?wait=confirmed&timeout=30s";
        let (status, tx) = server.api.create(body, wait).await?;
        ensure(
            tx["state"] == "CONFIRMED",
            format!("the honest payment: {status} {tx}"),
        )?;
        Ok(Self {
            server,
            signer,
            _home: home,
        })
    }

    /// A rebound name leads to the attacker's server first.
    async fn wires(&self, origin: Origin, attacker: &Attacker) -> Outcome<Wires> {
        let (api, chain) = self.ports()?;
        let (api, chain) = match origin {
            Origin::Foreign | Origin::Neighbour => (Some(api), Some(chain)),
            Origin::ReboundApi => (Some(attacker.port()), None),
            Origin::ReboundChain => (None, Some(attacker.port())),
        };
        let mut wires = Wires {
            api: None,
            chain: None,
        };
        if let Some(port) = api {
            wires.api = Some(Wire::to(port).await?);
        }
        if let Some(port) = chain {
            wires.chain = Some(Wire::to(port).await?);
        }
        Ok(wires)
    }

    fn ports(&self) -> Outcome<(u16, u16)> {
        Ok((
            port_of(self.server.api.url())?,
            port_of(self.server.chain.url())?,
        ))
    }

    fn page(&self, origin: Origin, attacker: &Attacker, wires: &Wires) -> Outcome<Page> {
        let host = match origin {
            Origin::Foreign => "127.0.0.1",
            Origin::Neighbour => "localhost",
            Origin::ReboundApi | Origin::ReboundChain => REBOUND,
        };
        let url = |wire: &Wire| format!("http://{host}:{}", wire.port());
        let (api, chain) = self.ports()?;
        let (rebound, target) = match origin {
            Origin::Foreign | Origin::Neighbour => (None, 0),
            Origin::ReboundApi => (wires.api.as_ref(), api),
            Origin::ReboundChain => (wires.chain.as_ref(), chain),
        };
        let own = |name: &str| format!("http://{name}:{}/", attacker.port());
        let raw = transfer(SIGNED_ACCOUNT, 0, random_address().parse()?)?.raw;
        let rebind =
            rebound.map(|wire| -> Box<dyn Fn() + Send + Sync> { Box::new(wire.rebind_to(target)) });
        Ok(Page {
            url: match (origin, rebound) {
                (Origin::Neighbour, _) => own("localhost"),
                (_, Some(wire)) => format!("{}/", url(wire)),
                (_, None) => own(SITE),
            },
            hosts: rebound
                .map(|wire| (REBOUND, wire.port()))
                .into_iter()
                .collect(),
            settings: json!({
                "api": wires.api.as_ref().map(url),
                "chain": wires.chain.as_ref().map(url),
                "chainId": CHAIN_ID,
                "signer": self.signer,
                "raw": hex::encode_prefixed(raw),
            }),
            rebind,
        })
    }

    async fn snapshot(&self) -> Outcome<Snapshot> {
        let mut accounts = Vec::new();
        for account in &self.server.accounts {
            let nonce = self.server.chain.nonce(account).await?;
            accounts.push((nonce, self.server.chain.balance(account).await?));
        }
        Ok(Snapshot {
            requests: self.requests().await?,
            accounts,
        })
    }

    async fn requests(&self) -> Outcome<BTreeSet<String>> {
        let (status, page) = self.server.api.get("/api/v1/tx?limit=1000").await?;
        let txs = page["txs"].as_array();
        let txs = txs.ok_or_else(|| format!("the list of txs: {status} {page}"))?;
        let id = |tx: &Value| tx["requestId"].as_str().unwrap_or_default().to_owned();
        Ok(txs.iter().map(id).collect())
    }

    /// The ways that paid.
    async fn paid(&self) -> Outcome<Vec<String>> {
        let mut requests = self.requests().await?;
        ensure(requests.remove(HONEST), "the honest payment is listed")?;
        Ok(requests.into_iter().collect())
    }

    async fn ensure_unpaid(&self, recipients: &[String]) -> Outcome<()> {
        let balances = self.server.chain.balances(recipients).await?;
        let paid = recipients
            .iter()
            .zip(balances)
            .find(|(_, wei)| !wei.is_zero());
        ensure(paid.is_none(), format!("a page paid: {paid:?}"))
    }

    /// A page may see that it was refused, and nothing of accounts, txs, metrics or the chain.
    fn ensure_unread(&self, attempt: &Attempt) -> Outcome<()> {
        let read = attempt.read.to_lowercase();
        let signer = self.signer.to_lowercase();
        let secrets = [
            signer.as_str(),
            HONEST,
            "lanekeeper_",
            "\"result\"",
            "stream is open",
        ];
        let is_read = secrets.iter().any(|secret| read.contains(secret));
        let is_refused = !(200..300).contains(&attempt.status);
        ensure(!is_read && is_refused, format!("a page read: {attempt:?}"))
    }
}

/// What was tried, and what reached the servers.
#[derive(Debug, Default)]
struct Counts {
    attempts: usize,
    ways: BTreeSet<String>,
    /// Attempts whose body, or query, was sent.
    bodies: usize,
    preflights: usize,
}

impl Counts {
    fn of(attempts: &[Attempt], wires: &Wires) -> Self {
        let wires = || wires.api.iter().chain(&wires.chain);
        let is_sent = |attempt: &&Attempt| {
            let way = format!("{}\"", attempt.way);
            let encoded = format!("{}%22", attempt.way);
            let formed = format!("{}=", attempt.way); // text/plain forms
            let forms = [way, encoded, formed];
            wires().any(|wire| forms.iter().any(|form| wire.count_sent(form) > 0))
        };
        Self {
            attempts: attempts.len(),
            ways: attempts
                .iter()
                .map(|attempt| method_of(&attempt.way))
                .collect(),
            bodies: attempts.iter().filter(is_sent).count(),
            preflights: wires().map(|wire| wire.count_sent("OPTIONS /")).sum(),
        }
    }

    fn plus(mut self, other: Self) -> Self {
        self.ways.extend(other.ways);
        Self {
            attempts: self.attempts + other.attempts,
            ways: self.ways,
            bodies: self.bodies + other.bodies,
            preflights: self.preflights + other.preflights,
        }
    }

    fn to_json(&self) -> Value {
        json!({
            "attempts": self.attempts,
            "ways": self.ways.len(),
            "bodiesSent": self.bodies,
            "preflights": self.preflights,
        })
    }
}

/// A way without its target.
fn method_of(way: &str) -> String {
    let plain = way.strip_suffix("-a").or_else(|| way.strip_suffix("-c"));
    plain.unwrap_or(way).to_owned()
}

/// The address that the script derives from a way's name.
fn recipient(way: &str) -> String {
    let mut bytes = [0; 20];
    for (byte, letter) in bytes.iter_mut().zip(way.bytes()) {
        *byte = letter;
    }
    hex::encode_prefixed(bytes)
}

fn show(attempts: &[Attempt]) -> Value {
    let show = |attempt: &Attempt| json!({"way": attempt.way, "status": attempt.status, "read": attempt.read});
    attempts.iter().map(show).collect()
}

fn port_of(url: &str) -> Outcome<u16> {
    let port = url.rsplit(':').next().unwrap_or_default();
    Ok(port.trim_end_matches('/').parse()?)
}
