//! 2.5: 40 kinds of invalid input over HTTP and 10 invalid configuration files: each gets a clear error, nothing is
//! stored, the process survives.

use proof::{Options, Outcome, Report, Server, ensure, random_address, run};
use reqwest::Method;
use serde_json::{Value, json};

/// An invalid request: name, body, status, and a word that the detail must contain.
struct Bad {
    name: &'static str,
    body: Value,
    status: u16,
    says: &'static str,
}

pub(crate) async fn prove(report: &mut Report) -> Outcome<String> {
    let folder = tempfile::tempdir()?;
    let mut server = Server::dev(&Options {
        dir: folder.path().into(),
        ..Options::default()
    })
    .await?;
    let mut kinds = 0;
    for bad in bodies(&server.accounts[0]) {
        let (status, problem) = server.api.create(bad.body, "").await?;
        judge(bad.name, status.as_u16(), &problem, bad.status, bad.says)?;
        kinds += 1;
    }
    kinds += raw_bodies(&server).await?;
    kinds += paths(&server).await?;
    report.fact("httpKinds", kinds);
    ensure(kinds >= 40, format!("only {kinds} kinds of invalid input"))?;
    let stored = server.api.all_txs().await?.len();
    ensure(
        stored == 0,
        format!("{stored} txs were stored by invalid input"),
    )?;
    let (status, _) = server.api.get("/healthz").await?;
    ensure(
        server.is_alive() && status.as_u16() == 200,
        "the process lives",
    )?;

    let configs = configs(report).await?;
    ensure(
        configs >= 10,
        format!("only {configs} invalid configurations"),
    )?;
    Ok(format!(
        "{kinds} kinds of invalid input and {configs} invalid configurations: each a clear error, 0 stored"
    ))
}

/// A clear error: the expected status, a problem document, and the word.
fn judge(name: &str, status: u16, problem: &Value, expected: u16, says: &str) -> Outcome<()> {
    ensure(
        status == expected,
        format!("{name}: {status} instead of {expected}: {problem}"),
    )?;
    for field in [
        "type",
        "title",
        "status",
        "detail",
        "retryable",
        "effect",
        "requestId",
    ] {
        ensure(
            !problem[field].is_null(),
            format!("{name}: the problem has no {field}: {problem}"),
        )?;
    }
    ensure(
        problem["effect"] == "none",
        format!("{name}: nothing happened: {problem}"),
    )?;
    let detail = problem["detail"].as_str().unwrap_or_default();
    ensure(
        detail.contains(says),
        format!("{name}: the detail does not name {says:?}: {detail}"),
    )
}

#[expect(clippy::too_many_lines, reason = "a table, one case per entry")]
fn bodies(signer: &str) -> Vec<Bad> {
    let to = random_address();
    let good = json!({"signer": signer, "requestId": "bad", "payload": {"to": to, "value": "1", "gas": "21000"}});
    let with = |path: &[&str], value: Value| {
        let mut body = good.clone();
        let mut at = &mut body;
        for key in path {
            at = &mut at[*key];
        }
        *at = value;
        body
    };
    let without = |key: &str| {
        let mut body = good.clone();
        body.as_object_mut().expect("an object").remove(key);
        body
    };
    let payload = |key: &'static str, value: Value| with(&["payload", key], value);
    let bad = |name, body, status, says| Bad {
        name,
        body,
        status,
        says,
    };
    let flipped = "0xF39fd6e51aad88F6F4ce6aB8827279cffFb92266";
    vec![
        bad("no signer", without("signer"), 400, "signer"),
        bad("no request id", without("requestId"), 400, "requestId"),
        bad("no payload", without("payload"), 400, "payload"),
        bad(
            "empty request id",
            with(&["requestId"], json!("")),
            400,
            "requestId",
        ),
        bad(
            "long request id",
            with(&["requestId"], json!("x".repeat(129))),
            400,
            "requestId",
        ),
        bad(
            "space in request id",
            with(&["requestId"], json!("a b")),
            400,
            "requestId",
        ),
        bad(
            "request id is a number",
            with(&["requestId"], json!(7)),
            400,
            "requestId",
        ),
        bad("unknown field", with(&["extra"], json!(1)), 400, "extra"),
        bad(
            "unknown payload field",
            payload("nonce", json!(1)),
            400,
            "nonce",
        ),
        bad("unknown chain", with(&["chainId"], json!(999)), 404, "999"),
        bad(
            "chain id is text",
            with(&["chainId"], json!("31337")),
            400,
            "chainId",
        ),
        bad(
            "chain id is negative",
            with(&["chainId"], json!(-1)),
            400,
            "chainId",
        ),
        bad(
            "unknown signer",
            with(&["signer"], json!(random_address())),
            404,
            "signer",
        ),
        bad(
            "short signer",
            with(&["signer"], json!("0x1234")),
            400,
            "signer",
        ),
        bad(
            "signer without 0x",
            with(&["signer"], json!("ab".repeat(20))),
            400,
            "signer",
        ),
        bad("wrong checksum", payload("to", json!(flipped)), 400, "to"),
        bad("recipient is a number", payload("to", json!(5)), 400, "to"),
        bad(
            "negative value",
            payload("value", json!("-1")),
            400,
            "value",
        ),
        bad(
            "fractional value",
            payload("value", json!("1.5")),
            400,
            "value",
        ),
        bad(
            "value is a number",
            payload("value", json!(1)),
            400,
            "value",
        ),
        bad(
            "value beyond 256 bits",
            payload("value", json!(format!("1{}", "0".repeat(78)))),
            400,
            "value",
        ),
        bad(
            "empty hex value",
            payload("value", json!("0x")),
            400,
            "value",
        ),
        bad("odd data", payload("data", json!("0x123")), 400, "data"),
        bad(
            "data without 0x",
            payload("data", json!("1234")),
            400,
            "data",
        ),
        bad(
            "data is not hex",
            payload("data", json!("0xzz")),
            400,
            "data",
        ),
        bad(
            "gas below intrinsic",
            payload("gas", json!("20999")),
            422,
            "gas",
        ),
        bad("gas is a number", payload("gas", json!(21000)), 400, "gas"),
        bad(
            "gas beyond 64 bits",
            payload("gas", json!("99999999999999999999999")),
            400,
            "gas",
        ),
        bad(
            "more than the account has",
            payload("value", json!("1000000000000000000000000")),
            422,
            "missing",
        ),
        bad(
            "tip above cap",
            {
                let mut body = payload("maxFeePerGas", json!("1"));
                body["payload"]["maxPriorityFeePerGas"] = json!("2");
                body
            },
            400,
            "maxPriorityFeePerGas",
        ),
        bad(
            "both fee styles",
            {
                let mut body = payload("maxFeePerGas", json!("1"));
                body["payload"]["gasPrice"] = json!("2");
                body
            },
            400,
            "gasPrice",
        ),
        bad(
            "unsupported type",
            payload("type", json!("0x3")),
            422,
            "type",
        ),
        bad("no type", payload("type", json!("third")), 400, "type"),
        bad(
            "neither to nor data",
            with(&["payload"], json!({"value": "1"})),
            400,
            "data",
        ),
        bad(
            "payload is a list",
            with(&["payload"], json!([])),
            400,
            "payload",
        ),
    ]
}

async fn raw_bodies(server: &Server) -> Outcome<u32> {
    let json = "application/json";
    let deep = format!("{}{}", "[".repeat(20_000), "]".repeat(20_000)).into_bytes();
    let twice = br#"{"signer":"0x","signer":"0x","requestId":"a","payload":{}}"#.to_vec();
    let cases: [(&str, &str, Vec<u8>, u16, &str); 7] = [
        ("not JSON", json, b"{nonsense".to_vec(), 400, ""),
        ("empty body", json, Vec::new(), 400, ""),
        ("binary", json, vec![0, 159, 146, 150], 400, ""),
        ("deep nesting", json, deep, 400, ""),
        ("a key twice", json, twice, 400, "signer"),
        ("too large", json, vec![b' '; 2 << 20], 413, ""),
        (
            "wrong content type",
            "text/plain",
            b"hello".to_vec(),
            415,
            "application/json",
        ),
    ];
    let count = u32::try_from(cases.len())?;
    for (name, kind, body, status, says) in cases {
        let (got, content, problem) = server.api.post_raw("/api/v1/tx", kind, body).await?;
        judge(name, got.as_u16(), &problem, status, says)?;
        ensure(
            content.starts_with("application/problem+json"),
            format!("{name}: {content}"),
        )?;
    }
    Ok(count)
}

async fn paths(server: &Server) -> Outcome<u32> {
    let cases = [
        (Method::GET, "/api/v1/nothing", 404, ""),
        (Method::DELETE, "/api/v1/tx", 405, ""),
        (Method::GET, "/api/v1/tx/not-an-id", 400, "txId"),
        (
            Method::GET,
            "/api/v1/tx/00000000-0000-7000-8000-000000000000",
            404,
            "",
        ),
        (Method::GET, "/api/v1/tx/by-hash/0x12", 400, "hash"),
        (Method::GET, "/api/v1/tx?limit=0", 400, "limit"),
        (Method::GET, "/api/v1/tx?limit=1001", 400, "limit"),
        (Method::GET, "/api/v1/tx?limit=many", 400, "limit"),
        (Method::GET, "/api/v1/tx?limit=01", 400, "limit"),
        (Method::GET, "/api/v1/tx?chainId=031337", 400, "chainId"),
        (Method::GET, "/api/v1/tx?state=DONE", 400, "state"),
        (Method::GET, "/api/v1/tx?cursor=%00", 400, "cursor"),
        (Method::GET, "/api/v1/tx?colour=red", 400, "colour"),
        (Method::GET, "/api/v1/events?after=nonsense", 400, "after"),
        (Method::GET, "/api/v1/events?type=TxNothing", 400, "type"),
        (Method::GET, "/api/v1/lanes/31337/0x12", 400, "signer"),
    ];
    let count = u32::try_from(cases.len())?;
    for (method, path, status, says) in cases {
        let (got, problem) = server.api.call(method, path, None).await?;
        judge(path, got.as_u16(), &problem, status, says)?;
    }
    Ok(count)
}

/// Invalid files: each refused by `config check` with exit code 1 or 2, naming the key.
#[expect(clippy::too_many_lines, reason = "a table, one case per entry")]
async fn configs(report: &mut Report) -> Outcome<u32> {
    let key = "0xac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80";
    let good = format!(
        "[node]\nname = \"a\"\n[store]\nurl = \"sqlite:/tmp/none.db\"\n[auth]\nmode = \"none\"\n[[chain]]\nid = 31337\n\
         rpc = [\"http://127.0.0.1:8646\"]\n[[signer]]\nkind = \"key\"\nkey = \"{key}\"\n"
    );
    let folder = tempfile::tempdir()?;
    let check = |name: String, text: String| {
        let file = folder.path().join(name);
        async move {
            std::fs::write(&file, text)?;
            let path = file.to_string_lossy().into_owned();
            run(&["config", "check", "--config", &path], &[]).await
        }
    };
    let output = check("good.toml".into(), good.clone()).await?;
    let shown = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure(
        output.status.success(),
        format!("the valid one is refused: {shown}"),
    )?;
    let broken = [
        (good.replace("name =", "nmae ="), "nmae"),
        (good.replace("id = 31337", "id = \"x\""), "id"),
        (
            good.replace("sqlite:/tmp/none.db", "mysql://x"),
            "store.url",
        ),
        (good.replace("http://127.0.0.1:8646", "not a url"), "rpc"),
        (
            format!("{good}[lease]\nduration = \"1s\"\n"),
            "lease.duration",
        ),
        (
            format!("{good}[lease]\nduration = \"10s\"\nrenewInterval = \"9s\"\n"),
            "renewInterval",
        ),
        (format!("{good}[http]\nlisten = \"0.0.0.0:80\"\n"), "auth"),
        (
            format!("{good}[lane]\nmempoolDepth = \"deep\"\n"),
            "mempoolDepth",
        ),
        (format!("{good}[http]\nmaxBody = \"1 potato\"\n"), "maxBody"),
        (good.replace(key, "0x1234"), "signer"),
        (
            format!("{good}[confirmations]\nrequired = -1\n"),
            "required",
        ),
        ("this is [not toml".into(), "TOML"),
    ];
    let count = u32::try_from(broken.len())?;
    for (number, (text, says)) in broken.into_iter().enumerate() {
        let output = check(format!("broken-{number}.toml"), text.clone()).await?;
        let shown = [&output.stdout[..], &output.stderr[..]].concat();
        let shown = String::from_utf8_lossy(&shown).into_owned();
        ensure(
            !output.status.success(),
            format!("configuration {number} passes: {text}"),
        )?;
        ensure(
            shown.contains(says),
            format!("configuration {number} does not name {says}: {shown}"),
        )?;
        ensure(
            !shown.contains("panicked"),
            format!("configuration {number} panics: {shown}"),
        )?;
    }
    report.fact("configKinds", count);
    Ok(count)
}
