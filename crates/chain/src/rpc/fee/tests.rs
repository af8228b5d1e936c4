use metrics_exporter_prometheus::PrometheusBuilder;

use super::*;

fn tip(rewards: &str) -> Option<u128> {
    let history = format!(r#"{{"reward":{rewards}}}"#);
    usual_tip(&serde_json::from_str(&history).unwrap())
}

#[test]
fn tip_is_the_median_but_at_least_the_newest() {
    assert_eq!(tip(r#"[["0x1"],["0x9"],["0x5"]]"#), Some(5));
    assert_eq!(tip(r#"[["0x1"],["0x5"],["0x9"]]"#), Some(9));
    assert_eq!(tip(r#"[["0x3"],["0x0"],null,[]]"#), Some(3));
    assert_eq!(tip(r#"[["0x0"],["0x0"]]"#), None);
    assert_eq!(tip("[]"), None);
    assert_eq!(tip("null"), None);
}

fn next(base: u128, used: u64, limit: u64) -> Option<u128> {
    let block = json!({
        "number": "0x1", "hash": format!("{:#066x}", 1), "parentHash": format!("{:#066x}", 0),
        "timestamp": "0x1", "baseFeePerGas": format!("{base:#x}"),
        "gasUsed": quantity(used), "gasLimit": quantity(limit),
    });
    next_base_fee(&serde_json::from_value(block).unwrap())
}

#[test]
fn lower_of_two_tips_counts_and_a_disagreement_is_counted() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let _recording = metrics::set_default_local_recorder(&recorder);
    assert_eq!(lower_tip(7, 9), 7);
    assert_eq!(recorder.handle().render(), "");
    assert_eq!(lower_tip(9_000, 7), 7);
    let page = recorder.handle().render();
    let line = "lanekeeper_fee_outliers_total{kind=\"tip\"} 1\n";
    assert!(page.contains(line), "{page}");
}

#[test]
fn next_base_fee_follows_eip1559() {
    // The EIP's own test cases, and edge cases.
    assert_eq!(
        next(1_000_000_000, 10_000_000, 20_000_000),
        Some(1_000_000_000)
    );
    assert_eq!(
        next(1_000_000_000, 9_000_000, 20_000_000),
        Some(987_500_000)
    );
    assert_eq!(
        next(1_000_000_000, 11_000_000, 20_000_000),
        Some(1_012_500_000)
    );
    assert_eq!(next(800, 20, 20), Some(900));
    assert_eq!(next(800, 0, 20), Some(700));
    assert_eq!(next(1, 20, 20), Some(2));
    assert_eq!(next(0, 20, 20), Some(1));
    assert_eq!(next(7, 5, 0), Some(7));
    assert_eq!(next(7, 5, 1), Some(7));
    assert_eq!(next(u128::MAX, u64::MAX, 2), Some(u128::MAX));
}
