//! `[[chain]]`, `[lane]`, `[resubmit]`, `[stuck]` and `[confirmations]`: the rules of lanes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use chain::rpc::EndpointUrl;
use domain::admission::tx_gas_cap;
use domain::lane::{Finality, FinalityTag, OnForeignNonce, Resubmit, ResubmitPolicy};
use domain::window::{MempoolDepth, Release, Window};
use domain::{CapacityRules, ChainId, ConfirmationRules, FeeRules, LaneRules, NonceRules};
use engine::node::ChainRules;

use super::raw::Raw;
use super::reader::Fallback::{Required, Unset};
use super::section::{default, in_range, polling_interval, rule, section};
use super::setting::{Hundredths, Setting, ValueError, Wei, WsUrl, as_usize, choices, text};
use super::validation::Validation;
use super::{Config, Origin, Problem};

/// Every header down to this depth is in memory, per chain.
const WATCH_DEPTH_MAX: u64 = 10_000;
/// Final results are watched for reorgs at least this deep.
const WATCH_DEPTH_MIN: u64 = 64;
/// More concurrent calls would overload an endpoint.
const RECEIPT_WORKERS_MAX: u64 = 256;
/// A higher rate is no limit any more.
const REQUESTS_PER_SECOND_MAX: u64 = 100_000;
/// Nodes refuse a replacement that pays less than this more.
const BUMP_PERCENT_MIN: u64 = 10;
/// A larger bump is more likely a typo.
const BUMP_PERCENT_MAX: u64 = 1_000;
const ATTEMPTS_MAX: u64 = 1_000_000;
/// A head is mined by the next block at best, and must be sent before.
const BLOCKED_TIMEOUT_MIN: Duration = Duration::from_secs(10);
/// How often the head is polled where the block time is unknown.
const POLL_DEFAULT: Duration = Duration::from_secs(1);
/// The bounds of the polling interval, however fast or slow the chain is.
const POLL_MIN: Duration = Duration::from_millis(100);
const POLL_MAX: Duration = Duration::from_secs(4);

section! {
    /// A chain, once per chain.
    Chain = "chain" {
        /// The chain's EIP-155 id.
        id: u64 = Required, rule(|id: &u64| *id > 0, "but EIP-155 ids start at 1");
        /// The chain's name in logs.
        name: Option<String> = Unset("its id");
        /// The JSON-RPC endpoints, the preferred one first.
        rpc: Vec<EndpointUrl> = Required;
        /// A WebSocket endpoint that announces new heads; they are polled all the same.
        ws: Option<WsUrl> = Unset("heads are only polled");
        /// How many endpoints get a transaction at once; after an inconclusive answer the others get it too.
        send_to: u64 = default("1");
        /// The maximum number of requests per second and endpoint.
        requests_per_second: Option<u64> = Unset("no limit"), rule(
            |rate: &Option<u64>| rate.is_none_or(|rate| (1..=REQUESTS_PER_SECOND_MAX).contains(&rate)),
            format!("but must be from 1 to {REQUESTS_PER_SECOND_MAX}"));
        /// An endpoint that has failed for this long counts as dead: the others fill gaps without it. Requeueing a tx still
        /// needs two endpoints where two are configured.
        dead_endpoint_after: Duration = default("60s"), polling_interval();
        /// When a result is final: a number of confirmations, or the chain's own "safe" or "finalized" block.
        confirmations: Option<Finality> = Unset("confirmations.required"), rule(
            |finality: &Option<Finality>| finality.map_or(0, Finality::depth) <= WATCH_DEPTH_MAX,
            format!("but must be at most {WATCH_DEPTH_MAX}"));
        /// The time between two blocks: the head is polled twice in it.
        block_time: Option<Duration> = Unset("the head is polled every second");
        /// Whether the chain supports type 0 transactions only.
        legacy: bool = default("false");
        /// The minimum fee per gas, and the minimum tip where the request names none.
        fee_floor: Wei = default("0");
        /// The maximum fee per gas.
        fee_cap: Option<Wei> = Unset("10 times the highest base fee and tip of the last 1,000 blocks");
        /// The most gas of one transaction (EIP-7825).
        tx_gas_cap: Option<u64> = Unset("16777216 on Ethereum, Sepolia and Hoodi; else only the block gas limit");
        /// The factor by which estimated gas is multiplied.
        gas_margin: Hundredths = default("1.2");
    }
}

section! {
    /// How much of a lane may be in flight.
    Lane = "lane" {
        /// How many nonces may be allocated and unresolved; 0 is no limit, 1 is strict order.
        window: u64 = default("0");
        /// When a nonce counts as resolved.
        window_releases: Release = default("final");
        /// How many transactions of a lane may be in mempools at once.
        mempool_depth: MempoolDepth = default("auto");
        /// A gap that blocks other transactions is filled after this time.
        gap_fill_after: Duration = default("15s"), polling_interval();
        /// What happens to a tx whose nonce another program has consumed: it gets a new nonce, or it is STUCK.
        on_foreign_nonce: OnForeignNonce = default("requeue");
        /// A tx that is not mined for this long as the head of its lane ends: a no-op takes its nonce. Time in which the
        /// chain stands still, or is out of reach, does not count.
        blocked_timeout: Option<Duration> = Unset("never"), rule(
            |timeout: &Option<Duration>| timeout.is_none_or(|timeout| timeout >= BLOCKED_TIMEOUT_MIN),
            format!("but must be at least {} s: a head needs some blocks", BLOCKED_TIMEOUT_MIN.as_secs()));
    }
}

section! {
    /// Sending transactions again that are not mined.
    Resubmission = "resubmit" {
        /// Whether transactions are sent again.
        enabled: bool = default("true");
        /// The time between two attempts.
        interval: Duration = default("60s"), polling_interval();
        /// After this many attempts the tx is STUCK and waits for an operator; 0 is no limit.
        max_attempts: u64 = default("0"), in_range(0, ATTEMPTS_MAX);
        /// Whether the same bytes are sent, or a new attempt with a higher fee.
        policy: Policy = default("rebroadcast");
        /// Policy "bump": the fee increase in percent. Nodes refuse less than 10.
        bump_percent: u64 = default("12"), rule(
            |percent: &u64| (BUMP_PERCENT_MIN..=BUMP_PERCENT_MAX).contains(percent),
            format!("but must be from {BUMP_PERCENT_MIN} to {BUMP_PERCENT_MAX}: nodes refuse a replacement \
                     that pays less than {BUMP_PERCENT_MIN} % more"));
        /// Policy "bump": the maximum fee per gas.
        max_fee_per_gas: Option<Wei> = Unset("the chain's feeCap");
    }
}

section! {
    /// Txs that are STUCK.
    Stuck = "stuck" {
        /// What happens automatically: "wait" keeps sending the same bytes, and never cancels.
        action: StuckAction = default("wait");
    }
}

section! {
    /// When a result is final.
    Confirmations = "confirmations" {
        /// The number of confirmations, for chains without their own setting.
        required: u64 = default("20"), in_range(0, WATCH_DEPTH_MAX);
        /// A sent transaction without a receipt is queried by hash after this time.
        stale_receipt_timeout: Duration = default("60s"), polling_interval();
        /// Whether a new keeper queries the receipts of all in-flight txs, or only of those below the chain's nonce.
        fetch_receipt_upon_entry: bool = default("false");
        /// How many receipts are queried at once.
        receipt_workers: u64 = default("10"), in_range(1, RECEIPT_WORKERS_MAX);
        /// Whether an event is emitted for every confirmation, or only for the final result.
        progress: Progress = default("final");
        /// How deep final results are watched for reorgs.
        watch_depth: Option<u64> = Unset("twice the required confirmations, at least 64");
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    Final,
    EveryBlock,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    Rebroadcast,
    Bump,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StuckAction {
    Wait,
}

choices!(Release, "\"mined\" or \"final\"", {
    "mined" => Release::Mined, "final" => Release::Final,
});
choices!(Progress, "\"final\" or \"every-block\"", {
    "final" => Progress::Final, "every-block" => Progress::EveryBlock,
});
choices!(OnForeignNonce, "\"requeue\" or \"hold\"", {
    "requeue" => OnForeignNonce::Requeue, "hold" => OnForeignNonce::Hold,
});
choices!(Policy, "\"rebroadcast\" or \"bump\"", {
    "rebroadcast" => Policy::Rebroadcast, "bump" => Policy::Bump,
});
choices!(StuckAction, "\"wait\"", { "wait" => StuckAction::Wait });

impl Setting for Finality {
    const FORM: &'static str = "a number of blocks, \"safe\" or \"finalized\"";
    fn from_raw(raw: &Raw) -> Result<Self, ValueError> {
        match text(raw) {
            Ok("safe") => Ok(Self::Tag(FinalityTag::Safe)),
            Ok("finalized") => Ok(Self::Tag(FinalityTag::Finalized)),
            Ok(_) | Err(_) => u64::from_raw(raw).map(Self::Depth),
        }
    }
    fn to_text(&self) -> String {
        match self {
            Self::Depth(blocks) => blocks.to_string(),
            Self::Tag(FinalityTag::Safe) => "safe".to_owned(),
            Self::Tag(FinalityTag::Finalized) => "finalized".to_owned(),
        }
    }
}

impl Setting for MempoolDepth {
    const FORM: &'static str = "\"auto\" or a number, 1 or more";
    fn from_raw(raw: &Raw) -> Result<Self, ValueError> {
        if text(raw) == Ok("auto") {
            return Ok(Self::auto());
        }
        match u64::from_raw(raw)? {
            0 => Err(ValueError::Malformed),
            n => Ok(Self::Fixed(n)),
        }
    }
    fn to_text(&self) -> String {
        match self {
            Self::Auto { .. } => "auto".to_owned(),
            Self::Fixed(n) => n.to_string(),
        }
    }
}

impl Config {
    pub(super) fn chain_rules(&self) -> BTreeMap<ChainId, ChainRules> {
        let rules = |chain: &Chain| ChainRules {
            lane: self.lane_rules(chain),
            tx_gas_cap: chain.tx_gas_cap.or_else(|| tx_gas_cap(ChainId(chain.id))),
            gas_margin_percent: chain.gas_margin.0,
            poll_interval: poll_interval(chain.block_time),
            receipt_workers: as_usize(self.confirmations.receipt_workers),
        };
        self.chains
            .iter()
            .map(|chain| (ChainId(chain.id), rules(chain)))
            .collect()
    }

    fn lane_rules(&self, chain: &Chain) -> LaneRules {
        let finality = self.finality(chain);
        LaneRules {
            capacity: CapacityRules {
                window: Window {
                    limit: Some(self.lane.window).filter(|limit| *limit > 0),
                    releases: self.lane.window_releases,
                },
                mempool_depth: self.lane.mempool_depth,
            },
            fee: FeeRules {
                legacy: chain.legacy,
                floor: chain.fee_floor.0,
                cap: chain.fee_cap.map(|cap| cap.0),
            },
            confirmations: ConfirmationRules {
                finality,
                watch_depth: self.watch_depth(finality),
                emit_progress: self.confirmations.progress == Progress::EveryBlock,
                fetch_receipt_upon_entry: self.confirmations.fetch_receipt_upon_entry,
                stale_receipt_timeout: self.confirmations.stale_receipt_timeout,
            },
            resubmit: self.resubmit_rules(),
            nonce: NonceRules {
                chain_query: self.nonce.chain_query,
                chain_nonce_timeout: self.nonce.state_timeout,
                max_chain_jump: self.nonce.max_chain_jump,
                gap_fill_after: self.lane.gap_fill_after,
                on_foreign_nonce: self.lane.on_foreign_nonce,
            },
            blocked_timeout: self.lane.blocked_timeout,
            balance: self.admission.balance,
            reservations: None,
        }
    }

    /// How deep results with this finality are watched for reorgs.
    pub(crate) fn watch_depth(&self, finality: Finality) -> u64 {
        let usual = (2 * finality.depth()).max(WATCH_DEPTH_MIN);
        self.confirmations.watch_depth.unwrap_or(usual)
    }

    /// When the results of a chain are final.
    pub(crate) fn finality(&self, chain: &Chain) -> Finality {
        let required = Finality::Depth(self.confirmations.required);
        chain.confirmations.unwrap_or(required)
    }

    fn resubmit_rules(&self) -> Resubmit {
        let resubmit = &self.resubmit;
        // Waiting is what lanes do anyway. A second action would be passed to them here.
        let StuckAction::Wait = self.stuck.action;
        Resubmit {
            interval: resubmit.enabled.then_some(resubmit.interval),
            policy: match resubmit.policy {
                Policy::Rebroadcast => ResubmitPolicy::Rebroadcast,
                Policy::Bump => ResubmitPolicy::Bump {
                    percent: resubmit.bump_percent.into(),
                    max_fee: resubmit.max_fee_per_gas.map_or(u128::MAX, |wei| wei.0),
                },
            },
            max_attempts: match resubmit.max_attempts {
                0 => None,
                most => Some(u32::try_from(most).unwrap_or(u32::MAX)),
            },
        }
    }

    /// Keys of a policy that is not chosen: their author expects that fees are raised.
    pub(super) fn unused_bump_keys(&self) -> Vec<Problem> {
        let mut warnings = Vec::new();
        for path in ["resubmit.bumpPercent", "resubmit.maxFeePerGas"] {
            let origin = self.origin(path);
            if self.resubmit.policy == Policy::Rebroadcast && origin != Origin::Default {
                let message = format!(
                    "{path} has no effect, because resubmit.policy is \"rebroadcast\": set that to \
                     \"bump\", or leave {path} out"
                );
                warnings.push(Problem::at_origin(&origin, message));
            }
        }
        warnings
    }
}

/// The positions of the first endpoint that is listed twice.
fn find_repeated_endpoint(endpoints: &[EndpointUrl]) -> Option<(usize, usize)> {
    endpoints.iter().enumerate().find_map(|(second, endpoint)| {
        let mut before = endpoints[..second].iter();
        let first = before.position(|other| other.is_same_endpoint(endpoint))?;
        Some((first, second))
    })
}

/// Twice per block, so that a head is noticed half a block late at most.
fn poll_interval(block_time: Option<Duration>) -> Duration {
    block_time.map_or(POLL_DEFAULT, |time| (time / 2).clamp(POLL_MIN, POLL_MAX))
}

impl Validation<'_> {
    pub(super) fn check_chains(&mut self) {
        let mut seen = BTreeSet::new();
        for (index, chain) in self.config.chains.iter().enumerate() {
            let path = |key: &str| format!("chain[{index}].{key}");
            if !seen.insert(chain.id) {
                let rule =
                    "but another [[chain]] has this id: give all its endpoints in one rpc list";
                self.reject(&path("id"), &chain.id.to_string(), rule);
            }
            let count = chain.rpc.len();
            let fits = usize::try_from(chain.send_to).is_ok_and(|n| (1..=count).contains(&n));
            if !fits {
                let rule = format!(
                    "but rpc has {count} endpoint(s): set it to a number from 1 to {count}, or add endpoints"
                );
                self.reject(&path("sendTo"), &chain.send_to.to_string(), &rule);
            }
            if let Some((first, second)) = find_repeated_endpoint(&chain.rpc) {
                let rule = format!(
                    "but entries {} and {} are the same endpoint, and one that is asked twice is no \
                     second witness: leave one out",
                    first + 1,
                    second + 1
                );
                self.reject(&path("rpc"), &chain.rpc.to_text(), &rule);
            }
            if let Some(cap) = chain.fee_cap
                && (cap.0 < chain.fee_floor.0 || cap.0 == 0)
            {
                let rule = format!(
                    "but must be above 0 and not below feeFloor ({}): raise feeCap",
                    chain.fee_floor.to_text()
                );
                self.reject(&path("feeCap"), &cap.to_text(), &rule);
            }
        }
        self.check_watch_depth();
        self.check_resubmission();
    }

    fn check_watch_depth(&mut self) {
        let config = self.config;
        let Some(depth) = config.confirmations.watch_depth else {
            return;
        };
        let path = "confirmations.watchDepth";
        let depths = (config.chains.iter()).map(|chain| config.finality(chain).depth());
        let required = depths.max().unwrap_or(config.confirmations.required);
        if depth < required {
            let rule = format!(
                "but a result must be watched at least until it is final ({required} \
                 confirmations): set it to {required} or more"
            );
            self.reject(path, &depth.to_string(), &rule);
        } else if depth > WATCH_DEPTH_MAX {
            let rule =
                format!("but every header down to it is kept in memory: at most {WATCH_DEPTH_MAX}");
            self.reject(path, &depth.to_string(), &rule);
        }
    }

    fn check_resubmission(&mut self) {
        let config = self.config;
        let resubmit = &config.resubmit;
        let floors = config.chains.iter().map(|chain| chain.fee_floor);
        let floor = floors.max_by_key(|floor| floor.0);
        if let (Some(most), Some(floor)) = (resubmit.max_fee_per_gas, floor)
            && (most.0 == 0 || most.0 < floor.0)
        {
            let rule = format!(
                "but must be above 0 and not below any chain's feeFloor ({}): raise it, or nothing \
                 could ever be bumped",
                floor.to_text()
            );
            self.reject("resubmit.maxFeePerGas", &most.to_text(), &rule);
        }
        let block_times = config.chains.iter().filter_map(|chain| chain.block_time);
        if let Some(slowest) = block_times.max()
            && resubmit.enabled
            && resubmit.interval < slowest
        {
            let rule = format!(
                "but the slowest chain makes a block every {}, and nothing can be mined in less: set it \
                 to that or more",
                slowest.to_text()
            );
            self.reject("resubmit.interval", &resubmit.interval.to_text(), &rule);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finality_is_a_depth_or_a_block_tag() {
        let read = |raw: Raw| Finality::from_raw(&raw);
        assert_eq!(read(Raw::Integer(0)), Ok(Finality::Depth(0)));
        assert_eq!(read(Raw::Bare("20".into())), Ok(Finality::Depth(20)));
        for (name, tag) in [
            ("safe", FinalityTag::Safe),
            ("finalized", FinalityTag::Finalized),
        ] {
            let finality = read(Raw::Text(name.into()));
            assert_eq!(finality, Ok(Finality::Tag(tag)));
            assert_eq!(Finality::Tag(tag).to_text(), name);
        }
        for bad in [
            Raw::Text("latest".into()),
            Raw::Text("20".into()),
            Raw::Integer(-1),
            Raw::Bool(true),
        ] {
            assert_eq!(read(bad), Err(ValueError::Malformed));
        }
    }

    #[test]
    fn mempool_depth_is_auto_or_a_number() {
        let read = |text: &str| MempoolDepth::from_raw(&Raw::Bare(text.into()));
        assert_eq!(read("auto"), Ok(MempoolDepth::auto()));
        assert_eq!(read("1000000"), Ok(MempoolDepth::Fixed(1_000_000)));
        let zero = MempoolDepth::from_raw(&Raw::Integer(0));
        assert_eq!(zero, Err(ValueError::Malformed));
    }
}
