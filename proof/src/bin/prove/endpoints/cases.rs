//! The faults of an endpoint, by method and by the number of endpoints.

use std::time::Duration;

use proof::{Outcome, ensure, flag};
use rig::proxy::AfterLoss;
use rig::rpc_proxy::{CallFilter, Fault, Lie, RpcProxy, Rule, View};

/// The methods that a node needs; `all` is every one.
const METHODS: [&str; 8] = [
    "eth_sendRawTransaction",
    "eth_getTransactionCount",
    "eth_getBlockByNumber",
    "eth_getBlockReceipts",
    "eth_feeHistory",
    "eth_estimateGas",
    "eth_chainId",
    ALL_METHODS,
];
const ALL_METHODS: &str = "all";

/// A slow endpoint answers after this time.
const SLOW: Duration = Duration::from_secs(3);

/// How far a lagging endpoint is behind.
pub(crate) const LAG_BLOCKS: u64 = 20;

const FEES_TIMES: u64 = 1_000;
const NONCES: u64 = 5;

/// What is wrong with the preferred endpoint; the others are healthy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndpointFault {
    /// It takes calls of a method, and does not answer.
    Hangs(&'static str),
    Slow(&'static str),
    Lies(Lie),
    Lags,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) fault: EndpointFault,
    pub(crate) endpoints: usize,
}

impl EndpointFault {
    pub(crate) fn name(self) -> String {
        match self {
            Self::Hangs(method) => format!("hangs: {method}"),
            Self::Slow(method) => format!("slow: {method}"),
            Self::Lies(Lie::FeesTimes(times)) => format!("lies: fees × {times}"),
            Self::Lies(Lie::NonceAhead(by)) => format!("lies: nonces {by} ahead"),
            Self::Lies(Lie::NonceBehind(by)) => format!("lies: nonces {by} behind"),
            Self::Lags => format!("lags: {LAG_BLOCKS} blocks"),
        }
    }

    pub(crate) fn inject(self, proxy: &RpcProxy) {
        let filter = |method: &str| match method {
            ALL_METHODS => CallFilter::all(),
            method => CallFilter::of(method),
        };
        match self {
            Self::Hangs(method) => {
                let fault = Fault::LoseRequest(AfterLoss::Silence);
                proxy.add(Rule::new(filter(method), fault));
            }
            Self::Slow(method) => {
                proxy.add(Rule::new(filter(method), Fault::Delay(SLOW)));
            }
            Self::Lies(lie) => {
                for method in lie.methods() {
                    proxy.add(Rule::new(filter(method), Fault::Lie(lie)));
                }
            }
            Self::Lags => proxy.show(View::Behind(LAG_BLOCKS)),
        }
    }

    fn all() -> Vec<Self> {
        let mut faults: Vec<Self> = METHODS.into_iter().map(Self::Hangs).collect();
        faults.extend(METHODS.into_iter().map(Self::Slow));
        faults.push(Self::Lies(Lie::FeesTimes(FEES_TIMES)));
        faults.push(Self::Lies(Lie::NonceAhead(NONCES)));
        faults.push(Self::Lies(Lie::NonceBehind(NONCES)));
        faults.push(Self::Lags);
        faults
    }

    /// One of each sort, for a quick run.
    fn short() -> Vec<Self> {
        vec![
            Self::Hangs("eth_sendRawTransaction"),
            Self::Hangs(ALL_METHODS),
            Self::Slow("eth_getBlockByNumber"),
            Self::Lies(Lie::FeesTimes(FEES_TIMES)),
            Self::Lags,
        ]
    }
}

impl Case {
    pub(crate) fn name(&self) -> String {
        format!("{}, {} endpoints", self.fault.name(), self.endpoints)
    }

    /// For a file name.
    pub(crate) fn file_name(&self) -> String {
        let name = self.name();
        let plain = name.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
        plain.replace("--", "-")
    }
}

/// The selected cases: `--only TEXT` by name, `--endpoints 1,2,3`, `--short`.
pub(crate) fn chosen() -> Outcome<Vec<Case>> {
    let is_short = std::env::args().any(|arg| arg == "--short");
    let faults = if is_short {
        EndpointFault::short()
    } else {
        EndpointFault::all()
    };
    let counts = flag("endpoints", if is_short { "1,2" } else { "1,2,3" });
    let counts: Vec<usize> = counts
        .split(',')
        .map(str::parse)
        .collect::<Result<_, _>>()?;
    let only = flag("only", "");
    let mut cases = Vec::new();
    for fault in faults {
        cases.extend(counts.iter().map(|count| Case {
            fault,
            endpoints: *count,
        }));
    }
    cases.retain(|case| case.name().contains(&only));
    ensure(!cases.is_empty(), format!("--only {only}: nothing to run"))?;
    Ok(cases)
}
