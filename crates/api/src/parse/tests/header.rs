//! The trace header.

use axum::http::{HeaderMap, HeaderValue};

use crate::parse::traceparent;

const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

#[test]
fn valid_traceparent_is_kept_and_invalid_is_ignored() {
    let read = |text: &str| {
        let value = HeaderValue::from_bytes(text.as_bytes()).unwrap();
        let headers = HeaderMap::from_iter([("traceparent".parse().unwrap(), value)]);
        traceparent(&headers).map(str::to_owned)
    };
    assert_eq!(read(GOOD).as_deref(), Some(GOOD));
    assert_eq!(traceparent(&HeaderMap::new()), None);
    let zero_trace = GOOD.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32));
    let zero_span = GOOD.replace("00f067aa0ba902b7", &"0".repeat(16));
    let bad = [
        "",
        "-",
        "00",
        "no trace\u{fc}",
        &GOOD.to_uppercase(),
        &GOOD[..54],
        &format!("{GOOD}-more"),
        &format!("ff{}", &GOOD[2..]),
        &zero_trace,
        &zero_span,
    ];
    for text in bad {
        assert_eq!(read(text), None, "{text}");
    }
    let twice: HeaderMap = [GOOD, GOOD]
        .map(|text| ("traceparent".parse().unwrap(), text.parse().unwrap()))
        .into_iter()
        .collect();
    assert_eq!(twice.get_all("traceparent").iter().count(), 2);
    assert_eq!(traceparent(&twice), None);
}
