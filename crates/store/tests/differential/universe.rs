//! The small world in which everything is drawn: few lanes, nodes, keys and headers, so that they meet.

use std::time::Duration;

use domain::{
    Address, B256, Bytes, ChainId, Fees, Header, Incarnation, LaneId, LaneKey, NodeName, Payload,
    RequestId, Timestamp, TxType, U256,
};
use engine::ports::LeaseRequest;
use sim::rng::Rng;
use uuid::Uuid;

/// How many lanes there are.
pub(crate) const LANES: usize = 3;
/// The lane of no store.
pub(crate) const NO_LANE: LaneId = LaneId(99);
/// Names whose order depends on how texts are compared.
pub(crate) const NODES: [&str; 3] = ["b", "B", "node-ä"];
/// How many keys the business uses in a lane.
const REQUESTS: u64 = 12;
/// Blocks of a chain have heights from here on.
pub(crate) const FIRST_BLOCK: u64 = 100;
/// How many heights there are.
const HEIGHTS: u64 = 8;
/// When a sequence begins, by the clocks of its nodes.
pub(crate) const BEGIN: Timestamp = Timestamp(1_800_000_000_123);

/// Leases and jumps of the clock are whole [`BEAT`]s, skews lie in the middle of two: so no decision is
/// nearer than half a beat to a clock that runs on by itself, however slow a store is.
pub(crate) const BEAT: Duration = Duration::from_secs(20 * 60);
const HALF_BEAT: Duration = Duration::from_secs(10 * 60);

const PLAIN_CHAIN: ChainId = ChainId(31_337);
/// Databases have no 64 unsigned bits.
const HUGE_CHAIN: ChainId = ChainId(u64::MAX - 6);

/// The lanes; an operation names one by its place here.
pub(crate) fn lanes() -> [LaneKey; LANES] {
    [
        key(PLAIN_CHAIN, 0x11),
        key(PLAIN_CHAIN, 0x22),
        key(HUGE_CHAIN, 0x11),
    ]
}

fn key(chain_id: ChainId, signer: u8) -> LaneKey {
    LaneKey {
        chain_id,
        signer: Address::repeat_byte(signer),
    }
}

/// A lane's id in operations and compared answers: its place.
pub(crate) fn lane_id(place: usize) -> LaneId {
    LaneId(i64::try_from(place).expect("few lanes"))
}

/// The place of a lane of [`lanes`].
pub(crate) fn place_of(key: LaneKey) -> usize {
    let place = lanes().iter().position(|lane| *lane == key);
    place.expect("one of the universe's lanes")
}

/// Whether a lane sorts elsewhere in a database, whose numbers are signed.
pub(crate) fn is_huge(key: LaneKey) -> bool {
    key.chain_id == HUGE_CHAIN
}

/// An incarnation of a node.
pub(crate) fn incarnation(node: usize, incarnation: u64) -> Incarnation {
    let node = u128::try_from(node).expect("few nodes");
    Incarnation(Uuid::from_u128(
        (0xB0 + node) << 64 | (u128::from(incarnation) + 1),
    ))
}

/// The lease request of an incarnation, with its own terms.
pub(crate) fn requester(rng: &Rng, node: usize, of_life: u64) -> LeaseRequest {
    let skews = [HALF_BEAT, BEAT + HALF_BEAT];
    LeaseRequest {
        node: NodeName(NODES[node].into()),
        incarnation: incarnation(node, of_life),
        duration: BEAT * if rng.permille(700) { 3 } else { 1 },
        skew: *rng.pick(&skews),
        alive: Vec::new(),
        silent: Vec::new(),
    }
}

/// A key of the business.
pub(crate) fn request_id(number: u64) -> RequestId {
    let text = match number % 3 {
        0 => format!("r{number}"),
        1 => format!("R{number}"),
        _ => format!("{number}~{}", "x".repeat(100)),
    };
    RequestId::parse(text).expect("visible ASCII")
}

/// All keys of the business, in no order that means anything.
pub(crate) fn request_ids() -> impl Iterator<Item = RequestId> {
    (0..REQUESTS).map(request_id)
}

/// One of the keys.
pub(crate) fn any_request_id(rng: &Rng) -> RequestId {
    request_id(rng.below(REQUESTS))
}

/// A client's payload: every field is present or absent, small or as large as possible.
pub(crate) fn payload(rng: &Rng) -> Payload {
    let wei = [0, 1, 255, 2_000_000_000, u128::MAX];
    let some_wei = |rng: &Rng| rng.permille(400).then(|| *rng.pick(&wei));
    let data = [&[][..], &[0], &[0, 1, 2, 0xff]];
    Payload {
        to: rng.permille(900).then_some(Address::repeat_byte(9)),
        value: *rng.pick(&[U256::ZERO, U256::from(7), U256::MAX]),
        data: Bytes::copy_from_slice(rng.pick::<&[u8]>(&data)),
        gas: rng.permille(300).then(|| *rng.pick(&[0, 21_000, u64::MAX])),
        max_fee_per_gas: some_wei(rng),
        max_priority_fee_per_gas: some_wei(rng),
        gas_price: some_wei(rng),
        tx_type: *rng.pick(&[None, Some(TxType::Legacy), Some(TxType::Eip1559)]),
    }
}

/// The fees of an attempt.
pub(crate) fn fees(rng: &Rng) -> Fees {
    match rng.below(3) {
        0 => Fees::Legacy {
            gas_price: u128::MAX,
        },
        _ => Fees::Eip1559 {
            max_fee: u128::from(rng.bits()),
            max_priority_fee: u128::from(rng.below(1_000)),
        },
    }
}

/// Words for people, as nodes and operators may write them.
pub(crate) fn random_text(rng: &Rng) -> String {
    let random_text = [
        "",
        "no funds",
        "zu wenig ✗",
        "a NUL \0 inside",
        "it's \\ \"quoted\"",
    ];
    (*rng.pick(&random_text)).to_owned()
}

/// A header of one of two branches, each of which stands on its own.
pub(crate) fn header(height: u64, branch: u64) -> Header {
    let hash = |number: u64| {
        let bytes = [branch.to_be_bytes(), number.to_be_bytes()].concat();
        B256::left_padding_from(&bytes)
    };
    Header {
        number: FIRST_BLOCK + height,
        hash: hash(FIRST_BLOCK + height),
        parent_hash: hash(FIRST_BLOCK + height - 1),
        timestamp: 1_700_000_000 + height,
    }
}

/// A run of headers of one branch, oldest first.
pub(crate) fn headers(rng: &Rng) -> Vec<Header> {
    let (from, branch) = (rng.below(HEIGHTS), rng.below(2));
    let to = (from + rng.below(4)).min(HEIGHTS - 1);
    (from..=to).map(|height| header(height, branch)).collect()
}

/// The block in which a tx with this nonce is mined, and a header that counts for it: heights rise with
/// nonces, as on a chain.
pub(crate) fn block_of(rng: &Rng, nonce: u64) -> (Header, Header) {
    let height = (nonce / 2).min(HEIGHTS - 1);
    let branch = rng.below(2);
    let above = (height + rng.below(3)).min(HEIGHTS - 1);
    (header(height, branch), header(above, branch))
}
