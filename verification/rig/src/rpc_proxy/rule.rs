//! Rules: which fault applies to which calls.

use std::time::Duration;

use alloy_primitives::B256;
use rand::Rng as _;
use rand::rngs::StdRng;
use serde_json::{Value, json};

use super::lie::Lie;
use super::message::Call;
use crate::proxy::AfterLoss;

/// A fault for some calls.
#[derive(Clone, Debug)]
pub struct Rule {
    calls: CallFilter,
    fault: Fault,
    chance: f64,
    times_left: Option<u64>,
}

impl Rule {
    /// Applies to every matching call until the rule is removed.
    pub fn new(calls: CallFilter, fault: Fault) -> Self {
        Self {
            calls,
            fault,
            chance: 1.0,
            times_left: None,
        }
    }

    /// Only with this probability. A fault of a whole request is drawn once per request, not per call.
    #[must_use]
    pub fn chance(mut self, chance: f64) -> Self {
        assert!((0.0..=1.0).contains(&chance), "not a probability: {chance}");
        self.chance = chance;
        self
    }

    /// At most this many times.
    #[must_use]
    pub fn times(mut self, times: u64) -> Self {
        self.times_left = Some(times);
        self
    }
}

/// Selects calls.
#[derive(Clone, Debug, Default)]
pub struct CallFilter {
    methods: Vec<String>,
    hashes: Vec<B256>,
    nonces: Vec<u64>,
}

impl CallFilter {
    pub fn all() -> Self {
        Self::default()
    }

    pub fn of(method: &str) -> Self {
        Self::default().or_of(method)
    }

    /// Calls that send a transaction.
    pub fn sends() -> Self {
        Self::of(super::message::SEND)
    }

    /// Also calls of another method.
    #[must_use]
    pub fn or_of(mut self, method: &str) -> Self {
        self.methods.push(method.to_owned());
        self
    }

    /// Only calls that send this transaction or query it by hash. With several, any of them.
    #[must_use]
    pub fn with_tx(mut self, hash: B256) -> Self {
        self.hashes.push(hash);
        self
    }

    /// Only calls that send this nonce, of any account.
    #[must_use]
    pub fn with_nonce(mut self, nonce: u64) -> Self {
        self.nonces.push(nonce);
        self
    }

    fn matches_call(&self, call: &Call) -> bool {
        let has_method = self.methods.is_empty() || self.methods.contains(&call.method);
        let is_any_tx = self.hashes.is_empty() && self.nonces.is_empty();
        let has_hash = call.hash.is_some_and(|hash| self.hashes.contains(&hash));
        let has_nonce = call.nonce.is_some_and(|nonce| self.nonces.contains(&nonce));
        has_method && (is_any_tx || has_hash || has_nonce)
    }
}

#[derive(Clone, Debug)]
pub enum Fault {
    /// The request does not reach the node.
    LoseRequest(AfterLoss),
    /// The node processes the request, and the response is lost.
    LoseAnswer(AfterLoss),
    /// The request is delayed before it reaches the node.
    Delay(Duration),
    /// The request is refused with an HTTP status.
    Status {
        /// 429, 503, …
        code: u16,
        /// The seconds of a `Retry-After`.
        retry_after: Option<u64>,
    },
    /// The call gets an error, and does not reach the node.
    Error {
        /// JSON-RPC's code.
        code: i64,
        /// The text.
        message: String,
    },
    /// The call gets an error after the node has processed it.
    ErrorAfter {
        /// JSON-RPC's code.
        code: i64,
        /// The text.
        message: String,
    },
    /// The send is answered with its hash, and does not reach the node.
    Pretend,
    /// The node's own answer is changed.
    Lie(Lie),
}

impl Fault {
    /// An error in the code that nearly all nodes use for nearly everything.
    pub fn error(message: &str) -> Self {
        Self::Error {
            code: -32_000,
            message: message.to_owned(),
        }
    }

    /// HTTP 429.
    pub fn throttle(retry_after: Option<u64>) -> Self {
        Self::Status {
            code: 429,
            retry_after,
        }
    }

    /// Whether it affects the whole request with all its calls.
    fn affects_request(&self) -> bool {
        match self {
            Self::LoseRequest(_) | Self::LoseAnswer(_) | Self::Delay(_) | Self::Status { .. } => {
                true
            }
            Self::Error { .. } | Self::ErrorAfter { .. } | Self::Pretend | Self::Lie(_) => false,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleId(u64);

/// The rules of a proxy and its random generator.
#[derive(Debug)]
pub(super) struct Rules {
    list: Vec<(RuleId, Rule)>,
    next: u64,
    rng: StdRng,
}

/// How a request is handled.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) delay: Duration,
    pub(super) outcome: RequestOutcome,
    /// For each call, in order.
    pub(super) answers: Vec<CallAnswer>,
    pub(super) faults: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RequestOutcome {
    Answered,
    Refused { code: u16, retry_after: Option<u64> },
    RequestLost(AfterLoss),
    AnswerLost(AfterLoss),
}

/// Where the answer to a call comes from.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum CallAnswer {
    /// The node.
    Node,
    /// The proxy, with this `result` or `error`.
    Proxy(Value),
    /// The proxy, after the node has processed the call.
    ProxyAfterNode(Value),
    /// The node, changed by the proxy.
    Changed(Lie),
}

impl Rules {
    pub(super) fn new(rng: StdRng) -> Self {
        Self {
            list: Vec::new(),
            next: 0,
            rng,
        }
    }

    pub(super) fn add(&mut self, rule: Rule) -> RuleId {
        let id = RuleId(self.next);
        self.next += 1;
        self.list.push((id, rule));
        id
    }

    pub(super) fn remove(&mut self, rule: RuleId) {
        self.list.retain(|(id, _)| *id != rule);
    }

    pub(super) fn clear(&mut self) {
        self.list.clear();
    }

    pub(super) fn plan(&mut self, calls: &[Call]) -> Plan {
        let mut plan = Plan {
            delay: Duration::ZERO,
            outcome: RequestOutcome::Answered,
            answers: vec![CallAnswer::Node; calls.len()],
            faults: 0,
        };
        for (_, rule) in &mut self.list {
            if rule.fault.affects_request() {
                let fits = calls.iter().any(|call| rule.calls.matches_call(call));
                if fits && plan.accepts_fault(&rule.fault) && applies_now(rule, &mut self.rng) {
                    plan.apply_to_request(&rule.fault);
                }
                continue;
            }
            for (call, answer) in calls.iter().zip(&mut plan.answers) {
                let is_open = *answer == CallAnswer::Node && rule.calls.matches_call(call);
                if is_open && applies_now(rule, &mut self.rng) {
                    *answer = faulted_answer(&rule.fault, call);
                    plan.faults += 1;
                }
            }
        }
        plan
    }
}

/// Draws the probability and counts the uses.
fn applies_now(rule: &mut Rule, rng: &mut StdRng) -> bool {
    if rule.times_left == Some(0) || !rng.random_bool(rule.chance) {
        return false;
    }
    rule.times_left = rule.times_left.map(|left| left.saturating_sub(1));
    true
}

impl Plan {
    /// Delays add up; of the other faults the first applies.
    fn accepts_fault(&self, fault: &Fault) -> bool {
        matches!(fault, Fault::Delay(_)) || self.outcome == RequestOutcome::Answered
    }

    fn apply_to_request(&mut self, fault: &Fault) {
        self.faults += 1;
        match fault {
            Fault::Delay(by) => self.delay = self.delay.saturating_add(*by),
            Fault::LoseRequest(then) => self.outcome = RequestOutcome::RequestLost(*then),
            Fault::LoseAnswer(then) => self.outcome = RequestOutcome::AnswerLost(*then),
            Fault::Status { code, retry_after } => {
                self.outcome = RequestOutcome::Refused {
                    code: *code,
                    retry_after: *retry_after,
                };
            }
            Fault::Error { .. } | Fault::ErrorAfter { .. } | Fault::Pretend | Fault::Lie(_) => {
                unreachable!("these affect single calls")
            }
        }
    }
}

fn faulted_answer(fault: &Fault, call: &Call) -> CallAnswer {
    let error =
        |code: &i64, message: &str| json!({ "error": { "code": code, "message": message } });
    match fault {
        Fault::Error { code, message } => CallAnswer::Proxy(error(code, message)),
        Fault::ErrorAfter { code, message } => CallAnswer::ProxyAfterNode(error(code, message)),
        Fault::Pretend => {
            let hash = call.hash.expect("the rule applies to sends only");
            CallAnswer::Proxy(json!({ "result": hash }))
        }
        Fault::Lie(lie) => CallAnswer::Changed(*lie),
        Fault::LoseRequest(_) | Fault::LoseAnswer(_) | Fault::Delay(_) | Fault::Status { .. } => {
            unreachable!("these affect whole requests")
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng as _;

    use super::*;

    fn rules(seed: u64) -> Rules {
        Rules::new(StdRng::seed_from_u64(seed))
    }

    fn call(method: &str) -> Call {
        Call::from_json(&json!({ "id": 1, "method": method, "params": [] })).unwrap()
    }

    #[test]
    fn chance_is_drawn_once_per_request_and_follows_the_seed() {
        let batch = vec![call("a"); 50];
        let fates = |seed| {
            let mut rules = rules(seed);
            rules
                .add(Rule::new(CallFilter::of("a"), Fault::LoseAnswer(AfterLoss::Cut)).chance(0.3));
            let plans: Vec<bool> = (0..1_000)
                .map(|_| rules.plan(&batch).outcome == RequestOutcome::AnswerLost(AfterLoss::Cut))
                .collect();
            plans
        };
        let lost = fates(7).iter().filter(|is_lost| **is_lost).count();
        assert!((200..400).contains(&lost), "{lost} of 1,000");
        assert_eq!(fates(7), fates(7));
        assert_ne!(fates(7), fates(8));
    }

    #[test]
    fn first_matching_rule_applies_until_used_up() {
        let mut rules = rules(0);
        let first = rules.add(Rule::new(CallFilter::of("a"), Fault::error("first")).times(1));
        rules.add(Rule::new(CallFilter::all(), Fault::error("second")));
        let plan = rules.plan(&[call("a"), call("a"), call("b")]);
        let answer_text = |answer: &CallAnswer| match answer {
            CallAnswer::Proxy(body) => body["error"]["message"].as_str().unwrap().to_owned(),
            CallAnswer::Node | CallAnswer::ProxyAfterNode(_) | CallAnswer::Changed(_) => {
                panic!("{answer:?}")
            }
        };
        let texts: Vec<String> = plan.answers.iter().map(answer_text).collect();
        assert_eq!(texts, ["first", "second", "second"]);
        assert_eq!(plan.faults, 3);
        rules.remove(first);
        rules.clear();
        assert_eq!(rules.plan(&[call("a")]).answers, [CallAnswer::Node]);
    }

    #[test]
    fn delays_add_up_and_the_first_other_fault_applies() {
        let mut rules = rules(0);
        let delay = Duration::from_millis(5);
        rules.add(Rule::new(CallFilter::all(), Fault::Delay(delay)));
        rules.add(Rule::new(CallFilter::all(), Fault::throttle(Some(2))));
        rules.add(Rule::new(
            CallFilter::all(),
            Fault::LoseRequest(AfterLoss::Cut),
        ));
        rules.add(Rule::new(CallFilter::all(), Fault::Delay(delay)));
        let plan = rules.plan(&[call("a")]);
        assert_eq!(plan.delay, 2 * delay);
        let throttled = RequestOutcome::Refused {
            code: 429,
            retry_after: Some(2),
        };
        assert_eq!(plan.outcome, throttled);
    }
}
