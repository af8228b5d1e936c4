//! What one chain shows of the reservations that are watched on it.

use std::collections::BTreeMap;

use domain::lane::{
    ChainQuery, EndpointNonces, FOREIGN_FINALITY_DEPTH_MIN, Finality, FinalityTag, NonceConsumer,
};
use domain::{Address, B256, Header, Inclusion, Nonce, Reservation, ReservationState};
use engine::ports::{BlockTag, Chain, ChainError, Quorum};

use crate::config::ReservationChain;
use crate::scheme::{Verdict, WatchedReservation};

/// Consumer searches per pass, for nonces without a submitted hash: each may cost a dozen calls.
const SEARCHES_MAX: usize = 32;

/// What the chain shows of one reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Observation {
    /// It is decided.
    Verdict(Verdict),
    /// It is expired, and nothing is mined or pending.
    Unused,
    /// A transaction is pending or not final yet.
    Undecided,
    /// The submitted transaction is final and did not consume the nonce: it has another sender or nonce.
    ConsumedByOther(B256),
    /// The chain did not answer.
    Unknown,
}

/// Observes all of them. A missing answer affects its own reservation only.
pub(super) async fn observe_reservations(
    chain: &ReservationChain,
    watched: Vec<WatchedReservation>,
) -> Vec<(WatchedReservation, Observation)> {
    let mut snapshot = match ChainSnapshot::start(chain, &watched).await {
        Ok(snapshot) => snapshot,
        Err(error) => {
            let chain = chain.chain.id();
            tracing::warn!(%chain, %error, "cannot check reservations on this chain");
            return Vec::new();
        }
    };
    let mut seen = Vec::with_capacity(watched.len());
    for one in watched {
        let observation = match snapshot.observe(&one).await {
            Ok(observation) => observation,
            Err(error @ ChainError::Unusable(_)) => {
                let Reservation { lane, nonce, .. } = one.reservation;
                tracing::warn!(%lane, %nonce, %error, "cannot check a reservation");
                Observation::Unknown
            }
            Err(ChainError::Unreachable(error)) => {
                // The others would fail too, each after the same timeout.
                tracing::warn!(%error, "chain unreachable: the remaining reservations are checked in a later pass");
                break;
            }
        };
        seen.push((one, observation));
    }
    seen
}

/// The chain as it was at the start of the pass, with the answers since then.
struct ChainSnapshot<'a> {
    chain: &'a dyn Chain,
    watch_depth: u64,
    head: Header,
    /// The newest final block.
    final_block: Option<Header>,
    /// The newest block that is final for a transaction whose hash was not submitted.
    foreign_block: Option<Header>,
    receipts: BTreeMap<B256, Inclusion>,
    headers: BTreeMap<u64, Option<Header>>,
    nonces: BTreeMap<Address, EndpointNonces>,
    /// The lowest nonce of an account that is not consumed at that depth: nonces are consumed in order.
    open_from: BTreeMap<Address, Nonce>,
    searches: usize,
}

impl<'a> ChainSnapshot<'a> {
    async fn start(
        config: &'a ReservationChain,
        watched: &[WatchedReservation],
    ) -> Result<Self, ChainError> {
        let chain = &*config.chain;
        let no_head = || ChainError::Unusable("no latest block".into());
        let head = chain.header(BlockTag::Latest).await?.ok_or_else(no_head)?;
        let final_number = match config.finality {
            Finality::Depth(depth) => head.number.checked_sub(depth),
            Finality::Tag(tag) => {
                let tag = match tag {
                    FinalityTag::Safe => BlockTag::Safe,
                    FinalityTag::Finalized => BlockTag::Finalized,
                };
                chain.header(tag).await?.map(|header| header.number)
            }
        };
        let deep_enough = head.number.checked_sub(FOREIGN_FINALITY_DEPTH_MIN);
        let foreign_number = match config.finality {
            Finality::Tag(FinalityTag::Finalized) => final_number,
            Finality::Depth(_) | Finality::Tag(FinalityTag::Safe) => {
                final_number.zip(deep_enough).map(|(a, b)| a.min(b))
            }
        };
        let mut snapshot = Self {
            chain,
            watch_depth: config.watch_depth,
            head,
            final_block: None,
            foreign_block: None,
            receipts: receipts(chain, watched).await?,
            headers: BTreeMap::from([(head.number, Some(head))]),
            nonces: BTreeMap::new(),
            open_from: BTreeMap::new(),
            searches: 0,
        };
        snapshot.final_block = snapshot.header_if(final_number).await?;
        snapshot.foreign_block = snapshot.header_if(foreign_number).await?;
        Ok(snapshot)
    }

    async fn observe(&mut self, watched: &WatchedReservation) -> Result<Observation, ChainError> {
        let reservation = &watched.reservation;
        match (reservation.state, watched.closed_in, reservation.tx_hash) {
            (ReservationState::Used, Some(block), _) => self.observe_closed(block).await,
            // "Used" is the holder's claim so far: the transaction may be dropped like any other.
            (ReservationState::Used, None, Some(tx_hash))
            | (ReservationState::Reserved, _, Some(tx_hash)) => {
                self.observe_submitted(reservation, tx_hash).await
            }
            (ReservationState::Reserved, _, None) => self.observe_overdue(reservation).await,
            (ReservationState::Used, None, None) | (ReservationState::Recyclable, _, _) => {
                match self.is_consumed(reservation).await? {
                    true => self.search_consumer(reservation).await,
                    false => Ok(Observation::Undecided),
                }
            }
        }
    }

    /// A closed reservation stays closed unless another block is at the height of its block. A node without a block
    /// there lags, which proves nothing.
    async fn observe_closed(&mut self, block: Header) -> Result<Observation, ChainError> {
        let header = self.header(block.number).await?;
        Ok(match header {
            Some(header) if header.hash != block.hash => Observation::Verdict(Verdict::Reopened),
            Some(_) if self.head.number.saturating_sub(block.number) >= self.watch_depth => {
                Observation::Verdict(Verdict::Buried)
            }
            Some(_) | None => Observation::Undecided,
        })
    }

    /// A submitted nonce is used when its transaction is final, or when another transaction consumed it, whatever
    /// the holder claims. It never expires: its transaction may be in a mempool that is not visible to us.
    async fn observe_submitted(
        &mut self,
        reservation: &Reservation,
        tx_hash: B256,
    ) -> Result<Observation, ChainError> {
        let Some(inclusion) = self.receipts.get(&tx_hash) else {
            return match self.is_consumed(reservation).await? {
                true => self.search_consumer(reservation).await,
                false => Ok(Observation::Undecided),
            };
        };
        let (number, hash) = (inclusion.block_number, inclusion.block_hash);
        if self.final_block.is_none_or(|block| block.number < number) {
            return Ok(Observation::Undecided);
        }
        let Some(block) = self.header(number).await?.filter(|at| at.hash == hash) else {
            return Ok(Observation::Undecided); // the receipt is of another branch than the header
        };
        // A hash does not prove that the transaction has this account and nonce.
        Ok(match self.is_consumed(reservation).await? {
            true => Observation::Verdict(Verdict::Used {
                tx_hash: Some(tx_hash),
                block,
            }),
            false => Observation::ConsumedByOther(tx_hash),
        })
    }

    /// Whether an expired nonce was used is decided by the account's nonce.
    async fn observe_overdue(
        &mut self,
        reservation: &Reservation,
    ) -> Result<Observation, ChainError> {
        let nonces = self.account_nonces(reservation.lane.signer).await?;
        let highest = nonces.highest();
        if highest.latest > reservation.nonce {
            return self.search_consumer(reservation).await;
        }
        Ok(
            match highest.pending <= reservation.nonce && nonces.is_complete() {
                true => Observation::Unused,
                false => Observation::Undecided,
            },
        )
    }

    async fn is_consumed(&mut self, reservation: &Reservation) -> Result<bool, ChainError> {
        let nonces = self.account_nonces(reservation.lane.signer).await?;
        Ok(nonces.highest().latest > reservation.nonce)
    }

    /// Finds the transaction that consumed a nonce, at a depth at which it is final.
    async fn search_consumer(
        &mut self,
        reservation: &Reservation,
    ) -> Result<Observation, ChainError> {
        let Some(block) = self.foreign_block else {
            return Ok(Observation::Undecided);
        };
        let (account, nonce) = (reservation.lane.signer, reservation.nonce);
        if self
            .open_from
            .get(&account)
            .is_some_and(|open| nonce >= *open)
        {
            return Ok(Observation::Undecided);
        }
        if self.searches == SEARCHES_MAX {
            return Ok(Observation::Unknown);
        }
        self.searches += 1;
        let consumer = self.chain.find_consumer(account, nonce, block).await?;
        Ok(match consumer {
            NonceConsumer::NotConsumed => {
                self.open_from.insert(account, nonce);
                Observation::Undecided
            }
            by @ (NonceConsumer::Transaction { .. } | NonceConsumer::Unattributed) => {
                Observation::Verdict(Verdict::Used {
                    tx_hash: by.hash(),
                    block,
                })
            }
        })
    }

    async fn account_nonces(&mut self, account: Address) -> Result<EndpointNonces, ChainError> {
        if let Some(nonces) = self.nonces.get(&account) {
            return Ok(*nonces);
        }
        let query = self
            .chain
            .account_nonces(account, ChainQuery::Pending, Quorum::Two);
        let nonces = query.await?;
        self.nonces.insert(account, nonces);
        Ok(nonces)
    }

    async fn header(&mut self, number: u64) -> Result<Option<Header>, ChainError> {
        if let Some(header) = self.headers.get(&number) {
            return Ok(*header);
        }
        let header = self.chain.header(BlockTag::Number(number)).await?;
        self.headers.insert(number, header);
        Ok(header)
    }

    async fn header_if(&mut self, number: Option<u64>) -> Result<Option<Header>, ChainError> {
        match number {
            Some(number) => self.header(number).await,
            None => Ok(None),
        }
    }
}

/// Fetches the receipts of all submitted and open reservations in one call.
async fn receipts(
    chain: &dyn Chain,
    watched: &[WatchedReservation],
) -> Result<BTreeMap<B256, Inclusion>, ChainError> {
    let open = watched.iter().filter(|watched| watched.closed_in.is_none());
    let open = open.map(|watched| &watched.reservation);
    let named = open.filter(|reservation| reservation.state != ReservationState::Recyclable);
    let hashes: Vec<B256> = named.filter_map(|one| one.tx_hash).collect();
    if hashes.is_empty() {
        return Ok(BTreeMap::new());
    }
    let found = chain.receipts(&hashes, Quorum::One).await?;
    Ok(found.into_iter().map(|one| (one.tx_hash, one)).collect())
}
