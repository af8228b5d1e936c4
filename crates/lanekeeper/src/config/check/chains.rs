//! What is asked of chains: their endpoints, their fees, when they are final, and sending again.

use std::collections::BTreeSet;

use domain::lane::Finality;

use super::super::sections::Chain;
use super::super::values::Setting as _;
use super::super::words::Policy;
use super::super::{Config, Origin, Problem, show_duration};
use super::{Found, WATCH_DEPTH_MAX};

/// More than this per second is no limit any more.
const REQUESTS_PER_SECOND_MAX: u64 = 100_000;
/// Less than this no node takes as a replacement.
const BUMP_PERCENT_MIN: u64 = 10;
/// More than this at once is more likely a slip than a wish.
const BUMP_PERCENT_MAX: u64 = 1_000;
/// Many times an operator's patience.
const ATTEMPTS_MAX: u64 = 1_000_000;

impl Config {
    /// Settings of a policy that is not chosen: whoever wrote them believes that fees are raised.
    pub(super) fn bumps_that_never_happen(&self) -> Vec<Problem> {
        let is_chosen = match self.resubmit.policy {
            Policy::Bump => true,
            Policy::Rebroadcast => false,
        };
        let set =
            ["resubmit.bumpPercent", "resubmit.maxFeePerGas"].map(|path| (path, self.origin(path)));
        let unused = set
            .into_iter()
            .filter(|(_, origin)| !is_chosen && *origin != Origin::Default);
        let warning = |(path, origin): (&str, Origin)| {
            let message = format!(
                "{path} has no effect, because resubmit.policy is \"rebroadcast\": set that to \
                 \"bump\", or leave {path} out"
            );
            Problem::of(&origin, message)
        };
        unused.map(warning).collect()
    }
}

impl Found<'_> {
    pub(super) fn chains(&mut self) {
        let mut seen = BTreeSet::new();
        for (index, chain) in self.config.chains.iter().enumerate() {
            let path = |key: &str| format!("chain[{index}].{key}");
            if chain.id == 0 {
                self.wrong(&path("id"), "0", "but EIP-155 ids start at 1");
            }
            if !seen.insert(chain.id) {
                let rule =
                    "but another [[chain]] has this id: give all its endpoints in one rpc list";
                self.wrong(&path("id"), &chain.id.to_string(), rule);
            }
            self.endpoints(index, chain);
            if let Some(cap) = chain.fee_cap
                && (cap.0 < chain.fee_floor.0 || cap.0 == 0)
            {
                let rule = format!(
                    "but must be above 0 and not below feeFloor ({}): raise feeCap",
                    chain.fee_floor.shown()
                );
                self.wrong(&path("feeCap"), &cap.shown(), &rule);
            }
            let depth = chain.confirmations.map_or(0, Finality::depth);
            if depth > WATCH_DEPTH_MAX {
                let rule = format!("but must be at most {WATCH_DEPTH_MAX}");
                self.wrong(&path("confirmations"), &depth.to_string(), &rule);
            }
        }
        let required = self.config.confirmations.required;
        self.range("confirmations.required", required, 0, WATCH_DEPTH_MAX);
    }

    fn endpoints(&mut self, index: usize, chain: &Chain) {
        let path = |key: &str| format!("chain[{index}].{key}");
        let count = chain.rpc.len();
        let fits = usize::try_from(chain.send_to).is_ok_and(|n| (1..=count).contains(&n));
        if !fits {
            let rule = format!(
                "but rpc has {count} endpoint(s): set it to a number from 1 to {count}, or add endpoints"
            );
            self.wrong(&path("sendTo"), &chain.send_to.to_string(), &rule);
        }
        if let Some(rate) = chain.requests_per_second {
            let path = path("requestsPerSecond");
            self.range(&path, rate, 1, REQUESTS_PER_SECOND_MAX);
        }
    }

    pub(super) fn resubmit(&mut self) {
        let config = self.config;
        let resubmit = &config.resubmit;
        let path = "resubmit.maxAttempts";
        self.range(path, resubmit.max_attempts, 0, ATTEMPTS_MAX);
        let percent = resubmit.bump_percent;
        if !(BUMP_PERCENT_MIN..=BUMP_PERCENT_MAX).contains(&percent) {
            let rule = format!(
                "but must be from {BUMP_PERCENT_MIN} to {BUMP_PERCENT_MAX}: nodes refuse a replacement \
                 that pays less than {BUMP_PERCENT_MIN} % more"
            );
            self.wrong("resubmit.bumpPercent", &percent.to_string(), &rule);
        }
        let floors = config.chains.iter().map(|chain| chain.fee_floor);
        let floor = floors.max_by_key(|floor| floor.0);
        if let (Some(most), Some(floor)) = (resubmit.max_fee_per_gas, floor)
            && (most.0 == 0 || most.0 < floor.0)
        {
            let rule = format!(
                "but must be above 0 and not below any chain's feeFloor ({}): raise it, or nothing \
                 could ever be bumped",
                floor.shown()
            );
            self.wrong("resubmit.maxFeePerGas", &most.shown(), &rule);
        }
        let slowest = config
            .chains
            .iter()
            .filter_map(|chain| chain.block_time)
            .max();
        if let Some(block_time) = slowest
            && resubmit.enabled
            && resubmit.interval < block_time
        {
            let rule = format!(
                "but the slowest chain makes a block every {}, and nothing can be mined in less: set it \
                 to that or more",
                show_duration(block_time)
            );
            let shown = show_duration(resubmit.interval);
            self.wrong("resubmit.interval", &shown, &rule);
        }
    }
}
