//! Which calls meet which fault.

use std::time::Duration;

use alloy_primitives::B256;
use rand::Rng as _;
use rand::rngs::StdRng;
use serde_json::{Value, json};

use super::message::Call;
use crate::proxy::Then;

/// A fault for some calls.
#[derive(Clone, Debug)]
pub struct Rule {
    calls: Calls,
    fault: Fault,
    chance: f64,
    times_left: Option<u64>,
}

impl Rule {
    /// Every such call, until the rule is taken back.
    pub fn new(calls: Calls, fault: Fault) -> Self {
        Self {
            calls,
            fault,
            chance: 1.0,
            times_left: None,
        }
    }

    /// Only with this probability. A fault of a whole request is drawn once for it, however many
    /// calls it carries.
    #[must_use]
    pub fn chance(mut self, chance: f64) -> Self {
        assert!((0.0..=1.0).contains(&chance), "not a probability: {chance}");
        self.chance = chance;
        self
    }

    /// Only so many times.
    #[must_use]
    pub fn times(mut self, times: u64) -> Self {
        self.times_left = Some(times);
        self
    }
}

/// Which calls.
#[derive(Clone, Debug, Default)]
pub struct Calls {
    methods: Vec<String>,
    hashes: Vec<B256>,
    nonces: Vec<u64>,
}

impl Calls {
    /// All.
    pub fn all() -> Self {
        Self::default()
    }

    /// Those of a method.
    pub fn of(method: &str) -> Self {
        Self::default().or_of(method)
    }

    /// Those that hand a transaction over.
    pub fn sends() -> Self {
        Self::of(super::message::SEND)
    }

    /// Those of another method too.
    #[must_use]
    pub fn or_of(mut self, method: &str) -> Self {
        self.methods.push(method.to_owned());
        self
    }

    /// Of them only those that are about this transaction: that send it, or ask for it by hash.
    /// Given several, about any of them.
    #[must_use]
    pub fn with_tx(mut self, hash: B256) -> Self {
        self.hashes.push(hash);
        self
    }

    /// Of them only those that send this nonce, of whichever account.
    #[must_use]
    pub fn with_nonce(mut self, nonce: u64) -> Self {
        self.nonces.push(nonce);
        self
    }

    fn fit(&self, call: &Call) -> bool {
        let has_method = self.methods.is_empty() || self.methods.contains(&call.method);
        let is_any_tx = self.hashes.is_empty() && self.nonces.is_empty();
        let has_hash = call.hash.is_some_and(|hash| self.hashes.contains(&hash));
        let has_nonce = call.nonce.is_some_and(|nonce| self.nonces.contains(&nonce));
        has_method && (is_any_tx || has_hash || has_nonce)
    }
}

/// What goes wrong.
#[derive(Clone, Debug)]
pub enum Fault {
    /// The request with this call never reaches the node.
    LoseRequest(Then),
    /// The node does what is asked, and the answer is lost.
    LoseAnswer(Then),
    /// The request waits before it goes to the node.
    Delay(Duration),
    /// The request is turned away with an HTTP status.
    Status {
        /// 429, 503, …
        code: u16,
        /// The seconds of a `Retry-After`.
        retry_after: Option<u64>,
    },
    /// This call gets an error, and the node never sees it.
    Error {
        /// JSON-RPC's code.
        code: i64,
        /// The text.
        message: String,
    },
    /// This call gets an error, after the node has done it.
    ErrorAfter {
        /// JSON-RPC's code.
        code: i64,
        /// The text.
        message: String,
    },
    /// This send is answered with its hash, and the node never sees it.
    Pretend,
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

    /// Whether it strikes a request as a whole, with all its calls.
    fn is_of_request(&self) -> bool {
        match self {
            Self::LoseRequest(_) | Self::LoseAnswer(_) | Self::Delay(_) | Self::Status { .. } => {
                true
            }
            Self::Error { .. } | Self::ErrorAfter { .. } | Self::Pretend => false,
        }
    }
}

/// Names a rule that was added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleId(u64);

/// The rules of a proxy, and its dice.
#[derive(Debug)]
pub(super) struct Rules {
    list: Vec<(RuleId, Rule)>,
    next: u64,
    dice: StdRng,
}

/// What becomes of a request.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) delay: Duration,
    pub(super) fate: Fate,
    /// For each call, in order.
    pub(super) answers: Vec<Answer>,
    pub(super) faults: u64,
}

/// What becomes of a request as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Answered,
    TurnedAway { code: u16, retry_after: Option<u64> },
    RequestLost(Then),
    AnswerLost(Then),
}

/// Who answers a call.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Answer {
    /// The node.
    Node,
    /// The proxy, with this `result` or `error`.
    Proxy(Value),
    /// The proxy with this, after the node has done it.
    ProxyAfterNode(Value),
}

impl Rules {
    pub(super) fn new(dice: StdRng) -> Self {
        Self {
            list: Vec::new(),
            next: 0,
            dice,
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
            fate: Fate::Answered,
            answers: vec![Answer::Node; calls.len()],
            faults: 0,
        };
        for (_, rule) in &mut self.list {
            if rule.fault.is_of_request() {
                let fits = calls.iter().any(|call| rule.calls.fit(call));
                if fits && plan.is_open_to(&rule.fault) && strikes(rule, &mut self.dice) {
                    plan.strike_request(&rule.fault);
                }
                continue;
            }
            for (call, answer) in calls.iter().zip(&mut plan.answers) {
                let is_open = *answer == Answer::Node && rule.calls.fit(call);
                if is_open && strikes(rule, &mut self.dice) {
                    *answer = struck(&rule.fault, call);
                    plan.faults += 1;
                }
            }
        }
        plan
    }
}

/// Draws, and counts.
fn strikes(rule: &mut Rule, dice: &mut StdRng) -> bool {
    if rule.times_left == Some(0) || !dice.random_bool(rule.chance) {
        return false;
    }
    rule.times_left = rule.times_left.map(|left| left.saturating_sub(1));
    true
}

impl Plan {
    /// Delays add up; of everything else the first counts.
    fn is_open_to(&self, fault: &Fault) -> bool {
        matches!(fault, Fault::Delay(_)) || self.fate == Fate::Answered
    }

    fn strike_request(&mut self, fault: &Fault) {
        self.faults += 1;
        match fault {
            Fault::Delay(by) => self.delay = self.delay.saturating_add(*by),
            Fault::LoseRequest(then) => self.fate = Fate::RequestLost(*then),
            Fault::LoseAnswer(then) => self.fate = Fate::AnswerLost(*then),
            Fault::Status { code, retry_after } => {
                self.fate = Fate::TurnedAway {
                    code: *code,
                    retry_after: *retry_after,
                };
            }
            Fault::Error { .. } | Fault::ErrorAfter { .. } | Fault::Pretend => {
                unreachable!("these strike single calls")
            }
        }
    }
}

fn struck(fault: &Fault, call: &Call) -> Answer {
    let error =
        |code: &i64, message: &str| json!({ "error": { "code": code, "message": message } });
    match fault {
        Fault::Error { code, message } => Answer::Proxy(error(code, message)),
        Fault::ErrorAfter { code, message } => Answer::ProxyAfterNode(error(code, message)),
        Fault::Pretend => {
            let hash = call.hash.expect("a rule to pretend is one for sends");
            Answer::Proxy(json!({ "result": hash }))
        }
        Fault::LoseRequest(_) | Fault::LoseAnswer(_) | Fault::Delay(_) | Fault::Status { .. } => {
            unreachable!("these strike whole requests")
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
        Call::of(&json!({ "id": 1, "method": method, "params": [] })).unwrap()
    }

    #[test]
    fn chance_is_drawn_once_for_a_request_and_repeats_with_its_seed() {
        let batch = vec![call("a"); 50];
        let fates = |seed| {
            let mut rules = rules(seed);
            rules.add(Rule::new(Calls::of("a"), Fault::LoseAnswer(Then::Cut)).chance(0.3));
            let plans: Vec<bool> = (0..1_000)
                .map(|_| rules.plan(&batch).fate == Fate::AnswerLost(Then::Cut))
                .collect();
            plans
        };
        let lost = fates(7).iter().filter(|is_lost| **is_lost).count();
        assert!((200..400).contains(&lost), "{lost} of 1,000");
        assert_eq!(fates(7), fates(7));
        assert_ne!(fates(7), fates(8));
    }

    #[test]
    fn first_fitting_rule_decides_and_a_used_up_one_does_not_fit() {
        let mut rules = rules(0);
        let first = rules.add(Rule::new(Calls::of("a"), Fault::error("first")).times(1));
        rules.add(Rule::new(Calls::all(), Fault::error("second")));
        let plan = rules.plan(&[call("a"), call("a"), call("b")]);
        let said = |answer: &Answer| match answer {
            Answer::Proxy(body) => body["error"]["message"].as_str().unwrap().to_owned(),
            Answer::Node | Answer::ProxyAfterNode(_) => panic!("{answer:?}"),
        };
        let texts: Vec<String> = plan.answers.iter().map(said).collect();
        assert_eq!(texts, ["first", "second", "second"]);
        assert_eq!(plan.faults, 3);
        rules.remove(first);
        rules.clear();
        assert_eq!(rules.plan(&[call("a")]).answers, [Answer::Node]);
    }

    #[test]
    fn delays_add_up_and_one_fate_is_enough() {
        let mut rules = rules(0);
        let delay = Duration::from_millis(5);
        rules.add(Rule::new(Calls::all(), Fault::Delay(delay)));
        rules.add(Rule::new(Calls::all(), Fault::throttle(Some(2))));
        rules.add(Rule::new(Calls::all(), Fault::LoseRequest(Then::Cut)));
        rules.add(Rule::new(Calls::all(), Fault::Delay(delay)));
        let plan = rules.plan(&[call("a")]);
        assert_eq!(plan.delay, 2 * delay);
        let throttled = Fate::TurnedAway {
            code: 429,
            retry_after: Some(2),
        };
        assert_eq!(plan.fate, throttled);
    }
}
