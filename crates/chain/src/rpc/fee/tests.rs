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

fn block_at(number: u64, base: u128) -> Block {
    let block = json!({
        "number": quantity(number), "hash": format!("{number:#066x}"), "parentHash": format!("{:#066x}", 0),
        "timestamp": "0x1", "baseFeePerGas": format!("{base:#x}"),
    });
    serde_json::from_value(block).unwrap()
}

#[test]
fn implausible_base_fee_is_followed_only_step_by_step() {
    let mut state = FeeState::default();
    let next = |state: &mut FeeState, number, base| {
        state.record_head(&block_at(number, base)).next_base_fee
    };
    assert_eq!(next(&mut state, 1, 100), Some(100));
    assert_eq!(
        next(&mut state, 2, 190),
        Some(190),
        "a chain with its own rules"
    );
    assert_eq!(next(&mut state, 3, 90_000), Some(380), "a lie, or a jump");
    assert_eq!(
        next(&mut state, 4, 200),
        Some(200),
        "back to what it may have become"
    );
    assert_eq!(
        next(&mut state, 7, 90_000),
        Some(1_600),
        "three blocks later"
    );
    assert_eq!(next(&mut state, 400, u128::MAX), Some(u128::MAX));
    for number in 500..600 {
        next(&mut state, number, 5);
    }
    assert_eq!(state.heads.len(), FEE_HEADS_MAX);
}

#[test]
fn implausible_fall_of_the_base_fee_counts_in_full_only_if_it_lasts() {
    let mut state = FeeState::default();
    let mut next = |number, base| state.record_head(&block_at(number, base)).next_base_fee;
    assert_eq!(next(1, 800), Some(800));
    for base in [0, 7] {
        assert_eq!(next(2, base), Some(700), "an eighth less");
    }
    assert_eq!(next(3, 800), Some(800), "an honest one counts at once");
    // A chain with rules of its own, or one whose first block was a lie. Each block is read twice.
    for (number, used) in (4..).zip([700, 612, 535, 468, 409]) {
        assert_eq!(next(number, 100), Some(used));
        assert_eq!(next(number, 100), Some(used));
    }
    assert_eq!(next(9, 100), Some(100));
    assert_eq!(next(9, 100), Some(100));
    assert_eq!(next(10, 7), Some(7), "and so does what follows");
    assert_eq!(next(11, 8), Some(8));
    assert_eq!(next(12, 0), Some(7), "from there it begins again");
    assert_eq!(next(13, 790), Some(790), "and it returns at once");
    assert_eq!(fallen_base_fee(1, 1), 0);
    assert_eq!(fallen_base_fee(u128::MAX, u64::MAX), 0);
}

#[test]
fn block_without_a_base_fee_does_not_hide_the_one_before() {
    let mut state = FeeState::default();
    state.record_head(&block_at(1, 100));
    let mut without = block_at(2, 0);
    without.base_fee_per_gas = None;
    state.record_head(&without);
    let lie = state.record_head(&block_at(3, 90_000));
    assert_eq!(lie.next_base_fee, Some(400));
}

#[tokio::test]
async fn tip_that_lies_for_long_stays_implausible() {
    const GWEI: u128 = 1_000_000_000;
    let first = Tip::quoted(2 * GWEI, None, 100);
    assert!(first.is_plausible);
    let mut tip = first;
    for number in 101..104 {
        tip = Tip::quoted(9_000 * GWEI, Some(tip), number);
        assert_eq!((tip.wei, tip.is_plausible), (20 * GWEI, false), "{number}");
    }
    // By its age it may have become more, but no more than a base fee.
    tip = Tip::quoted(9_000 * GWEI, Some(tip), 130);
    assert!((60 * GWEI..70 * GWEI).contains(&tip.wei) && !tip.is_plausible);
    tip = Tip::quoted(9_000 * GWEI, Some(tip), 200);
    assert_eq!((tip.wei, tip.is_plausible), (9_000 * GWEI, true));
    let honest = Tip::quoted(3 * GWEI, Some(tip), 201);
    assert!(honest.is_plausible);
    let small = Tip::quoted(1, Some(honest), 202);
    let usual = Tip::quoted(GWEI, Some(small), 203);
    assert_eq!((usual.wei, usual.is_plausible), (GWEI, true));
}

#[test]
fn missing_base_fee_is_plausible_only_where_no_block_has_one() {
    let without = |number| {
        let mut block = block_at(number, 0);
        block.base_fee_per_gas = None;
        block
    };
    let mut legacy = FeeState::default();
    assert!(legacy.record_head(&without(1)).is_plausible);
    assert!(legacy.record_head(&without(2)).is_plausible);
    let mut state = FeeState::default();
    assert!(state.record_head(&block_at(1, 100)).is_plausible);
    let lie = state.record_head(&without(2));
    assert!(!lie.is_plausible, "its price does not raise the cap");
    assert!(state.record_head(&block_at(3, 110)).is_plausible);
}

#[test]
fn base_fee_is_plausible_as_far_as_eip1559_allows() {
    let mut state = FeeState::default();
    let mut is_plausible = |number, base| state.record_head(&block_at(number, base)).is_plausible;
    assert!(is_plausible(1, 8_000), "the first one decides");
    assert!(is_plausible(2, 9_000), "a full block");
    // Until then they do not raise the limit of what is signed.
    let lies = 3..3 + 58;
    for number in lies {
        assert!(!is_plausible(number, 9_000_000), "block {number}");
    }
    assert!(is_plausible(61, 9_000_000), "it could have become so");
    assert!(is_plausible(62, 8_000) && is_plausible(62, 9_000));
    assert_eq!(plausible_base_fee(0, 1), 1);
    assert_eq!(plausible_base_fee(u128::MAX, u64::MAX), u128::MAX);
}

#[test]
fn highest_price_counts_for_a_thousand_blocks() {
    let mut prices = RecentPrices::default();
    assert_eq!(prices.max(), None);
    prices.record(10, 50);
    prices.record(12, 140);
    prices.record(12 + PRICE_BLOCKS_MAX, 60);
    assert_eq!(prices.max(), Some(140));
    prices.record(13 + PRICE_BLOCKS_MAX, 60);
    assert_eq!(prices.max(), Some(60));
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
