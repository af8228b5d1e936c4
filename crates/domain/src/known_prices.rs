//! How far what endpoints report of prices is believed: a report that no chain's rules explain neither makes us pay without
//! end nor makes us sign what is never mined.

use std::collections::BTreeMap;

use crate::B256;

/// By EIP-1559 a base fee moves by an eighth with each block.
const CHANGE_DENOMINATOR: u128 = 8;
/// A base fee counts for so many times the one of the block before it at most.
const BASE_FEE_FACTOR_MAX: u128 = 2;
/// A fall of the base fee that EIP-1559 does not allow counts in full in so many blocks in a row: by then it would allow
/// half.
const LASTING_FALL_BLOCKS: u32 = 6;
/// Tips that differ by more than this factor, between two endpoints or from the last plausible one, are implausible.
pub const TIP_DISAGREEMENT_FACTOR: u128 = 10;
/// A tip that is always plausible: the default of wallets since EIP-1559.
pub const TIP_USUAL: u128 = 1_000_000_000;
/// Blocks whose prices decide the default fee cap; after as many, each base fee is plausible.
pub const PRICE_BLOCKS_MAX: u64 = 1_000;
/// Blocks whose base fees are kept: more than a fork choice may go back within a poll.
const HEADS_MAX: usize = 64;

/// What one node knows of a chain's prices.
///
/// A base fee that moved by far more than EIP-1559 allows is an endpoint's mistake or belongs to a chain with rules of its
/// own. It counts at most twice the one before it, so that a true change is followed within a few blocks and a wrong one
/// costs little. And it falls by an eighth per block at most: what is signed at far too low a price stays behind when the
/// price is right again, because the default policy never raises it.
///
/// Other chains fall faster: by time, with the price of another chain, or by command. Theirs counts after some blocks in a
/// row, which come fast there; until then more is offered than needed, of which a type 2 transaction pays nothing.
#[derive(Debug, Default)]
pub struct KnownPrices {
    /// The newest blocks, by hash: the one that is followed is among them.
    heads: BTreeMap<B256, HeadPrice>,
    /// The number and next base fee of the newest block whose base fee is plausible.
    plausible: Option<(u64, u128)>,
    /// The newest block of those in a row whose base fee is implausibly low, and how many they are.
    fall: Option<(u64, u32)>,
    recent: RecentPrices,
}

/// What counts of the prices of one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadPrice {
    /// The block's number.
    pub number: u64,
    /// What counts as the base fee of the block after it; `None` on chains without EIP-1559.
    pub next_base_fee: Option<u128>,
    /// Whether the base fee may have become what is reported by the rule of EIP-1559.
    pub is_plausible: bool,
}

impl KnownPrices {
    /// What counts of a block's price, if that was decided.
    #[must_use]
    pub fn head(&self, hash: B256) -> Option<HeadPrice> {
        self.heads.get(&hash).copied()
    }

    /// Whether a block's next base fee counts as it is reported. What another endpoint reports of the same block should be
    /// known before one that does not is decided by [`Self::record_head`].
    #[must_use]
    pub fn is_credible(&self, number: u64, reported: Option<u128>) -> bool {
        match reported {
            Some(wei) => self.least_base_fee(number) <= wei && wei <= self.most_base_fee(number),
            None => self.plausible.is_none(), // a chain that has a base fee does not lose it
        }
    }

    /// Decides what counts of a block's next base fee: of several reports the first credible one, else as much of the first
    /// as may be true.
    pub fn record_head(
        &mut self,
        number: u64,
        hash: B256,
        first: Option<u128>,
        others: &[Option<u128>],
    ) -> HeadPrice {
        let mut reports = others.iter().copied();
        let credible = match self.is_credible(number, first) {
            true => Some(first),
            false => reports.find(|report| self.is_credible(number, *report)),
        };
        let reported = credible.unwrap_or(first);
        let next_base_fee = reported.map(|wei| {
            let most = self.most_base_fee(number);
            let least = self.least_base_fee(number);
            match self.has_fallen_for_long(number, wei < least) {
                true => wei.min(most),
                false => wei.min(most).max(least),
            }
        });
        let head = HeadPrice {
            number,
            next_base_fee,
            is_plausible: self.record_plausible(number, reported, next_base_fee),
        };
        self.heads.insert(hash, head);
        if self.heads.len() > HEADS_MAX {
            let oldest = self.heads.iter().min_by_key(|(_, head)| head.number);
            let oldest = oldest.map(|(hash, _)| *hash);
            oldest.map(|hash| self.heads.remove(&hash));
        }
        head
    }

    /// Counts what a transaction of this block pays for a unit of gas among the recent prices. What is implausible must not
    /// raise the limit that protects against it; a change that lasts becomes plausible.
    pub fn record_price(&mut self, head: HeadPrice, tip: CredibleTip) {
        if (head.is_plausible && tip.is_plausible) || self.recent_max().is_none() {
            let price = head.next_base_fee.unwrap_or(0).saturating_add(tip.wei);
            self.recent.record(head.number, price);
        }
    }

    /// Counts a price that the chain shows of earlier blocks.
    pub fn record_past_price(&mut self, number: u64, price: u128) {
        self.recent.record(number, price);
    }

    /// The highest price of recent blocks.
    #[must_use]
    pub fn recent_max(&self) -> Option<u128> {
        self.recent.0.values().max().copied()
    }

    /// The most that counts: a multiple of the newest one before it. A return to what it was costs nothing unexpected,
    /// however far a lie that lasted has led away from it.
    fn most_base_fee(&self, number: u64) -> u128 {
        let before = self.heads.values().filter(|head| head.number < number);
        let before = before.filter_map(|head| Some((head.number, head.next_base_fee?)));
        let before = before.max_by_key(|(from, _)| *from);
        let Some((from, before)) = before.filter(|(_, wei)| *wei > 0) else {
            return u128::MAX;
        };
        let plausible = self.heads.values().filter(|head| head.is_plausible);
        let known = plausible.filter_map(|head| head.next_base_fee).max();
        multiplied(before, number.saturating_sub(from)).max(known.unwrap_or(0))
    }

    /// The least that counts: what EIP-1559 leaves of the newest plausible one.
    fn least_base_fee(&self, number: u64) -> u128 {
        let left = |(from, before)| fallen(before, number.abs_diff(from));
        self.plausible.map_or(0, left)
    }

    /// Counts the blocks in a row that report an implausible fall. A block that is read again does not make it last.
    fn has_fallen_for_long(&mut self, number: u64, is_low: bool) -> bool {
        let Some((from, _)) = self.plausible else {
            return false;
        };
        let (newest, blocks) = self.fall.unwrap_or((from, 0));
        if number > newest {
            self.fall = is_low.then_some((number, blocks.saturating_add(1)));
        }
        matches!(self.fall, Some((_, LASTING_FALL_BLOCKS..)))
    }

    /// Whether a base fee can follow from the newest plausible one, which it then replaces.
    fn record_plausible(
        &mut self,
        number: u64,
        reported: Option<u128>,
        used: Option<u128>,
    ) -> bool {
        let Some(reported) = reported else {
            return self.plausible.is_none();
        };
        let is_plausible = self
            .plausible
            .is_none_or(|(from, before)| reported <= risen(before, number.saturating_sub(from)));
        let is_newer = self.plausible.is_none_or(|(from, _)| from < number);
        let is_low = used > Some(reported);
        if is_plausible && is_newer && !is_low {
            self.plausible = Some((number, reported));
        }
        is_plausible
    }
}

/// The usual tip; on chains without EIP-1559, the usual gas price.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CredibleTip {
    /// What counts of it.
    pub wei: u128,
    /// Whether it can have become what is reported.
    pub is_plausible: bool,
    /// The newest plausible one, and the block at which it was reported.
    plausible: (u64, u128),
}

impl CredibleTip {
    /// It counts up to what it can credibly have become since the newest plausible one, however often it is reported: a lie
    /// that lasts must neither be followed upwards nor raise the limit that protects against it.
    #[must_use]
    pub fn of(reported: u128, old: Option<Self>, number: u64) -> Self {
        let Some(Self { plausible, .. }) = old else {
            return Self::plausible(reported, number);
        };
        let (from, before) = plausible;
        let aged = risen(before, number.saturating_sub(from)).max(TIP_USUAL);
        if reported <= aged {
            return Self::plausible(reported, number);
        }
        let most = aged.max(before.saturating_mul(TIP_DISAGREEMENT_FACTOR));
        Self {
            wei: reported.min(most),
            is_plausible: false,
            plausible,
        }
    }

    fn plausible(reported: u128, number: u64) -> Self {
        Self {
            wei: reported,
            is_plausible: true,
            plausible: (number, reported),
        }
    }
}

/// The prices of recent blocks.
#[derive(Debug, Default)]
struct RecentPrices(BTreeMap<u64, u128>);

impl RecentPrices {
    fn record(&mut self, number: u64, price: u128) {
        self.0.insert(number, price);
        self.0 = self.0.split_off(&number.saturating_sub(PRICE_BLOCKS_MAX));
    }
}

/// The most that a base fee becomes by EIP-1559 after so many blocks, an eighth more with each, rounded up.
fn risen(before: u128, blocks: u64) -> u128 {
    let blocks = 0..blocks.clamp(1, PRICE_BLOCKS_MAX);
    blocks.fold(before, |most, _| {
        let step = most / CHANGE_DENOMINATOR;
        most.saturating_add(step).saturating_add(1)
    })
}

/// The least that a base fee becomes by EIP-1559 after so many blocks, an eighth less with each.
fn fallen(before: u128, blocks: u64) -> u128 {
    let blocks = 0..blocks.clamp(1, PRICE_BLOCKS_MAX);
    blocks.fold(before, |least, _| {
        least.saturating_sub(least.div_ceil(CHANGE_DENOMINATOR))
    })
}

/// The most that a base fee can have become after so many blocks where EIP-1559 does not apply as it is written.
fn multiplied(before: u128, blocks: u64) -> u128 {
    let blocks = u32::try_from(blocks.max(1)).unwrap_or(u32::MAX);
    before.saturating_mul(BASE_FEE_FACTOR_MAX.saturating_pow(blocks))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GWEI: u128 = 1_000_000_000;

    /// What a block at this height counts for when it is read.
    fn read(prices: &mut KnownPrices, number: u64, report: impl Into<Option<u128>>) -> HeadPrice {
        prices.record_head(number, hash(number), report.into(), &[])
    }

    fn hash(number: u64) -> B256 {
        B256::with_last_byte(u8::try_from(number % 251).unwrap())
    }

    #[test]
    fn implausible_base_fee_is_followed_only_step_by_step() {
        let mut prices = KnownPrices::default();
        let mut next = |number, wei: u128| read(&mut prices, number, wei).next_base_fee;
        assert_eq!(next(1, 100), Some(100));
        assert_eq!(next(2, 190), Some(190), "a chain with its own rules");
        assert_eq!(next(3, 90_000), Some(380), "a lie, or a jump");
        assert_eq!(next(4, 200), Some(200), "back to what it may be");
        assert_eq!(next(7, 90_000), Some(1_600), "three blocks later");
        assert_eq!(next(400, u128::MAX), Some(u128::MAX));
        (500..600).for_each(|number| assert!(next(number, 5).is_some()));
        assert_eq!(prices.heads.len(), HEADS_MAX);
    }

    #[test]
    fn implausible_fall_of_the_base_fee_counts_in_full_only_if_it_lasts() {
        let mut prices = KnownPrices::default();
        let mut next = |number, wei: u128| read(&mut prices, number, wei).next_base_fee;
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
        assert_eq!(fallen(1, 1), 0);
        assert_eq!(fallen(u128::MAX, u64::MAX), 0);
    }

    #[test]
    fn of_several_reports_of_a_block_the_credible_one_counts_however_long_the_lie_lasts() {
        let mut prices = KnownPrices::default();
        read(&mut prices, 1, 800);
        let lies = [Some(0), Some(90_000), None];
        for (number, lie) in (2..60).zip(lies.into_iter().cycle()) {
            assert!(!prices.is_credible(number, lie), "{lie:?} at {number}");
            let head = prices.record_head(number, hash(number), lie, &[lie, Some(790)]);
            assert_eq!((head.next_base_fee, head.is_plausible), (Some(790), true));
            assert_eq!(prices.head(hash(number)), Some(head));
        }
        // Where all lie, the first one counts as far as it may be true.
        let head = prices.record_head(60, hash(60), Some(0), &[Some(7), None]);
        assert_eq!(head.next_base_fee, Some(691));
    }

    #[test]
    fn block_without_a_base_fee_does_not_hide_the_one_before() {
        let mut prices = KnownPrices::default();
        read(&mut prices, 1, 100);
        read(&mut prices, 2, None);
        assert_eq!(read(&mut prices, 3, 90_000).next_base_fee, Some(400));
    }

    #[test]
    fn missing_base_fee_is_plausible_only_where_no_block_has_one() {
        let mut legacy = KnownPrices::default();
        assert!(read(&mut legacy, 1, None).is_plausible);
        assert!(read(&mut legacy, 2, None).is_plausible);
        let mut prices = KnownPrices::default();
        assert!(read(&mut prices, 1, 100).is_plausible);
        let lie = read(&mut prices, 2, None);
        assert!(!lie.is_plausible, "its price does not raise the cap");
        assert!(read(&mut prices, 3, 110).is_plausible);
    }

    #[test]
    fn base_fee_is_plausible_as_far_as_eip1559_allows() {
        let mut prices = KnownPrices::default();
        let mut is_plausible = |number, wei: u128| read(&mut prices, number, wei).is_plausible;
        assert!(is_plausible(1, 8_000), "the first one decides");
        assert!(is_plausible(2, 9_000), "a full block");
        // Until then they do not raise the limit of what is signed.
        let lies = 3..3 + 58;
        for number in lies {
            assert!(!is_plausible(number, 9_000_000), "block {number}");
        }
        assert!(is_plausible(61, 9_000_000), "it could have become so");
        assert!(is_plausible(62, 8_000) && is_plausible(62, 9_000));
        assert_eq!(risen(0, 1), 1);
        assert_eq!(risen(u128::MAX, u64::MAX), u128::MAX);
    }

    #[test]
    fn tip_that_lies_for_long_stays_implausible() {
        let mut tip = CredibleTip::of(2 * GWEI, None, 100);
        assert!(tip.is_plausible);
        for number in 101..104 {
            tip = CredibleTip::of(9_000 * GWEI, Some(tip), number);
            assert_eq!((tip.wei, tip.is_plausible), (20 * GWEI, false), "{number}");
        }
        // By its age it may have become more, but no more than a base fee.
        tip = CredibleTip::of(9_000 * GWEI, Some(tip), 130);
        assert!((60 * GWEI..70 * GWEI).contains(&tip.wei) && !tip.is_plausible);
        tip = CredibleTip::of(9_000 * GWEI, Some(tip), 200);
        assert_eq!((tip.wei, tip.is_plausible), (9_000 * GWEI, true));
        let honest = CredibleTip::of(3 * GWEI, Some(tip), 201);
        assert!(honest.is_plausible);
        let small = CredibleTip::of(1, Some(honest), 202);
        let usual = CredibleTip::of(GWEI, Some(small), 203);
        assert_eq!((usual.wei, usual.is_plausible), (GWEI, true));
    }

    #[test]
    fn no_lie_raises_the_highest_recent_price() {
        let mut prices = KnownPrices::default();
        let mut tip = None;
        let mut recent_max = |number, base_fee: Option<u128>, reported: u128| {
            let head = read(&mut prices, number, base_fee);
            let credible = CredibleTip::of(reported, tip, number);
            tip = Some(credible);
            prices.record_price(head, credible);
            prices.recent_max()
        };
        assert_eq!(recent_max(1, Some(100 * GWEI), 10 * GWEI), Some(110 * GWEI));
        let lies = [(Some(100_000), 10), (Some(100), 9_000), (None, 10)];
        for (number, (base_fee, tip)) in (2..20).zip(lies.into_iter().cycle()) {
            let base_fee = base_fee.map(|gwei: u128| gwei * GWEI);
            assert_eq!(recent_max(number, base_fee, tip * GWEI), Some(110 * GWEI));
        }
    }

    #[test]
    fn highest_price_counts_for_a_thousand_blocks() {
        let mut prices = KnownPrices::default();
        assert_eq!(prices.recent_max(), None);
        prices.record_past_price(10, 50);
        prices.record_past_price(12, 140);
        prices.record_past_price(12 + PRICE_BLOCKS_MAX, 60);
        assert_eq!(prices.recent_max(), Some(140));
        prices.record_past_price(13 + PRICE_BLOCKS_MAX, 60);
        assert_eq!(prices.recent_max(), Some(60));
    }
}
